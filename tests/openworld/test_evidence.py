"""The sums of evidence, exact in a stream, and how they move predictions, against slow twins."""

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_evidence import cross_entropy, pool_classes, pool_values, pooled, weigh_boxes

from openfate.errors import InputError
from openfate.openworld import (
    Evidence,
    JointEvidence,
    LiveEvidence,
    Pooling,
    UseEvidence,
    View,
    evidence,
    pooled_evidence,
    reference_strength,
    score,
)
from openfate.openworld.evidence import _GRID, JointPools, Sample, combine
from openfate.table import MultiHot

SUMS = ("count", "total", "mean")
TASKS = ("multiclass", "multilabel", "regression")


def rows(seed, n_rows=6, n_features=5):
    """New features and predictions of a few rows."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n_rows, n_features)) < 0.4
    X = MultiHot.from_entries(*np.nonzero(dense), n_rows, n_features)
    return X, rng.dirichlet(np.ones(3), n_rows)


def scratch(history, task, n_features):
    """The state recomputed from (rows, weight) of everything that is still in it."""
    state = Evidence(3, task)
    state.add(MultiHot.from_rows([], n_features), np.zeros((0, 3)))
    for (X, P0), weight in history:
        state.add(X, P0, weight=weight)
    return state


def assert_same(one, other, tolerance=1e-9):
    for name in SUMS:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=tolerance)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "decay", "merge", "reload"]),
        st.integers(0, 50),
        st.integers(1, 9),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.sampled_from(TASKS))
def test_any_sequence_of_changes_equals_recomputation_from_scratch(steps, task):
    state, history = Evidence(3, task), []
    for what, seed, n_features in steps:
        batch = rows(seed, n_features=n_features)
        if what == "add":
            state.add(*batch)
            history.append((batch, 1.0))
        elif what == "remove" and history:
            gone, weight = history.pop(seed % len(history))
            state.add(*gone, weight=-weight)
        elif what == "decay":
            state.decay(0.5 + seed / 100)
            history = [(b, w * (0.5 + seed / 100)) for b, w in history]
        elif what == "merge":
            state.merge(Evidence(3, task).add(*batch))
            history.append((batch, 1.0))
        elif what == "reload":
            state = Evidence.from_arrays(state.to_arrays(), task)
    assert_same(state, scratch(history, task, state.n_features))


def test_growing_by_one_feature_at_a_time_keeps_the_sums():
    state = Evidence(2)
    for j in range(40):
        state.add(MultiHot.from_rows([[j]], j + 1), [[0.25, 0.75]])
    assert state.count.tolist() == [1.0] * 40
    assert state.total.sum(0).tolist() == [10.0, 30.0]


def test_a_copy_does_not_follow_its_original():
    X, P0 = rows(3)
    state = Evidence(3).add(X, P0)
    copy = state.copy()
    state.decay(0)
    assert copy.count.sum() == X.nnz
    assert state.count.sum() == 0


def test_arrays_of_a_state_do_not_follow_it():
    X, P0 = rows(3)
    state = Evidence(3).add(X, P0)
    arrays = state.to_arrays()
    state.decay(0)
    assert arrays["row_total"].sum() == pytest.approx(X.n_rows)


X3, P3 = rows(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Evidence(1), "n_outputs=1: a multiclass task has 2 or more."),
        (lambda: Evidence(2, "class"), "task='class' is unknown"),
        (lambda: Evidence(2).add(X3, P3), "the shape (6, 3), not (6, 2)"),
        (lambda: Evidence(3).add(X3, P3 * np.nan), "row 0 is predicted as [nan, nan, nan]"),
        (lambda: Evidence(3).add(X3, P3 + 1), "give probabilities from 0 to 1."),
        (lambda: Evidence(3, "regression").add(X3, P3 / 0), "give finite numbers."),
        (lambda: Evidence(3).decay(1.5), "factor=1.5: choose a number from 0 to 1."),
        (
            lambda: Evidence(3).merge(Evidence(2)),
            "with 2 outputs cannot be merged into that of a multiclass task with 3",
        ),
        (lambda: Evidence.from_arrays({}), "lacks the arrays count, total"),
        (
            lambda: Evidence.from_arrays(Evidence(3).to_arrays() | {"total": np.zeros((1, 3))}),
            "the array total of a state of evidence has the shape (1, 3), not (0, 3).",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as caught, np.errstate(all="ignore"):
        call()
    assert message in str(caught.value)


def test_a_refused_batch_changes_nothing():
    state = Evidence(3).add(X3, P3)
    before = state.to_arrays()
    with pytest.raises(InputError):
        state.add(X3, P3 + 1)
    after = state.to_arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def observe_stream(n_rows, n_features, chunk=100_000):
    """Seconds to observe rows of five new cells each; the rows are made outside the clock."""
    rng, state, seconds = np.random.default_rng(0), Evidence(2), 0.0
    for _ in range(n_rows // chunk):
        steps = rng.integers(1, n_features // 5, (chunk, 5))
        X = MultiHot.from_rows(np.cumsum(steps, 1) % n_features, n_features)
        p = rng.random((chunk, 1))
        P0 = np.hstack([1 - p, p])
        started = time.perf_counter()
        state.add(X, P0)
        seconds += time.perf_counter() - started
    return state, seconds


def test_memory_goes_by_distinct_features_and_not_by_rows():
    sizes = []
    for n_rows in (2_000, 20_000):
        tracemalloc.start()
        state, _ = observe_stream(n_rows, 1_000, chunk=1_000)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert state.count.sum() == 5 * n_rows
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.slow
def test_ten_million_rows_are_observed_in_minutes_on_one_core():
    state, seconds = observe_stream(10_000_000, 1_000_000)
    print(f"10 million rows, 5 new cells each: {seconds:.1f} s")
    assert state.count.sum() == 50_000_000
    assert seconds < 180


# ---- from sums to predictions -------------------------------------------------------------------


def table(seed, n_rows=7, n_features=4, share=0.4):
    dense = np.random.default_rng(seed).random((n_rows, n_features)) < share
    return MultiHot.from_entries(*np.nonzero(dense), n_rows, n_features), dense


def predictions(seed, n_rows=7, n_classes=3, extreme=False):
    P = np.random.default_rng(seed + 99).dirichlet(np.ones(n_classes), n_rows)
    return np.eye(n_classes)[P.argmax(1)] if extreme else P


@settings(deadline=None)
@given(st.integers(0, 999), st.floats(0.1, 2), st.floats(0.5, 50), st.booleans())
def test_pooling_agrees_with_its_slow_twin(seed, strength, alpha, extreme):
    X, dense = table(seed)
    P0 = predictions(seed, extreme=extreme)
    P = score(Evidence(3).add(X, P0), X, P0, Pooling(strength, alpha), own=True)
    np.testing.assert_allclose(P, pool_classes(dense, P0, strength, alpha), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_regression_agrees_with_its_slow_twin(seed):
    X, dense = table(seed)
    y0 = np.random.default_rng(seed).normal(size=7)
    state = Evidence(1, "regression").add(X, y0)
    y = score(state, X, y0, Pooling(0.7, 3.0), own=True)
    np.testing.assert_allclose(y[:, 0], pool_values(dense, y0, 0.7, 3.0), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_labels_are_independent_two_class_problems(seed):
    X, _ = table(seed)
    P0 = np.random.default_rng(seed).random((7, 2))
    both = score(Evidence(2, "multilabel").add(X, P0), X, P0, Pooling(0.7, 3.0), own=True)
    for label in range(2):
        two = np.stack([1 - P0[:, label], P0[:, label]], 1)
        P = score(Evidence(2).add(X, two), X, two, Pooling(0.7, 3.0), own=True)
        np.testing.assert_allclose(both[:, label], P[:, 1], atol=1e-9)


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("relative", [False, True])
def test_rows_without_new_features_keep_their_prediction_bit_for_bit(task, relative):
    X, dense = table(5, share=0.3)
    P0 = np.random.default_rng(5).dirichlet(np.ones(3), 7)
    state = Evidence(3, task).add(X, P0)
    P = score(state, X, P0, Pooling(1.3, relative=relative), own=True)
    untouched = ~dense.any(1)
    assert untouched.any()
    assert np.array_equal(P[untouched], P0[untouched])
    nothing = MultiHot.from_rows([[]] * 7, 0)
    assert np.array_equal(score(state, nothing, P0, Pooling(), own=False), P0)


def test_strength_zero_and_a_feature_never_met_change_nothing():
    X, _ = table(1)
    P0 = predictions(1)
    assert np.array_equal(score(Evidence(3), X, P0, Pooling()), P0)
    assert np.array_equal(score(Evidence(3).add(X, P0), X, P0, Pooling(strength=0)), P0)


def test_a_feature_of_one_row_says_nothing_to_that_row():
    X = MultiHot.from_rows([[0], []], 1)
    P0 = predictions(2, n_rows=2)
    np.testing.assert_allclose(score(Evidence(3).add(X, P0), X, P0, Pooling(), own=True), P0)


def test_leaving_the_own_vote_out_equals_a_state_without_the_row():
    X, _ = table(3)
    P0 = predictions(3)
    state = Evidence(3).add(X, P0)
    together = score(state, X, P0, Pooling(), own=True)
    for i in range(7):
        others = state.copy().add(X.select_rows([i]), P0[[i]], weight=-1)
        others.mean = state.mean  # pi is of all rows
        alone = score(others, X.select_rows([i]), P0[[i]], Pooling())
        np.testing.assert_allclose(alone, together[[i]])


def test_a_class_never_predicted_stays_so_and_everything_is_finite():
    X, _ = table(4)
    P0 = np.hstack([predictions(4, n_classes=2), np.zeros((7, 1))])
    P = score(Evidence(3).add(X, P0), X, P0, Pooling(5.0, 0.1), own=True)
    assert np.isfinite(P).all()
    np.testing.assert_allclose(P.sum(1), 1)
    assert P[:, 2].max() < 1e-6


def test_certain_predictions_give_defined_results_even_with_a_feature_in_every_row():
    X = MultiHot.from_rows([[0, 1]] * 4, 2)
    P0 = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    P = score(Evidence(2).add(X, P0), X, P0, Pooling(2.0, 0.5), own=True)
    assert np.isfinite(P).all()
    assert P.argmax(1).tolist() == [0, 1, 0, 0]  # a model that is certain stays certain


def test_repeated_features_lower_the_reference_strength():
    """Twenty copies of one feature are one piece of evidence, not twenty."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    p = np.where(y == 1, 0.7, 0.3) + rng.uniform(-0.2, 0.2, 400)
    P0, has = np.stack([1 - p, p], 1), (rng.random(400) < np.where(y == 1, 0.8, 0.2))
    strengths = []
    for copies in (1, 20):
        X = MultiHot.from_rows([list(range(copies)) if h else [] for h in has], copies)
        state = Evidence(2).add(X, P0)
        full = score(state, X, P0, Pooling(1.0, relative=True), own=True)
        strengths.append(np.log(full[has, 1] / P0[has, 1]).mean())
    assert strengths[1] == pytest.approx(strengths[0], rel=0.2)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("seed", range(4))
def test_the_reference_strength_is_the_best_of_the_grid(task, seed):
    X, _ = table(seed, n_rows=60, n_features=9)
    P0 = predictions(seed, n_rows=60)
    state = Evidence(3, task).add(X, P0)
    e = pooled_evidence(state, X, P0, 1.0)
    pi = np.broadcast_to(P0.mean(0), e.shape)
    told = e.any(1)
    losses = [cross_entropy(combine(pi, s * e, task)[told], P0[told], task) for s in _GRID]
    assert reference_strength(e, P0, task) == _GRID[int(np.argmin(losses))]


def test_reference_strength_of_values_is_the_slope():
    e = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    assert reference_strength(e, 3 + 0.5 * e, "regression") == pytest.approx(0.5)
    assert reference_strength(e, 3 - 0.5 * e, "regression") == 0
    assert reference_strength(0 * e, e, "regression") == 0


def test_relative_settings_can_be_fixed_for_use_row_by_row():
    X, _ = table(6)
    P0 = predictions(6)
    state = Evidence(3).add(X, P0)
    relative, plain = Pooling(0.8, 2.0, relative=True), Pooling(1.0, 2.0)
    e = np.log(score(state, X, P0, plain) / P0)
    fixed = relative.fixed(reference_strength(e - e.mean(1, keepdims=True), P0))
    assert not fixed.relative
    P = score(state, X, P0, fixed)
    for i in range(7):
        alone = score(state, X.select_rows([i]), P0[[i]], fixed)
        np.testing.assert_allclose(alone, P[[i]], rtol=1e-12)


def test_score_changes_neither_state_nor_input():
    X, _ = table(7)
    P0 = predictions(7)
    state = Evidence(3).add(X, P0)
    arrays, before = state.to_arrays(), P0.copy()
    score(state, X, P0, Pooling(), own=True)
    assert np.array_equal(P0, before)
    assert all(np.array_equal(a, arrays[name]) for name, a in state.to_arrays().items())


def test_combine_without_evidence_keeps_probabilities():
    P0 = predictions(8)
    np.testing.assert_allclose(combine(P0, np.zeros_like(P0), "multiclass"), P0)
    np.testing.assert_allclose(combine(P0, np.zeros_like(P0), "multilabel"), P0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength=-1.0: choose a number from 0 up."),
        ({"alpha": 0.0}, "alpha=0.0: choose a number above 0."),
        ({"slope": float("nan")}, "slope=nan: choose a number above 0."),
        ({"n_sweeps": 0}, "n_sweeps=0: choose an integer from 1 up."),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InputError) as caught:
        Pooling(**settings)
    assert message in str(caught.value)


# ---- evidence in a stream: neither the order of rows nor how they were cut matters ------------

RELATIVE = Pooling(strength=0.7, alpha=3.0, relative=True)


def stream(seed: int, n: int = 60, n_features: int = 7, n_outputs: int = 3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_outputs, n)  # what predictions and features tell of
    told = rng.random((n, n_features)) < np.where(np.arange(n_features) % 3 == y[:, None], 0.5, 0.1)
    votes = rng.dirichlet(np.ones(n_outputs), n) + 2 * np.eye(n_outputs)[y]
    X = MultiHot.from_entries(*np.nonzero(told), n, n_features)
    return X, votes / votes.sum(1, keepdims=True)


def say(live, X):
    """What evidence makes of rows that are predicted alike."""
    P = np.full((X.n_rows, live.state.n_outputs), 1 / live.state.n_outputs)
    return live.move(P, X, P)


@given(st.integers(0, 30), st.lists(st.integers(1, 59), max_size=4))
def test_order_and_cuts_do_not_matter(seed, cuts):
    X, votes = stream(seed)
    whole = LiveEvidence(3, pooling=RELATIVE)
    whole.observe(X, votes)
    order = np.random.default_rng(seed).permutation(60)
    parts = LiveEvidence(3, pooling=RELATIVE)
    for part in np.split(order, sorted(set(cuts))):
        parts.observe(X.select_rows(part), votes[part])
    assert parts.fixed.strength == pytest.approx(whole.fixed.strength, abs=1e-12)
    np.testing.assert_allclose(say(parts, X), say(whole, X), atol=1e-9)


def test_the_strength_is_that_of_all_rows_while_they_fit_the_sample():
    X, votes = stream(0)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    state = Evidence(3).add(X, votes)
    e = pooled_evidence(state, X, votes, RELATIVE.alpha)
    assert live.fixed.strength == pytest.approx(0.7 * reference_strength(e, votes))
    assert live.fixed.strength > 0


def test_the_sample_stays_small_and_is_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr(evidence, "SAMPLE", 10)
    X, votes = stream(1)
    one, other = LiveEvidence(3, pooling=RELATIVE), LiveEvidence(3, pooling=RELATIVE)
    one.observe(X, votes)
    for at in np.random.default_rng(0).permutation(60):
        other.observe(X.select_rows([at]), votes[[at]])
    ours, theirs = one.to_arrays(), other.to_arrays()
    assert len(ours["sample_key"]) == 10
    for name in ("sample_key", "sample_row_ptr", "sample_ids", "sample_votes"):
        assert np.array_equal(ours[name], theirs[name])


@given(st.integers(0, 200), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 12))
def test_voters_take_turns_in_the_sample_of_all_rows_and_of_parts(seed, cuts, most):
    """Who sends one row again and again, with values of its own, has no more places than others."""
    rng = np.random.default_rng(seed)
    X = MultiHot.from_rows([[i] for i in range(40)], 40)
    votes = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])[rng.choice(3, 40, p=[0.8, 0.15, 0.05])]
    usual, evidence.SAMPLE = evidence.SAMPLE, most
    try:
        whole = Sample.of(X, votes, "multiclass")
        parts = Sample.of(X.select_rows([]), votes[:0], "multiclass")
        for rows in np.split(rng.permutation(40), sorted(cuts)):
            part = Sample.of(X.select_rows(rows), votes[rows], "multiclass")
            parts = parts.merge(part)
    finally:
        evidence.SAMPLE = usual
    assert np.array_equal(whole.key, parts.key) and np.array_equal(whole.X.ids, parts.X.ids)
    places = [int((whole.votes == v).all(1).sum()) for v in np.unique(votes, axis=0)]
    sizes = [int((votes == v).all(1).sum()) for v in np.unique(votes, axis=0)]
    assert sum(places) == min(most, 40)
    for place, size in zip(places, sizes, strict=True):
        assert place == size or place >= max(places) - 1


@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1.0, 1e6, 1e15])
def test_a_sample_of_predicted_numbers_does_not_depend_on_their_unit(scale):
    """They were rounded to a millionth: of tiny and of huge ones a single row was left."""
    X = MultiHot.from_rows([[0]] * 50, 1)
    values = np.random.default_rng(0).normal(size=(50, 1))
    near = values * (1 + 1e-12)  # as other rows beside it would make them
    live = LiveEvidence(1, "regression", RELATIVE)
    live.observe(X, values * scale)
    live.observe(X, near * scale)
    assert len(live.to_arrays()["sample_key"]) == 50


def test_predicted_numbers_on_both_sides_of_a_power_of_two_are_one_row():
    X = MultiHot.from_rows([[0]] * 4, 1)
    live = LiveEvidence(1, "regression", RELATIVE)
    live.observe(X, np.array([[np.nextafter(4, 0)], [np.nextafter(4, 9)], [0.0], [-0.0]]))
    assert len(live.to_arrays()["sample_key"]) == 2


def test_arrays_bring_it_back_and_a_copy_is_independent():
    X, votes = stream(3)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    before = say(live, X)
    again = LiveEvidence.from_arrays(live.to_arrays(), "multiclass", RELATIVE)
    assert np.array_equal(say(again, X), before)
    live.copy().observe(X, votes)
    assert np.array_equal(say(live, X), before)


def test_arrays_that_do_not_fit_are_refused():
    X, votes = stream(4)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    arrays = live.to_arrays()
    with pytest.raises(InputError, match="sample_ids"):
        LiveEvidence.from_arrays(
            {n: a for n, a in arrays.items() if n != "sample_ids"}, "multiclass", RELATIVE
        )
    with pytest.raises(InputError, match="outside"):
        LiveEvidence.from_arrays(
            {**arrays, "sample_ids": arrays["sample_ids"] + 100}, "multiclass", RELATIVE
        )


def test_nothing_observed_says_nothing():
    X, _ = stream(5)
    live = LiveEvidence(3, pooling=RELATIVE)
    assert live.fixed.strength == 0
    assert np.array_equal(say(live, X), np.full((60, 3), 1 / 3))


# ---- rows that are predicted together --------------------------------------------------------


def joint_of(live, parts, every=True):
    joint = JointEvidence(live, every)
    for _ in range(joint.pooling.n_sweeps):
        joint.sweep(parts)
    return joint


@pytest.mark.parametrize("strength", [0.0, 0.7])
@pytest.mark.parametrize("n_sweeps", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_count_for_nothing_are_moved_as_if_they_were_swept(seed, n_sweeps, strength):
    """What `join` saves: the sums of rows that earlier rows outnumber in every feature."""
    X, P0 = stream(seed)
    batch = Pooling(strength, 3.0, relative=True, slope=0.8, n_sweeps=n_sweeps)
    live = LiveEvidence(3, pooling=replace(RELATIVE, slope=0.9), batch_pooling=batch)
    live.observe(X, P0)
    kinds = set()
    for rows in (*range(60), np.arange(20), np.arange(60), np.tile(np.arange(3), 30)):
        some, P = X.select_rows(np.atleast_1d(rows)), P0[np.atleast_1d(rows)]
        found, joint = live.join(some, P, every=False), joint_of(live, [(some, P)], every=False)
        kinds.add(type(found))
        expected = joint.move(P, some, joint.votes(some, P))
        np.testing.assert_allclose(found.move(P, some, found.votes(some, P)), expected, rtol=1e-12)
    assert kinds == {LiveEvidence, JointEvidence}


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("n_sweeps", [1, 2, 3])
def test_rows_predicted_together_are_those_of_the_candidate(n_sweeps, task):
    X, P0 = stream(6)
    use = UseEvidence(3.0, n_sweeps)
    pooling = use.pooling(1.0, 0.9)  # the strength at which a candidate's sweeps are made
    expected = combine(P0, use(View(lambda X: P0, X, X, task)), task, 0.9)
    halves = [(X.select_rows(half), P0[half]) for half in (np.arange(20), np.arange(20, 60))]
    for parts in ([(X, P0)], halves):
        joint = joint_of(LiveEvidence(3, task, pooling), parts)
        found = joint.move(P0, X, joint.votes(X, P0))
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not np.allclose(expected, P0)


@pytest.mark.parametrize("seed", range(3))
def test_a_second_sweep_is_the_first_with_its_predictions_as_votes(seed):
    """The slow twin: pool P0, move P0; pool what came out, move P0 again."""
    X, dense = table(seed)
    P0 = predictions(seed)
    joint = joint_of(LiveEvidence(3, pooling=Pooling(0.7, 3.0, n_sweeps=2)), [(X, P0)])
    P1 = np.array(pool_classes(dense, P0, 0.7, 3.0))
    expected = []
    for i in range(len(P0)):
        z = np.log(P0[i]) + 0.7 * np.array(pooled(dense, P1, i, 3.0))
        expected.append(np.exp(z) / np.exp(z).sum())
    np.testing.assert_allclose(joint.move(P0, X, joint.votes(X, P0)), expected, atol=1e-9)


@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_every_row_counts_once_whether_it_came_before_or_now(n_sweeps):
    X, P0 = stream(7)
    batch = Pooling(0.7, 3.0, relative=True, n_sweeps=n_sweeps)
    live = LiveEvidence(3, pooling=RELATIVE, batch_pooling=batch)
    live.observe(X.select_rows(np.arange(30)), P0[:30])
    later, P = X.select_rows(np.arange(30, 60)), P0[30:]
    joint = joint_of(live, [(later, P)])
    # The obvious twin of one sweep: a state of all rows, the later ones' own votes left out.
    state = Evidence(3).add(X, P0)
    reference = reference_strength(pooled_evidence(state, X, P0, 3.0), P0)
    expected = score(state, later, P, batch.fixed(reference), own=True)
    assert np.allclose(joint.move(P, later, joint.votes(later, P)), expected) == (n_sweeps == 1)


def test_the_rows_count_for_features_that_more_of_them_have_than_the_state_has_seen():
    X, P0 = stream(8, n_features=9)
    live = LiveEvidence(3, pooling=RELATIVE, batch_pooling=Pooling(2.0, 1.0, n_sweeps=2))
    often, once, new = (np.arange(*at) for at in ((0, 3), (3, 6), (6, 9)))
    seen = np.tile(np.arange(60), 3)
    live.observe(X.select_features(often).select_rows(seen).widen(9), P0[seen])
    some = [MultiHot.from_rows([[j]], 9) for j in once]
    live.observe(MultiHot.stack(some), P0[:3])
    joint = joint_of(live, [(X, P0)], every=False)
    found, alone = joint.move(P0, X, joint.votes(X, P0)), live.move(P0, X)
    others = X.select_features(np.concatenate([once, new])).row_degree > 0
    assert others.any() and not others.all()
    np.testing.assert_allclose(found[~others], alone[~others], atol=1e-12)
    assert (np.abs(found - alone).max(1) > 1e-6)[others].all()


def test_a_slope_takes_back_what_a_model_is_too_sure_of_in_rows_that_are_moved():
    P0 = np.array([[0.9, 0.1], [0.9, 0.1]])
    found = combine(P0, np.array([[0.1, 0.0], [0.0, 0.0]]), "binary", 0.5)
    assert np.array_equal(found[1], P0[1])
    assert found[0, 0] / found[0, 1] == pytest.approx(np.exp(0.1) * 9**0.5)
    both = combine(P0, np.array([[0.1, 0.0], [0.0, 0.0]]), "multilabel", 0.5)
    assert both[0, 0] / (1 - both[0, 0]) == pytest.approx(np.exp(0.1) * 3)


# ---- who votes -----------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(0, 3000))
def test_full_boxes_count_as_the_slow_twin_says(seed, repeated):
    rng = np.random.default_rng(seed)
    count = rng.poisson(rng.choice([0.3, 3, 30]), 16).astype(float)
    count[0] += repeated
    boxes = np.column_stack([count, count * rng.random(16)])
    expected = np.maximum(1 / 16, rng.random(16) * rng.choice([0.01, 0.5]))
    mean, weights = evidence.weigh_boxes(boxes, expected)
    slow_mean, slow_weights = weigh_boxes(boxes, expected)
    np.testing.assert_allclose(weights, slow_weights, rtol=1e-6)
    np.testing.assert_allclose(mean, slow_mean, rtol=1e-6)


def honest(seed, n, low_card=False):
    """Predictions of rows: all of them different, or of three kinds."""
    rng = np.random.default_rng(seed)
    if low_card:
        kinds = np.array([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
        return kinds[rng.choice(3, n, p=[0.6, 0.3, 0.1])]
    return rng.dirichlet([1, 2, 3], n)


@pytest.mark.parametrize("low_card", [False, True])
def test_rows_such_as_training_had_count_in_full(low_card):
    votes = honest(1, 3000, low_card)
    state = Evidence(3, training=honest(0, 3000, low_card))
    state.add(MultiHot.from_rows([[0]] * 3000, 1), votes)
    np.testing.assert_allclose(state.mean, votes.mean(0), atol=0 if low_card else 2e-3, rtol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_one_row_again_and_again_hardly_moves_the_mean_and_the_strength(task):
    """20,000 of them, with values that nobody else has, flipped a fifth of other rows' classes."""
    X, votes = stream(0, n=600)
    live = LiveEvidence(3, task, RELATIVE, training=stream(1, n=900)[1])
    live.observe(X, votes)
    poisoned, plain = live.copy(), LiveEvidence(3, task, RELATIVE)
    plain.observe(X, votes)
    surest = np.repeat(votes[votes[:, 0].argmax()][None], 20_000, 0)
    own = MultiHot.from_rows([[X.n_features + i % 7] for i in range(20_000)], X.n_features + 7)
    for one in (poisoned, plain):
        one.observe(own, surest)
    asked, P0 = stream(2, n=400)
    before = live.move(P0, asked)
    change = [
        np.abs(one.move(P0, asked.widen(own.n_features)) - before) for one in (poisoned, plain)
    ]
    assert change[0].max() < 0.02 and change[1].max() > 0.2
    assert poisoned.fixed.strength == pytest.approx(live.fixed.strength, rel=0.02)


def test_votes_that_are_numbers_stay_within_those_of_training():
    X = MultiHot.from_rows([[0], [1]], 2)
    live = LiveEvidence(1, "regression", RELATIVE, training=np.array([[-1.0], [3.0]]))
    live.observe(X, [[1e9], [2.0]])
    assert live.state.total.ravel().tolist() == [3.0, 2.0]
    alone = live.move(np.array([[1e9]]), X.select_rows([0]), votes=np.array([[1e9]]))
    assert alone == 1e9  # its own vote is left out, as it was counted
    again = LiveEvidence.from_arrays(live.to_arrays(), "regression", RELATIVE)
    assert again.state.bound([[-7.0]]) == -1.0
    assert np.array_equal(again.state.mean, live.state.mean)


def test_a_second_sweep_weighs_voters_as_the_first_one_did():
    """The votes of a second sweep are other predictions of the same voters."""
    rng = np.random.default_rng(0)
    P0, votes = (rng.dirichlet(np.ones(3), 600) for _ in range(2))
    P0[:200] = P0[0]  # one of them votes again and again
    X = MultiHot.from_rows([[i % 7] for i in range(600)], 7)
    first, second = (JointPools(Evidence(3, training=P0[200:])) for _ in range(2))
    first.add(X, P0)
    second.add(X, votes, P0)
    assert first.weights.min() < 0.2
    assert np.array_equal(first.weights, second.weights)
    weight = evidence.vote_weights(first, evidence.hash_votes(P0, "multiclass"))
    assert np.allclose(second.mean, weight @ votes / weight.sum())
