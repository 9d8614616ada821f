"""Embeddings of new features by one round of messages, rows -> features, in closed form.

The context of a feature is the mean, over its rows, of the summed embeddings of the other features:

    c_j = sum over rows i of j of (z_i - x_ij w_j - mean z) / (n_j + alpha)

For observed features both c_j and w_j are known; ridge regression between them gives the map M, and
a new feature gets w_j = c_j M.  It is the paper's extrapolator with one mean-aggregating layer,
whose weights are solved for instead of trained, so that a probe can afford to fit it in every draw.
A row that is scored is left out of the contexts of its own features, as in `pooling`.

N rows, D features, H width.
"""

from __future__ import annotations

import numpy as np

from openfate.openworld import Floats
from openfate.table import MultiHot

__all__ = ["learn_map", "new_part"]

ALPHA = 3.0  # rows of no context at all that a feature starts with
RIDGE = 1.0  # times the mean eigenvalue of the contexts


def learn_map(W: Floats, X: MultiHot, ridge: float = RIDGE) -> Floats:
    """M (H, H), from the contexts of observed features to their embeddings W (D, H).

    Parameters
    ----------
    X
        Training rows (N, D); a feature counts by the number of its rows.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0, 2], [1, 3]] * 4, 4)
    >>> W = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> learn_map(W, X).round(2)  # what stands together looks alike
    array([[ 0.58, -0.58],
           [-0.58,  0.58]])
    """
    n = X.feature_degree.astype(np.float64)[:, None]
    z = _sum_rows(W, X)
    total = _sum_features(z - z.mean(0), X) - n * (W - _mean(W, n))
    context, weight = total / (n + ALPHA), n
    context = context - _mean(context, weight)
    gram = context.T @ (weight * context)
    scale = np.trace(gram) / len(gram)
    if scale == 0:
        return np.zeros_like(gram)
    target = context.T @ (weight * (W - _mean(W, weight)))
    return np.asarray(np.linalg.solve(gram + ridge * scale * np.eye(len(gram)), target))


def new_part(W: Floats, M: Floats, X_old: MultiHot, X_new: MultiHot) -> Floats:
    """(N, H) the sum over each row's new features of their embeddings, its own vote left out.

    Examples
    --------
    >>> X_old = MultiHot.from_rows([[0], [0], [1]], 2)
    >>> X_new = MultiHot.from_rows([[0], [0], []], 1)
    >>> new_part(np.eye(2), np.eye(2), X_old, X_new).round(2)
    array([[ 0.08, -0.08],
           [ 0.08, -0.08],
           [ 0.  ,  0.  ]])
    """
    z = _sum_rows(W, X_old)
    z = z - z.mean(0)
    total, n = _sum_features(z, X_new), X_new.feature_degree
    row, feature = X_new.row_of, X_new.ids
    context = (total[feature] - z[row]) / (n[feature] - 1 + ALPHA)[:, None]
    # The map is linear: contexts are added up first, and one product of (N, H) with M is left.
    return np.asarray(_add(context, row, len(z)) @ M)


def _mean(values: Floats, weight: Floats) -> Floats:
    return np.asarray((weight * values).sum(0) / max(1.0, float(weight.sum())))


def _sum_rows(W: Floats, X: MultiHot) -> Floats:
    """X W, (N, H)."""
    return _add(W[X.ids], X.row_of, X.n_rows)


def _sum_features(z: Floats, X: MultiHot) -> Floats:
    """X^T z, (D, H)."""
    return _add(z[X.row_of], X.ids, X.n_features)


def _add(values: Floats, at: np.ndarray[tuple[int], np.dtype[np.integer]], n: int) -> Floats:
    """Sum the rows of `values` that go to the same place."""
    columns = [np.bincount(at, values[:, h], n) for h in range(values.shape[1])]
    return np.stack(columns, axis=1)
