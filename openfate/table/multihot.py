"""MultiHot: the matrix X of the paper, rows x features in {0, 1}, stored as CSR.

N rows, D features, d ids in a row.  Rows of equal length (one id per field, nothing missing) take
the fixed-width path: `width` is d and row `i` is ``ids[i * d : (i + 1) * d]``.  Entries may carry a
value (a number that its feature's edge transports); without values every entry is one.
Needs numpy alone, so that graph, models and the benchmark run on a bare machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate._lazy import ComputesOnce
from openfate.errors import InputError

IntArray = NDArray[np.integer]
Values = NDArray[np.float32]

PART_ROWS = 1 << 16  # rows that are gone through at a time, where all would be too many


@dataclass(frozen=True, eq=False)
class MultiHot(ComputesOnce):
    """A 0-1 matrix of rows x features in compressed sparse row form, optionally with values.

    Parameters
    ----------
    row_ptr
        (N + 1,) int64; the ids of row `i` are ``ids[row_ptr[i]:row_ptr[i + 1]]``.
    ids
        (nnz,) int32, the features that are one, each at most once in a row.
    n_features
        D; every id is smaller.
    values
        (nnz,) float32, finite, in the order of `ids`; None for all ones.  An entry of value zero
        is still an entry: it counts in both degrees.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0, 2], [1], []], n_features=3)
    >>> X.to_dense()
    array([[1, 0, 1],
           [0, 1, 0],
           [0, 0, 0]], dtype=int8)
    >>> X.select_features([2, 1]).to_dense()
    array([[1, 0],
           [0, 1],
           [0, 0]], dtype=int8)
    >>> MultiHot.from_entries([0, 0, 1], [0, 2, 1], 2, 3, values=[0.5, -1, 2]).to_dense()
    array([[ 0.5,  0. , -1. ],
           [ 0. ,  2. ,  0. ]], dtype=float32)
    """

    row_ptr: NDArray[np.int64]  # (N + 1,)
    ids: NDArray[np.int32]  # (nnz,)
    n_features: int
    values: Values | None = None  # (nnz,)

    def __post_init__(self) -> None:
        if self.row_ptr.dtype.kind not in "iu" or self.ids.dtype.kind not in "iu":
            raise InputError(
                "row_ptr and ids must be integers, "
                f"not {self.row_ptr.dtype} and {self.ids.dtype}; convert them with astype(int)."
            )
        if self.row_ptr[0] != 0 or self.row_ptr[-1] != len(self.ids):
            raise InputError(f"row_ptr must run from 0 to {len(self.ids)} (the number of ids).")
        if np.any(np.diff(self.row_ptr) < 0):
            raise InputError("row_ptr must not decrease: give where rows begin, in order.")
        if len(self.ids) and not (0 <= self.ids.min() and self.ids.max() < self.n_features):
            raise _outside("feature id", self.ids, self.n_features)
        if self.values is not None:
            _check_values(self.values, self.ids)

    # ---- making one ------------------------------------------------------------------------

    @staticmethod
    def unchecked(
        row_ptr: NDArray[np.int64],
        ids: NDArray[np.int32],
        n_features: int,
        values: Values | None = None,
    ) -> MultiHot:
        """Some cells of rows that were checked.

        WHY: checks take longer than what is done with one row, or with a small mini-batch.

        Examples
        --------
        >>> MultiHot.unchecked(np.array([0, 1]), np.array([2], np.int32), 3).n_rows
        1
        """
        made = object.__new__(MultiHot)
        made.__dict__.update(row_ptr=row_ptr, ids=ids, n_features=n_features, values=values)
        return made

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], n_features: int) -> MultiHot:
        """One sequence of ids for each row; a repeated id counts once."""
        row = np.repeat(np.arange(len(rows)), [len(ids) for ids in rows])
        ids = _join([_check("feature id", ids, n_features) for ids in rows])
        return cls.from_entries(row, ids, len(rows), n_features)

    @classmethod
    def from_entries(
        cls,
        row: ArrayLike,
        feature: ArrayLike,
        n_rows: int,
        n_features: int,
        values: ArrayLike | None = None,
    ) -> MultiHot:
        """Take the entries (row[e], feature[e]) in any order; repeats count once, the last wins."""
        row, feature = _check("row", row, n_rows), _check("feature id", feature, n_features)
        if row.ndim != 1 or row.shape != feature.shape:
            raise InputError(
                "row and feature must have the same shape (entries,), "
                f"not {row.shape} and {feature.shape}."
            )
        key = row.astype(np.int64) * n_features + feature.astype(np.int64)
        given = _as_values(values, key.shape)
        if given is None:
            key = np.unique(key)
        else:
            # WHY: unique returns the first of equals; seen from the end that is the last one given.
            key, at = np.unique(key[::-1], return_index=True)
            given = given[::-1][at]
        counts = np.bincount(key // n_features if n_features else key, minlength=n_rows)
        row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        ids = key % n_features if n_features else key
        return cls(row_ptr, ids.astype(np.int32), n_features, given)

    # ---- looking at it ---------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.row_ptr) - 1

    @property
    def nnz(self) -> int:
        """The number of entries."""
        return len(self.ids)

    @cached_property
    def row_degree(self) -> NDArray[np.int64]:
        """(N,) how many features each row has."""
        return np.diff(self.row_ptr)

    @cached_property
    def feature_degree(self) -> NDArray[np.int64]:
        """(D,) how many rows each feature has."""
        return np.bincount(self.ids, minlength=self.n_features)

    @cached_property
    def width(self) -> int | None:
        """The number d of ids in every row, or None where rows differ."""
        degree = self.row_degree
        return int(degree[0]) if len(degree) and np.all(degree == degree[0]) else None

    @cached_property
    def mass(self) -> float:
        """The sum of all values without their signs; without values, the number of entries."""
        if self.values is None:
            return float(self.nnz)
        values = (part.values for part in self.parts())
        return math.fsum(float(np.abs(part).sum()) for part in values if part is not None)

    def feature_sums(self, power: int = 1) -> NDArray[np.float64]:
        """(D,) the sum of each feature's values, or of a power of them.

        Examples
        --------
        >>> MultiHot.from_entries([0, 1], [1, 1], 2, 2, values=[0.5, 2.0]).feature_sums(2).tolist()
        [0.0, 4.25]
        """
        if self.values is None:
            return self.feature_degree.astype(np.float64)
        sums = np.zeros(self.n_features)
        for part in self.parts():
            assert part.values is not None
            values = part.values.astype(np.float64) ** power
            sums += np.bincount(part.ids, values, self.n_features)
        return sums

    @property
    def row_of(self) -> NDArray[np.int64]:
        """(nnz,) the row of each entry."""
        return np.repeat(np.arange(self.n_rows), self.row_degree)

    def to_dense(self) -> NDArray[np.int8] | Values:
        """(N, D) as a plain array: of ones, or of the values where there are any."""
        dtype = np.int8 if self.values is None else np.float32
        dense = np.zeros((self.n_rows, self.n_features), dtype=dtype)
        dense[self.row_of, self.ids] = 1 if self.values is None else self.values
        return dense

    # ---- slicing and stacking --------------------------------------------------------------

    def select_rows(self, rows: ArrayLike) -> MultiHot:
        """Take the given rows, in the given order."""
        rows, values = _positions("row", rows, self.n_rows), self.values
        if self.width:  # WHY: rows without ids (width 0) cannot be reshaped to (-1, 0)
            if values is not None:
                values = values.reshape(-1, self.width)[rows]
            return _of_width(self.ids.reshape(-1, self.width)[rows], self.n_features, values)
        length = self.row_degree[rows]
        row_ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        # Entry k of the result sits at (start of its old row) + (its place within the row).
        at = np.repeat(self.row_ptr[:-1][rows] - row_ptr[:-1], length) + np.arange(row_ptr[-1])
        return MultiHot(row_ptr, self.ids[at], self.n_features, _at(values, at))

    def load(self) -> MultiHot:
        """All rows in memory: itself, unless its rows are on disk."""
        return self

    def cut(self, start: int, end: int) -> MultiHot:
        """The rows from `start` to before `end`; ids and values are not copied.

        Examples
        --------
        >>> MultiHot.from_rows([[0], [1, 2], [2]], n_features=3).cut(1, 3).row_ptr.tolist()
        [0, 2, 3]
        """
        ends = self.row_ptr[start : end + 1]
        part = slice(int(ends[0]), int(ends[-1]))
        values = None if self.values is None else self.values[part]
        return MultiHot.unchecked(ends - ends[0], self.ids[part], self.n_features, values)

    def parts(self, n_rows: int = PART_ROWS) -> Iterator[MultiHot]:
        """All rows in order, so many at a time.

        Examples
        --------
        >>> [part.n_rows for part in MultiHot.from_rows([[0], [1], [0]], 2).parts(2)]
        [2, 1]
        """
        for start in range(0, self.n_rows, n_rows):
            yield self.cut(start, min(start + n_rows, self.n_rows))

    def touched_features(self) -> tuple[MultiHot, NDArray[np.int32]]:
        """The rows over only the features that occur in them, and those features' ids.

        Examples
        --------
        >>> local, ids = MultiHot.from_rows([[900], [7, 900]], n_features=1000).touched_features()
        >>> local.n_features, ids
        (2, array([  7, 900], dtype=int32))
        """
        if self.n_features > 16 * self.nnz:  # a few rows of a very wide table
            ids, local = np.unique(self.ids, return_inverse=True)
            return MultiHot(self.row_ptr, local.astype(np.int32), len(ids), self.values), ids
        # WHY: a flag for each feature instead of a sort of all ids is ten times as fast.
        touched = np.zeros(self.n_features, dtype=bool)
        touched[self.ids] = True
        new_id = np.cumsum(touched, dtype=np.int32) - np.int32(1)
        ids = np.flatnonzero(touched).astype(np.int32)
        return MultiHot(self.row_ptr, new_id[self.ids], len(ids), self.values), ids

    def below(self, n_features: int) -> MultiHot:
        """The same rows with their first features alone: greater ids are left out.

        Examples
        --------
        >>> MultiHot.from_rows([[0, 2], [1], [2]], n_features=3).below(2).row_ptr.tolist()
        [0, 1, 2, 2]
        """
        if n_features > self.n_features:
            raise InputError(
                f"{self.n_features} features are no more than {n_features}; widen the rows instead."
            )
        X = self.select_cells(self.ids < n_features)
        return MultiHot(X.row_ptr, X.ids, n_features, X.values)

    def select_features(self, features: ArrayLike) -> MultiHot:
        """Take the given features only, each once, renumbered 0, 1, ... in the given order."""
        features = _positions("feature id", features, self.n_features)
        new_id = np.full(self.n_features, -1, dtype=np.int32)
        new_id[features] = np.arange(len(features), dtype=np.int32)
        if np.count_nonzero(new_id >= 0) < len(features):
            twice = int(np.flatnonzero(np.bincount(features) > 1)[0])
            raise InputError(f"feature id {twice} is selected twice; give each id once.")
        ids = new_id[self.ids]
        present = ids >= 0
        values = _at(self.values, present)
        return MultiHot(self._ends(present), ids[present], len(features), values)

    def select_cells(self, kept: NDArray[np.bool_]) -> MultiHot:
        """The same rows with some of their entries, of which `kept` (nnz,) is true.

        Examples
        --------
        >>> MultiHot.from_rows([[0, 2], [1]], 3).select_cells(np.array([True, False, True])).ids
        array([0, 1], dtype=int32)
        """
        if kept.all():
            return self
        return MultiHot(self._ends(kept), self.ids[kept], self.n_features, _at(self.values, kept))

    def _ends(self, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The `row_ptr` of the entries that are kept (E,)."""
        # WHY: a count of all entries up to each takes five times as long.
        return self.row_ptr - np.searchsorted(np.flatnonzero(~kept), self.row_ptr)

    def renumber(self, ids: ArrayLike, n_features: int) -> MultiHot:
        """The same rows where feature j is called ``ids[j]``, among `n_features`.

        Examples
        --------
        >>> MultiHot.from_rows([[0, 1]], 2).renumber([7, 3], 8).ids.tolist()
        [7, 3]
        """
        return MultiHot(self.row_ptr, np.asarray(ids, np.int32)[self.ids], n_features, self.values)

    def widen(self, n_features: int) -> MultiHot:
        """Put the same rows in a larger feature space."""
        if n_features < self.n_features:
            raise InputError(
                f"cannot widen {self.n_features} features to {n_features}; `below` gives the "
                "first ones."
            )
        return MultiHot(self.row_ptr, self.ids, n_features, self.values)

    @staticmethod
    def stack(parts: Sequence[MultiHot]) -> MultiHot:
        """Put the rows of all parts one below the other; the widest feature space wins.

        Where one part has values all have: those of a part without them are ones.
        """
        shift = np.concatenate([[0], np.cumsum([part.nnz for part in parts])])
        row_ptr = [part.row_ptr[1:] + s for part, s in zip(parts, shift[:-1], strict=True)]
        values = None
        if any(part.values is not None for part in parts):
            ones = [np.ones(p.nnz, np.float32) if p.values is None else p.values for p in parts]
            values = np.concatenate(ones)
        return MultiHot(
            np.concatenate([np.zeros(1, np.int64), *row_ptr]),
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            max(part.n_features for part in parts),
            values,
        )


def _of_width(table: NDArray[np.int32], n_features: int, values: Values | None = None) -> MultiHot:
    """Rows of a table (N, d) that is known to be right."""
    n_rows, width = table.shape
    row_ptr = np.arange(n_rows + 1, dtype=np.int64) * width
    flat = None if values is None else values.reshape(-1)
    return MultiHot(row_ptr, np.ascontiguousarray(table).reshape(-1), n_features, flat)


def _at(values: Values | None, index: NDArray[Any]) -> Values | None:
    return None if values is None else values[index]


def _join(parts: Iterable[ArrayLike]) -> NDArray[Any]:
    """One array of all parts; the empty ones, which numpy takes for floats, are left out."""
    filled = [array for array in map(np.asarray, parts) if len(array)]
    return np.concatenate(filled) if filled else np.empty(0)


# ---- checks ------------------------------------------------------------------------------------


def _positions(what: str, index: ArrayLike, n: int) -> IntArray:
    """Turn a mask or a list into positions 0..n-1."""
    index = np.asarray(index)
    if index.ndim != 1:
        raise InputError(f"{what}s must have one axis, not the shape {index.shape}.")
    if index.dtype != bool:
        return _check(what, index, n)
    if len(index) != n:
        raise InputError(f"a mask of {what}s must have the length {n}, not {len(index)}.")
    return np.flatnonzero(index)


def _check(what: str, values: ArrayLike, n: int) -> IntArray:
    """Take integers within 0..n-1; numpy would cut 1.7 to 1 and wrap 2**32 to 0."""
    array = np.asarray(values)
    if not array.size:  # numpy takes an empty list for floats
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{what}s must be integers, not {array.dtype} (the first is {array.flat[0]}); "
            "convert them with astype(int)."
        )
    if array.min() < 0 or array.max() >= n:
        raise _outside(what, array, n)
    return array


def _outside(what: str, values: IntArray, n: int) -> InputError:
    worst = int(values.max() if values.max() >= n else values.min())
    return InputError(f"{what} {worst} is outside 0..{n - 1}; give one of these.")


def _as_values(values: ArrayLike | None, shape: tuple[int, ...]) -> Values | None:
    """Take numbers, one for each id, as float32; what overflows becomes infinite and is refused."""
    if values is None:
        return None
    with np.errstate(over="ignore"):
        array = np.asarray(values).astype(np.float32)
    if array.shape != shape:
        raise InputError(
            f"values must have the shape of the ids, {shape}, not {array.shape}: one for each."
        )
    return array


def _check_values(values: Values, ids: IntArray) -> None:
    if values.dtype != np.float32 or values.shape != ids.shape:
        raise InputError(
            f"values must be float32 of the shape {ids.shape}, one for each id, "
            f"not {values.dtype} of the shape {values.shape}."
        )
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        raise InputError(
            f"the value of feature id {ids[at]} is {values[at]} (entry {at}): "
            "values must be finite in float32; leave out what is missing."
        )
