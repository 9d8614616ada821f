import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from openfate.errors import InputError
from openfate.openworld import (
    NONE,
    Decision,
    Pooling,
    UseEvidence,
    View,
    choose_pooling,
    evidence_candidates,
    hidden_shares,
    new_share,
    probe,
)
from openfate.table import MultiHot


def rows(seed, n_rows=300, n_features=12, signal=0.3):
    """Features that each say a little about one of two classes; `signal` 0 says nothing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n_rows)
    side = np.where(np.arange(n_features) % 2, signal, -signal) * np.where(y[:, None] == 1, 1, -1)
    dense = rng.random((n_rows, n_features)) < 0.4 + side
    return MultiHot.from_entries(*np.nonzero(dense), n_rows, n_features), y


def fit(X, y):
    model = LogisticRegression().fit(X.to_dense(), y)
    return lambda X: model.predict_proba(X.to_dense())


TRAIN, VALIDATION = rows(0), rows(1)
EVIDENCE = evidence_candidates()


def nonsense(view):
    return np.full_like(view.P0, 0.5)


def test_evidence_is_chosen_where_features_carry_a_signal():
    decision = probe(fit, TRAIN, VALIDATION, EVIDENCE, hidden=[0.5] * 4)
    assert decision.chosen in EVIDENCE
    gain, error = decision.gains[decision.chosen]
    assert gain > 1.5 * error
    assert gain == max(gain for gain, error in decision.gains.values() if gain > 1.5 * error)


def test_none_is_chosen_where_features_carry_nothing():
    decision = probe(fit, rows(2, signal=0), rows(3, signal=0), EVIDENCE, hidden=[0.5] * 4)
    assert decision.chosen == NONE
    assert "no candidate gains more than 1.5 standard errors" in decision.reason


def test_a_candidate_that_harms_is_never_chosen():
    decision = probe(fit, TRAIN, VALIDATION, {"nonsense": nonsense})
    assert decision.chosen == NONE
    assert decision.gains["nonsense"][0] < 0


def test_hidden_features_are_hidden_from_the_whole_fit():
    widths = []

    def note(X, y):
        widths.append(X.n_features)
        return fit(X, y)

    decision = probe(note, TRAIN, VALIDATION, EVIDENCE, hidden=[0.25, 0.5])
    assert widths == [9, 6]
    assert [draw["hidden_features"] for draw in decision.draws] == [3, 6]


def test_an_elaborate_candidate_must_beat_the_simple_choice_by_its_error():
    simple = {"simple": EVIDENCE["evidence(strength=1, alpha=3)"]}
    same = {"elaborate": EVIDENCE["evidence(strength=1, alpha=3)"]}
    assert probe(fit, TRAIN, VALIDATION, [simple, same]).chosen == "simple"
    weak = {"weak": UseEvidence(Pooling(0.01, relative=True))}
    assert probe(fit, TRAIN, VALIDATION, [weak, simple]).chosen == "simple"


def test_whole_columns_are_hidden_together():
    field_of = np.repeat([0, 1, 2, 3], 3)
    seen = []

    def note(view):
        seen.append((view.X_old.n_features, view.X_new.n_features))
        return view.P0

    for novelty, expected in (("columns", (6, 6)), ("values", (6, 6)), ("both", (6, 6))):
        seen.clear()
        probe(fit, TRAIN, VALIDATION, {"note": note}, hidden=[0.5], field_of=field_of,
              novelty=novelty)  # fmt: skip
        assert seen == [expected]


def test_the_same_seed_gives_the_same_decision():
    one, two = (probe(fit, TRAIN, VALIDATION, EVIDENCE, seed=5) for _ in range(2))
    assert one == two
    assert one != probe(fit, TRAIN, VALIDATION, EVIDENCE, seed=6)


def test_a_decision_is_plain_data():
    decision = probe(fit, TRAIN, VALIDATION, EVIDENCE)
    plain = json.loads(json.dumps(decision.to_json(n_best=2)))
    assert plain["chosen"] == decision.chosen
    assert len(plain["best"]) == 2
    assert plain["best"][0]["gain"] >= plain["best"][1]["gain"]


def test_one_feature_alone_cannot_be_hidden():
    X = MultiHot.from_rows([[0], []], 1)
    decision = probe(fit, (X, [0, 1]), (X, [0, 1]), EVIDENCE)
    assert decision.chosen == NONE
    assert decision.reason == "there are too few features or fields to hide some"


def test_values_are_judged_by_squared_error():
    X, y = rows(4)
    wanted = y + np.random.default_rng(0).normal(0, 0.1, len(y))

    def fit_values(X, y):
        w = np.linalg.lstsq(X.to_dense().astype(float), y, rcond=None)[0]
        return lambda X: (X.to_dense() @ w)[:, None]

    decision = probe(
        fit_values, (X, wanted), (X, wanted), EVIDENCE, task="regression", hidden=[0.5]
    )
    assert decision.draws[0]["loss_none"] < 0.3
    assert set(decision.gains) == set(EVIDENCE)


def test_labels_are_judged_one_by_one():
    X, y = rows(5)
    both = np.stack([y, 1 - y], 1)

    def fit_labels(X, both):
        model = fit(X, both[:, 0])
        return lambda X: model(X)[:, ::-1]

    decision = probe(fit_labels, (X, both), (X, both), EVIDENCE, task="multilabel", hidden=[0.5])
    assert decision.draws[0]["loss_none"] > 0


def test_a_second_sweep_pools_what_the_first_predicts():
    X, _ = VALIDATION
    old, new = X.select_features(np.arange(3)), X.select_features(np.arange(3, 12))
    view = View(fit(TRAIN[0].select_features(np.arange(3)), TRAIN[1]), old, new)
    one, two = (UseEvidence(Pooling(0.7, 3.0, relative=True, n_sweeps=n))(view) for n in (1, 2))
    assert not np.allclose(one, two)
    untouched = new.row_degree == 0
    assert np.array_equal(two[untouched], view.P0[untouched])


def test_a_state_gets_the_best_single_sweep_and_a_batch_the_best_of_all():
    ways = evidence_candidates(sweeps=(1, 2))
    decision = probe(fit, TRAIN, VALIDATION, ways, hidden=[0.5] * 4)
    state, batch = choose_pooling(decision)
    accepted = {name: decision.gains[name][0] for name in decision.accepted}
    assert all(gain > 1.5 * decision.gains[name][1] for name, gain in accepted.items())
    assert batch == ways[max(accepted, key=accepted.get)].pooling
    single = {name: gain for name, gain in accepted.items() if "sweeps" not in name}
    assert state == ways[max(single, key=single.get)].pooling
    assert decision.chosen == max(accepted, key=accepted.get)


def test_where_no_candidate_is_accepted_evidence_is_silent():
    silent = Pooling(strength=0.0)
    assert choose_pooling(Decision(NONE, "too few rows", {}, [])) == (silent, silent)
    two = "evidence(strength=1, alpha=3, sweeps=2)"
    state, batch = choose_pooling(Decision(two, "gains", {two: (1.0, 0.1)}, [], (two,)))
    assert state == silent and batch == Pooling(1.0, 3.0, relative=True, n_sweeps=2)
    other = {"mine": UseEvidence(Pooling(0.3, 2.0))}
    gains = {"mine": (1.0, 0.1), "labels(alpha=20)": (0.5, 0.1)}
    decision = Decision("mine", "gains", gains, [], ("mine",))
    assert choose_pooling(decision, other) == (Pooling(0.3, 2.0, label_alpha=20.0),) * 2


def test_a_view_predicts_once():
    calls = []

    def model(X):
        calls.append(X)
        return np.full((X.n_rows, 2), 0.5)

    view = View(model, TRAIN[0], TRAIN[0])
    for use in EVIDENCE.values():
        use(view)
    assert len(calls) == 1


def test_hidden_shares_match_what_is_expected_up_to_a_half():
    assert hidden_shares(0.2, 2) == (0.2, 0.2)
    assert hidden_shares(0.9, 1) == (0.5,)
    assert hidden_shares(0.0, 1) == (0.05,)
    assert len(set(hidden_shares(None, 6))) == 3


def test_the_share_of_new_cells_needs_no_labels():
    X = MultiHot.from_rows([[0], [0, 1]], 2)
    assert new_share(X, X.select_features([1])) == 0.25
    nothing = MultiHot.from_rows([[]], 0)
    assert new_share(nothing, nothing) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probe(fit, TRAIN, VALIDATION, {"none": nonsense}), "a candidate is named 'none'"),
        (lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, novelty="rows"), "novelty='rows' is unkn"),
        (lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, novelty="columns"), "needs field_of"),
        (
            lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, novelty="both", field_of=np.arange(3)),
            "field_of has 3 entries for 12 features.",
        ),
        (lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, hidden=[1.0]), "cannot hide the share 1"),
        (lambda: probe(fit, (TRAIN[0], [1]), VALIDATION, EVIDENCE), "300 rows but 1 labels: give"),
        (
            lambda: probe(fit, TRAIN, (MultiHot.from_rows([], 12), []), EVIDENCE),
            "a probe needs training and validation rows, and there are none.",
        ),
        (lambda: hidden_shares(0.5, 0), "n_draws=0: choose 1 or more."),
        (lambda: hidden_shares(1.5), "expected=1.5 is not a share: choose from 0 to 1."),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
