"""Corrections against slow twins: dense, one ridge at a time, solved to high precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from openfate.openworld import Corrections, to_logits, to_predictions
from openfate.openworld.corrections import RIDGES, limit, logit_losses, to_targets
from openfate.table import MultiHot

TASKS = ("binary", "multiclass", "multilabel", "regression")


def rows(seed, task, n=200, n_features=8, values=False):
    """Rows whose labels follow their features, P0 that knows half of it, and a move."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n_features)) < 0.4
    carried = rng.uniform(0.2, 3.0, dense.sum()) if values else None
    X = MultiHot.from_entries(*np.nonzero(dense), n, n_features, carried)
    n_logits = {"multiclass": 3, "multilabel": 2}.get(task, 1)
    told = X.to_dense() @ rng.normal(size=(n_features, n_logits))
    z0 = rng.normal(size=(n, n_logits))
    if task == "multiclass":
        z0 -= z0.mean(1, keepdims=True)
    e = 0.5 * told + rng.normal(size=told.shape)
    P = to_predictions(z0 + told, task)
    if task == "regression":
        y = P + rng.normal(size=P.shape)
    elif task == "multilabel":
        y = (rng.random(P.shape) < P).astype(float)
    else:
        y = (rng.random((n, 1)) > P.cumsum(1)).sum(1)
    return X, z0, e, y


def twin(X, z0, e, y, weight, task, ridge):
    """(N, Z) corrected logits: the objective as the module prints it, minimised without slopes."""
    A = X.to_dense().astype(float)
    size = np.array([np.sqrt(max(1.0, (c[c != 0] ** 2).mean())) if c.any() else 1.0 for c in A.T])
    A = A / size
    weight = np.ones(len(A)) if weight is None else weight
    J, Z = A.shape[1], z0.shape[1]
    unit, middle = 1.0, np.zeros(Z)
    if task == "regression":
        unit, middle = np.sqrt(((y - z0) ** 2).mean()), z0.mean(0)

    def unpack(theta):
        return theta[: J * Z].reshape(J, Z), theta[J * Z : J * Z + 2], theta[J * Z + 2 :]

    def objective(theta):
        W, side, bias = unpack(theta)
        z = z0 / unit + A @ W + side[0] * (z0 - middle) / unit + side[1] * e / unit + bias
        if task == "regression":
            loss = ((z - y / unit) ** 2).sum(1) / 2
        elif task == "multiclass":
            loss = np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]
        else:
            sign = 2 * np.asarray(y).reshape(len(A), -1) - 1
            loss = np.log1p(np.exp(-sign * z)).sum(1)
        penalty = ridge * (W**2).sum() + 10 * ((side**2).sum() + (bias**2).sum())
        return weight @ loss + penalty / 2

    found = scipy.optimize.minimize(
        objective, np.zeros(J * Z + 2 + Z), method="BFGS", options={"gtol": 1e-5}
    )
    W, side, bias = unpack(found.x)
    moved = A @ W * unit + side[0] * (z0 - middle) + side[1] * e + bias * unit
    return z0 + moved


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_corrections_agree_with_their_slow_twin(task, values):
    X, z0, e, y = rows(0, task, values=values)
    weight = np.random.default_rng(1).uniform(0.1, 1, X.n_rows)
    solved = Corrections.solve(X, z0, e, y, weight, task, (30.0, 1.0))
    for moved, ridge in zip(solved.move(X, z0, e), (30.0, 1.0), strict=True):
        expected = twin(X, z0, e, y, weight, task, ridge)
        assert np.abs(moved - z0).max() > 0.1
        np.testing.assert_allclose(moved, expected, atol=0.02)


@pytest.mark.parametrize(("middle", "unit"), [(0.0, 1.0), (0.0, 1e-5), (2e3, 1.0), (2e5, 5e4)])
def test_numbers_are_ridge_regression_of_the_residuals_whatever_their_unit(middle, unit):
    """A target in thousands, or far from zero, was never corrected: the solver stopped at once."""
    X, z0, e, y = rows(0, "regression")
    A, n = X.to_dense().astype(float), X.n_rows
    residual = y - z0
    error = np.sqrt((residual**2).mean())
    B = np.column_stack([A, (z0 - z0.mean()) / error, e / error, np.ones(n)])
    penalty = np.diag([3.0] * A.shape[1] + [10.0, 10.0, 10.0])
    w = np.linalg.solve(B.T @ B + penalty, B.T @ residual / error)
    given = middle + unit * z0, unit * e, middle + unit * y
    solved = Corrections.solve(X, *given, None, "regression", (3.0,))
    found = (solved.move(X, given[0], given[1])[0] - given[0]) / unit
    np.testing.assert_allclose(found, B @ w * error, atol=0.01)
    assert np.abs(found).max() > 1


@pytest.mark.parametrize("task", TASKS)
def test_the_order_of_rows_and_the_names_of_features_do_not_matter(task):
    X, z0, e, y = rows(2, task)
    one = Corrections.solve(X, z0, e, y, None, task).move(X, z0, e)
    order = np.random.default_rng(0).permutation(X.n_rows)
    renamed = np.random.default_rng(1).permutation(50)[: X.n_features]
    shuffled = X.select_rows(order)
    other = MultiHot.from_entries(shuffled.row_of, renamed[shuffled.ids], X.n_rows, 50)
    two = Corrections.solve(other, z0[order], e[order], y[order], None, task)
    np.testing.assert_allclose(two.move(other, z0[order], e[order]), one[:, order], atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_features_without_labels_add_nothing(task):
    X, z0, e, y = rows(3, task)
    solved = Corrections.solve(X, z0, e, y, None, task)
    more = [[*X.ids[X.row_ptr[i] : X.row_ptr[i + 1]], 8 + i % 3] for i in range(X.n_rows)]
    wider = MultiHot.from_rows(more, 11)
    np.testing.assert_allclose(solved.move(wider, z0, e), solved.move(X, z0, e), atol=1e-12)
    assert solved.W.shape == (len(RIDGES), 8, z0.shape[1])


@pytest.mark.parametrize("task", TASKS)
def test_a_weaker_ridge_lets_weights_grow(task):
    X, z0, e, y = rows(4, task)
    W = Corrections.solve(X, z0, e, y, None, task).W
    assert np.all(np.diff((W**2).sum((1, 2))) > 0)


def some(task, n):
    n_logits = {"multiclass": 3, "multilabel": 2}.get(task, 1)
    y = np.zeros(n, int) if task in ("binary", "multiclass") else np.zeros((n, n_logits))
    return np.zeros((n, n_logits)), y


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "cells",
    [[[]] * 5, [[0], [], [1], [0, 1], []], [[0]], [[]]],
    ids=["no features", "some rows without", "one row", "one row without"],
)
def test_few_rows_and_rows_without_features_are_corrected_by_the_bias_alone(task, cells):
    X = MultiHot.from_rows(cells, 2)
    z0, y = some(task, X.n_rows)
    solved = Corrections.solve(X, z0, 0 * z0, y, None, task)
    moved = solved.move(MultiHot.from_rows([[], [0], [1]], 2), *[np.zeros((3, z0.shape[1]))] * 2)
    assert np.isfinite(moved).all()
    np.testing.assert_allclose(moved[:, 0], solved.bias, atol=1e-12)
    if task != "regression":  # every label is the first class, or none of the labels
        P = to_predictions(moved, task)[:, 0]
        assert np.all(P[:, 0] > P[:, 1] if task != "multilabel" else P < 0.5)


def test_no_row_at_all_corrects_nothing():
    for task in TASKS:
        z0, y = some(task, 0)
        solved = Corrections.solve(MultiHot.from_rows([], 2), z0, z0, y, None, task)
        there = np.ones((1, z0.shape[1]))
        assert np.all(solved.move(MultiHot.from_rows([[0]], 2), there, there) == there)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_certain_predictions_can_be_corrected_and_stay_finite(task):
    n_outputs = {"binary": 2, "multiclass": 3, "multilabel": 2}[task]
    P0 = np.eye(n_outputs)[np.zeros(60, int)]
    z0 = to_logits(P0, task)
    assert np.isfinite(z0).all()
    np.testing.assert_allclose(to_predictions(z0, task), P0, atol=3e-6)
    y = np.ones(60, int) if task != "multilabel" else 1 - P0
    X = MultiHot.from_rows([[0]] * 60, 1)
    solved = Corrections.solve(X, z0, 0 * z0, y, None, task)
    P = to_predictions(solved.move(X, z0, 0 * z0), task)
    assert np.isfinite(P).all() and (P[-1] > P0)[:, 1].all()


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e6, 1e30])
def test_values_of_any_size_are_corrected_as_those_of_one(size):
    X, z0, e, y = rows(5, "binary")
    dense = X.to_dense().astype(bool)
    carried = np.random.default_rng(0).uniform(0.5, 1.5, dense.sum())
    huge = MultiHot.from_entries(*np.nonzero(dense), 200, 8, carried * size)
    moved = Corrections.solve(huge, z0, e, y, None, "binary").move(huge, z0, e)
    assert np.isfinite(moved).all()
    if size >= 1e6:
        like = MultiHot.from_entries(*np.nonzero(dense), 200, 8, carried * 100)
        same = Corrections.solve(like, z0, e, y, None, "binary").move(like, z0, e)
        np.testing.assert_allclose(moved, same, atol=1e-4)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_limited_logits_give_probabilities_off_zero_and_one(task):
    z = np.array([[-1e9, 0.0, 1e9], [0.1, 0.2, 0.3], [50.0, 50.0, -50.0]])
    P = to_predictions(limit(z[:, :1] if task == "binary" else z, task), task)
    assert P.min() > 3e-7 and P.max() < 1 - 3e-7
    if task != "binary":
        assert np.array_equal(limit(z, task)[1], z[1])


# ---- features that came since a solution ---------------------------------------------------------


def halves(task):
    """A solution of some rows without two features, and other rows that have them."""
    X, z0, e, y = rows(5, task)
    first, since = np.arange(0, 100), np.arange(100, 200)
    known = X.select_rows(first).to_dense()[:, :-2]
    early = MultiHot.from_entries(*np.nonzero(known), 100, X.n_features)
    solved = Corrections.solve(early, z0[first], e[first], y[first], None, task, (30.0, 1.0))
    return solved, (X.select_rows(since), z0[since], e[since], y[since], np.ones(100), task)


@pytest.mark.parametrize("task", TASKS)
def test_fresh_features_approach_the_least_loss_that_old_ones_leave(task, monkeypatch):
    solved, later = halves(task)
    X, z0, e, y, *_ = later
    A, target = X.to_dense()[:, -2:].astype(float), to_targets(y, z0.shape[1], task)
    base = solved.move(X, z0, e)

    def value(w, at, ridge):
        w = w.reshape(2, -1)
        return logit_losses(base[at] + A @ w, target, task)[0].sum() + ridge / 2 * (w * w).sum()

    losses = {}
    for n_steps in (1, 6, 500):
        monkeypatch.setattr("openfate.openworld.corrections._FRESH_STEPS", n_steps)
        W = solved.extend(*later, (30.0, 1.0)).W
        assert np.array_equal(W[:, :-2], solved.W)
        losses[n_steps] = [value(W[at, -2:], at, ridge) for at, ridge in enumerate((30.0, 1.0))]
    for at, ridge in enumerate((30.0, 1.0)):
        start = np.zeros(2 * z0.shape[1])
        least = scipy.optimize.minimize(value, start, args=(at, ridge)).fun
        first, some, last = (losses[n][at] for n in (1, 6, 500))
        assert value(start, at, ridge) > first >= some >= last >= least - 1e-6
        assert last == pytest.approx(least, abs=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_nothing_fresh_changes_nothing(task):
    solved, (X, *rest) = halves(task)
    old = MultiHot.from_entries(*np.nonzero(X.to_dense()[:, :-2]), 100, X.n_features)
    assert solved.extend(old, *rest, (30.0, 1.0)) is solved
