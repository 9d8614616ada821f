"""A file as a table: typed rows in batches, larger than memory, and a survey of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, InputError
from openfate.table.dtypes import as_type, canonical, join_types, named_type, type_of
from openfate.table.expressions import condition, unknown_name
from openfate.table.fields import Field, Numeric
from openfate.table.frame import numbers_of
from openfate.table.reader import SEPARATORS, ParquetFile, TextFile, suffix_of
from openfate.table.schema import Schema

BATCH_ROWS = 65_536
_SURVEYED_ROWS = 1_000_000  # the kind of a column is guessed from so many


class RowFile:
    r"""The rows of a file or a folder of Parquet, read in batches as often as asked.

    Every batch has the same columns and types, which are those of the whole file.

    Parameters
    ----------
    path
        By suffix: .csv, .tsv, the same with .gz, .parquet; or a folder of .parquet files.
    nulls
        Cells of a text file that mean "missing", besides empty ones.
    types
        What `plain_types` gave for another file: a column of text files keeps its type, so that
        "01" stays text where it was text, whatever the other cells of this file are.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.csv"
    ...     _ = path.write_text("age,job\n31,cook\n,pilot\n27,cook\n")
    ...     rows = RowFile(path)
    ...     [batch.rows() for batch in rows.batches(2, where="job = 'cook'")]
    [[(31, 'cook')], [(27, 'cook')]]
    """

    def __init__(
        self,
        path: str | Path,
        nulls: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self._missing = Path(path), ["", *nulls]
        self._known = {name: named_type(dtype) for name, dtype in (types or {}).items()}
        if not self.path.exists():
            raise DataFileError(f"{path}: there is no such file; check the path.")
        is_parquet = self.path.is_dir() or self.path.name.lower().endswith(".parquet")
        if not is_parquet and suffix_of(self.path) not in SEPARATORS:
            raise DataFileError(
                f"{path}: unknown suffix; rows are read from .csv, .tsv (or .csv.gz, .tsv.gz), "
                ".parquet and folders of .parquet."
            )
        self._file = ParquetFile(self.path) if is_parquet else TextFile(self.path)

    @cached_property
    def types(self) -> dict[str, pl.DataType]:
        """The type of every column, over the whole file, in the file's order."""
        if isinstance(self._file, ParquetFile):
            return self._file.types
        found: dict[str, pl.DataType] = {}
        for block in self._blocks(self._file):
            for column in block:
                dtype = found.get(column.name, self._known.get(column.name, pl.Null()))
                if dtype != pl.String:
                    dtype = join_types(dtype, type_of(column))
                found[column.name] = dtype
        if not found:
            raise DataFileError(f"{self.path}: the file has a first line but no rows.")
        return found

    # ---- reading -------------------------------------------------------------------------------

    def numbered(
        self,
        size: int = BATCH_ROWS,
        where: str | None = None,
        columns: Iterable[str] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], pl.DataFrame]]:
        """Batches of at most `size` rows, each with its rows' numbers in the file, from 1.

        Parameters
        ----------
        where
            An SQL expression; only rows for which it is true.
        columns
            The columns to give; all by default.
        """
        if size < 1:
            raise InputError(f"a batch of {size} rows: give an integer from 1 up.")
        wanted = self._choose(columns)
        test = condition(where, self.types) if where is not None else None
        read = list(dict.fromkeys([*wanted, *(test.columns if test else ())]))
        start = 1
        for rows in _rebatch(self._frames(read, size), size):
            numbers = np.arange(start, start + len(rows), dtype=np.int64)
            start += len(rows)
            if test is not None:
                kept = test.of(rows).fill_null(False)
                rows, numbers = rows.filter(kept), numbers[kept.to_numpy()]
            if len(rows):
                yield numbers, rows.select(wanted)

    def batches(
        self,
        size: int = BATCH_ROWS,
        where: str | None = None,
        columns: Iterable[str] | None = None,
    ) -> Iterator[pl.DataFrame]:
        """What `numbered` gives, without the numbers."""
        return (rows for _, rows in self.numbered(size, where, columns))

    def read(self, where: str | None = None, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """All rows at once."""
        wanted = self._choose(columns)
        found = list(self.batches(BATCH_ROWS, where, wanted))
        empty = pl.DataFrame(schema={name: self.types[name] for name in wanted})
        return pl.concat(found or [empty], rechunk=True)

    def _choose(self, columns: Iterable[str] | None) -> list[str]:
        if columns is None:
            return list(self.types)
        chosen = list(columns)
        self.check_columns(chosen)
        return chosen

    def check_columns(self, names: Iterable[str], argument: str = "", remedy: str = "") -> None:
        """Raise InputError where the file has no column of one of the names."""
        for name in names:
            if name not in self.types:
                what = f"{argument} {name}: {self.path}" if argument else str(self.path)
                known = unknown_name(name, self.types)
                raise InputError(f"{what} has no column {known}{remedy and '; '}{remedy}.")

    def _frames(self, columns: list[str], size: int) -> Iterator[pl.DataFrame]:
        """The rows in pieces of any length."""
        if isinstance(self._file, ParquetFile):
            yield from self._file.frames(columns, size)
            return
        for block in self._blocks(self._file):
            yield pl.DataFrame([self._as_typed(block[name]) for name in columns])

    def _blocks(self, file: TextFile) -> Iterator[pl.DataFrame]:
        """Text cells, null where one means "missing"."""
        cells = pl.when(pl.all().is_in(self._missing)).then(None).otherwise(pl.all()).name.keep()
        return (rows.cells.select(cells) for rows in file.rows())

    def _as_typed(self, text: pl.Series) -> pl.Series:
        dtype, known = self.types[text.name], self._known.get(text.name, pl.String())
        if dtype == pl.String and known not in (pl.String, pl.Null):
            return canonical(text, known)
        return as_type(text, dtype)

    # ---- looking at it -------------------------------------------------------------------------

    def survey(
        self,
        columns: Iterable[str],
        where: str | None = None,
        overrides: Iterable[Field] = (),
        numeric: Numeric = "buckets",
    ) -> Schema:
        """Tell what columns are, from the whole file: the batches it is read in do not matter.

        Parameters
        ----------
        columns
            The columns asked for.
        overrides
            Fields that are known and need no guess.

        Returns
        -------
            A field for each that has a value: its kind is guessed from the first million rows, the
            bounds or the scale of a numeric one are those of the finite values of all rows.
        """
        wanted, known = self._choose(columns), Schema(overrides)
        if not wanted:
            return Schema([])
        sample: list[pl.DataFrame] = []
        filled: set[str] = set()
        n_sampled = 0
        spans: dict[str, _Span] = {}
        for rows in self.batches(BATCH_ROWS, where, wanted):
            if n_sampled < _SURVEYED_ROWS:
                sample.append(rows.head(_SURVEYED_ROWS - n_sampled))
                n_sampled += len(sample[-1])
            filled.update(name for name in wanted if rows[name].null_count() < len(rows))
            for name in wanted:
                is_number = rows[name].dtype.is_numeric() or rows[name].dtype == pl.Duration
                if is_number or (name in known and known[name].kind == "numeric"):
                    spans.setdefault(name, _Span()).add(numbers_of(rows[name], name))
        if not sample:
            return Schema([])
        schema = Schema.from_frame(pl.concat(sample), overrides=known, numeric=numeric)
        return Schema(_measure(field, spans) for field in schema if field.name in filled)


def _rebatch(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """The same rows in pieces of `size`, the last one shorter."""
    waiting: list[pl.DataFrame] = []
    n_waiting = 0
    for frame in frames:
        waiting.append(frame)
        n_waiting += len(frame)
        if n_waiting >= size:
            rows = pl.concat(waiting)
            whole = n_waiting - n_waiting % size
            yield from (rows.slice(start, size) for start in range(0, whole, size))
            waiting, n_waiting = [rows.slice(whole)], n_waiting - whole
    if n_waiting:
        yield pl.concat(waiting)


@dataclass
class _Span:
    """The finite numbers of a column so far: how many, between what, and how spread."""

    n: int = 0
    low: float = np.inf
    high: float = -np.inf
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    def add(self, numbers: pl.Series) -> None:
        """Take more numbers in."""
        values = numbers.drop_nulls().to_numpy()
        values = values[np.isfinite(values)]
        if not len(values):
            return
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        # Chan's rule: exact, and no batch needs to know the mean of the others beforehand.
        n, mean = self.n + len(values), float(values.mean())
        apart = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum())
        self.squares += apart**2 * self.n * len(values) / n
        self.mean += apart * len(values) / n
        self.n = n


def _measure(field: Field, spans: Mapping[str, _Span]) -> Field:
    """The field with the bounds or the scale of its column."""
    span = spans.get(field.name)
    if field.kind != "numeric" or span is None or not span.n:
        return field
    if field.numeric == "value":
        std = (span.squares / span.n) ** 0.5 if span.low < span.high else 1.0
        return field if field.scale else replace(field, scale=(span.mean, std or 1.0))
    return field if field.bounds else replace(field, bounds=(span.low, span.high))
