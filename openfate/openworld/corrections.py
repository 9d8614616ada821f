"""Corrections: what labels that came later teach, as a convex step on top of a fitted model.

    logits P[i] = logits P0[i] + x[i] . w + s . f[i] + b

over the labelled later rows, x their features, old and new; f two columns of their own: the logits
of P0 (a slope: how sure the model should have been) and the move that unlabelled evidence asks for.
Ridge on w.  How wide the prior is need not be known: every ridge gives a correction of its own, and
`mixture` weighs them.  Numbers are corrected as they are, without a logit.

The problem is convex and solved to convergence from zero, so that the solution is a function of the
rows, not of their order.  N rows, D features, R ridges, C outputs, Z logits (one for two classes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

from openfate.openworld.evidence import Floats, Task, cell_parts, sigmoid
from openfate.table import MultiHot
from openfate.threads import ONE_THREAD

RIDGES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)  # from strong to weak: each starts the next
CLIP = 1e-6  # of probabilities: P0 beyond it would be beyond correction
_SIDE_RIDGE = 10.0  # of the two columns: a deviation of 0.3, of factors that are about 1
_BIAS_RIDGE = 10.0  # WHY: of several classes the first labels are few each
_STEPS = 60  # of L-BFGS, at most
_FRESH_STEPS = 6  # for features that came since a solution
_CURVE = {"regression": 1.0, "multiclass": 0.5}  # of a loss in a logit, at most; else a quarter


def to_logits(P: Floats, task: Task) -> Floats:
    """(N, C) predictions -> (N, Z) logits; numbers stay.

    Examples
    --------
    >>> to_logits(np.array([[0.5, 0.5]]), "binary")
    array([[0.]])
    """
    if task == "regression":
        return P
    P = np.clip(P, CLIP, 1 - CLIP)
    if task == "multiclass":
        z = np.log(P)
        return np.asarray(z - z.mean(1, keepdims=True))
    z = np.log(P) - np.log1p(-P)
    return np.asarray(z[:, 1:] if task == "binary" else z)


def limit(z: Floats, task: Task) -> Floats:
    """Logits (..., Z) whose predictions stay as far from 0 and 1 as those of `to_logits`.

    Examples
    --------
    >>> limit(np.array([[-40.0], [0.5]]), "binary").round(1)
    array([[-13.8],
           [  0.5]])
    """
    if task == "regression":
        return z
    if task == "multiclass":
        return np.asarray(np.maximum(z, z.max(-1, keepdims=True) + np.log(CLIP)))
    most = np.log1p(-CLIP) - np.log(CLIP)
    return np.clip(z, -most, most)


def to_predictions(z: Floats, task: Task) -> Floats:
    """(..., Z) logits -> (..., C) predictions.

    Examples
    --------
    >>> to_predictions(np.array([[0.0]]), "binary")
    array([[0.5, 0.5]])
    """
    if task == "regression":
        return z
    if task == "multiclass":
        P = np.exp(z - z.max(-1, keepdims=True))
        return np.asarray(P / P.sum(-1, keepdims=True))
    p = sigmoid(z)
    return np.asarray(np.concatenate([1 - p, p], -1) if task == "binary" else p)


@dataclass(frozen=True, eq=False)
class Corrections:
    """Solved corrections, one for each ridge.

    Parameters
    ----------
    features
        (J,) ids of the features that the labelled rows had, ascending.
    W
        (R, J, Z).
    side
        (R, 2) factors of the two columns.
    bias
        (R, Z).

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [1]] * 50, 2)
    >>> P0, y = np.full((100, 2), 0.5), np.array([0, 1] * 50)
    >>> none = np.zeros((100, 1))
    >>> corrections = Corrections.solve(X, to_logits(P0, "binary"), none, y, None, "binary")
    >>> z = corrections.move(X.select_rows([0, 1]), to_logits(P0[:2], "binary"), none[:2])
    >>> to_predictions(z, "binary")[-1].round(1)  # of the weakest ridge
    array([[1., 0.],
           [0., 1.]])
    """

    features: NDArray[np.int64]
    W: Floats
    side: Floats
    bias: Floats

    @classmethod
    def solve(
        cls,
        X: MultiHot,
        z0: Floats,
        e: Floats,
        y: NDArray[Any],
        weight: Floats | None,
        task: Task,
        ridges: tuple[float, ...] = RIDGES,
    ) -> Corrections:
        """Solve for the rows whose labels have come.

        Parameters
        ----------
        X
            (N, D) their features.
        z0, e
            (N, Z) logits of P0, and the move that evidence asks for; zero for none.
        y
            (N,) class numbers, (N, K) labels of 0 and 1, (N, 1) numbers.
        weight
            (N,) how much each row counts, or None.
        """
        features, ids = np.unique(X.ids, return_inverse=True)
        A = scipy.sparse.csr_array((cell_parts(X), ids, X.row_ptr), (X.n_rows, len(features)))
        # WHY: a number that is an edge's value may be of any size; ridges are for sizes up to 1.
        size = np.sqrt(np.maximum(1.0, (A * A).sum(0) / np.maximum(1, (A != 0).sum(0))))  # (J,)
        A = A @ scipy.sparse.diags_array(1 / size)
        target = to_targets(y, z0.shape[1], task)
        middle, unit = np.zeros(z0.shape[1]), 1.0
        if task == "regression" and len(z0):
            # WHY: in units of the model's error and around its mean, so that ridges mean the same
            # for every target, and the solver meets numbers of one size.
            middle, unit = z0.mean(0), max(float(np.sqrt(((target - z0) ** 2).mean())), 1e-12)
        z0, e, target = (z0 - middle) / unit, e / unit, (target - middle) / unit
        side = np.stack([z0, e], axis=1)  # (N, 2, Z)
        loss = _Loss(A, z0, side, target, weight, task)
        theta = np.zeros(loss.size)
        found = []
        for ridge in ridges:
            theta = loss.minimise(theta, ridge)
            found.append(loss.unpack(theta))
        W, factors, bias = (np.stack(parts) for parts in zip(*found, strict=True))
        bias = unit * bias - factors[:, :1] * middle
        return cls(features.astype(np.int64), unit * W / size[:, None], factors, bias)

    def extend(
        self,
        X: MultiHot,
        z0: Floats,
        e: Floats,
        y: NDArray[Any],
        weight: Floats,
        task: Task,
        ridges: tuple[float, ...] = RIDGES,
    ) -> Corrections:
        """With weights for features that came after the solution; those it has stay as they are.

        A few steps on the labelled rows that came since, each to the least of a bound of the loss
        that falls apart into features: they cost by those rows, a solution by all.

        Parameters
        ----------
        X, z0, e, y, weight
            As in `solve`, of the rows that came since.
        """
        fresh = np.setdiff1d(X.ids, self.features)
        if not len(fresh):
            return self
        cells = np.flatnonzero(np.isin(X.ids, fresh))
        places = X.row_of[cells], np.searchsorted(fresh, X.ids[cells])
        A = scipy.sparse.csr_array((cell_parts(X)[cells], places), (X.n_rows, len(fresh)))
        At, shared = A.T.tocsr(), np.abs(A).sum(1)  # (N,) what fresh features of a row share
        curve = _CURVE.get(task, 0.25) * (np.abs(At) @ (weight * shared))  # (J,)
        z, target = self.move(X, z0, e), to_targets(y, z0.shape[1], task)
        W = np.zeros((len(ridges), len(fresh), z0.shape[1]))
        for w, start, ridge in zip(W, z, ridges, strict=True):
            for _ in range(_FRESH_STEPS):
                _, slope = logit_losses(start + A @ w, target, task)
                w -= (At @ (slope * weight[:, None]) + ridge * w) / (curve + ridge)[:, None]
        features = np.concatenate([self.features, fresh])
        order = np.argsort(features)
        W = np.concatenate([self.W, W], 1)[:, order]
        return Corrections(features[order], W, self.side, self.bias)

    def move(self, X: MultiHot, z0: Floats, e: Floats) -> Floats:
        """(R, N, Z) the logits of rows, corrected; features without labels add nothing."""
        factors = self.side[:, :, None, None]  # (R, 2, 1, 1)
        moved = self._sum_features(X)
        return np.asarray(
            z0 + moved + factors[:, 0] * z0 + factors[:, 1] * e + self.bias[:, None, :]
        )

    def _sum_features(self, X: MultiHot) -> Floats:
        """(R, N, Z) x . w of each row."""
        n_ridges, n_features, n_logits = self.W.shape
        if not n_features:
            return np.zeros((n_ridges, X.n_rows, n_logits))
        at = np.searchsorted(self.features, X.ids)
        known = at < len(self.features)
        known[known] = self.features[at[known]] == X.ids[known]
        if X.n_rows == 1:  # WHY: making a matrix takes longer than all else that a request needs
            moved = np.einsum("j,rjz->rz", cell_parts(X)[known], self.W[:, at[known]])
            return np.asarray(moved[:, None])
        shape = (X.n_rows, n_features)
        places = np.where(known, at, 0)
        A = scipy.sparse.csr_array((cell_parts(X) * known, places, X.row_ptr), shape)
        wide = self.W.transpose(1, 0, 2).reshape(n_features, -1)  # (J, R Z)
        return np.asarray((A @ wide).reshape(X.n_rows, n_ridges, n_logits).transpose(1, 0, 2))


class _Loss:
    """The penalised loss and its gradient, over one flat vector of W, side factors and bias."""

    def __init__(
        self,
        A: scipy.sparse.csr_array,
        z0: Floats,
        side: Floats,
        target: Floats,
        weight: Floats | None,
        task: Task,
    ) -> None:
        self.A, self.At = A, A.T.tocsr()
        self.z0, self.target, self.task = z0, target, task
        # WHY: columns of one size are solved in a few steps; `unpack` gives the factors back.
        self.side_size = np.maximum(1.0, np.sqrt((side * side).sum((0, 2)) / max(1, z0.size)))
        self.side = side / self.side_size[:, None]
        self.weight = np.ones(len(z0)) if weight is None else weight
        self.shape = (A.shape[1], z0.shape[1])
        self.size = self.shape[0] * self.shape[1] + 2 + self.shape[1]

    def unpack(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        n = self.shape[0] * self.shape[1]
        side = theta[n : n + 2] / self.side_size
        return theta[:n].reshape(self.shape), side, theta[n + 2 :]

    def minimise(self, start: Floats, ridge: float) -> Floats:
        # WHY: its products are tiny, and threads for them wait a hundred times as long where cores
        # are busy.
        with ONE_THREAD:
            found = scipy.optimize.minimize(
                self.value,
                start,
                args=(ridge,),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": _STEPS, "ftol": 1e-6, "gtol": 1e-3},
            )
        return np.asarray(found.x)

    def value(self, theta: Floats, ridge: float) -> tuple[float, Floats]:
        W, side, bias = self.unpack(theta)
        scaled = side * self.side_size
        z = self.z0 + self.A @ W + np.einsum("nmz,m->nz", self.side, scaled) + bias
        loss, slope = logit_losses(z, self.target, self.task)
        slope *= self.weight[:, None]
        value = (
            float(loss @ self.weight)
            + 0.5 * ridge * float((W * W).sum())
            + 0.5 * _SIDE_RIDGE * float(side @ side)
            + 0.5 * _BIAS_RIDGE * float(bias @ bias)
        )
        gradient = np.concatenate(
            [
                (self.At @ slope + ridge * W).ravel(),
                np.einsum("nmz,nz->m", self.side, slope) + _SIDE_RIDGE * side / self.side_size,
                slope.sum(0) + _BIAS_RIDGE * bias,
            ]
        )
        return value, gradient


def logit_losses(z: Floats, target: Floats, task: Task) -> tuple[Floats, Floats]:
    """(N,) losses of logits (N, Z) and (N, Z) their slopes; half the squared error of numbers."""
    if task == "regression":
        off = z - target
        return (off * off).sum(1) / 2, off
    if task == "multiclass":
        top = z.max(1, keepdims=True)
        log_total = np.log(np.exp(z - top).sum(1, keepdims=True)) + top
        return log_total[:, 0] - (target * z).sum(1), np.exp(z - log_total) - target
    loss = (np.logaddexp(0, z) - target * z).sum(1)
    return loss, sigmoid(z) - target


def to_targets(y: NDArray[Any], n_logits: int, task: Task) -> Floats:
    """(N, Z) what predictions should have been, of labels as `Corrections.solve` takes them."""
    if task == "multiclass":
        return np.eye(n_logits)[y.astype(np.int64)]
    return np.asarray(y, np.float64).reshape(len(y), n_logits)


def logits_of(e: Floats, task: Task) -> Floats:
    """A move (N, C) of the logarithms of predictions, as one of logits (N, Z).

    Examples
    --------
    >>> logits_of(np.array([[-1.0, 1.0]]), "binary")
    array([[2.]])
    """
    return e[:, 1:] - e[:, :1] if task == "binary" else e
