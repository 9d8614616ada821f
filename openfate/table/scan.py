"""Rows that are somewhere else, in batches: a lazy frame, a pyarrow dataset, files, a large frame.

All have `types`, `batches` and `identity`; the same rows come in the same order each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from openfate.errors import DataFileError, InputError, first_line, suggest
from openfate.table.frame import Table
from openfate.table.multihot import PART_ROWS
from openfate.table.reader import RowFile, rebatch

_REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)


class Rows(Protocol):
    """What gives rows in batches, as often as asked; the command line has one of its own."""

    @property
    def types(self) -> dict[str, pl.DataType]:
        """The type of every column."""

    @property
    def identity(self) -> Any:
        """What tells these rows from others, for JSON; None where nothing does."""

    def batches(
        self, size: int = PART_ROWS, *, columns: Iterable[str] | None = None
    ) -> Iterator[Any]:
        """Frames of `size` rows, the last one shorter, with some columns or all."""


class Scan:
    """Rows that a function gives in pieces of any length.

    Parameters
    ----------
    types
        Of the columns.
    read
        Gives frames with some columns, from the first row on.

    Examples
    --------
    >>> rows = open_rows(pl.LazyFrame({"city": ["Rome", "Oslo", "Bern"], "n": [1, 2, 3]}))
    >>> [batch.rows() for batch in rows.batches(2, columns=["city"])]
    [[('Rome',), ('Oslo',)], [('Bern',)]]
    """

    def __init__(
        self,
        types: dict[str, pl.DataType],
        read: Callable[[list[str], int], Iterable[pl.DataFrame]],
    ) -> None:
        self.types, self._read = types, read

    @cached_property
    def identity(self) -> str | None:
        """A hash of all rows, for which they are gone through; None where some cannot be hashed."""
        # WHY: a query may be the same, and what it reads another; files tell by their times.
        digest = hashlib.sha256(repr(list(self.types.items())).encode())
        # WHY: the codes of categories are those of one process.
        text = pl.selectors.categorical().cast(pl.String)
        try:
            for batch in self.batches():
                digest.update(batch.with_columns(text).hash_rows(seed=0).to_numpy().tobytes())
        except DataFileError:
            raise
        except _REFUSALS:
            return None
        return digest.hexdigest()

    def batches(
        self, size: int = PART_ROWS, *, columns: Iterable[str] | None = None
    ) -> Iterator[pl.DataFrame]:
        """Frames of `size` rows, the last one shorter."""
        wanted = list(self.types if columns is None else columns)
        for name in wanted:
            if name not in self.types:
                raise InputError(f"the rows have no column {name!r}{suggest(name, self.types)}.")
        try:
            yield from rebatch(self._read(wanted, size), size)
        except _REFUSALS as error:
            if isinstance(error, InputError):
                raise
            raise DataFileError(f"the rows cannot be read ({first_line(error)}).") from None


def open_rows(X: Any) -> Rows | None:
    """Rows that are to be read in batches: of a scan, a dataset or paths; None for all else.

    Examples
    --------
    >>> open_rows(pl.DataFrame({"a": [1]})) is None
    True
    """
    if isinstance(X, pl.LazyFrame):
        return _of_lazy_frame(X)
    if isinstance(X, str | Path):
        return RowFile(X)
    if isinstance(X, list | tuple) and X and all(isinstance(each, str | Path) for each in X):
        return RowFile(X)
    if type(X).__module__.startswith("pyarrow") and hasattr(X, "scanner"):
        return _of_dataset(X)
    if all(hasattr(X, name) for name in ("types", "batches", "identity")):
        rows: Rows = X
        return rows
    return None


def _of_lazy_frame(frame: pl.LazyFrame) -> Scan:
    try:
        types = dict(frame.collect_schema())
    except _REFUSALS as error:
        raise DataFileError(f"the lazy frame cannot be read ({first_line(error)}).") from None
    return Scan(
        types,
        # WHY: a row's place counts (which rows are spared goes by it), so the order must stay.
        lambda columns, size: frame.select(columns).collect_batches(
            chunk_size=size, maintain_order=True, engine="streaming"
        ),
    )


def _of_dataset(dataset: Any) -> Scan:
    def read(columns: list[str], size: int) -> Iterator[pl.DataFrame]:
        for batch in dataset.to_batches(columns=columns, batch_size=size):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            yield frame

    empty = pl.from_arrow(dataset.schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return Scan(dict(empty.schema), read)


def cut_table(table: Table, size: int = PART_ROWS) -> Iterator[Table]:
    """The rows of a table, `size` at a time.

    Examples
    --------
    >>> [part.n_rows for part in cut_table(Table(3, {"a": pl.Series([1, 2, 3])}), 2)]
    [2, 1]
    """
    for start in range(0, table.n_rows, size):
        yield table.select_rows(slice(start, start + size))
