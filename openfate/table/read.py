"""Files of rows: CSV and TSV, gz or not, Parquet files and folders of them.

A file may be larger than memory: it is read in batches, as often as asked, and every batch has the
same columns and types, which are those of the whole file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, InputError
from openfate.table.delimited import SEPARATORS, TYPES, Delimited, canonical, cast, joined
from openfate.table.expressions import condition, unknown_name
from openfate.table.frame import numbers_of
from openfate.table.schema import Field, Numeric, Schema

__all__ = ["BATCH_ROWS", "RowFile", "plain_types"]

BATCH_ROWS = 65_536
_SURVEYED_ROWS = 1_000_000  # the kind of a column is guessed from so many
_REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_TEXT_TYPES: dict[str, pl.DataType] = {
    str(dtype): dtype for dtype in (pl.Null(), *TYPES, pl.String())
}


class RowFile:
    r"""The rows of a file or a folder of Parquet, read in batches as often as asked.

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
        self.path = Path(path)
        self._known = {
            name: _TEXT_TYPES.get(dtype, pl.String()) for name, dtype in (types or {}).items()
        }
        self._text: Delimited | None = None
        self._parquet: pl.LazyFrame | None = None
        if _is_text(self.path):
            self._text = Delimited(self.path, nulls)
        else:
            self._parquet = _scan(self.path)

    @cached_property
    def types(self) -> dict[str, pl.DataType]:
        """The type of every column, over the whole file, in the file's order."""
        if self._text is not None:
            return {
                name: joined(self._known.get(name, pl.Null()), dtype)
                for name, dtype in self._text.types().items()
            }
        assert self._parquet is not None
        with _named(self.path):
            return dict(self._parquet.collect_schema())

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
            raise InputError(f"a batch of {size} rows: give a whole number from 1 up.")
        wanted = self._chosen(columns)
        test = condition(where, self.types) if where is not None else None
        read = list(dict.fromkeys([*wanted, *(test.columns if test else ())]))
        start = 1
        for rows in _rebatched(self._frames(read, size), size):
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
        wanted = self._chosen(columns)
        found = list(self.batches(BATCH_ROWS, where, wanted))
        empty = pl.DataFrame(schema={name: self.types[name] for name in wanted})
        return pl.concat(found or [empty], rechunk=True)

    def _chosen(self, columns: Iterable[str] | None) -> list[str]:
        if columns is None:
            return list(self.types)
        chosen = list(columns)
        self.check_columns(chosen)
        return chosen

    def check_columns(self, names: Iterable[str], flag: str = "", remedy: str = "") -> None:
        """Raise InputError where the file has no column of one of the names."""
        for name in names:
            if name not in self.types:
                what = f"{flag} {name}: {self.path}" if flag else str(self.path)
                known = unknown_name(name, self.types)
                raise InputError(f"{what} has no column {known}{remedy and '; '}{remedy}.")

    def _frames(self, columns: list[str], size: int) -> Iterator[pl.DataFrame]:
        """The rows in pieces of any length."""
        if self._text is not None:
            for block in self._text.blocks():
                yield pl.DataFrame([self._typed(block[name]) for name in columns])
            return
        assert self._parquet is not None
        with _named(self.path):
            # WHY: a row's place counts, so the order must stay.
            yield from self._parquet.select(columns).collect_batches(
                chunk_size=size, maintain_order=True, engine="streaming"
            )

    def _typed(self, text: pl.Series) -> pl.Series:
        dtype, known = self.types[text.name], self._known.get(text.name, pl.String())
        if dtype == pl.String and known not in (pl.String, pl.Null):
            return canonical(text, known)
        return cast(text, dtype)

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
        wanted, known = self._chosen(columns), Schema(overrides)
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
                if _is_number(rows[name]) or (name in known and known[name].kind == "numeric"):
                    spans.setdefault(name, _Span()).add(numbers_of(rows[name], name))
        if not sample:
            return Schema([])
        schema = Schema.from_frame(pl.concat(sample), overrides=known, numeric=numeric)
        return Schema(_measured(field, spans) for field in schema if field.name in filled)


def plain_types(types: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Write the types of columns as a text file would have them, for JSON and for `RowFile`.

    Examples
    --------
    >>> plain_types({"age": pl.Int8(), "job": pl.Categorical()})
    {'age': 'Int64', 'job': 'String'}
    """
    return {name: str(_plain(dtype)) for name, dtype in types.items()}


def _plain(dtype: pl.DataType) -> pl.DataType:
    if dtype.is_integer():
        return pl.Int64()
    if dtype.is_float() or dtype.is_decimal():
        return pl.Float64()
    if isinstance(dtype, pl.Datetime):
        return pl.Datetime("us", "UTC" if dtype.time_zone else None)
    return dtype if str(dtype) in _TEXT_TYPES else pl.String()


def _is_text(path: Path) -> bool:
    """Whether the path is a text file rather than Parquet; raises where it is neither."""
    if not path.exists():
        raise DataFileError(f"{path}: there is no such file; check the path.")
    name = path.name.lower()
    if path.is_dir() or name.endswith(".parquet"):
        return False
    if Path(name.removesuffix(".gz")).suffix not in SEPARATORS:
        raise DataFileError(
            f"{path}: unknown suffix; rows are read from .csv, .tsv (or .csv.gz, .tsv.gz), "
            ".parquet and folders of .parquet."
        )
    return True


def _scan(path: Path) -> pl.LazyFrame:
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise DataFileError(f"{path}: the folder holds no .parquet file.")
    with _named(path):
        frame = pl.scan_parquet(path / "**/*.parquet" if path.is_dir() else path)
        n_rows = frame.select(pl.len()).collect().item()
    if not n_rows:
        raise DataFileError(f"{path}: the file has columns but no rows.")
    return frame


def _rebatched(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
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


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Duration


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


def _measured(field: Field, spans: Mapping[str, _Span]) -> Field:
    span = spans.get(field.name)
    if field.kind != "numeric" or span is None or not span.n:
        return field
    if field.numeric == "value":
        std = (span.squares / span.n) ** 0.5 if span.low < span.high else 1.0
        return field if field.scale else replace(field, scale=(span.mean, std or 1.0))
    return field if field.bounds else replace(field, bounds=(span.low, span.high))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what polars says of a Parquet file into an error that names it."""
    try:
        yield
    except _REFUSALS as error:
        what = str(error).strip().splitlines()[0].rstrip(".")
        raise DataFileError(f"{path}: cannot be read as Parquet ({what}).") from None
