"""What `fit` is given, in one form: a frame, a scan, a dataset, files, with the target beside.

N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError, suggest
from openfate.estimators.target import Target
from openfate.table import (
    PART_ROWS,
    Rows,
    Table,
    cut_table,
    read_ahead,
    read_labels,
    read_table,
    rebatch,
    time_numbers,
)

Parts = list[NDArray[Any]]  # labels, batch by batch
_GUESSED_ROWS = 2 * PART_ROWS  # what a column is, is guessed from the first rows


@dataclass(frozen=True)
class TrainingData:
    """Rows to learn from; only a small table lies in memory.

    Parameters
    ----------
    frames
        The rows, without the target, in one frame or many; they can be gone through again.
    columns
        The names of the columns.
    target
        What is to be predicted, of all rows.
    times
        (N,) what orders the rows in time, or None.
    identity
        What tells these rows from others; None where nothing does.
    table
        The rows where they are a frame.
    """

    frames: Iterable[Any]
    columns: tuple[str, ...]
    target: Target
    times: NDArray[Any] | None
    identity: Any = None
    table: Table | None = None

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.target.y)

    def head(self) -> Table:
        """The first rows, from which kinds of columns are guessed."""
        found: list[Table] = []
        n_rows = 0
        for frame in self.frames:
            table = read_table(frame)
            if not found and table.n_rows <= _GUESSED_ROWS and self.table is not None:
                return table
            found.append(table.select_rows(slice(0, _GUESSED_ROWS - n_rows)))
            n_rows += found[-1].n_rows
            if n_rows >= _GUESSED_ROWS:
                break
        if len(found) == 1:
            return found[0]
        columns = {name: [part.columns[name] for part in found] for name in self.columns}
        return Table(n_rows, {name: pl.concat(parts) for name, parts in columns.items()})

    def keep(self, kept: NDArray[np.bool_]) -> TrainingData:
        """Some of the rows."""
        some = np.flatnonzero(kept)
        target, times = self.target.select(some), self.times
        changed = replace(self, target=target, times=None if times is None else times[some])
        if self.table is None:
            return replace(changed, frames=_Kept(self.frames, kept))
        table = self.table.select_rows(some)
        return replace(changed, frames=[table], table=table)

    def cut(self) -> TrainingData:
        """The same rows in many frames, where they are one that is too large."""
        assert self.table is not None
        return replace(self, frames=_Cut(self.table), table=None)


@dataclass(frozen=True)
class _Cut:
    table: Table

    def __iter__(self) -> Iterator[Table]:
        return cut_table(self.table)


@dataclass(frozen=True)
class _Kept:
    frames: Iterable[Any]
    kept: NDArray[np.bool_]

    def __iter__(self) -> Iterator[Table]:
        first = 0
        for frame in self.frames:
            table = read_table(frame)
            some = np.flatnonzero(self.kept[first : first + table.n_rows])
            first += table.n_rows
            yield table.select_rows(some)


@dataclass(frozen=True)
class _Batches:
    """Some columns of rows that are read in batches."""

    rows: Rows
    columns: Sequence[str]

    def __iter__(self) -> Iterator[Any]:
        # WHY: the next one is read while this one is worked on.
        batches = self.rows.batches(PART_ROWS, columns=self.columns)
        return read_ahead(rebatch(batches, PART_ROWS), 1)


def read_rows(
    rows: Rows, y: Any, time: str | None
) -> tuple[_Batches, tuple[str, ...], Parts, NDArray[Any] | None]:
    """Read the target, and the time, of rows that are read in batches.

    Returns
    -------
    frames, columns, parts, times
        All other columns in batches, their names, the labels of each batch, and the times (N,).
    """
    names = [y] if isinstance(y, str) else list(y) if isinstance(y, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError("y must be the name of the target's column: the rows are read in batches.")
    for argument, name in [*(("y", name) for name in names), *([("time", time)] if time else [])]:
        if name not in rows.types:
            raise no_column(argument, name, rows.types)
    parts: Parts = []
    times: Parts = []
    first = 0
    for batch in rows.batches(
        PART_ROWS, columns=list(dict.fromkeys([*names, *filter(None, [time])]))
    ):
        columns = [_labels(batch[name], first) for name in names]
        parts.append(np.stack(columns, axis=1) if len(names) > 1 else columns[0])
        if time is not None:
            times.append(time_numbers(read_table(batch).columns[time], time))
        first += len(batch)
    if not first:
        raise InputError("there are no rows: a minimum of 1 row is required, give some.")
    others = tuple(name for name in rows.types if name not in names)
    if not others:
        raise InputError("the rows have no column beside the target: give one to learn from.")
    return _Batches(rows, others), others, parts, np.concatenate(times) if times else None


def _labels(column: pl.Series, first: int) -> NDArray[Any]:
    found = column.fill_nan(None) if column.dtype.is_float() else column
    if found.null_count():
        row = first + int(found.is_null().arg_true()[0])
        raise InputError(
            f"the target {column.name!r} is missing in row {row}: drop such rows or fill them."
        )
    return read_labels(found, len(found))


def no_column(argument: str, name: str, known: Iterable[str]) -> InputError:
    """An error that names a column that is not there."""
    names = list(known)
    hint = suggest(name, names)
    return InputError(
        f"{argument}={name!r}: there is no such column{hint} (columns: {', '.join(names[:20])})."
    )
