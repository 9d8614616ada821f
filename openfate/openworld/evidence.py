"""Evidence: what the new features of a stream have shown so far, as exact running sums.

A new feature keeps n, the number of its rows, and the sum of the fitted model's predictions P0
over them; for the rows whose labels came later also n', the sum of P0 (expected) and the sum of
outcomes (happened).  How they are turned into predictions: `pooling`.

N rows, J new features, C outputs.  Numpy alone; the cost of `add` and `remove` is proportional to
the new cells that they are given, memory to the distinct new features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.table import MultiHot

__all__ = ["Evidence", "Kind"]

Floats = NDArray[np.float64]
Kind = Literal["classes", "labels", "values"]


_SUMS = ("count", "total", "labelled_count", "labelled_total", "outcome")


class Evidence:
    """What new features have shown so far: sums and counts, exact in a stream.

    Parameters
    ----------
    n_outputs
        C: classes, labels or values.
    kind
        "classes": rows of P0 are probabilities of C classes; "labels": each column is the
        probability of a label of its own; "values": each column is a predicted number.

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

    def __init__(self, n_outputs: int, kind: Kind = "classes") -> None:
        if kind not in get_args(Kind):
            raise InputError(f"kind={kind!r} is unknown: choose one of {get_args(Kind)}.")
        least = 2 if kind == "classes" else 1
        if n_outputs < least:
            raise InputError(f"n_outputs={n_outputs}: {kind} need {least} or more.")
        self.n_outputs, self.kind = n_outputs, kind
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
        >>> Evidence(1, "values").add(MultiHot.from_rows([[0]], 1), [3.0]).total
        array([[3.]])
        """
        P0 = self._checked(X, P0)
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
        P0 = self._checked(X, P0)
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
        if (other.n_outputs, other.kind) != (self.n_outputs, self.kind):
            raise InputError(
                f"a state of {other.n_outputs} {other.kind} cannot be merged into one of "
                f"{self.n_outputs} {self.kind}."
            )
        self._grow(other.n_features)
        for name, array in self._sums.items():
            array[: other.n_features] += other._sums[name][: other.n_features]
        self.row_count += other.row_count
        self.row_total += other.row_total
        return self

    def copy(self) -> Evidence:
        """An independent state with the same content."""
        return Evidence(self.n_outputs, self.kind).merge(self)

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
    def from_arrays(cls, arrays: Mapping[str, ArrayLike], kind: Kind = "classes") -> Evidence:
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
        state = cls(len(given["row_total"]), kind)
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
        self._checked(MultiHot.from_rows([[]] * n_rows, 0), P0)
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

    def _checked(self, X: MultiHot, P0: ArrayLike) -> Floats:
        P0 = np.asarray(P0, np.float64)
        P0 = P0[:, None] if P0.ndim == 1 and self.n_outputs == 1 else P0
        if P0.shape != (X.n_rows, self.n_outputs):
            raise InputError(
                f"predictions have the shape {P0.shape}, not {(X.n_rows, self.n_outputs)}: "
                "one row for each row of X, one column for each output."
            )
        bad = ~np.isfinite(P0) if self.kind == "values" else ~((P0 >= 0) & (P0 <= 1 + 1e-6))
        if bad.any():
            row = int(np.flatnonzero(bad.any(1))[0])
            wanted = "finite numbers" if self.kind == "values" else "probabilities from 0 to 1"
            raise InputError(f"row {row} is predicted as {P0[row].tolist()}: give {wanted}.")
        return P0

    def _outcomes(self, y: ArrayLike, n_rows: int) -> Floats:
        """What happened, (N, C)."""
        y = np.asarray(y)
        if len(y) != n_rows:
            raise InputError(f"{n_rows} rows but {len(y)} labels.")
        if self.kind == "classes":
            if y.ndim != 1 or y.dtype.kind not in "iub":
                raise InputError(f"labels are {y.dtype} {y.shape}: give a class number each.")
            if n_rows and not 0 <= y.min() <= y.max() < self.n_outputs:
                worst = y.max() if y.max() >= self.n_outputs else y.min()
                raise InputError(f"class {worst} is outside 0..{self.n_outputs - 1}.")
            return np.eye(self.n_outputs)[y.astype(np.int64)]
        happened = y.astype(np.float64).reshape(n_rows, -1)
        if happened.shape[1] != self.n_outputs or not np.isfinite(happened).all():
            raise InputError(
                f"labels have the shape {y.shape}: give {self.n_outputs} finite numbers a row."
            )
        return happened
