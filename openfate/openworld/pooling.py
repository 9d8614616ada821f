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

The strength is best given as a multiple of the reference strength: that at which the evidence of
rows, alone, predicts their P0 best (`reference_strength`).  It is always measured on a `Sample` of
the rows that are in the sums, each row's own vote left out.

N rows, J new features, C outputs.  Nothing here takes a gradient, and the cost is proportional to
the new cells.  Which settings to use: `probe`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.openworld.evidence import Evidence, Floats, Sample, Task, sample_rows
from openfate.table import MultiHot

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
        Whether `strength` is a multiple of `reference_strength`.
    label_strength, label_alpha
        The same for late labels.
    n_sweeps
        A second sweep pools what the first one predicts, and moves P0 again.  That takes rows that
        are predicted together: what a state knows of earlier rows is pooled once.

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
    n_sweeps: int = 1

    def __post_init__(self) -> None:
        for name in ("strength", "label_strength"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}: choose a number from 0 up.")
        for name in ("alpha", "label_alpha"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}: choose a number above 0.")
        if not isinstance(self.n_sweeps, int) or self.n_sweeps < 1:
            raise InputError(f"n_sweeps={self.n_sweeps!r}: choose an integer from 1 up.")

    def fixed(self, reference: float) -> Pooling:
        """These settings with an absolute strength, for use row by row."""
        return replace(self, strength=self.strength * reference, relative=False)


def score(
    state: Evidence, X: MultiHot, P0: ArrayLike, pooling: Pooling, *, own: bool = False
) -> Floats:
    """Predictions (N, C) that use what the state knows of the new features of rows: one sweep.

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
    P0 = state.check_predictions(P0, X.n_rows)
    votes = P0 if own else None
    if pooling.relative:
        e = pooled_evidence(state, X, votes, pooling.alpha)
        pooling = pooling.fixed(sample_reference(e, X, P0, state.task))
    return combine(P0, weigh(state, X, pooling, votes), state.task)


def weigh(state: Evidence, X: MultiHot, pooling: Pooling, own: Floats | None = None) -> Floats:
    """Evidence (N, C) of unlabelled and of labelled rows, each times its strength.

    Parameters
    ----------
    pooling
        With an absolute strength.
    own
        (N, C) the rows' own votes, to be left out where they are in the state.
    """
    e = np.zeros((X.n_rows, state.n_outputs))
    if pooling.strength > 0:
        e += pooling.strength * pooled_evidence(state, X, own, pooling.alpha)
    if pooling.label_strength > 0 and state.labelled_count.any():
        e += pooling.label_strength * label_evidence(state, X, pooling.label_alpha)
    return e


def combine(P0: Floats, e: Floats, task: Task) -> Floats:
    """Predictions P0 (N, C) moved by evidence e (N, C); a row without evidence keeps its bits.

    Examples
    --------
    >>> combine(np.array([[0.5, 0.5]]), np.array([[0.0, np.log(3)]]), "binary")
    array([[0.25, 0.75]])
    """
    if task == "regression":
        P = P0 + e
    elif task == "multilabel":
        P = _sigmoid(_logit(P0) + e)
    else:
        z = np.log(np.maximum(P0, TINY)) + e
        P = np.exp(z - z.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
    return np.where((e != 0).any(1, keepdims=True), P, P0)


def pooled_evidence(state: Evidence, X: MultiHot, own: Floats | None, alpha: float) -> Floats:
    """Evidence (N, C) from unlabelled rows; `own` (N, C) is each row's vote, to be left out."""
    row, feature = _told(X, state.count)
    n, total, pi = state.count[feature], state.total[feature], state.mean
    if own is not None:
        n, total = n - 1, total - own[row]
    n = np.maximum(n, 0)[:, None]  # after decay a row's vote is worth less than it was
    if state.task == "regression":
        # n / (n + alpha) * (mean - pi), without a division by n = 0
        said = np.where(n > 0, total - n * pi, 0) / (n + alpha)
    else:
        q = (np.clip(total, 0, n) + alpha * pi) / (n + alpha)
        said = _log_ratio(q, pi, state.task)
    return _sum_at_rows(row, said, X.n_rows)


def label_evidence(state: Evidence, X: MultiHot, alpha: float) -> Floats:
    """Evidence (N, C) from labelled rows: what happened against what the model expected."""
    row, feature = _told(X, state.labelled_count)
    n = state.labelled_count[feature][:, None]
    k, m, pi = state.outcome[feature], state.labelled_total[feature], state.mean
    if state.task == "regression":
        said = (k - m) / (n + alpha)
    else:
        happened = (np.clip(k, 0, n) + alpha * pi) / (n + alpha)
        expected = (np.clip(m, 0, n) + alpha * pi) / (n + alpha)
        said = _log_ratio(happened, expected, state.task)
    n_told = np.bincount(row, minlength=X.n_rows)
    return _sum_at_rows(row, said, X.n_rows) / np.maximum(n_told, 1)[:, None]


def reference_strength(
    e: Floats, P0: Floats, task: Task = "multiclass", mean: Floats | None = None
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
    if task == "regression":
        return max(0.0, float(((target - pi) * e).sum() / (e * e).sum()))
    low, high = 0, len(_GRID) - 1
    while low < high:  # the cross-entropy is convex in the strength: halve instead of trying all
        middle = (low + high) // 2
        here, next_ = (
            _cross_entropy(combine(pi, s * e, task), target, task)
            for s in _GRID[middle : middle + 2]
        )
        low, high = (low, middle) if here <= next_ else (middle + 1, high)
    return float(_GRID[low])


def sample_reference(e: Floats, X: MultiHot, P0: Floats, task: Task) -> float:
    """The reference strength of rows with the new features X (N, J), from a sample of them."""
    rows, _ = sample_rows(X, P0, task)
    return reference_strength(e[rows], P0[rows], task, P0.mean(0))


def _cross_entropy(P: Floats, target: Floats, task: Task) -> float:
    loss = -(target * np.log(np.maximum(P, TINY))).sum()
    if task == "multilabel":
        loss -= ((1 - target) * np.log(np.maximum(1 - P, TINY))).sum()
    return float(loss)


def _log_ratio(q: Floats, pi: Floats, task: Task) -> Floats:
    """Give log q - log pi, for labels as a difference of log-odds; finite for 0 and 1."""
    if task == "multilabel":
        return _logit(q) - _logit(pi)
    return np.asarray(np.log(np.maximum(q, TINY)) - np.log(np.maximum(pi, TINY)))


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(p, TINY)) - np.log(np.maximum(1 - p, TINY)))


def _sigmoid(z: Floats) -> Floats:
    # WHY: tanh is the same function and never overflows
    return np.asarray(0.5 * (1 + np.tanh(z / 2)))


def _told(X: MultiHot, count: Floats) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Row and feature of the cells whose feature has rows; ids may be beyond `count` (J,)."""
    told = X.ids < len(count)
    told[told] = count[X.ids[told]] > 0
    return X.row_of[told], X.ids[told]


def _sum_at_rows(row: NDArray[np.int64], values: Floats, n_rows: int) -> Floats:
    columns = [np.bincount(row, values[:, c], n_rows) for c in range(values.shape[1])]
    return np.stack(columns, axis=1)


# ---- what a bank keeps -------------------------------------------------------------------------


class LiveEvidence:
    """Evidence in a stream, and what it says of a row, without keeping the rows.

    Parameters
    ----------
    n_outputs, task
        Of the predictions: see `Evidence`.
    pooling
        How evidence is weighed; a relative strength is a multiple of the sample's reference.
    batch_pooling
        How it is weighed for rows that are predicted together (`JointEvidence`); None: the same.

    Examples
    --------
    >>> live = LiveEvidence(2, pooling=Pooling(strength=1.0, alpha=1.0))
    >>> X, P0 = MultiHot.from_rows([[0], [0]], 1), np.array([[0.9, 0.1], [0.8, 0.2]])
    >>> live.observe(MultiHot.from_rows([[0], [0], []], 1), [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    >>> live.move(P0, X, P0).round(2)  # the feature speaks for the first class
    array([[0.95, 0.05],
           [0.9 , 0.1 ]])
    """

    def __init__(
        self,
        n_outputs: int,
        task: Task = "multiclass",
        pooling: Pooling | None = None,
        batch_pooling: Pooling | None = None,
    ) -> None:
        self.pooling = pooling or Pooling()
        self.batch_pooling = None if batch_pooling == self.pooling else batch_pooling
        self.state = Evidence(n_outputs, task)
        self.sample = Sample.of(MultiHot.from_rows([], 0), np.empty((0, n_outputs)), task)
        self._fix_strength()

    def observe(
        self, X: MultiHot, P0: ArrayLike, y: ArrayLike | None = None, *, seen: bool = False
    ) -> None:
        """Add rows: their new features (N, J), their predictions (N, C), their labels if known.

        Parameters
        ----------
        seen
            Whether the rows were observed before, when they had no labels.
        """
        votes = np.asarray(P0, dtype=np.float64)
        if y is not None:
            self.state.add_labelled(X, votes, y, seen=seen)
        elif not seen:
            self.state.add(X, votes)
        if not seen:
            self.sample = self.sample.merge(Sample.of(X, votes, self.state.task))
            self._fix_strength()

    def _fix_strength(self) -> None:
        # WHY: here and not when it is needed: a prediction assigns nothing.
        votes, mean = self.sample.votes, self.state.mean
        self.fixed = _fix(self.pooling, self.state, self.sample, votes, mean)

    def votes(self, X: MultiHot, P0: Floats) -> Floats:
        """What `move` leaves out of the pools; nothing is: rows to predict are not in the state."""
        return P0

    def move(self, P: Floats, X: MultiHot, votes: Floats) -> Floats:
        """Predictions P (N, C) of rows, moved by what their new features X (N, J) have shown."""
        return combine(P, weigh(self.state, X, self.fixed), self.state.task)

    def copy(self) -> LiveEvidence:
        """An independent copy."""
        other = copy.copy(self)  # a sample is never changed, only replaced
        other.state = self.state.copy()
        return other

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The state as plain arrays, for a safetensors file."""
        return {
            **self.state.to_arrays(),
            "sample_key": self.sample.key,
            "sample_row_ptr": self.sample.X.row_ptr,
            "sample_ids": self.sample.X.ids,
            "sample_votes": self.sample.votes,
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[np.generic]],
        task: Task,
        pooling: Pooling,
        batch_pooling: Pooling | None = None,
    ) -> LiveEvidence:
        """The state that `to_arrays` gave; raises InputError where it is something else."""
        state = Evidence.from_arrays(arrays, task)
        live = cls(state.n_outputs, task, pooling, batch_pooling)
        try:
            row_ptr = np.asarray(arrays["sample_row_ptr"], np.int64)
            ids = np.asarray(arrays["sample_ids"], np.int32)
            key, votes = arrays["sample_key"], arrays["sample_votes"]
        except KeyError as error:
            raise InputError(f"a state of evidence lacks the array {error}.") from None
        X = MultiHot(row_ptr, ids, state.n_features)  # refuses ids out of range
        live.state = state
        live.sample = Sample(np.asarray(key, np.uint64), X, np.asarray(votes, np.float64))
        live._fix_strength()
        return live


class JointEvidence:
    """Evidence of rows that are predicted together: each is moved by the votes of the others too.

    Parameters
    ----------
    live
        What earlier rows have shown; it is not changed.
    every
        Whether the rows count for every new feature; else for those that `live` has never seen,
        and what it says of the rest is taken as it is.

    Examples
    --------
    >>> joint = JointEvidence(LiveEvidence(2, pooling=Pooling(alpha=1.0)), every=True)
    >>> X, P0 = MultiHot.from_rows([[0], [0]], 1), np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> joint.sweep([(X, P0)])
    >>> joint.move(P0, X, joint.votes(X, P0)).round(2)
    array([[0.86, 0.14],
           [0.7 , 0.3 ]])
    """

    def __init__(self, live: LiveEvidence, every: bool) -> None:
        self.live, self.every = live, every
        # Labels are of earlier rows alone, and said once, with the settings of `live`.
        self.pooling = replace(live.batch_pooling or live.pooling, label_strength=0.0)
        self._sample = live.sample  # of earlier rows and then of these too, with P0
        self._sweeps: list[tuple[Evidence, Pooling]] = []  # sums of votes, strength fixed

    def sweep(self, parts: Iterable[tuple[MultiHot, Floats]]) -> None:
        """Pool what is predicted for the rows so far: by the model alone, then by the last sweep.

        Parameters
        ----------
        parts
            New features (N, J) and predictions P0 (N, C) of all the rows, in any cut.
        """
        sums = self.live.state.copy()
        for X, P0 in parts:
            X = self._joined(X)
            sums.add(X, self._predict(X, P0, self._sweeps))
            if not self._sweeps:
                self._sample = self._sample.merge(Sample.of(X, P0, sums.task))
        sample = self._sample
        votes = self._predict(sample.X, sample.votes, self._sweeps)
        # Earlier rows, which come first where keys are equal, are counted with their P0.
        own = self.live.sample.merge(replace(sample, votes=votes)).votes
        mean = (self._sweeps[0][0] if self._sweeps else sums).mean  # of P0
        self._sweeps.append((sums, _fix(self.pooling, sums, sample, own, mean)))

    def votes(self, X: MultiHot, P0: Floats) -> Floats:
        """(N, C) what the rows are counted with in the last sweep's sums."""
        return self._predict(self._joined(X), P0, self._sweeps[:-1])

    def move(self, P: Floats, X: MultiHot, votes: Floats) -> Floats:
        """Predictions P (N, C) of rows that were swept, moved by evidence.

        Parameters
        ----------
        X
            (N, J) their new features.
        votes
            (N, C) see `votes`; left out of the pools.
        """
        if self.every:
            e = weigh(self._sweeps[0][0], X, replace(self.live.fixed, strength=0.0))
        else:  # of features that it has never seen `live` says nothing
            e = weigh(self.live.state, X, self.live.fixed)
        sums, fixed = self._sweeps[-1]
        return combine(P, e + weigh(sums, self._joined(X), fixed, votes), sums.task)

    def _predict(self, X: MultiHot, P0: Floats, sweeps: list[tuple[Evidence, Pooling]]) -> Floats:
        """P0 (N, C) moved by each of the sweeps in turn, from the pools of the one before."""
        P = P0
        for sums, fixed in sweeps:
            P = combine(P0, weigh(sums, X, fixed, P), sums.task)
        return P

    def _joined(self, X: MultiHot) -> MultiHot:
        """The cells of the features that the rows count for, in the same feature space."""
        if self.every:
            return X
        count = self.live.state.count
        kept = X.ids >= len(count)
        kept[~kept] = count[X.ids[~kept]] == 0
        row_ptr = np.concatenate([[0], np.cumsum(kept)])[X.row_ptr].astype(np.int64)
        return MultiHot(row_ptr, X.ids[kept], X.n_features)


def _fix(pooling: Pooling, sums: Evidence, sample: Sample, own: Floats, mean: Floats) -> Pooling:
    """Settings with an absolute strength, by a sample of the rows that are in the sums.

    `own` (n, C) is what the sums count each of them with, `mean` (C,) the mean of P0.
    """
    if not pooling.relative or pooling.strength == 0:
        return pooling
    e = pooled_evidence(sums, sample.X, own, pooling.alpha)
    return pooling.fixed(reference_strength(e, sample.votes, sums.task, mean))
