import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_evidence import late_binary, pool_classes, pool_values

from openfate.errors import InputError
from openfate.openworld import (
    Evidence,
    Pooling,
    combine,
    pooled_evidence,
    reference_strength,
    score,
)
from openfate.openworld.pooling import _GRID, _cross_entropy
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
    state = Evidence(1, "values").add(X, y0)
    y = score(state, X, y0, Pooling(0.7, 3.0), own=True)
    np.testing.assert_allclose(y[:, 0], pool_values(dense, y0, 0.7, 3.0), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_labels_are_independent_two_class_problems(seed):
    X, _ = table(seed)
    P0 = np.random.default_rng(seed).random((7, 2))
    both = score(Evidence(2, "labels").add(X, P0), X, P0, Pooling(0.7, 3.0), own=True)
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
    state = Evidence(1, "values").add_labelled(X, [1.0, 3.0], [2.0, 5.0])
    y = score(state, X, [1.0, 3.0], Pooling(strength=0, label_alpha=1))
    np.testing.assert_allclose(y[:, 0], [2.0, 4.0])  # + (7 - 4) / (2 + 1)


@pytest.mark.parametrize("kind", ["classes", "labels", "values"])
@pytest.mark.parametrize("relative", [False, True])
def test_rows_without_new_features_keep_their_prediction_bit_for_bit(kind, relative):
    X, dense = table(5, share=0.3)
    P0 = np.random.default_rng(5).dirichlet(np.ones(3), 7)
    state = Evidence(3, kind).add(X, P0)
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


@pytest.mark.parametrize("kind", ["classes", "labels"])
@pytest.mark.parametrize("seed", range(4))
def test_the_reference_strength_is_the_best_of_the_grid(kind, seed):
    X, _ = table(seed, n_rows=60, n_features=9)
    P0 = predictions(seed, n_rows=60)
    state = Evidence(3, kind).add(X, P0)
    e = pooled_evidence(state, X, P0, 1.0)
    pi = np.broadcast_to(P0.mean(0), e.shape)
    told = e.any(1)
    losses = [_cross_entropy(combine(pi[told], s * e[told], kind), P0[told], kind) for s in _GRID]
    assert reference_strength(e, P0, kind) == _GRID[int(np.argmin(losses))]


def test_reference_strength_of_values_is_the_slope():
    e = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    assert reference_strength(e, 3 + 0.5 * e, "values") == pytest.approx(0.5)
    assert reference_strength(e, 3 - 0.5 * e, "values") == 0
    assert reference_strength(0 * e, e, "values") == 0


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
    np.testing.assert_allclose(combine(P0, np.zeros_like(P0), "classes"), P0)
    np.testing.assert_allclose(combine(P0, np.zeros_like(P0), "labels"), P0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength=-1.0: choose a number from 0 up."),
        ({"alpha": 0.0}, "alpha=0.0: choose a number above 0."),
        ({"label_alpha": float("nan")}, "label_alpha=nan: choose a number above 0."),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InputError) as caught:
        Pooling(**settings)
    assert message in str(caught.value)
