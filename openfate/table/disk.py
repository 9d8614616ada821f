"""X on disk: rows of feature ids in plain arrays, written once, in parts that survive a kill.

The folder holds row_ptr.bin (int64), ids.bin (int32), values.bin (float32, where entries carry
values) and journal.jsonl, whose last whole line says how much of them counts.  `DiskRows` is a
`MultiHot` whose arrays stay there: what is read is the rows that are asked for.
Needs numpy alone, so that training from disk runs where only torch and numpy are installed.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import DataFileError, InputError
from openfate.files import add_entry, read_journal, unwritable
from openfate.table.multihot import PART_ROWS, MultiHot, Values

_LOADED_ROWS = 2 * PART_ROWS  # a selection of so many rows is read at once
# Entries, of 4 bytes: rows that lie no farther apart are read together, so many at once at most.
_APART, _AT_ONCE = 1 << 12, 1 << 17
_TYPES: dict[str, np.dtype[Any]] = {
    "row_ptr": np.dtype(np.int64),
    "ids": np.dtype(np.int32),
    "values": np.dtype(np.float32),
}


@dataclass(frozen=True)
class _Part:
    """Where a part ends: rows and entries before it and in it."""

    rows: int
    entries: int


class RowWriter:
    """Writes rows to a folder, part by part; goes on where an earlier one ended.

    Parameters
    ----------
    folder
        Made where it is not there.
    has_values
        Whether entries carry values.

    Raises
    ------
    DataFileError
        Where the disk is full or cannot be written; parts that are whole stay.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = RowWriter(Path(folder), has_values=False)
    ...     writer.append(MultiHot.from_rows([[0, 2], [1]], n_features=3))
    ...     again = RowWriter(Path(folder), has_values=False)
    ...     again.append(MultiHot.from_rows([[2]], n_features=3))
    ...     rows = DiskRows(Path(folder), n_features=3)
    ...     again.n_rows, rows.load().ids.tolist()
    (3, [0, 2, 1, 2])
    """

    def __init__(self, folder: Path, has_values: bool) -> None:
        self.folder, self.names = folder, ["row_ptr", "ids", *(["values"] if has_values else [])]
        self.n_rows, self.nnz = astuple(_last_part(folder))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in self.names:
                with _file(folder, name).open("ab") as file:
                    if file.tell() > self._bytes_of(name):
                        file.truncate(self._bytes_of(name))  # a killed process left it half-written
            if not self.n_rows:
                np.zeros(1, np.int64).tofile(_file(folder, "row_ptr"))
        except OSError as error:
            raise unwritable(folder, error) from None

    def _bytes_of(self, name: str) -> int:
        n, size = self.n_rows + 1 if name == "row_ptr" else self.nnz, _TYPES[name].itemsize
        return int(n * size)

    def append(self, X: MultiHot) -> None:
        """Write rows; once this returns they survive a kill."""
        arrays = {"row_ptr": X.row_ptr[1:] + self.nnz, "ids": X.ids, "values": X.values}
        try:
            for name in self.names:
                with _file(self.folder, name).open("r+b") as file:
                    file.seek(self._bytes_of(name))
                    file.write(np.ascontiguousarray(arrays[name], _TYPES[name]).data)
                    file.flush()
                    os.fsync(file.fileno())
            part = _Part(self.n_rows + X.n_rows, self.nnz + X.nnz)
            add_entry(self.folder / "journal.jsonl", part)
        except OSError as error:
            raise unwritable(self.folder, error) from None
        self.n_rows, self.nnz = part.rows, part.entries


class DiskRows(MultiHot):
    """Rows of a folder that `RowWriter` wrote, or some of them in any order.

    A selection of many rows is another one of these, one of few is read into memory; `cut` reads
    always.  What needs all rows at once (`ids`, `values`, `row_ptr`) reads all of them.

    Parameters
    ----------
    folder
        Where the arrays are.
    n_features
        D: greater ids are left out.
    rows
        (N,) places of the rows; None for all.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = RowWriter(Path(folder), has_values=False)
    ...     writer.append(MultiHot.from_rows([[0, 2], [1]], n_features=3))
    ...     rows = DiskRows(Path(folder), n_features=2)
    ...     rows.feature_degree.tolist(), rows.select_rows([1, 0]).ids.tolist()
    ([1, 1], [1, 0])
    """

    folder: Path
    rows: NDArray[np.int64] | None

    def __init__(
        self, folder: Path, n_features: int, rows: NDArray[np.int64] | None = None
    ) -> None:
        for name, value in (("folder", folder), ("n_features", n_features), ("rows", rows)):
            object.__setattr__(self, name, value)

    def _with(self, n_features: int, rows: NDArray[np.int64] | None) -> DiskRows:
        """Others of the same folder."""
        other = DiskRows(self.folder, n_features, rows)
        if "_starts" in self.__dict__:
            other.__dict__["_starts"] = self._starts
        return other

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(all rows + 1,) where the entries of each begin: 8 bytes a row."""
        return self._slice("row_ptr", 0, self._size.rows + 1)

    @cached_property
    def _size(self) -> _Part:
        """Of the whole folder."""
        return _last_part(self.folder)

    @property
    def has_values(self) -> bool:
        """Whether entries carry values."""
        return _file(self.folder, "values").exists()

    @property
    def n_rows(self) -> int:
        """N."""
        return self._size.rows if self.rows is None else len(self.rows)

    @property
    def n_bytes(self) -> int:
        """What the whole folder takes in memory."""
        return 8 * (self._size.rows + 1) + (8 if self.has_values else 4) * self._size.entries

    # ---- reading -----------------------------------------------------------------------------

    def load(self) -> MultiHot:
        """All rows in memory."""
        return self.cut(0, self.n_rows)

    def cut(self, start: int, end: int) -> MultiHot:
        """The rows from `start` to before `end`, in memory."""
        try:
            if self.rows is not None:
                return self._gather(self.rows[start:end])
            ends = self._slice("row_ptr", start, end + 1)
            values = self._slice("values", ends[0], ends[-1]) if self.has_values else None
            ids = self._slice("ids", ends[0], ends[-1])
        except (OSError, ValueError) as error:
            raise DataFileError(f"{self.folder}: rows cannot be read ({error}).") from None
        return self._below(ends - ends[0], ids, values)

    def select_rows(self, rows: ArrayLike) -> MultiHot:
        """The given rows, in the given order."""
        at = np.asarray(rows)
        if at.dtype == bool:
            at = np.flatnonzero(at)
        chosen = at.astype(np.int64) if self.rows is None else self.rows[at]
        _ = self._starts  # which all selections share
        view = self._with(self.n_features, chosen)
        return view if len(at) > _LOADED_ROWS else view.load()

    def _slice(self, name: str, start: int, end: int) -> NDArray[Any]:
        kind = _TYPES[name]
        offset, n = int(start) * kind.itemsize, int(end) - int(start)
        return np.fromfile(_file(self.folder, name), kind, n, offset=offset)

    def _gather(self, rows: NDArray[np.int64]) -> MultiHot:
        first = self._starts[rows]
        length = self._starts[rows + 1] - first
        row_ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        by_place = np.argsort(first, kind="stable")
        places, lengths = first[by_place], length[by_place]
        ends = np.cumsum(lengths)
        # Entry k of the result is in (the start of its row among those read) + (its place there).
        start = np.empty_like(first)
        start[by_place] = ends - lengths
        at = np.repeat(start - row_ptr[:-1], length) + np.arange(row_ptr[-1])
        names = ["ids", "values"] if self.has_values else ["ids"]
        found = {name: self._read(name, places, lengths, ends)[at] for name in names}
        return self._below(row_ptr, found["ids"], found.get("values"))

    def _read(
        self,
        name: str,
        places: NDArray[np.int64],
        lengths: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Rows that begin at ascending `places` of a file, side by side; each ends at `ends`."""
        kind = _TYPES[name]
        if not len(places):
            return np.empty(0, kind)
        size, found = kind.itemsize, np.empty(ends[-1], kind)
        # WHY together: a call for each row takes three times as long.  WHY not mapped: the kernel
        # maps up to 2 MiB around each row, which count as memory of the process.
        behind = np.maximum.accumulate(places + lengths)  # rows may come twice, or be of nothing
        is_far = (places[1:] - behind[:-1] > _APART) | np.diff(places // _AT_ONCE).astype(bool)
        cuts = np.concatenate([[0], np.flatnonzero(is_far) + 1, [len(places)]])
        n_breaks = np.append(0, np.cumsum(places[1:] != behind[:-1]))  # before each row
        with _file(self.folder, name).open("rb", buffering=0) as file:
            number, content = file.fileno(), found.view(np.uint8).data
            for a, b in itertools.pairwise(cuts.tolist()):
                low, high = int(ends[a] - lengths[a]), int(ends[b - 1])
                offset, n_read = int(places[a]), int(behind[b - 1] - places[a])
                if n_breaks[b - 1] == n_breaks[a]:  # they lie there as they are wanted
                    n_bytes = os.preadv(number, [content[low * size : high * size]], offset * size)
                else:
                    read = os.pread(number, n_read * size, offset * size)
                    n_bytes = len(read)
                    if n_bytes == n_read * size:
                        moved = places[a:b] - offset - (ends[a:b] - lengths[a:b])
                        at = np.repeat(moved, lengths[a:b]) + np.arange(low, high)
                        np.frombuffer(read, kind).take(at, out=found[low:high], mode="clip")
                if n_bytes != n_read * size:
                    raise OSError(f"{name}.bin is cut off")
        return found

    def _below(
        self, row_ptr: NDArray[np.int64], ids: NDArray[np.int32], values: Values | None
    ) -> MultiHot:
        if values is None and self.has_values:
            values = np.empty(0, np.float32)
        n_found = int(ids.max(initial=-1)) + 1
        whole = MultiHot(row_ptr, ids, max(n_found, self.n_features), values)
        return whole if n_found <= self.n_features else whole.below(self.n_features)

    # ---- what takes all rows, part by part ---------------------------------------------------

    @cached_property
    def feature_degree(self) -> NDArray[np.int64]:
        """(D,) how many rows each feature has."""
        degree = np.zeros(self.n_features, np.int64)
        for part in self.parts():
            degree += part.feature_degree
        return degree

    @property
    def nnz(self) -> int:
        """The number of entries."""
        return int(self.feature_degree.sum())

    @property
    def row_ptr(self) -> NDArray[np.int64]:
        """(N + 1,) read from disk."""
        return self.load().row_ptr

    @property
    def ids(self) -> NDArray[np.int32]:
        """(nnz,) read from disk."""
        return self.load().ids

    @property
    def values(self) -> Values | None:
        """(nnz,) read from disk, or None."""
        return self.load().values if self.has_values else None

    @cached_property
    def mass(self) -> float:
        """The sum of all values without their signs."""
        return math.fsum(part.mass for part in self.parts())

    def feature_sums(self, power: int = 1) -> NDArray[np.float64]:
        """(D,) the sum of each feature's values, or of a power of them."""
        if not self.has_values:
            return self.feature_degree.astype(np.float64)
        sums = np.zeros(self.n_features)
        for part in self.parts():
            sums += part.feature_sums(power)
        return sums

    def below(self, n_features: int) -> MultiHot:
        """The same rows with their first features alone."""
        if n_features > self.n_features:
            raise InputError(
                f"{self.n_features} features are no more than {n_features}; load the rows and "
                "widen them."
            )
        return self._with(n_features, self.rows)

    def widen(self, n_features: int) -> MultiHot:
        """Refused: it is the other way round."""
        if n_features != self.n_features:
            raise InputError("rows on disk cannot be widened: load them first.")
        return self


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def _last_part(folder: Path) -> _Part:
    """How much is whole."""
    entries = read_journal(folder / "journal.jsonl")
    return _Part(**entries[-1]) if entries else _Part(0, 0)
