"""Evidence: what the new features of a stream have shown so far, and how it moves a prediction.

A new feature keeps n, the number of its rows, and the sum of the fitted model's predictions P0
over them.  These sums are exact (`Evidence`).  How strongly they should count is a statistic of
rows, so a few rows are kept too (`Sample`).  Labels that come later are not evidence:
`corrections`.

Pooling is one round of message passing, rows -> features -> rows, between predictions.  P0 (N, C)
is what a fitted model predicts from the observed features, pi (C,) its mean over rows.
A new feature j pools the predictions of the n_j rows that have it; a row then adds up the evidence
of its new features, its own vote left out of every pool:

    q[j] = (sum of P0 over the rows of j + alpha pi) / (n_j + alpha)
    e[i] = sum over the new features j of row i of  log q[j] - log pi
    P[i] proportional to  P0[i]^slope exp(strength e[i])

An edge may carry a part of a row: a number between two knots belongs to both, and its row counts
for each of them as much as the edge says.  A slope below 1 takes back what a model is too sure of.

The strength is best given as a multiple of the reference strength: that at which the evidence of
rows, alone, predicts their P0 best (`reference_strength`).  It is always measured on a `Sample` of
the rows that are in the sums, each row's own vote left out.

N rows, J new features, C outputs.  Numpy alone, and nothing takes a gradient; the cost is
proportional to the new cells, memory to the distinct new features.  Which settings to use: `probe`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate._lazy import ComputesOnce
from openfate.errors import InputError
from openfate.growing import PagedArray
from openfate.openworld.sources import Sources
from openfate.table import MultiHot, mix_bits

Floats = NDArray[np.float64]
# (n,) ids -> (n,) what stands for each feature, whatever id it was given: see `Sample`.
Names = Callable[[NDArray[np.int32]], NDArray[np.uint64]]
# (N,) who votes: a hash of a row's source, or of what it is predicted as.
Voters = NDArray[np.uint64]
# What a model predicts: probabilities of classes, (N, 2) for two of them; the probability of each
# label; numbers.
Task = Literal["binary", "multiclass", "multilabel", "regression"]

SAMPLE = 2000  # rows; what is measured on them is one number, and more rows do not change it
_ARRAYS = ("count", "total", "row_count", "row_total")
_BOXES = 4096  # into which voters are hashed
# What a box may count for: some rows, and a multiple of its share of the training rows.  WHY two
# rows: of a few hundred some share a box by chance, and to weigh them less moves the mean.
_FREE_ROWS, _TIMES = 2.0, 3.0
_ROUNDS = 50  # in which that is found
TINY = 1e-12  # a probability below it counts as this much, so that every logarithm is finite
# Strengths that `reference_strength` tries: 0, then 1/32 .. 4 in steps of a sixth of an octave.
_GRID = np.concatenate([[0.0], 2.0 ** np.arange(-5, 2.001, 1 / 6)])
_MOST_ROWS = 5000  # WHY: the reference strength is one number; more rows do not change it


def by_id(ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    """`Names` of features whose ids never change: those of training."""
    return ids.astype(np.uint64)


class Evidence:
    """What new features have shown so far: sums and counts, exact in a stream.

    Parameters
    ----------
    n_outputs
        C: classes, labels or numbers.
    task
        "binary" and "multiclass": rows of P0 are probabilities of C classes; "multilabel": each
        column is the probability of a label of its own; "regression": a predicted number.
    training
        (T, C) predictions of training rows, which tell how often a voter is met, and between
        what votes lie that are numbers; None: every row counts in full for the mean.
    by_source
        Whether rows name their source, which then is who votes: it counts for a feature as three
        rows at most (`sources`), and for the mean as the average source.

    Notes
    -----
    State of a feature: n and the sum of P0 over all its rows.  All sums are linear in the rows (by
    source those behind what counts are), so any order of `add`, `remove` and `merge` gives the
    same state.

    The mean pi is subtracted once for each new feature of a row, so that a small error of it is a
    large one of the evidence; and whoever sends one row again and again moves it.  So rows are
    counted in boxes by who votes (`hash_votes`), and a box that is fuller than training rows and
    the other boxes explain counts for less.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0], [1], []], n_features=2)  # two new features
    >>> P0 = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])
    >>> state = Evidence(2).add(X, P0)
    >>> state.count, state.total[0].round(2)
    (array([2., 1.]), array([1.7, 0.3]))
    """

    def __init__(
        self,
        n_outputs: int,
        task: Task = "multiclass",
        training: Floats | None = None,
        *,
        by_source: bool = False,
    ) -> None:
        if task not in get_args(Task):
            raise InputError(f"task={task!r} is unknown: choose one of {get_args(Task)}.")
        least = 1 if task in ("multilabel", "regression") else 2
        if n_outputs < least:
            raise InputError(f"n_outputs={n_outputs}: a {task} task has {least} or more.")
        self.n_outputs = n_outputs
        self.task: Task = task
        self._sums = PagedArray(np.zeros((0, 1 + n_outputs)))  # (J, 1 + C) rows, then sums of P0
        self.sources = Sources() if by_source else None  # what is behind those sums
        # (B,) the share of rows that each box has in training; not used where rows have a source.
        self.expected = np.full(_BOXES, 1 / _BOXES) if by_source else np.ones(1)
        self.bounds: Floats | None = None  # (2,) of votes that are numbers
        if training is not None and len(training):
            often = np.bincount(_box_of(hash_votes(training, task), _BOXES), minlength=_BOXES)
            # WHY less one: a row that is met once is no voter that comes often.
            self.expected = np.maximum((often - 1) / len(training), 1 / _BOXES)
            if task == "regression":
                self.bounds = np.array([training.min(), training.max()])
        self.boxes = np.zeros((len(self.expected), 1 + n_outputs))  # (B, 1 + C) rows, sums of P0
        self._weigh_boxes()

    # ---- looking at it -----------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """J."""
        return len(self._sums)

    @property
    def count(self) -> Floats:
        """(J,) rows of each new feature."""
        return self._sums.to_array()[:, 0]

    @property
    def total(self) -> Floats:
        """(J, C) the sum of P0 over them."""
        return self._sums.to_array()[:, 1:]

    def weigh_boxes(self, boxes: Floats) -> tuple[Floats, Floats]:
        """The mean prediction (C,) by boxes (B, 1 + C), and how much rows of each count (B,)."""
        if self.sources is None:
            return weigh_boxes(boxes, self.expected)
        # WHY at most one: a source whose rows have decayed is a part of one.
        n_sources = max(1.0, float(np.minimum(1.0, boxes[:, 0]).sum()))
        return weigh_boxes(boxes, np.full(len(boxes), 1 / (_TIMES * n_sources)))

    def bound(self, P0: ArrayLike) -> Floats:
        """Votes (N, C): predictions, numbers within the range of those of training."""
        votes = np.asarray(P0, np.float64)
        return votes if self.bounds is None else np.clip(votes, *self.bounds)

    def at(self, ids: NDArray[np.integer]) -> tuple[Floats, Floats]:
        """Rows (n,) and sums of P0 (n, C) of some features; zero for those never met.

        Examples
        --------
        >>> state = Evidence(1, "regression").add(MultiHot.from_rows([[0]], 1), [3.0])
        >>> state.at(np.array([7, 0]))[0]
        array([0., 1.])
        """
        sums = self._sums.take(ids)
        return sums[:, 0], sums[:, 1:]

    # ---- changing it -------------------------------------------------------------------------

    def add(
        self,
        X: MultiHot,
        P0: ArrayLike,
        *,
        weight: float = 1.0,
        voter: Voters | None = None,
        names: Names = by_id,
    ) -> Evidence:
        """Observe rows: their new features `X` (N, J) and their predictions (N, C).

        Parameters
        ----------
        weight
            How much each row counts; less than 0 takes back rows that were added.
        voter
            Who votes; None: rows that are predicted alike are one voter.
        names
            What the features are, whatever ids they have.

        Examples
        --------
        >>> Evidence(1, "regression").add(MultiHot.from_rows([[0]], 1), [3.0]).total
        array([[3.]])
        """
        P0 = self.check_predictions(P0, X.n_rows)
        voter = hash_votes(P0, self.task) if voter is None else voter
        self._sums, sums, places = self._sums.open(X.ids, X.n_features)
        if self.sources is None:
            _add_cells(sums, places, X, P0, weight)
        else:
            ids, place = np.unique(X.ids, return_inverse=True)
            key = mix_bits(names(ids)[place] ^ mix_bits(voter[X.row_of]))
            key, first, pair = np.unique(key, return_index=True, return_inverse=True)
            said = np.zeros((len(key), 1 + self.n_outputs))
            _add_cells(said, pair, X, P0, weight)
            self.sources, counted = self.sources.add(key, X.ids[first], said)
            np.add.at(sums, places[first], counted)
        self.boxes = _fill(self.boxes, P0, voter, weight)
        self._weigh_boxes()
        return self

    def decay(self, factor: float) -> Evidence:
        """Let everything so far count less; 1 changes nothing, 0 forgets all."""
        if not 0 <= factor <= 1:
            raise InputError(f"factor={factor}: choose a number from 0 to 1.")
        if self.sources is None:
            sums = factor * self._sums.to_array()
        else:
            self.sources = self.sources.scale(factor)
            sums = self.sources.count(self.n_features, self.n_outputs)
        self._sums = PagedArray(sums)
        self.boxes = factor * self.boxes
        self._weigh_boxes()
        return self

    def blank(self) -> Evidence:
        """The same before any row: what other rows show is added up in it, to be merged later."""
        other = self.copy()
        other._sums = PagedArray(np.zeros((0, 1 + self.n_outputs)))
        other.boxes = np.zeros_like(self.boxes)
        other._weigh_boxes()
        return other

    def merge(self, other: Evidence, ids: NDArray[np.integer] | None = None) -> Evidence:
        """Add the state of another machine or another day.

        Parameters
        ----------
        ids
            (J,) the ids here of the other's features; None: they have the same.

        Examples
        --------
        >>> state = Evidence(1, "regression").add(MultiHot.from_rows([[0]], 1), [3.0])
        >>> state.merge(state.blank().add(MultiHot.from_rows([[0]], 1), [1.0]), np.array([2])).count
        array([1., 0., 1.])
        """
        if (other.n_outputs, other.task) != (self.n_outputs, self.task):
            raise InputError(
                f"evidence of a {other.task} task with {other.n_outputs} outputs cannot be merged "
                f"into that of a {self.task} task with {self.n_outputs}: merge like with like."
            )
        if len(other.boxes) != len(self.boxes):
            raise InputError(
                "evidence with and without training rows cannot be merged: merge like with like."
            )
        if (other.sources is None) != (self.sources is None):
            raise InputError(
                "evidence with and without sources cannot be merged: merge like with like."
            )
        if self.sources is None or other.sources is None:
            every = np.arange(other.n_features) if ids is None else ids
            self._sums, sums, places = self._sums.open(every, int(every.max(initial=-1)) + 1)
            sums[places] += other._sums.to_array()
        else:
            self.sources = self.sources.merge(other.sources)
            n_features = max(self.n_features, other.n_features)
            self._sums = PagedArray(self.sources.count(n_features, self.n_outputs))
        self.boxes = self.boxes + other.boxes
        self._weigh_boxes()
        return self

    def with_sums(self, sums: Floats, sources: Sources | None) -> Evidence:
        """A copy with these sums (J, 1 + C) of its features, and what is behind them."""
        other = self.copy()
        other._sums, other.sources = PagedArray(sums), sources
        return other

    def copy(self) -> Evidence:
        """An independent state with the same content: what it holds is replaced, never changed."""
        return copy.copy(self)

    # ---- arrays in, arrays out -----------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The state as plain arrays, for a safetensors file.

        Examples
        --------
        >>> sorted(Evidence(2).to_arrays())[:3]
        ['count', 'row_count', 'row_total']
        """
        sums = self._sums.to_array()
        return {
            "count": sums[:, 0].copy(),
            "total": sums[:, 1:].copy(),
            "row_count": self.boxes[:, 0].sum(keepdims=True),
            "row_total": self.boxes[:, 1:].sum(0),
            **({"boxes": self.boxes, "expected": self.expected} if len(self.boxes) > 1 else {}),
            **({} if self.bounds is None else {"bounds": self.bounds}),
            **self._source_arrays(),
        }

    def _source_arrays(self) -> dict[str, NDArray[Any]]:
        if self.sources is None:
            return {}
        whole = self.sources.to_layer(self.n_outputs)
        return {f"source_{name}": getattr(whole, name) for name in ("key", "feature", "sums")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike], task: Task = "multiclass") -> Evidence:
        """Make a state from what `to_arrays` gave.

        Raises
        ------
        InputError
            Where an array is missing or does not fit the others.
        """
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise InputError(f"a state of evidence lacks the arrays {', '.join(missing)}.")
        by_source = "source_key" in arrays
        given = {
            name: np.asarray(array, np.float64)
            for name, array in arrays.items()
            if not name.startswith(("source_", "sample_"))
        }
        state = cls(len(given["row_total"]), task, by_source=by_source)
        count, total = given["count"], given["total"]
        for name, array, wanted in (
            ("count", count, (len(count),)),
            ("total", total, (len(count), state.n_outputs)),
        ):
            if array.shape != wanted:
                raise InputError(
                    f"the array {name} of a state of evidence has the shape {array.shape}, "
                    f"not {wanted}."
                )
        state._sums = PagedArray(np.concatenate([count[:, None], total], axis=1))
        whole = np.concatenate([given["row_count"].reshape(1), given["row_total"]])[None]
        state.boxes = given.get("boxes", whole)
        state.expected = given.get("expected", np.ones(1))
        state.bounds = given.get("bounds")
        if by_source:
            try:
                key, feature, sums = (arrays[f"source_{n}"] for n in ("key", "feature", "sums"))
            except KeyError as error:
                raise InputError(f"a state of evidence lacks the array {error}.") from None
            parts = np.asarray(key, np.uint64), np.asarray(feature, np.int32)
            state.sources = Sources.of(*parts, np.asarray(sums, np.float64), len(count))
        if state.boxes.shape != (len(state.expected), 1 + state.n_outputs):
            raise InputError(f"the array boxes of a state has the shape {state.boxes.shape}.")
        state._weigh_boxes()
        return state

    # ---- within --------------------------------------------------------------------------------

    def _weigh_boxes(self) -> None:
        self.mean, self.weights = self.weigh_boxes(self.boxes)  # (C,) pi, (B,)

    def check_predictions(self, P0: ArrayLike, n_rows: int) -> Floats:
        """Give predictions as an array (N, C); refuse what is none."""
        P0 = np.asarray(P0, np.float64)
        P0 = P0[:, None] if P0.ndim == 1 and self.n_outputs == 1 else P0
        if P0.shape != (n_rows, self.n_outputs):
            raise InputError(
                f"predictions have the shape {P0.shape}, not {(n_rows, self.n_outputs)}: "
                "one row for each row of X, one column for each output."
            )
        bad = ~np.isfinite(P0) if self.task == "regression" else ~((P0 >= 0) & (P0 <= 1 + 1e-6))
        if bad.any():
            row = int(np.flatnonzero(bad.any(1))[0])
            wanted = "finite numbers" if self.task == "regression" else "probabilities from 0 to 1"
            raise InputError(f"row {row} is predicted as {P0[row].tolist()}: give {wanted}.")
        return P0


def _box_of(voter: Voters, n_boxes: int) -> NDArray[np.int64]:
    """(N,) into which box each row goes."""
    return (voter % np.uint64(n_boxes)).astype(np.int64)


def _fill(boxes: Floats, votes: Floats, voter: Voters, weight: float = 1.0) -> Floats:
    """A copy of boxes (B, 1 + C) in which rows of these votes (N, C) are counted too."""
    boxes, box = boxes.copy(), _box_of(voter, len(boxes))
    np.add.at(boxes, box, weight * np.concatenate([np.ones((len(votes), 1)), votes], axis=1))
    return boxes


def weigh_boxes(boxes: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """(C,) the mean prediction, zero before any row; (B,) how much rows of each box count for it.

    Parameters
    ----------
    boxes
        (B, 1 + C) rows, and the sums of their predictions.
    expected
        (B,) the share of rows that each has in training, at least 1 / B.

    Examples
    --------
    >>> boxes = np.array([[1.0, 0.2], [1.0, 0.4], [98.0, 98.0]])  # one voter comes 98 times
    >>> mean, weights = weigh_boxes(boxes, np.full(3, 0.01))
    >>> mean.round(2), weights.round(2)
    (array([0.66]), array([1.  , 1.  , 0.02]))
    """
    count, weights = boxes[:, 0], np.ones(len(boxes))
    if len(boxes) > 1:
        # What a box may count for is a share of what all of them count for together, n_rows: found
        # from above by Newton's steps on a concave function of pieces that are straight lines.
        below = count.sum()
        for _ in range(_ROUNDS):
            n_rows, most = below, _FREE_ROWS + _TIMES * below * expected
            full = count > most
            below = count[~full].sum() + _FREE_ROWS * full.sum()
            below /= 1 - _TIMES * expected[full].sum()
            if not below < n_rows:
                break
        weights = np.minimum(1.0, most / np.maximum(count, TINY))
    total = weights @ boxes
    # WHY not 0: all rows taken back may leave the last bits of their weights.
    return total[1:] / total[0] if total[0] > 1e-9 else 0 * total[1:], weights


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows whose keys are lowest, in the order of keys.

    The key of a row is a hash of it, so that which rows these are depends on nothing but the rows:
    neither their order nor the way they were cut into calls matters.  Ids are given in the order of
    arrival, so that where they may be new it is a hash of their `Names`.
    """

    key: NDArray[np.uint64]  # (n,) ascending, none twice
    X: MultiHot  # (n, J) new features
    votes: Floats  # (n, C) predictions
    voter: Voters  # (n,)

    @classmethod
    def of(
        cls,
        X: MultiHot,
        votes: Floats,
        task: Task,
        names: Names = by_id,
        voter: Voters | None = None,
    ) -> Sample:
        """The sample of some rows."""
        rows, key = sample_rows(X, votes, task, names, voter)
        who = hash_votes(votes[rows], task) if voter is None else voter[rows]
        return cls(key, X.select_rows(rows), votes[rows], who)

    def with_rows(
        self, X: MultiHot, votes: Floats, task: Task, names: Names, voter: Voters | None = None
    ) -> Sample:
        """The sample of its own rows and others: new features (N, J), predictions (N, C)."""
        return self.merge(Sample.of(X, votes, task, names, voter)) if X.nnz else self

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As plain arrays, for a safetensors file."""
        return {
            "sample_key": self.key,
            "sample_row_ptr": self.X.row_ptr,
            "sample_ids": self.X.ids,
            "sample_votes": self.votes,
            **({} if self.X.values is None else {"sample_values": self.X.values}),
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[np.generic]],
        n_features: int,
        task: Task,
        has_source: bool = False,
    ) -> Sample:
        """What `to_arrays` gave, over J features; raises InputError where it is something else."""
        try:
            row_ptr = np.asarray(arrays["sample_row_ptr"], np.int64)
            ids = np.asarray(arrays["sample_ids"], np.int32)
            key, votes = arrays["sample_key"], np.asarray(arrays["sample_votes"], np.float64)
            voter = arrays["sample_voter"] if has_source else hash_votes(votes, task)
        except KeyError as error:
            raise InputError(f"a state of evidence lacks the array {error}.") from None
        values = arrays.get("sample_values")
        parts = None if values is None else np.asarray(values, np.float32)
        X = MultiHot(row_ptr, ids, n_features, parts)  # refuses ids out of range
        return cls(np.asarray(key, np.uint64), X, votes, np.asarray(voter, np.uint64))

    def merge(self, other: Sample) -> Sample:
        """The sample of the rows of both."""
        if not len(other.key):
            return self
        key, first = np.unique(np.concatenate([self.key, other.key]), return_index=True)
        voter = np.concatenate([self.voter, other.voter])[first]
        kept = _choose(key, voter)
        X = MultiHot.stack([self.X, other.X]).select_rows(first[kept])
        votes = np.concatenate([self.votes, other.votes])[first[kept]]
        return Sample(key[kept], X, votes, voter[kept])

    def thin(self, share: float, step: int) -> Sample:
        """A share of its rows, drawn by their keys, in another way at each step."""
        drawn = mix_bits(self.key ^ mix_bits(np.array([step], np.uint64)))
        return self.select(np.flatnonzero(drawn < np.uint64(share * 2.0**63) * np.uint64(2)))

    def select(self, rows: NDArray[np.integer]) -> Sample:
        """Some of its rows, ascending."""
        arrays = self.votes[rows], self.voter[rows]
        return Sample(self.key[rows], self.X.select_rows(rows), *arrays)


def sample_rows(
    X: MultiHot,
    votes: Floats,
    task: Task,
    names: Names = by_id,
    voter: Voters | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Places and keys of the rows that a sample takes: of those that have new features.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [], [1], [0]], 2)
    >>> rows, _ = sample_rows(X, np.array([[0.5, 0.5]] * 4), "binary")
    >>> sorted(rows.tolist())  # a row that comes twice counts once
    [0, 2]
    """
    told = np.flatnonzero(X.row_degree > 0)
    said = hash_votes(votes[told], task)
    key = hash_cells(X, names)[told] ^ said  # of its features, in any order, and votes
    who = said
    if voter is not None:
        who = voter[told]
        key ^= mix_bits(who)
    key, first = np.unique(mix_bits(key), return_index=True)
    kept = _choose(key, who[first])
    return told[first[kept]], key[kept]


def _choose(key: NDArray[np.uint64], voter: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Places of the rows (n,) that a sample takes, ascending; keys ascend, none is there twice.

    Voters take turns: first the row of each that has its lowest key, then the next, as long as
    there are places; among those of one turn the lowest keys.  Choosing from what was chosen from
    parts gives the same: more rows only push a row back.
    """
    if len(key) <= SAMPLE:
        return np.arange(len(key))
    order = np.argsort(voter, kind="stable")
    _, start, size = np.unique(voter[order], return_index=True, return_counts=True)
    turn = np.empty(len(key), np.int64)
    turn[order] = np.arange(len(key)) - np.repeat(start, size)
    return np.sort(np.lexsort((key, turn))[:SAMPLE])


def hash_votes(votes: Floats, task: Task) -> NDArray[np.uint64]:
    """(N,) who votes: rows that the model predicts alike, to six digits, are one voter."""
    voter = np.zeros(len(votes), np.uint64)
    for column in _round(votes, task).T:
        voter = mix_bits(voter ^ mix_bits(column))
    return voter


def hash_cells(X: MultiHot, names: Names = by_id) -> NDArray[np.uint64]:
    """(N,) a hash of each row's features and their values, in any order."""
    ids, place = np.unique(X.ids, return_inverse=True)
    cells = names(ids)[place]
    if X.values is not None:  # to four digits
        cells = mix_bits(cells) ^ np.round(X.values * 1e4).astype(np.int64).astype(np.uint64)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix_bits(cells))])
    return np.asarray(total[X.row_ptr[1:]] - total[X.row_ptr[:-1]])


def _round(votes: Floats, task: Task) -> NDArray[np.uint64]:
    """(N, C) predictions to six digits: their last bits may depend on the rows beside them."""
    if task != "regression":
        return np.round(votes * 1e6).astype(np.int64).astype(np.uint64)
    # Numbers may be of any size: six significant digits, 20 bits, and + 0.0 makes one zero of two.
    fraction, exponent = np.frexp(votes)
    digits: Floats = np.ldexp(np.round(np.ldexp(fraction, 20)), exponent - 20) + 0.0
    return digits.view(np.uint64)


# ---- from sums to predictions -------------------------------------------------------------------


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
    slope
        Of the model's own logits, in rows that evidence moves; 1 leaves them as they are.
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
    slope: float = 1.0
    n_sweeps: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.strength < np.inf:
            raise InputError(f"strength={self.strength}: choose a number from 0 up.")
        for name in ("alpha", "slope"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name}={getattr(self, name)}: choose a number above 0.")
        if not isinstance(self.n_sweeps, int) or self.n_sweeps < 1:
            raise InputError(f"n_sweeps={self.n_sweeps!r}: choose an integer from 1 up.")

    def fixed(self, reference: float) -> Pooling:
        """These settings with an absolute strength, for use row by row."""
        return replace(self, strength=self.strength * reference, relative=False)


CAUTIOUS = Pooling(strength=0.5, alpha=10.0, relative=True)


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
    >>> X, P0 = MultiHot.from_rows([[0], [0], []], 1), [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]
    >>> score(Evidence(2).add(X, P0), X, P0, Pooling(alpha=1.0), own=True).round(2)
    array([[0.94, 0.06],
           [0.94, 0.06],
           [0.3 , 0.7 ]])
    """
    P0 = state.check_predictions(P0, X.n_rows)
    votes = P0 if own else None
    if pooling.relative:
        e = pooled_evidence(state, X, votes, pooling.alpha)
        pooling = pooling.fixed(sample_reference(e, X, P0, state.task))
    return combine(P0, weigh(state, X, pooling, votes), state.task, pooling.slope)


def weigh(state: Pools, X: MultiHot, pooling: Pooling, own: Floats | None = None) -> Floats:
    """Evidence (N, C) times its strength.

    Parameters
    ----------
    pooling
        With an absolute strength.
    own
        (N, C) the rows' own votes, to be left out where they are in the state.
    """
    if pooling.strength == 0:
        return np.zeros((X.n_rows, state.n_outputs))
    return pooling.strength * pooled_evidence(state, X, own, pooling.alpha)


def combine(P0: Floats, e: Floats, task: Task, slope: float = 1.0) -> Floats:
    """Predictions P0 (N, C) moved by evidence e (N, C); a row without evidence keeps its bits.

    Examples
    --------
    >>> combine(np.array([[0.5, 0.5]]), np.array([[0.0, np.log(3)]]), "binary")
    array([[0.25, 0.75]])
    """
    if task == "regression":
        P = P0 + e
    elif task == "multilabel":
        P = sigmoid(slope * _logit(P0) + e)
    else:
        z = slope * np.log(np.maximum(P0, TINY)) + e
        P = np.exp(z - z.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
    return np.where((e != 0).any(1, keepdims=True), P, P0)


def pooled_evidence(state: Pools, X: MultiHot, own: Floats | None, alpha: float) -> Floats:
    """Evidence (N, C) at strength 1; `own` (N, C) is each row's vote, to be left out."""
    if not X.nnz:
        return np.zeros((X.n_rows, state.n_outputs))
    (n, total), pi = state.at(X.ids), state.mean
    row, part = X.row_of, cell_parts(X)
    if own is not None:
        n, total = n - part, total - part[:, None] * own[row]
    # WHY: a feature that only this row has says nothing, to the last bit.  After decay a row's vote
    # is worth less than it was.
    told = n > 0
    row, part, n, total = row[told], part[told], n[told, None], total[told]
    if state.task == "regression":
        said = (total - n * pi) / (n + alpha)  # n / (n + alpha) * (mean - pi)
    else:
        q = (np.clip(total, 0, n) + alpha * pi) / (n + alpha)
        said = _log_ratio(q, pi, state.task)
    return _sum_at_rows(row, part[:, None] * said, X.n_rows)


def reference_strength(
    e: Floats,
    P0: Floats,
    task: Task = "multiclass",
    mean: Floats | None = None,
    weight: Floats | None = None,
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
    weight
        (N,) how much each row counts; None: all the same.

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
    weight = np.ones(len(told)) if weight is None else weight[told]
    pi = np.broadcast_to(mean, e.shape)
    if task == "regression":
        both, own = (((a * e).sum(1) * weight).sum() for a in (target - pi, e))
        return max(0.0, float(both / own))
    z0 = _logit(pi) if task == "multilabel" else np.log(np.maximum(pi, TINY))
    low, high = 0, len(_GRID) - 1
    while low < high:  # the cross-entropy is convex in the strength: halve instead of trying all
        middle = (low + high) // 2
        here, next_ = (
            (_cross_entropy(z0 + s * e, target, task) * weight).sum()
            for s in _GRID[middle : middle + 2]
        )
        low, high = (low, middle) if here <= next_ else (middle + 1, high)
    return float(_GRID[low])


def sample_reference(e: Floats, X: MultiHot, P0: Floats, task: Task) -> float:
    """The reference strength of rows with the new features X (N, J), from a sample of them."""
    rows, _ = sample_rows(X, P0, task)
    return reference_strength(e[rows], P0[rows], task, P0.mean(0))


def _cross_entropy(z: Floats, target: Floats, task: Task) -> Floats:
    """(N,) of predictions with these logits (N, C).

    WHY not of probabilities: where these are cut off it is not convex.
    """
    if task == "multilabel":
        return np.asarray((np.logaddexp(0, z) - target * z).sum(1))
    top = z.max(1, keepdims=True)
    log_total = np.log(np.exp(z - top).sum(1, keepdims=True)) + top
    return np.asarray((target * (log_total - z)).sum(1))


def _log_ratio(q: Floats, pi: Floats, task: Task) -> Floats:
    """Give log q - log pi, for labels as a difference of log-odds; finite for 0 and 1."""
    if task == "multilabel":
        return _logit(q) - _logit(pi)
    return np.asarray(np.log(np.maximum(q, TINY)) - np.log(np.maximum(pi, TINY)))


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(p, TINY)) - np.log(np.maximum(1 - p, TINY)))


def sigmoid(z: Floats) -> Floats:
    """Probabilities of log-odds, of any shape."""
    # WHY: tanh is the same function and never overflows
    return np.asarray(0.5 * (1 + np.tanh(z / 2)))


def _add_cells(
    sums: Floats, places: NDArray[np.integer], X: MultiHot, P0: Floats, weight: float = 1.0
) -> None:
    """Add each row, and its P0, to the sums (m, 1 + C) of its cells, which lie at `places`."""
    each, row = weight * cell_parts(X), X.row_of
    np.add.at(sums[:, 0], places, each)
    for c, column in enumerate(P0.T, 1):
        np.add.at(sums[:, c], places, each * column[row])


def cell_parts(X: MultiHot) -> Floats:
    """(nnz,) how much of its row each cell counts for."""
    return np.ones(X.nnz) if X.values is None else X.values.astype(np.float64)


def _sum_at_rows(row: NDArray[np.int64], values: Floats, n_rows: int) -> Floats:
    columns = [np.bincount(row, values[:, c], n_rows) for c in range(values.shape[1])]
    return np.stack(columns, axis=1)


# ---- what a bank keeps -------------------------------------------------------------------------


class LiveEvidence(ComputesOnce):
    """Evidence in a stream, and what it says of a row, without keeping the rows.

    Parameters
    ----------
    n_outputs, task
        Of the predictions: see `Evidence`.
    pooling
        How evidence is weighed; a relative strength is a multiple of the sample's reference.
    batch_pooling
        How it is weighed for rows that are predicted together (`JointEvidence`); None: the same.
    training
        (T, C) predictions of training rows: see `Evidence`.
    by_source
        Whether rows name their source: see `Evidence`.

    Examples
    --------
    >>> live = LiveEvidence(2, pooling=Pooling(strength=1.0, alpha=1.0))
    >>> X, P0 = MultiHot.from_rows([[0], [0]], 1), np.array([[0.9, 0.1], [0.8, 0.2]])
    >>> live.observe(MultiHot.from_rows([[0], [0], []], 1), [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    >>> live.move(P0, X).round(2)  # the feature speaks for the first class
    array([[0.95, 0.05],
           [0.9 , 0.1 ]])
    """

    def __init__(
        self,
        n_outputs: int,
        task: Task = "multiclass",
        pooling: Pooling | None = None,
        batch_pooling: Pooling | None = None,
        training: Floats | None = None,
        *,
        by_source: bool = False,
    ) -> None:
        self.pooling = pooling or Pooling()
        self.batch_pooling = None if batch_pooling == self.pooling else batch_pooling
        self.state = Evidence(n_outputs, task, training, by_source=by_source)
        self.sample = Sample.of(MultiHot.from_rows([], 0), np.empty((0, n_outputs)), task)
        self._fix_strength()

    def observe(
        self, X: MultiHot, P0: ArrayLike, names: Names = by_id, voter: Voters | None = None
    ) -> None:
        """Add rows: new features (N, J), predictions (N, C), what features are, who votes."""
        votes = self.state.bound(P0)
        self.state.add(X, votes, voter=voter, names=names)
        self.sample = self.sample.with_rows(X, votes, self.state.task, names, voter)
        self._fix_strength()

    def decay(self, factor: float, step: int) -> None:
        """Let everything so far count less, the `step`-th time."""
        self.state.decay(factor)
        self.sample = self.sample.thin(factor, step)
        self._fix_strength()

    def merge(self, state: Evidence, sample: Sample, ids: NDArray[np.integer]) -> None:
        """Add rows that were added up elsewhere; `ids` (J,) are those here of their features."""
        self.state.merge(state, ids)
        n_features = max(self.state.n_features, self.sample.X.n_features)
        X = sample.X.renumber(ids, n_features)
        self.sample = self.sample.merge(replace(sample, X=X))
        self._fix_strength()

    def _fix_strength(self) -> None:
        # WHY: here and not when it is needed: a prediction assigns nothing.
        votes, mean = self.sample.votes, self.state.mean
        self.fixed = _fix(self.pooling, self.state, self.sample, votes, mean)
        self._fixed_in_batch = replace(self.fixed, slope=(self.batch_pooling or self.pooling).slope)
        vars(self).pop("cautious", None)

    @cached_property
    def cautious(self) -> Pooling:
        """Settings for evidence that a probe refused: still an expert that labels may find right.

        WHY kept: they are measured on thousands of rows, and change with the state alone.
        """
        return _fix(CAUTIOUS, self.state, self.sample, self.sample.votes, self.state.mean)

    def join(
        self, X: MultiHot, P0: Floats, every: bool, names: Names = by_id
    ) -> LiveEvidence | JointEvidence:
        """Evidence of rows that are predicted together, see `JointEvidence`.

        WHY not always that: where the rows count for nothing the state says it all, in a tenth of
        the time for one row.
        """
        if not every and self._covers(X):
            alone = object.__new__(LiveEvidence)
            vars(alone).update(vars(self), fixed=self._fixed_in_batch)
            return alone
        joint = JointEvidence(self, every, names)
        for _ in range(joint.pooling.n_sweeps):
            joint.sweep([(X, P0)])
        return joint

    def _covers(self, X: MultiHot) -> bool:
        """Whether earlier rows had each of the new features of rows as often as these, or more."""
        if X.n_rows == 1:  # which has each feature once
            count = self.state.at(X.ids)[0]
            if X.nnz == 1:  # WHY: what most requests with something new have
                return bool((1.0 if X.values is None else X.values[0]) <= count[0])
            return bool((cell_parts(X) <= count).all())
        ids, place = np.unique(X.ids, return_inverse=True)
        return bool((np.bincount(place, cell_parts(X)) <= self.state.at(ids)[0]).all())

    def votes(self, X: MultiHot, P0: Floats) -> None:
        """What `move` leaves out of the pools: nothing, rows to predict are not in the state."""

    def move(
        self, P: Floats, X: MultiHot, votes: Floats | None = None, pooling: Pooling | None = None
    ) -> Floats:
        """Predictions P (N, C) of rows, moved by what their new features X (N, J) have shown.

        Parameters
        ----------
        votes
            (N, C) of rows that are in the state: left out of its pools.
        pooling
            In place of the evidence's own; its strength is fixed.
        """
        fixed = self.fixed if pooling is None else pooling
        if not X.nnz or not fixed.strength:
            return P
        e = weigh(self.state, X, fixed, None if votes is None else self.state.bound(votes))
        return combine(P, e, self.state.task, fixed.slope)

    def select(self, kept: NDArray[np.integer], n_features: int) -> LiveEvidence:
        """The same over some of so many new features, ascending, numbered 0, 1, ... anew."""
        other, sample = self.copy(), self.sample
        count, total = self.state.at(kept)
        number = np.full(n_features, -1, np.int32)
        number[kept] = np.arange(len(kept))
        sources = None if self.state.sources is None else self.state.sources.select(number)
        other.state = self.state.with_sums(np.column_stack([count, total]), sources)
        X = sample.X.widen(n_features).select_features(kept)
        rows = np.flatnonzero(X.row_degree)
        other.sample = replace(sample, X=X).select(rows)
        other._fix_strength()
        return other

    def copy(self) -> LiveEvidence:
        """An independent copy."""
        other = copy.copy(self)  # a sample is never changed, only replaced
        other.state = self.state.copy()
        return other

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The state as plain arrays, for a safetensors file."""
        told = {} if self.state.sources is None else {"sample_voter": self.sample.voter}
        return {**self.state.to_arrays(), **self.sample.to_arrays(), **told}

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
        has_source = state.sources is not None
        live.sample = Sample.from_arrays(arrays, state.n_features, task, has_source)
        live.state = state
        live._fix_strength()
        return live


class JointEvidence:
    """Evidence of rows that are predicted together: each is moved by the votes of the others too.

    Parameters
    ----------
    live
        What earlier rows have shown; it is not changed.
    every
        Whether the rows count for every new feature; else for those that more of them have than
        earlier rows had, and what `live` says of the rest is taken as it is.
    names
        What the new features are.

    Examples
    --------
    >>> joint = JointEvidence(LiveEvidence(2, pooling=Pooling(alpha=1.0)), every=True)
    >>> X, P0 = MultiHot.from_rows([[0], [0]], 1), np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> joint.sweep([(X, P0)])
    >>> joint.move(P0, X, joint.votes(X, P0)).round(2)
    array([[0.86, 0.14],
           [0.7 , 0.3 ]])
    """

    def __init__(self, live: LiveEvidence, every: bool, names: Names = by_id) -> None:
        self.live, self.every, self.names = live, every, names
        self.pooling = live.batch_pooling or live.pooling
        # WHY: votes of a second sweep are moved as in the probe that chose it, in full.
        in_full = self.pooling.relative and self.pooling.strength > 0
        self._between = replace(self.pooling, strength=1.0, slope=1.0) if in_full else self.pooling
        self._sample = live.sample  # of earlier rows and then of these too, with P0
        self._waiting: list[tuple[MultiHot, Floats]] = []  # rows that it has not taken yet
        self._sweeps: list[_Sweep] = []

    def sweep(self, parts: Iterable[tuple[MultiHot, Floats]]) -> None:
        """Pool what is predicted for the rows so far: by the model alone, then by the last sweep.

        Parameters
        ----------
        parts
            New features (N, J) and predictions P0 (N, C) of all the rows, in any cut.
        """
        sums = JointPools(self.live.state)
        for X, predicted in parts:
            P0 = self.live.state.bound(predicted)
            sums.add(X, self._predict(X, P0, self._sweeps), P0)
            if not self._sweeps:
                self._sampled()  # WHY: one part may wait, or memory would grow with the file
                self._waiting.append((X, P0))
        mean = (self._sweeps[0].sums if self._sweeps else sums).mean  # of P0
        self._sweeps.append(_Sweep(self, sums, mean, len(self._sweeps)))

    def fix(self, sweep: _Sweep) -> Pooling:
        """Settings of a sweep with an absolute strength."""
        if not self._between.relative or self._between.strength == 0:
            return self._between
        sample = self._sampled()
        votes = self._predict(sample.X, sample.votes, self._sweeps[: sweep.place])
        # Earlier rows are counted with their P0.
        earlier = np.isin(sample.key, self.live.sample.key)[:, None]
        own = np.where(earlier, sample.votes, votes)
        return _fix(self._between, sweep.sums, sample, own, sweep.mean)

    def _sampled(self) -> Sample:
        """The sample of earlier rows and of those that were swept."""
        while self._waiting:
            rows, task = self._waiting.pop(), self.live.state.task
            self._sample = self._sample.with_rows(*rows, task, self.names)
        return self._sample

    def votes(self, X: MultiHot, P0: Floats) -> Floats:
        """(N, C) what the rows are counted with in the last sweep's sums."""
        return self._predict(X, self.live.state.bound(P0), self._sweeps[:-1])

    def move(self, P: Floats, X: MultiHot, votes: Floats | None) -> Floats:
        """Predictions P (N, C) of rows that were swept, moved by evidence.

        Parameters
        ----------
        X
            (N, J) their new features.
        votes
            (N, C) see `votes`; left out of the pools.
        """
        return self._step(P, X, votes, self._sweeps[-1], self.pooling)

    def _predict(self, X: MultiHot, P0: Floats, sweeps: list[_Sweep]) -> Floats:
        """P0 (N, C) moved by each of the sweeps in turn, from the pools of the one before."""
        P = P0
        for sweep in sweeps:
            P = self._step(P0, X, P, sweep, self._between)
        return P

    def _step(
        self, P: Floats, X: MultiHot, votes: Floats | None, sweep: _Sweep, pooling: Pooling
    ) -> Floats:
        joined = self._joined(X, sweep.sums)
        e = pooled_evidence(sweep.sums, X.select_cells(joined), votes, pooling.alpha)
        # WHY: the strength is measured on thousands of rows, and often there is nothing to weigh.
        if pooling.strength == 0 or not e.any():
            e = np.zeros_like(e)
        elif pooling is self._between:
            e = sweep.fixed.strength * e
        else:
            e = pooling.fixed(sweep.fixed.strength).strength * e
        if not joined.all():
            e = e + weigh(self.live.state, X.select_cells(~joined), self.live.fixed)
        return combine(P, e, sweep.sums.task, pooling.slope)

    def _joined(self, X: MultiHot, sums: JointPools) -> NDArray[np.bool_]:
        """(nnz,) the cells of features that the rows count for."""
        if self.every:
            return np.ones(X.nnz, dtype=bool)
        return np.asarray(sums.at(X.ids)[0] > 2 * self.live.state.at(X.ids)[0])


class JointPools:
    """The sums of a state and of further rows, which leave the state as it is.

    Parameters
    ----------
    state
        Of earlier rows; it is neither copied nor changed.

    Examples
    --------
    >>> state = Evidence(1, "regression").add(MultiHot.from_rows([[0]], 1), [3.0])
    >>> pools = JointPools(state)
    >>> pools.add(MultiHot.from_rows([[0], [9]], 10), np.array([[1.0], [5.0]]))
    >>> pools.at(np.array([0, 9]))[1].ravel().tolist(), state.n_features
    ([4.0, 5.0], 1)
    """

    def __init__(self, state: Evidence) -> None:
        self._state, self._ids = state, np.empty(0, np.int32)  # ascending
        self._added = np.zeros((1, 1 + state.n_outputs))  # of those, by place, and of no rows
        self.n_outputs, self.task = state.n_outputs, state.task
        self._boxes, self.mean, self.weights = state.boxes, state.mean, state.weights

    def add(self, X: MultiHot, votes: Floats, P0: Floats | None = None) -> None:
        """Observe rows: their new features (N, J), and what they are counted with (N, C).

        P0 (N, C), where that is something else, tells who votes: a second sweep weighs voters as
        the first one did.
        """
        votes = self._state.check_predictions(votes, X.n_rows)
        ids = np.union1d(self._ids, X.ids).astype(np.int32)
        added = np.zeros((len(ids) + 1, 1 + self.n_outputs))
        added[np.searchsorted(ids, self._ids)] = self._added[:-1]
        _add_cells(added, np.searchsorted(ids, X.ids), X, votes)
        self._ids, self._added = ids, added
        # WHY not by source: rows to predict need not have one.
        self._boxes = _fill(self._boxes, votes, hash_votes(votes if P0 is None else P0, self.task))
        self.mean, self.weights = self._state.weigh_boxes(self._boxes)  # (C,) pi, (B,)

    def at(self, ids: NDArray[np.integer]) -> tuple[Floats, Floats]:
        """Rows (n,) and sums of P0 (n, C) of some features."""
        (count, total), place = self._state.at(ids), np.searchsorted(self._ids, ids)
        there = place < len(self._ids)
        there[there] = self._ids[place[there]] == ids[there]
        more = self._added[np.where(there, place, -1)]
        return count + more[:, 0], total + more[:, 1:]


Pools = Evidence | JointPools


def vote_weights(sums: Pools, voter: Voters) -> Floats:
    """(N,) how much rows of these voters count for the mean."""
    return sums.weights[_box_of(voter, len(sums.weights))]


@dataclass(eq=False)
class _Sweep:
    """Sums of votes, the mean of P0 (C,), and the strength that suits them once it is asked for."""

    joint: JointEvidence
    sums: JointPools
    mean: Floats
    place: int

    @cached_property
    def fixed(self) -> Pooling:
        return self.joint.fix(self)


def _fix(pooling: Pooling, sums: Pools, sample: Sample, own: Floats, mean: Floats) -> Pooling:
    """Settings with an absolute strength, by a sample of the rows that are in the sums.

    `own` (n, C) is what the sums count each of them with, `mean` (C,) the mean of P0.
    """
    if not pooling.relative or pooling.strength == 0:
        return pooling
    e = pooled_evidence(sums, sample.X, own, pooling.alpha)
    weight = vote_weights(sums, sample.voter)
    return pooling.fixed(reference_strength(e, sample.votes, sums.task, mean, weight))
