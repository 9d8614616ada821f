import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from openfate.errors import InputError
from openfate.openworld import (
    NONE,
    Decision,
    Evidence,
    Pooling,
    UseEvidence,
    View,
    choose_pooling,
    combine,
    draw_hidden,
    evidence_candidates,
    hidden_shares,
    judge,
    pooled_evidence,
    row_losses,
    to_predictions,
)
from openfate.openworld.evidence import sample_reference
from openfate.openworld.probe import GUARD, MODESTY, fit_strength
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


def probe(fit, train, validation, candidates, *, hidden=None, field_of=None, novelty="values",
          task="multiclass", seed=0):  # fmt: skip
    """Fit once a draw without what it hides, and judge."""
    field_of = np.arange(train[0].n_features) if field_of is None else field_of
    draws = draw_hidden(hidden or hidden_shares(None), field_of, novelty, seed)
    models = (fit(train[0].select_features(draw.old), train[1]) for draw in draws)
    views = (
        (draw.view(model, validation[0], task), draw.share)
        for draw, model in zip(draws, models, strict=True)
    )
    return judge(views, np.asarray(validation[1]), candidates)


TRAIN, VALIDATION = rows(0), rows(1)
EVIDENCE = evidence_candidates()


def nonsense(view):
    """A move away from what the model predicts."""
    return np.log(view.P0[:, ::-1])


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
    assert decision.gains["nonsense"][0] <= 0 and decision.strengths["nonsense"] == 0


def test_hidden_features_are_hidden_from_the_whole_fit():
    widths = []

    def note(X, y):
        widths.append(X.n_features)
        return fit(X, y)

    decision = probe(note, TRAIN, VALIDATION, EVIDENCE, hidden=[0.25, 0.5])
    assert widths == [9, 6]
    assert [draw["hidden_features"] for draw in decision.draws] == [3, 6]


def test_whole_columns_are_hidden_together():
    field_of = np.repeat([0, 1, 2, 3], 3)
    seen = []

    def note(view):
        seen.append((view.X_old.n_features, view.X_new.n_features))
        return np.zeros_like(view.P0)

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
    plain = json.loads(json.dumps(decision.to_json()))
    assert plain["chosen"] == decision.chosen
    assert len(plain["best"]) == min(5, len(EVIDENCE))
    assert plain["best"][0]["gain"] >= plain["best"][1]["gain"]
    best = plain["best"][0]
    assert plain["slope"] == decision.slope
    assert best["strength"] == decision.strengths[best["name"]] > 0


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
    one, two = (UseEvidence(3.0, n)(view) for n in (1, 2))
    assert not np.allclose(one, two)
    assert np.all(two[new.row_degree == 0] == 0)
    moved = View(lambda X: combine(view.P0, one, view.task), old, new)
    e = pooled_evidence(Evidence(2).add(new, moved.P0), new, moved.P0, 3.0)
    np.testing.assert_allclose(two, e * sample_reference(e, new, view.P0, view.task))


def test_a_state_gets_the_best_single_sweep_and_a_batch_the_best_of_all():
    decision = probe(fit, TRAIN, VALIDATION, EVIDENCE, hidden=[0.5] * 4)
    state, batch = choose_pooling(decision, EVIDENCE)
    accepted = {name: decision.gains[name][0] for name in decision.accepted}
    assert all(gain > GUARD * decision.gains[name][1] for name, gain in accepted.items())
    best = max(accepted, key=accepted.get)
    assert decision.chosen == best
    assert batch == EVIDENCE[best].pooling(decision.strengths[best], decision.slope)
    single = {name: gain for name, gain in accepted.items() if "sweeps" not in name}
    best = max(single, key=single.get)
    assert state == EVIDENCE[best].pooling(decision.strengths[best], decision.slope)


def test_where_no_candidate_is_accepted_evidence_is_silent():
    silent = Pooling(strength=0.0)
    assert choose_pooling(Decision(NONE, "too few rows", {}, []), EVIDENCE) == (silent, silent)
    two = "evidence(alpha=3, sweeps=2)"
    decision = Decision(two, "gains", {two: (1.0, 0.1)}, [], (two,), {two: 0.4}, 0.9)
    state, batch = choose_pooling(decision, EVIDENCE)
    assert state == silent
    assert batch == Pooling(0.4, 3.0, relative=True, slope=0.9, n_sweeps=2)
    other = Decision("mine", "gains", {"mine": (1.0, 0.1)}, [], ("mine",), {"mine": 0.4})
    assert choose_pooling(other, {"mine": nonsense}) == (silent, silent)  # no evidence


# ---- slope and strength ------------------------------------------------------------------------


def drawn(seed, task, slope=1.0, strength=0.0, n=400):
    """P0, a move, and labels of which P0 and the move tell as much as asked."""
    rng = np.random.default_rng(seed)
    z0, e = rng.normal(size=(2, n, 3)) * 1.5
    n_logits = {"binary": 1, "regression": 1}.get(task, 3)
    z0, e = z0[:, :n_logits], e[:, :n_logits]
    P0, P = to_predictions(z0, task), to_predictions(slope * z0 + strength * e, task)
    if task == "regression":
        y = P + rng.normal(size=P.shape)
    elif task == "multilabel":
        y = (rng.random(P.shape) < P).astype(float)
    else:
        y = (rng.random((n, 1)) > P.cumsum(1)[:, :-1]).sum(1)
    return P0, np.column_stack([-e / 2, e / 2]) if task == "binary" else e, y


def used(P0, e, slope, strength, task):
    """The obvious way to move a prediction."""
    if task == "regression":
        return P0 + strength * e
    if task == "multilabel":
        return 1 / (1 + ((1 - P0) / P0) ** slope * np.exp(-strength * e))
    P = P0**slope * np.exp(strength * e)
    return P / P.sum(1, keepdims=True)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("wanted", [(1.0, 0.6), (0.5, 0.0), (0.7, 1.4)])
def test_slope_and_strength_are_those_of_a_grid_search(task, wanted):
    P0, e, y = drawn(0, task, *wanted)
    slope, strength = fit_strength([(P0, e, y)], task)
    slopes = [1.0] if task == "regression" else np.arange(0.2, 1.51, 0.05)
    losses = {
        (a, b): row_losses(used(P0, e, a, b, task), y, task).mean()
        + ((a - 1) ** 2 + b**2) / (2 * len(y)) * (task != "regression")
        for a in slopes
        for b in np.arange(0, 3.01, 0.05)
    }
    best = min(losses, key=losses.get)
    assert (slope, strength) == pytest.approx(best, abs=0.03)
    assert strength == pytest.approx(wanted[1], abs=0.25)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_a_model_that_is_too_sure_gets_a_slope_below_one(task):
    P0, e, y = drawn(1, task, slope=0.4, strength=1.0)
    X = MultiHot.from_rows([[0]] * len(y), 1)
    views = [(View(lambda X: P0, X, X, task), 0.5)]
    decision = judge(views, y, {"move": lambda view: e})
    assert decision.chosen == "move"
    assert 0.4 < decision.slope < 0.8  # eight tenths of the way
    assert decision.strengths["move"] == pytest.approx(MODESTY * 1.0, abs=0.15)
    fair, _, _ = drawn(1, task)
    plain = View(lambda X: used(fair, 0 * e, 3.0, 0.0, task), X, X, task)
    sure = judge(views, y, {"move": lambda view: e}, plain=lambda: plain)
    assert sure.slope < decision.slope  # it is that of the model with nothing hidden


def test_pure_noise_is_refused_in_nineteen_of_twenty_seeds():
    refused = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, 200)
        X = MultiHot.from_rows([[0]] * 200, 1)
        views = []
        for _ in range(4):
            p = np.clip(0.5 + (y - 0.5) * 0.4 + rng.normal(0, 0.15, 200), 0.02, 0.98)
            P0 = np.stack([1 - p, p], 1)
            views.append((View(lambda X, P0=P0: P0, X, X, "binary"), 0.5))
        refused += (
            judge(views, y, {"noise": lambda v, r=rng: r.normal(size=(200, 2))}).chosen == NONE
        )
    assert refused >= 38


def test_draws_with_rows_of_their_own_are_judged_as_if_each_stood_alone():
    """Two draws of half of the rows each, beside the slow and obvious way to measure them."""
    P0, e, y = drawn(3, "multiclass", slope=0.8, strength=0.9)
    halves = np.arange(len(y)) % 2 == 0, np.arange(len(y)) % 2 == 1
    X = MultiHot.from_rows([[0]] * (len(y) // 2), 1)
    places = [np.flatnonzero(half) for half in halves]
    views = [(View(lambda X, r=r: P0[r], X, X, "multiclass", r), 0.5) for r in places]
    moves = iter([e[r] for r in places])
    decision = judge(views, y, {"move": lambda view: next(moves)})
    gains = np.empty(len(y))
    for own, other in (places, places[::-1]):
        alone, _ = fit_strength([(P0[other], 0 * e[other], y[other])], "multiclass")
        both = fit_strength([(P0[other], e[other], y[other])], "multiclass")
        plain = used(P0[own], 0 * e[own], 1 + MODESTY * (alone - 1), 0.0, "multiclass")
        moved = used(P0[own], e[own], 1 + MODESTY * (both[0] - 1), MODESTY * both[1], "multiclass")
        gains[own] = row_losses(plain, y[own]) - row_losses(moved, y[own])
    by_draw = abs(gains[places[0]].mean() - gains[places[1]].mean()) / 2
    error = max(gains.std() / np.sqrt(len(y)), by_draw)
    assert decision.gains["move"] == pytest.approx((gains.mean(), error))
    _, strength = fit_strength([(P0, e, y)], "multiclass")
    assert decision.strengths["move"] == pytest.approx(MODESTY * strength, rel=0.01)


def test_a_gain_at_one_share_alone_is_not_enough():
    P0, e, y = drawn(2, "binary", strength=1.0)
    X = MultiHot.from_rows([[0]] * len(y), 1)
    views = [(View(lambda X: P0, X, X, "binary"), share) for share in (0.3, 0.3, 0.3, 0.6)]
    moves = iter([e, e, e, -e])
    assert judge(views, y, {"move": lambda view: next(moves)}).chosen == NONE
    assert judge(views[:3], y, {"move": lambda view: e}).chosen == "move"


def test_a_view_predicts_once():
    calls = []

    def model(X):
        calls.append(X)
        return np.full((X.n_rows, 2), 0.5)

    view = View(model, TRAIN[0], TRAIN[0])
    for use in EVIDENCE.values():
        use(view)
    assert len(calls) == 1


def test_hidden_shares_match_what_is_expected_up_to_one_half():
    assert hidden_shares(0.2, 2) == (0.2, 0.2)
    assert hidden_shares(0.9, 1) == (0.5,)
    assert hidden_shares(0.0, 1) == (0.05,)
    assert len(set(hidden_shares(None, 6))) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probe(fit, TRAIN, VALIDATION, {"none": nonsense}), "a candidate is named 'none'"),
        (lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, novelty="rows"), "novelty='rows' is unkn"),
        (lambda: probe(fit, TRAIN, VALIDATION, EVIDENCE, hidden=[1.0]), "cannot hide the share 1"),
        (lambda: hidden_shares(0.5, 0), "n_draws=0: choose 1 or more."),
        (lambda: hidden_shares(1.5), "expected=1.5 is not a share: choose from 0 to 1."),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
