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
from openfate.openworld.probe import MODESTY, PRIOR, SURE, fit_strength
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
    assert gain == max(decision.gains[name][0] for name in decision.accepted)


def test_a_candidate_that_harms_is_never_chosen():
    decision = probe(fit, TRAIN, VALIDATION, {"nonsense": nonsense})
    assert decision.chosen == NONE
    assert decision.gains["nonsense"][0] <= 0


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
        for b in np.arange(-0.3, 3.01, 0.05)
    }
    best = min(losses, key=losses.get)
    assert (slope, strength) == pytest.approx(best, abs=0.03)
    assert strength == pytest.approx(wanted[1], abs=0.25)


def in_draws(parts, task, share=0.5):
    """Views of draws that each have rows of their own, moves by view, and all labels."""
    X, starts = MultiHot.from_rows([[0]], 1), np.cumsum([0] + [len(y) for *_, y in parts])
    places = [np.arange(*ends) for ends in zip(starts, starts[1:], strict=False)]
    views = [
        (View(lambda X, P0=P0: P0, X, X, task, own), share)
        for (P0, _, _), own in zip(parts, places, strict=True)
    ]
    moves = {id(view): e for (view, _), (_, e, _) in zip(views, parts, strict=True)}
    return views, np.concatenate([y for *_, y in parts]), {"move": lambda view: moves[id(view)]}


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_a_model_that_is_too_sure_gets_a_slope_below_one(task):
    """So does its evidence: the strength is a multiple of the slope."""
    parts = [drawn(seed, task, slope=0.5, strength=0.5) for seed in range(8)]
    views, y, candidates = in_draws(parts, task)
    decision = judge(views, y, candidates)
    assert decision.chosen == "move"
    assert 0.35 < decision.slope < 0.55  # what the move tells is not in it
    assert decision.strengths["move"] / decision.slope == pytest.approx(MODESTY * 1.0, abs=0.2)
    P0, e, own = drawn(9, task)
    P0 = used(P0, 0 * e, 4.0, 0.0, task)  # with nothing hidden it is surer still
    X, last = MultiHot.from_rows([[0]], 1), len(y) + np.arange(len(own))
    plain = View(lambda X: P0, X, X, task, last)
    sure = judge(views, np.concatenate([y, own]), candidates, plain=lambda: plain)
    assert sure.slope < decision.slope


def test_draws_that_agree_are_believed_and_others_leave_what_other_tables_say():
    agree = [drawn(seed, "binary", strength=2.0) for seed in range(8)]
    decision = judge(*in_draws(agree, "binary"))
    assert decision.strengths["move"] / decision.slope == pytest.approx(MODESTY * 2, abs=0.15)
    apart = [drawn(s, "binary", strength=2.0 * (-1) ** s, n=40) for s in range(4)]
    decision = judge(*in_draws(apart, "binary"))
    assert decision.strengths["move"] / decision.slope == pytest.approx(PRIOR[0], abs=0.4)
    silent = [(P0, 0 * e, y) for P0, e, y in agree]
    decision = judge(*in_draws(silent, "binary"))
    assert decision.chosen == "move" and "say 0% of its strength" in decision.reason
    assert decision.strengths["move"] == pytest.approx(PRIOR[0] * decision.slope)


def test_a_move_the_wrong_way_is_refused():
    decision = judge(*in_draws([drawn(seed, "binary", strength=-0.5) for seed in range(4)], "binary"))
    assert decision.chosen == NONE and decision.strengths["move"] == 0
    assert decision.reason == "no candidate is likely enough to gain"


def test_pure_noise_is_refused_or_hardly_used():
    refused, strengths = 0, []
    for seed in range(40):
        parts = [drawn(100 * seed + draw, "binary", strength=0.0, n=200) for draw in range(4)]
        decision = judge(*in_draws(parts, "binary"))
        refused += decision.chosen == NONE
        strengths.append(decision.strengths["move"] if decision.chosen != NONE else 0.0)
    assert refused >= 28 and max(strengths) < 0.2


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_the_posterior_is_that_of_the_slow_and_obvious_way(task):
    parts = [drawn(seed, task, slope=0.8, strength=0.9, n=60) for seed in range(3)]
    decision = judge(*in_draws(parts, task))
    asked, others = [], [[parts[1], parts[2]], [parts[0], parts[2]], [parts[0], parts[1]]]
    for kept in (parts, *others):
        slope, strength = fit_strength(kept, task)
        asked.append(strength / slope)
    by_draw = sum((one - np.mean(asked[1:])) ** 2 for one in asked[1:]) * 2 / 3
    slope, strength = fit_strength(parts, task)
    def losses(by):
        half = 0.5 if task == "regression" else 1.0
        moved = [used(P0, e, slope, strength + by, task) for P0, e, _ in parts]
        pairs = zip(moved, parts, strict=True)
        return half * np.concatenate([row_losses(P, y, task) for P, (*_, y) in pairs])
    score = (losses(0.01) - losses(-0.01)) / 0.02
    curvature = (losses(0.01) + losses(-0.01) - 2 * losses(0.0)).mean() / 0.01**2
    by_row = (score**2).mean() / len(score) / curvature**2 / slope**2
    prior, draws = PRIOR[1] ** -2, 1 / max(by_draw, by_row)
    mean = (prior * PRIOR[0] + draws * MODESTY * asked[0]) / (prior + draws)
    alone, _ = fit_strength([(P0, 0 * e, y) for P0, e, y in parts], task)
    assert decision.strengths["move"] == pytest.approx(alone * mean, rel=0.01)
    assert (decision.chosen == "move") == (mean > SURE * (prior + draws) ** -0.5)
    gains = []
    for (P0, e, y), kept, one in zip(parts, others, asked[1:], strict=True):
        slope, _ = fit_strength(kept, task)
        alone, _ = fit_strength([(P, 0 * e, y) for P, e, y in kept], task)
        multiple = (prior * PRIOR[0] + draws * MODESTY * one) / (prior + draws)
        plain = used(P0, 0 * e, alone, 0.0, task)
        moved = used(P0, e, slope, slope * multiple, task)
        gains.append(row_losses(plain, y, task) - row_losses(moved, y, task))
    error = max(np.std(np.concatenate(gains)) / np.sqrt(180), np.std([g.mean() for g in gains], ddof=1) / np.sqrt(3))
    assert decision.gains["move"] == pytest.approx((np.mean(gains), error), rel=0.01)


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
