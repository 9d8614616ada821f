"""Evidence pooling: one round of message passing, rows -> features -> rows, between predictions.

P0 (N, C) is what a fitted model predicts from the observed features, pi (C,) its mean over rows.
A new feature j pools the predictions of the n_j rows that have it; a row then adds up the evidence
of its new features, its own vote left out of every pool:

    q[j] = (sum of P0 over the rows of j + alpha pi) / (n_j + alpha)
    e[i] = sum over the new features j of row i of  log q[j] - log pi
    P[i] proportional to  P0[i] exp(strength e[i])

Late labels compare what happened, k, with what the model expected, m, of the labelled rows alone:

    e[i] = mean over j of  log((k[j] + alpha pi) / (m[j] + alpha pi))

A mean, because new features that come together (a campaign, its banner, its site) make the same
error of the model their own: their sum would correct it as many times.

N rows, J new features, C outputs.  Nothing here takes a gradient, and the cost is proportional to
the new cells.  Which settings to use: `probe`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.openworld.evidence import Evidence, Floats, Kind
from openfate.table import MultiHot

__all__ = ["Pooling", "combine", "pooled_evidence", "reference_strength", "score"]

TINY = 1e-12  # a probability below it counts as this much, so that every logarithm is finite
# Strengths that `reference_strength` tries: 0, then 1/32 .. 4 in steps of a sixth of an octave.
_GRID = np.concatenate([[0.0], 2.0 ** np.arange(-5, 2.001, 1 / 6)])
_MOST_ROWS = 5000  # WHY: the reference strength is one number; more rows do not change it


@dataclass(frozen=True)
class Pooling:
    """How evidence is weighed.

    Parameters
    ----------
    strength
        lambda; 0 leaves the predictions as they are.
    alpha
        How many rows of mean prediction a new feature starts with.
    relative
        Whether `strength` is a multiple of `reference_strength`, taken from the rows scored.
    label_strength, label_alpha
        The same for late labels.

    Examples
    --------
    >>> Pooling(strength=0.5, relative=True).fixed(0.4).strength
    0.2
    """

    strength: float = 1.0
    alpha: float = 10.0
    relative: bool = False
    label_strength: float = 1.0
    label_alpha: float = 100.0

    def __post_init__(self) -> None:
        for name in ("strength", "label_strength"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}: choose a number from 0 up.")
        for name in ("alpha", "label_alpha"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}: choose a number above 0.")

    def fixed(self, reference: float) -> Pooling:
        """These settings with an absolute strength, for use row by row."""
        return replace(self, strength=self.strength * reference, relative=False)


def score(
    state: Evidence, X: MultiHot, P0: ArrayLike, pooling: Pooling, *, own: bool = False
) -> Floats:
    """Predictions (N, C) that use what the state knows about the new features of the rows.

    Parameters
    ----------
    state
        Not changed.  Features that it has not met say nothing.
    X, P0
        New features (N, J) and predictions (N, C) of the rows to score.
    pooling
        How evidence is weighed.
    own
        Whether these rows are in the state (added, unlabelled): then each row's own vote is
        left out.

    Returns
    -------
        A row without new features, or whose new features say nothing, gets its P0, bit for bit.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0]], 1)
    >>> state = Evidence(2).add_labelled(X, [[0.5, 0.5]] * 2, [1, 1])
    >>> score(state, X, [[0.5, 0.5]] * 2, Pooling(strength=0, label_alpha=1)).round(2)
    array([[0.17, 0.83],
           [0.17, 0.83]])
    """
    P0 = state._checked(X, P0)
    e = np.zeros_like(P0)
    if pooling.strength > 0:
        pooled = pooled_evidence(state, X, P0 if own else None, pooling.alpha)
        strength = pooling.strength
        if pooling.relative:
            strength *= reference_strength(pooled, P0, state.kind)
        e += strength * pooled
    if pooling.label_strength > 0 and state.labelled_count.any():
        e += pooling.label_strength * label_evidence(state, X, pooling.label_alpha)
    return combine(P0, e, state.kind)


def combine(P0: Floats, e: Floats, kind: Kind) -> Floats:
    """Predictions P0 (N, C) moved by evidence e (N, C); a row without evidence keeps its bits.

    Examples
    --------
    >>> combine(np.array([[0.5, 0.5]]), np.array([[0.0, np.log(3)]]), "classes")
    array([[0.25, 0.75]])
    """
    if kind == "values":
        P = P0 + e
    elif kind == "classes":
        z = np.log(np.maximum(P0, TINY)) + e
        P = np.exp(z - z.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
    else:
        P = _sigmoid(_logit(P0) + e)
    return np.where((e != 0).any(1, keepdims=True), P, P0)


def pooled_evidence(state: Evidence, X: MultiHot, own: Floats | None, alpha: float) -> Floats:
    """Evidence (N, C) from unlabelled rows; `own` (N, C) is each row's vote, to be left out."""
    known = X.ids < state.n_features
    known[known] = state.count[X.ids[known]] > 0
    row, feature = X.row_of[known], X.ids[known]
    n, total, pi = state.count[feature], state.total[feature], state.mean
    if own is not None:
        n, total = n - 1, total - own[row]
    n = np.maximum(n, 0)[:, None]  # after decay a row's vote is worth less than it was
    if state.kind == "values":
        # n / (n + alpha) * (mean - pi), without a division by n = 0
        said = np.where(n > 0, total - n * pi, 0) / (n + alpha)
    else:
        q = (np.clip(total, 0, n) + alpha * pi) / (n + alpha)
        said = _log_ratio(q, pi, state.kind)
    return _sum_at_rows(row, said, X.n_rows)


def label_evidence(state: Evidence, X: MultiHot, alpha: float) -> Floats:
    """Evidence (N, C) from labelled rows: what happened against what the model expected."""
    known = X.ids < state.n_features
    known[known] = state.labelled_count[X.ids[known]] > 0
    row, feature = X.row_of[known], X.ids[known]
    n = state.labelled_count[feature][:, None]
    k, m, pi = state.outcome[feature], state.labelled_total[feature], state.mean
    if state.kind == "values":
        said = (k - m) / (n + alpha)
    else:
        happened = (np.clip(k, 0, n) + alpha * pi) / (n + alpha)
        expected = (np.clip(m, 0, n) + alpha * pi) / (n + alpha)
        said = _log_ratio(happened, expected, state.kind)
    n_told = np.bincount(row, minlength=X.n_rows)
    return _sum_at_rows(row, said, X.n_rows) / np.maximum(n_told, 1)[:, None]


def reference_strength(
    e: Floats, P0: Floats, kind: Kind = "classes", mean: Floats | None = None
) -> float:
    """The strength at which the evidence, alone, predicts the model's own predictions best.

    Evidence adds up over the new features of a row, and features that say the same thing count
    many times.  This statistic of unlabelled rows measures how often: the evidence of a row (own
    vote left out) and its P0 come from different features and speak of the same outcome.
    A strength chosen by probe is a multiple of it, which carries over from few new cells to many.

    Parameters
    ----------
    e, P0
        Evidence at strength 1 and predictions, (N, C).
    mean
        (C,) the mean prediction, where these rows are not all rows.

    Examples
    --------
    >>> P0 = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> e = 4 * np.log(P0 / 0.5)  # the same thing, said four times
    >>> round(reference_strength(e, P0), 2)
    0.25
    """
    mean = P0.mean(0) if mean is None else mean
    told = np.flatnonzero(e.any(1))
    told = told[:: max(1, len(told) // _MOST_ROWS)]
    if not len(told):
        return 0.0
    e, target = e[told], P0[told]
    pi = np.broadcast_to(mean, e.shape)
    if kind == "values":
        return max(0.0, float(((target - pi) * e).sum() / (e * e).sum()))
    low, high = 0, len(_GRID) - 1
    while low < high:  # the cross-entropy is convex in the strength: halve instead of trying all
        middle = (low + high) // 2
        here, next_ = (
            _cross_entropy(combine(pi, s * e, kind), target, kind)
            for s in _GRID[middle : middle + 2]
        )
        low, high = (low, middle) if here <= next_ else (middle + 1, high)
    return float(_GRID[low])


def _cross_entropy(P: Floats, target: Floats, kind: Kind) -> float:
    loss = -(target * np.log(np.maximum(P, TINY))).sum()
    if kind == "labels":
        loss -= ((1 - target) * np.log(np.maximum(1 - P, TINY))).sum()
    return float(loss)


def _log_ratio(q: Floats, pi: Floats, kind: Kind) -> Floats:
    """Give log q - log pi, for labels as a difference of log-odds; finite for 0 and 1."""
    if kind == "labels":
        return _logit(q) - _logit(pi)
    return np.asarray(np.log(np.maximum(q, TINY)) - np.log(np.maximum(pi, TINY)))


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(p, TINY)) - np.log(np.maximum(1 - p, TINY)))


def _sigmoid(z: Floats) -> Floats:
    # WHY: tanh is the same function and never overflows
    return np.asarray(0.5 * (1 + np.tanh(z / 2)))


def _sum_at_rows(row: NDArray[np.int64], values: Floats, n_rows: int) -> Floats:
    columns = [np.bincount(row, values[:, c], n_rows) for c in range(values.shape[1])]
    return np.stack(columns, axis=1)
