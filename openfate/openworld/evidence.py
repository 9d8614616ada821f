"""Evidence: what the new features of a stream have shown so far, and a sample of its rows.

A new feature keeps n, the number of its rows, and the sum of the fitted model's predictions P0
over them; for the rows whose labels came later also n', the sum of P0 (expected) and the sum of
outcomes (happened).  These sums are exact (`Evidence`).  How strongly they should count is a
statistic of rows, so a few rows are kept too (`Sample`).  From both to predictions: `pooling`.

N rows, J new features, C outputs.  Numpy alone; the cost of `add` and `remove` is proportional to
the new cells that they are given, memory to the distinct new features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.table import MultiHot

Floats = NDArray[np.float64]
# What a model predicts: probabilities of classes, (N, 2) for two of them; the probability of each
# label; numbers.
Task = Literal["binary", "multiclass", "multilabel", "regression"]

SAMPLE = 2000  # rows; what is measured on them is one number, and more rows do not change it
_SUMS = ("count", "total", "labelled_count", "labelled_total", "outcome")


class Evidence:
    """What new features have shown so far: sums and counts, exact in a stream.

    Parameters
    ----------
    n_outputs
        C: classes, labels or numbers.
    task
        "binary" and "multiclass": rows of P0 are probabilities of C classes; "multilabel": each
        column is the probability of a label of its own; "regression": a predicted number.

    Notes
    -----
    State of a feature: n and the sum of P0 over all its rows; n', m (expected) and k (happened)
    over its labelled rows, kept apart, or unlabelled rows would drown the labels.  All sums are
    linear in the rows, so any order of `add`, `remove`, `merge` and `decay` gives the same state.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0], [1], []], n_features=2)  # two new features
    >>> P0 = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])
    >>> state = Evidence(2).add(X, P0)
    >>> state.count, state.total[0].round(2)
    (array([2., 1.]), array([1.7, 0.3]))
    """

    def __init__(self, n_outputs: int, task: Task = "multiclass") -> None:
        if task not in get_args(Task):
            raise InputError(f"task={task!r} is unknown: choose one of {get_args(Task)}.")
        least = 1 if task in ("multilabel", "regression") else 2
        if n_outputs < least:
            raise InputError(f"n_outputs={n_outputs}: a {task} task has {least} or more.")
        self.n_outputs = n_outputs
        self.task: Task = task
        self.n_features = 0
        self.row_count = 0.0
        self.row_total = np.zeros(n_outputs)
        self._sums = {name: np.zeros(self._shape(name, 0)) for name in _SUMS}

    def _shape(self, name: str, n_features: int) -> tuple[int, ...]:
        return (n_features,) if name.endswith("count") else (n_features, self.n_outputs)

    # ---- looking at it -----------------------------------------------------------------------

    @property
    def count(self) -> Floats:
        """(J,) rows of each new feature."""
        return self._sums["count"][: self.n_features]

    @property
    def total(self) -> Floats:
        """(J, C) the sum of P0 over them."""
        return self._sums["total"][: self.n_features]

    @property
    def labelled_count(self) -> Floats:
        """(J,) labelled rows of each new feature."""
        return self._sums["labelled_count"][: self.n_features]

    @property
    def labelled_total(self) -> Floats:
        """(J, C) what the model expected of them: the sum of P0."""
        return self._sums["labelled_total"][: self.n_features]

    @property
    def outcome(self) -> Floats:
        """(J, C) what happened: how often each class occurred, or the sum of y."""
        return self._sums["outcome"][: self.n_features]

    @property
    def mean(self) -> Floats:
        """(C,) pi, the mean prediction over all rows that were added; zero before any."""
        return self.row_total / self.row_count if self.row_count > 0 else self.row_total

    # ---- changing it -------------------------------------------------------------------------

    def add(self, X: MultiHot, P0: ArrayLike, *, weight: float = 1.0) -> Evidence:
        """Observe rows: their new features `X` (N, J) and their predictions (N, C).

        Parameters
        ----------
        weight
            How much each row counts.

        Examples
        --------
        >>> Evidence(1, "regression").add(MultiHot.from_rows([[0]], 1), [3.0]).total
        array([[3.]])
        """
        P0 = self.check_predictions(P0, X.n_rows)
        self._grow(X.n_features)
        self._sum("count", X, None, weight)
        self._sum("total", X, P0, weight)
        self.row_count += weight * X.n_rows
        self.row_total += weight * P0.sum(0)
        return self

    def add_labelled(
        self, X: MultiHot, P0: ArrayLike, y: ArrayLike, *, seen: bool = False, weight: float = 1.0
    ) -> Evidence:
        """Observe rows whose labels have come.

        Parameters
        ----------
        y
            (N,) class numbers, (N, C) zeros and ones of labels, or (N, C) numbers.
        seen
            Whether `add` has counted these rows before, when they had no labels.
        weight
            How much each row counts.

        Examples
        --------
        >>> X = MultiHot.from_rows([[0], [0]], 1)
        >>> Evidence(2).add_labelled(X, [[0.9, 0.1], [0.8, 0.2]], [1, 1]).outcome
        array([[0., 2.]])
        """
        P0 = self.check_predictions(P0, X.n_rows)
        happened = self._outcomes(y, X.n_rows)
        if not seen:
            self.add(X, P0, weight=weight)
        self._grow(X.n_features)
        self._sum("labelled_count", X, None, weight)
        self._sum("labelled_total", X, P0, weight)
        self._sum("outcome", X, happened, weight)
        return self

    def remove(self, X: MultiHot, P0: ArrayLike, *, weight: float = 1.0) -> Evidence:
        """Take back rows that were added, e.g. those that leave a window.

        `weight` is what `decay` has left of them.
        """
        return self.add(X, P0, weight=-weight)

    def remove_labelled(
        self, X: MultiHot, P0: ArrayLike, y: ArrayLike, *, seen: bool = False, weight: float = 1.0
    ) -> Evidence:
        """Take back labelled rows; `seen` as when they were added."""
        return self.add_labelled(X, P0, y, seen=seen, weight=-weight)

    def decay(self, factor: float) -> Evidence:
        """Let everything so far count less; 1 changes nothing, 0 forgets all."""
        if not 0 <= factor <= 1:
            raise InputError(f"factor={factor}: choose a number from 0 to 1.")
        for array in (self.row_total, *self._sums.values()):
            array *= factor
        self.row_count *= factor
        return self

    def merge(self, other: Evidence) -> Evidence:
        """Add the state of another machine or another day, over the same feature ids."""
        if (other.n_outputs, other.task) != (self.n_outputs, self.task):
            raise InputError(
                f"evidence of a {other.task} task with {other.n_outputs} outputs cannot be merged "
                f"into that of a {self.task} task with {self.n_outputs}: merge like with like."
            )
        self._grow(other.n_features)
        for name, array in self._sums.items():
            array[: other.n_features] += other._sums[name][: other.n_features]
        self.row_count += other.row_count
        self.row_total += other.row_total
        return self

    def copy(self) -> Evidence:
        """An independent state with the same content."""
        return Evidence(self.n_outputs, self.task).merge(self)

    # ---- arrays in, arrays out -----------------------------------------------------------------

    def to_arrays(self) -> dict[str, Floats]:
        """The state as plain arrays, for a safetensors file.

        Examples
        --------
        >>> sorted(Evidence(2).to_arrays())[:3]
        ['count', 'labelled_count', 'labelled_total']
        """
        arrays = {name: array[: self.n_features].copy() for name, array in self._sums.items()}
        return {
            **arrays,
            "row_count": np.array([self.row_count]),
            "row_total": self.row_total.copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike], task: Task = "multiclass") -> Evidence:
        """Make a state from what `to_arrays` gave.

        Raises
        ------
        InputError
            Where an array is missing or does not fit the others.
        """
        missing = [name for name in (*_SUMS, "row_count", "row_total") if name not in arrays]
        if missing:
            raise InputError(f"a state of evidence lacks the arrays {', '.join(missing)}.")
        given = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
        state = cls(len(given["row_total"]), task)
        state._grow(len(given["count"]))
        for name, array in state._sums.items():
            if given[name].shape != array[: state.n_features].shape:
                raise InputError(
                    f"the array {name} of a state of evidence has the shape {given[name].shape}, "
                    f"not {array[: state.n_features].shape}."
                )
            array[: state.n_features] = given[name]
        state.row_count = float(given["row_count"].sum())
        state.row_total = given["row_total"].copy()
        return state

    def check(self, P0: Floats, n_rows: int, y: ArrayLike | None = None) -> None:
        """Refuse predictions and labels that could not be added, before anything is."""
        self.check_predictions(P0, n_rows)
        if y is not None:
            self._outcomes(y, n_rows)

    # ---- within --------------------------------------------------------------------------------

    def _grow(self, n_features: int) -> None:
        """Make room, at least doubling, so that growing one by one costs no more than at once."""
        capacity = len(self._sums["count"])
        if n_features > capacity:
            room = max(n_features, 2 * capacity)
            for name, array in self._sums.items():
                wider = np.zeros(self._shape(name, room))
                wider[: self.n_features] = array[: self.n_features]
                self._sums[name] = wider
        self.n_features = max(self.n_features, n_features)

    def _sum(self, name: str, X: MultiHot, values: Floats | None, weight: float) -> None:
        """Add each row's values to all its features; cost by cells, whatever J is."""
        if values is None:
            np.add.at(self._sums[name], X.ids, weight)
            return
        row = X.row_of
        for c in range(self.n_outputs):
            np.add.at(self._sums[name][:, c], X.ids, weight * values[row, c])

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

    def _outcomes(self, y: ArrayLike, n_rows: int) -> Floats:
        """What happened, (N, C)."""
        y = np.asarray(y)
        if len(y) != n_rows:
            raise InputError(f"{n_rows} rows but {len(y)} labels: give one label for each row.")
        if self.task in ("binary", "multiclass"):
            if y.ndim != 1 or y.dtype.kind not in "iub":
                raise InputError(f"labels are {y.dtype} {y.shape}: give a class number each.")
            if n_rows and not 0 <= y.min() <= y.max() < self.n_outputs:
                worst = y.max() if y.max() >= self.n_outputs else y.min()
                raise InputError(
                    f"class {worst} is outside 0..{self.n_outputs - 1}: give the place of each "
                    "label among the classes."
                )
            return np.eye(self.n_outputs)[y.astype(np.int64)]
        happened = y.astype(np.float64).reshape(n_rows, -1)
        if happened.shape[1] != self.n_outputs or not np.isfinite(happened).all():
            raise InputError(
                f"labels have the shape {y.shape}: give {self.n_outputs} finite numbers a row."
            )
        return happened


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows whose keys are lowest, in the order of keys.

    The key of a row is a hash of it, so that which rows these are depends on nothing but the rows:
    neither their order nor the way they were cut into calls matters.
    """

    key: NDArray[np.uint64]  # (n,) ascending, none twice
    X: MultiHot  # (n, J) new features
    votes: Floats  # (n, C) predictions

    @classmethod
    def of(cls, X: MultiHot, votes: Floats, task: Task) -> Sample:
        """The sample of some rows."""
        rows, key = sample_rows(X, votes, task)
        return cls(key, X.select_rows(rows), votes[rows])

    def merge(self, other: Sample) -> Sample:
        """The sample of the rows of both."""
        if not len(other.key):
            return self
        key, first = np.unique(np.concatenate([self.key, other.key]), return_index=True)
        X = MultiHot.stack([self.X, other.X]).select_rows(first[:SAMPLE])
        votes = np.concatenate([self.votes, other.votes])
        return Sample(key[:SAMPLE], X, votes[first[:SAMPLE]])


def sample_rows(
    X: MultiHot, votes: Floats, task: Task
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
    lowest, first = np.unique(_keys(X, votes, task)[told], return_index=True)
    return told[first[:SAMPLE]], lowest[:SAMPLE]


def _keys(X: MultiHot, votes: Floats, task: Task) -> NDArray[np.uint64]:
    """(N,) a hash of each row: of its features, in any order, and of its prediction."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(X.ids.astype(np.uint64)))])
    key: NDArray[np.uint64] = total[X.row_ptr[1:]] - total[X.row_ptr[:-1]]
    for column in _round(votes, task).T:
        key = _mix(key ^ _mix(column))
    return key


def _round(votes: Floats, task: Task) -> NDArray[np.uint64]:
    """(N, C) predictions to six digits: their last bits may depend on the rows beside them."""
    if task != "regression":
        return np.round(votes * 1e6).astype(np.int64).astype(np.uint64)
    # Numbers may be of any size: six significant digits, 20 bits, and + 0.0 makes one zero of two.
    fraction, exponent = np.frexp(votes)
    digits: Floats = np.ldexp(np.round(np.ldexp(fraction, 20)), exponent - 20) + 0.0
    return digits.view(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of the input moves every bit of the output."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
