import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_evidence import late_binary, pool_classes, pool_values, pooled

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
from openfate.openworld.pooling import _GRID, _cross_entropy, combine
from openfate.table import MultiHot


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


@pytest.mark.parametrize(("k", "m"), [(0, 1.2), (3, 1.2), (2, 2.0)])
def test_late_labels_follow_the_printed_formula(k, m):
    X = MultiHot.from_rows([[0], [0], [0]], 1)
    P0 = np.array([[1 - m / 3, m / 3]] * 3)
    y = np.arange(3) < k
    state = Evidence(2).add_labelled(X, P0, y)
    P = score(state, X, P0, Pooling(strength=0, label_alpha=2.0))
    moved = np.log(P[0, 1] / P[0, 0]) - np.log(P0[0, 1] / P0[0, 0])
    assert moved == pytest.approx(late_binary(k, m, 3, m / 3, 2.0))


def test_labels_as_expected_leave_the_prediction_alone():
    X = MultiHot.from_rows([[0], [0]], 1)
    P0 = np.array([[0.5, 0.5]] * 2)
    state = Evidence(2).add_labelled(X, P0, [0, 1])
    np.testing.assert_allclose(score(state, X, P0, Pooling(0, label_alpha=1)), P0)


def test_unlabelled_rows_do_not_drown_the_labels():
    X = MultiHot.from_rows([[0]] * 4, 1)
    P0 = np.array([[0.5, 0.5]] * 4)
    state = Evidence(2).add_labelled(X, P0, [1, 1, 1, 1])
    before = score(state, X, P0, Pooling(label_alpha=2))
    for _ in range(100):
        state.add(X, P0)
    np.testing.assert_allclose(score(state, X, P0, Pooling(label_alpha=2)), before)


def test_late_values_move_a_prediction_by_the_shrunken_residual():
    X = MultiHot.from_rows([[0], [0]], 1)
    state = Evidence(1, "regression").add_labelled(X, [1.0, 3.0], [2.0, 5.0])
    y = score(state, X, [1.0, 3.0], Pooling(strength=0, label_alpha=1))
    np.testing.assert_allclose(y[:, 0], [2.0, 4.0])  # + (7 - 4) / (2 + 1)


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
        others = state.copy().remove(X.select_rows([i]), P0[[i]])
        others.row_count, others.row_total = state.row_count, state.row_total  # pi is of all rows
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
    losses = [_cross_entropy(combine(pi[told], s * e[told], task), P0[told], task) for s in _GRID]
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
        ({"label_alpha": float("nan")}, "label_alpha=nan: choose a number above 0."),
        ({"n_sweeps": 0}, "n_sweeps=0: choose an integer from 1 up."),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InputError) as caught:
        Pooling(**settings)
    assert message in str(caught.value)


# ---- evidence in a stream: neither the order of rows nor how they were cut matters --------------

RELATIVE = Pooling(strength=0.7, alpha=3.0, relative=True)


def stream(seed: int, n: int = 60, n_features: int = 7, n_outputs: int = 3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_outputs, n)
    told = rng.random((n, n_features)) < np.where(np.arange(n_features) % 3 == y[:, None], 0.5, 0.1)
    votes = rng.dirichlet(np.ones(n_outputs), n) + 2 * np.eye(n_outputs)[y]
    X = MultiHot.from_entries(*np.nonzero(told), n, n_features)
    return X, votes / votes.sum(1, keepdims=True), y


def say(live, X):
    """What evidence makes of rows that are predicted alike."""
    P = np.full((X.n_rows, live.state.n_outputs), 1 / live.state.n_outputs)
    return live.move(P, X, P)


@given(st.integers(0, 30), st.lists(st.integers(1, 59), max_size=4), st.booleans())
def test_order_and_cuts_do_not_matter(seed, cuts, labelled):
    X, votes, y = stream(seed)
    whole = LiveEvidence(3, pooling=RELATIVE)
    whole.observe(X, votes, y if labelled else None)
    order = np.random.default_rng(seed).permutation(60)
    parts = LiveEvidence(3, pooling=RELATIVE)
    for part in np.split(order, sorted(set(cuts))):
        parts.observe(X.select_rows(part), votes[part], y[part] if labelled else None)
    assert parts.fixed.strength == pytest.approx(whole.fixed.strength, abs=1e-12)
    np.testing.assert_allclose(say(parts, X), say(whole, X), atol=1e-9)


def test_the_strength_is_that_of_all_rows_while_they_fit_the_sample():
    X, votes, _ = stream(0)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    state = Evidence(3).add(X, votes)
    e = pooled_evidence(state, X, votes, RELATIVE.alpha)
    assert live.fixed.strength == pytest.approx(0.7 * reference_strength(e, votes))
    assert live.fixed.strength > 0


def test_the_sample_stays_small_and_is_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr(evidence, "SAMPLE", 10)
    X, votes, _ = stream(1)
    one, other = LiveEvidence(3, pooling=RELATIVE), LiveEvidence(3, pooling=RELATIVE)
    one.observe(X, votes)
    for at in np.random.default_rng(0).permutation(60):
        other.observe(X.select_rows([at]), votes[[at]])
    ours, theirs = one.to_arrays(), other.to_arrays()
    assert len(ours["sample_key"]) == 10
    for name in ("sample_key", "sample_row_ptr", "sample_ids", "sample_votes"):
        assert np.array_equal(ours[name], theirs[name])


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


def test_labels_that_come_later_change_no_unlabelled_sum():
    X, votes, y = stream(2)
    at_once, later = LiveEvidence(3, pooling=RELATIVE), LiveEvidence(3, pooling=RELATIVE)
    at_once.observe(X, votes, y)
    later.observe(X, votes)
    later.observe(X, votes, y, seen=True)
    for name, array in at_once.to_arrays().items():
        np.testing.assert_allclose(later.to_arrays()[name], array, atol=1e-9)


def test_arrays_bring_it_back_and_a_copy_is_independent():
    X, votes, y = stream(3)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes, y)
    before = say(live, X)
    again = LiveEvidence.from_arrays(live.to_arrays(), "multiclass", RELATIVE)
    assert np.array_equal(say(again, X), before)
    live.copy().observe(X, votes)
    assert np.array_equal(say(live, X), before)


def test_arrays_that_do_not_fit_are_refused():
    X, votes, _ = stream(4)
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
    X, _, _ = stream(5)
    live = LiveEvidence(3, pooling=RELATIVE)
    assert live.fixed.strength == 0
    assert np.array_equal(say(live, X), np.full((60, 3), 1 / 3))


# ---- rows that are predicted together ----------------------------------------------------------


def joint_of(live, parts, every=True):
    joint = JointEvidence(live, every)
    for _ in range(joint.pooling.n_sweeps):
        joint.sweep(parts)
    return joint


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("n_sweeps", [1, 2, 3])
def test_rows_predicted_together_are_those_of_the_candidate(n_sweeps, task):
    X, P0, _ = stream(6)
    pooling = Pooling(0.7, 3.0, relative=True, n_sweeps=n_sweeps)
    expected = UseEvidence(pooling)(View(lambda X: P0, X, X, task))
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
    X, P0, _ = stream(7)
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


def test_what_the_state_knows_is_said_as_by_the_state_where_only_unseen_features_are_joined():
    X, P0, _ = stream(8, n_features=9)
    live = LiveEvidence(3, pooling=RELATIVE, batch_pooling=Pooling(2.0, 1.0, n_sweeps=2))
    live.observe(X.select_features(np.arange(4)), P0)
    joint = joint_of(live, [(X, P0)], every=False)
    found = joint.move(P0, X, joint.votes(X, P0))
    known = ~X.select_features(np.arange(4, 9)).row_degree.astype(bool)
    assert known.any() and not known.all()
    assert np.array_equal(found[known], live.move(P0, X, P0)[known])
    assert not np.allclose(found[~known], live.move(P0, X, P0)[~known])


def test_labels_speak_once_in_a_batch_too():
    X, P0, y = stream(9)
    live = LiveEvidence(3, pooling=Pooling(strength=0.0, label_alpha=5.0))
    live.observe(X, P0, y)
    joint = joint_of(live, [(X, P0)])
    found = joint.move(P0, X, joint.votes(X, P0))
    np.testing.assert_allclose(found, live.move(P0, X, P0), atol=1e-12)
    assert not np.allclose(found, P0)
