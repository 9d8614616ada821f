"""Files of rows: CSV, TSV, gz or not, and Parquet; larger than memory.

`TextFile` and `ParquetFile` give cells as text, in chunks of whole records; `RowFile` gives typed
rows of either in batches, and a survey of its columns.

WHY: polars unpacks a whole gz into memory and fills up short lines without a word, so text is cut
into chunks here, the width of every line is checked, and polars parses the chunks.
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import io
import shutil
import weakref
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cache, cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, InputError, first_line
from openfate.table.dtypes import (
    as_type,
    canonical,
    join_types,
    named_type,
    plain_types,
    widen_type,
)
from openfate.table.expressions import condition, unknown_name
from openfate.table.fields import Field, Knots, Numeric
from openfate.table.frame import FEW_ROWS, numbers_of, text_of
from openfate.table.pieces import read_ahead
from openfate.table.schema import Schema
from openfate.table.shards import PreparedData, prepared_folder

Content = gzip.GzipFile | io.BufferedReader
SEPARATORS = {".csv": ",", ".tsv": "\t"}
BATCH_ROWS = 65_536
_SURVEYED_ROWS = 1_000_000  # the kind of a column is guessed from so many
_SMALL_FILE = 4 << 20  # bytes
_LONGEST = 64 << 20  # bytes of one record; a quote that is never closed would swallow the file
_PARQUET_ROWS = 1 << 17
_FOR_KNOTS = 100_000  # numbers of a column, the first ones, among which quantiles are found
_REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True)
class Chunk:
    """Whole records of a file.

    `start` and `stop` are places in the (unpacked) file, bytes or Parquet rows; `line` is its
    first line, or row.
    """

    line: int
    start: int
    stop: int
    data: bytes = b""


@dataclass(frozen=True)
class TextRows:
    """A parsed chunk: its cells as text, null where empty.

    `lines` are those of the rows, or None where they follow `line`; `bad` are the lines of another
    width, as (line, width), which are left out.
    """

    cells: pl.DataFrame
    line: int
    lines: NDArray[np.int64] | None = None
    bad: Sequence[tuple[int, int]] = ()

    def line_of(self, row: int) -> int:
        """Give the line of the file that a row stands on."""
        return self.line + row if self.lines is None else int(self.lines[row])


class TextFile:
    r"""A CSV or TSV file as text cells, read as often as asked and from any chunk on.

    Parameters
    ----------
    path
        It is unpacked if it begins as gzip does or is called .gz.
    separator
        By default that of the suffix.
    columns
        Their names; by default the first line holds them.
    has_quotes
        Whether a cell may be quoted.

    Raises
    ------
    DataFileError
        With the line where one is to blame.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.csv"
    ...     _ = path.write_text("age,job\n31,cook\n,pilot\n")
    ...     [rows.cells.rows() for rows in TextFile(path).rows()]
    [[('31', 'cook'), (None, 'pilot')]]
    """

    def __init__(
        self,
        path: Path,
        separator: str | None = None,
        columns: Sequence[str] | None = None,
        has_quotes: bool = True,
    ) -> None:
        self.path, self.has_quotes, self.has_header = path, has_quotes, columns is None
        self.separator = separator or SEPARATORS[suffix_of(path)]
        with self._open() as content:
            first = content.readline(_LONGEST)
            self._start = len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0
            if columns is None:
                columns = self._read_header(content, first[self._start :])
            elif not first:
                raise DataFileError(f"{path}: the file is empty; fetch it again.")
        self.columns = tuple(columns)

    @cached_property
    def is_packed(self) -> bool:
        """Whether the file is gzip."""
        with self.path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b" or self.path.name.lower().endswith(".gz")

    # ---- bytes -> records ----------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[Content]:
        """Open the unpacked file; what cannot be read inside is the file's fault."""
        try:
            with gzip.open(self.path) if self.is_packed else self.path.open("rb") as content:
                yield content
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataFileError(
                f"{self.path}: not a whole gzip file ({str(error).rstrip('.')}); fetch it again."
            ) from None
        except OSError as error:
            raise DataFileError(
                f"{self.path}: cannot be read ({error.strerror or error})."
            ) from None

    def _read_header(self, content: Content, line: bytes) -> list[str]:
        """Read the names of the columns, of which the first line is read already."""
        while self.has_quotes and line.count(b'"') % 2 and (more := content.readline(_LONGEST)):
            line += more
        text = self._decode(line, 1).rstrip("\r\n")
        if not text:
            is_empty = not (line + content.read(1 << 20)).strip()
            what = "the file is empty" if is_empty else "it starts with a blank line"
            raise DataFileError(f"{self.path}: {what}; the first line must name the columns.")
        try:
            names = next(csv.reader([text], delimiter=self.separator))
        except csv.Error as error:
            why = "its lines end in CR alone" if "\r" in text else f"its first line, {error}"
            raise DataFileError(
                f"{self.path}: {why}; write names of columns and LF, or CR and LF."
            ) from None
        self._check_names(names)
        self._start += len(line)
        return names

    def _check_names(self, names: list[str]) -> None:
        if len(set(names)) < len(names):
            twice = next(name for name, n in Counter(names).items() if n > 1)
            raise DataFileError(
                f"{self.path}: two columns are called {twice!r}; rename one in the first line."
            )
        if "" in names:
            raise DataFileError(
                f"{self.path}: column {names.index('') + 1} has no name; "
                "give it one in the first line."
            )
        other = next((m for m in ";\t,|" if m != self.separator and m in names[0]), None)
        if len(names) == 1 and other is not None:
            raise DataFileError(
                f"{self.path}: the first line has no {self.separator!r} but {other!r}; "
                f"write the file with {self.separator!r} between its cells."
            )

    def chunks(self, chunk_bytes: int = 4 << 20, start: int = 0) -> Iterator[Chunk]:
        """Cut the file at ends of records into pieces of about `chunk_bytes`, from a place on.

        Parameters
        ----------
        chunk_bytes
            How much is read at a time; -1 for all.
        start
            The `stop` of an earlier chunk, or 0.
        """
        place = max(start, self._start)
        with self._open() as content:
            line, rest = 1 + self._skip(content, place), b""
            while data := content.read(chunk_bytes):
                # WHY: to the end of the line, so that mostly nothing is left over and copied again.
                data = b"".join((rest, data, content.readline(_LONGEST)))
                end = self._last_end(data)
                if end:
                    yield Chunk(line, place, place + end, data[:end])
                    line, place = line + data.count(b"\n", 0, end), place + end
                rest = data[end:]
                if len(rest) > _LONGEST:
                    raise self._unclosed(line)
        if self.has_quotes and rest.count(b'"') % 2:
            raise self._unclosed(line)
        if rest:
            yield Chunk(line, place, place + len(rest), rest + b"\n")

    def _skip(self, content: Content, n_bytes: int) -> int:
        """Go on to a place, counting the lines before it."""
        lines = 0
        while n_bytes > 0:
            data = content.read(min(n_bytes, 1 << 24))
            if not data:
                raise DataFileError(f"{self.path}: is shorter than it was; begin again.")
            lines, n_bytes = lines + data.count(b"\n"), n_bytes - len(data)
        return lines

    def _last_end(self, data: bytes) -> int:
        """Where the record starts that the data does not hold whole; 0 where it holds none."""
        if not self.has_quotes or b'"' not in data:
            return data.rfind(b"\n") + 1
        codes = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero((codes == ord("\n")) & ~_inside_quotes(codes))
        return int(ends[-1]) + 1 if len(ends) else 0

    def _unclosed(self, line: int) -> DataFileError:
        return DataFileError(
            f"{self.path}, line {line}: a quote is opened and never closed; "
            'close it, and write a quote inside a quoted cell twice ("").'
        )

    # ---- records -> cells ----------------------------------------------------------------------

    def rows(self, chunk_bytes: int = 4 << 20) -> Iterator[TextRows]:
        """Every row, some megabytes at a time; a line of another width is an error."""
        for chunk in self.chunks(chunk_bytes):
            rows = self.parse(chunk)
            if rows.bad:
                raise self.ragged(*rows.bad[0])
            if len(rows.cells):
                yield rows

    def ragged(
        self, line: int, width: int, remedy: str = "give every line as many"
    ) -> DataFileError:
        """Make an error that names a line of another width."""
        return DataFileError(
            f"{self.path}, line {line}: {width} cells, but the table has {len(self.columns)} "
            f"columns; {remedy}."
        )

    def parse(self, chunk: Chunk, columns: Sequence[str] | None = None) -> TextRows:
        """Read a chunk's cells as text; threads may call it.

        Parameters
        ----------
        columns
            The columns to give; all by default.
        """
        names = self.columns if columns is None else columns
        if not self.has_quotes or b'"' not in chunk.data:
            cells = self._cells(chunk.data, names)
            n_marks = np.count_nonzero(np.frombuffer(chunk.data, np.uint8) == ord(self.separator))
            # WHY: polars fills short lines with nulls but refuses long ones, so a chunk that it
            # takes and that has the right number of separators has no wrong line.
            if cells is not None and n_marks == len(cells) * (len(self.columns) - 1):
                return TextRows(cells, chunk.line)
        return self._parse_by_line(chunk, names)

    def _parse_by_line(self, chunk: Chunk, names: Sequence[str]) -> TextRows:
        """Find the lines of another width, and parse the rest."""
        data, codes = chunk.data, np.frombuffer(chunk.data, np.uint8)
        outside = np.ones(len(codes), np.bool_)
        if self.has_quotes:
            self._check_quotes(codes, chunk.line)
            outside = ~_inside_quotes(codes)
        is_end = codes == ord("\n")
        ends = np.flatnonzero(is_end & outside)
        starts = np.concatenate([[0], ends[:-1] + 1])
        width = np.diff(np.cumsum((codes == ord(self.separator)) & outside)[ends], prepend=0) + 1
        line = chunk.line + np.concatenate([[0], np.cumsum(is_end)[ends[:-1]]])
        # With one column a blank line is a missing cell; with more it is no row and no fault.
        good = width == len(self.columns)
        wrong = ~good & (ends - starts > (codes[ends - 1] == ord("\r")))
        if not good.all():
            kept = zip(starts[good], ends[good], strict=True)
            data = b"".join(data[start : end + 1] for start, end in kept)
        cells = self._cells(data, names)
        if cells is None or len(cells) != good.sum():
            self._decode(chunk.data, chunk.line)
            raise DataFileError(
                f"{self.path}, line {chunk.line} and below: not a table of text; "
                "write it again, quoting by the rules of CSV."
            )
        bad = [(int(a), int(b)) for a, b in zip(line[wrong], width[wrong], strict=True)]
        return TextRows(cells, chunk.line, line[good], bad)

    def _cells(self, data: bytes, names: Sequence[str]) -> pl.DataFrame | None:
        if not data:
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        try:
            cells = pl.read_csv(
                data,
                separator=self.separator,
                has_header=False,
                quote_char='"' if self.has_quotes else None,
                schema=dict.fromkeys(self.columns, pl.String),
            )
            return cells if names is self.columns else cells.select(names)
        except pl.exceptions.PolarsError:
            return None

    def _decode(self, data: bytes, line: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line += data.count(b"\n", 0, error.start)
            raise DataFileError(
                f"{self.path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; "
                "save the file as UTF-8."
            ) from None

    def _check_quotes(self, codes: NDArray[np.uint8], line: int) -> None:
        """A quote stands at the ends of a cell, or twice inside a quoted one."""
        at = np.flatnonzero(codes == ord('"'))
        neighbours = [ord(mark) for mark in (self.separator, "\n", '"')]
        # A chunk ends in LF: what follows it is there, and so is what comes before, at -1.
        before, after = codes[at[0::2] - 1], codes[at[1::2] + 1]
        good = np.isin(before, neighbours), np.isin(after, [*neighbours, ord("\r")])
        bad = np.concatenate([at[0::2][~good[0]], at[1::2][~good[1]]])
        if len(bad):
            line += int((codes[: bad.min()] == ord("\n")).sum())
            raise DataFileError(
                f"{self.path}, line {line}: a quote inside a cell; put the whole cell in quotes "
                'and write the quote inside it twice ("").'
            )


def _inside_quotes(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """(n,) whether each byte lies in a quoted cell; a doubled quote leaves and comes back."""
    n_before: NDArray[np.uint8] = np.cumsum(codes == ord('"'), dtype=np.uint8)  # wraps at 256: even
    return (n_before & 1).astype(np.bool_)


Paths = str | Path | Sequence[str | Path]


def find_paths(path: Paths, any_suffix: bool = False) -> list[Path]:
    """The files that a path, a folder, a pattern or a list of those names, in order.

    Raises
    ------
    DataFileError
        Where there is none, or one is of an unknown kind.

    Examples
    --------
    >>> find_paths("nowhere.csv")
    Traceback (most recent call last):
    openfate.errors.DataFileError: nowhere.csv: there is no such file; check the path.
    """
    if not isinstance(path, str | Path):
        found = [file for each in path for file in find_paths(each, any_suffix)]
        if not found:
            raise DataFileError("the list of files is empty: give one or more.")
        return found
    at = Path(path)
    if not at.exists():
        matched = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not any(each.exists() for each in matched):  # a link to nowhere matches itself
            raise DataFileError(f"{path}: there is no such file; check the path.")
        return find_paths(matched, any_suffix)
    if not at.is_dir():
        if not (any_suffix or _is_parquet(at) or suffix_of(at) in SEPARATORS):
            raise DataFileError(
                f"{path}: unknown suffix; rows are read from .csv, .tsv (or .csv.gz, .tsv.gz), "
                ".parquet and folders of them."
            )
        return [at]
    if prepared_folder(at) is not None:
        return PreparedData(at).files()
    inside = sorted(file for file in at.rglob("*") if file.is_file() and file.name[0] != ".")
    parquet = [file for file in inside if _is_parquet(file)]
    text = [file for file in inside if any_suffix or suffix_of(file) in SEPARATORS]
    if parquet and text:
        raise DataFileError(f"{path}: the folder holds both Parquet and text; keep one kind.")
    if not parquet and not text:
        raise DataFileError(
            f"{path}: the folder holds no .csv, .tsv or .parquet file; give one that does."
        )
    return parquet or text


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def suffix_of(path: Path) -> str:
    """Give the suffix that tells what a file holds, packed or not.

    Examples
    --------
    >>> suffix_of(Path("rows.CSV.gz"))
    '.csv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


class ParquetFile:
    """A Parquet file, read as often as asked.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.parquet"
    ...     pl.DataFrame({"age": [31, None]}).write_parquet(path)
    ...     file = ParquetFile(path)
    ...     [file.parse(chunk).cells.rows() for chunk in file.chunks()]
    [[('31',), (None,)]]
    """

    def __init__(self, path: Path, may_be_empty: bool = False) -> None:
        self.path = path
        with self._named():
            self._scan = pl.scan_parquet(path)
            self.types: dict[str, pl.DataType] = dict(self._scan.collect_schema())
            self.n_rows = int(self._scan.select(pl.len()).collect().item())
        if not self.n_rows and not may_be_empty:
            raise DataFileError(f"{path}: the file has columns but no rows; give one with rows.")
        self.columns = tuple(self.types)

    def frames(self, columns: Sequence[str], size: int) -> Iterator[pl.DataFrame]:
        """All rows, about `size` at a time."""
        with self._named():
            # WHY: a row's place counts, so the order must stay.
            yield from self._scan.select(columns).collect_batches(
                chunk_size=size, maintain_order=True, engine="streaming"
            )

    def chunks(self, chunk_bytes: int = 0, start: int = 0) -> Iterator[Chunk]:
        """Ranges of rows, from a place on; what they hold is read by `parse`."""
        for first in range(start, self.n_rows, _PARQUET_ROWS):
            yield Chunk(first + 1, first, min(first + _PARQUET_ROWS, self.n_rows))

    def rows(self) -> Iterator[TextRows]:
        """Every row as text."""
        return map(self.parse, self.chunks())

    def parse(self, chunk: Chunk, columns: Sequence[str] | None = None) -> TextRows:
        """Read a chunk's cells as text; threads may call it."""
        rows = self._scan.slice(chunk.start, chunk.stop - chunk.start)
        with self._named():
            frame = rows.select(columns or self.columns).collect()
        cells = pl.DataFrame([text_of(column, column.name) for column in frame])
        return TextRows(cells, chunk.line)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn what polars says of the file into an error that names it."""
        try:
            yield
        except _REFUSALS as error:
            raise DataFileError(
                f"{self.path}: cannot be read as Parquet ({first_line(error)})."
            ) from None


class ShardFile(ParquetFile):
    """A shard that `prepare` wrote, with the values that its ids stand for."""

    def __init__(self, path: Path, data: PreparedData) -> None:
        super().__init__(path)
        self._data = data
        self.types |= dict.fromkeys(data.fields, pl.String())

    def frames(self, columns: Sequence[str], size: int) -> Iterator[pl.DataFrame]:
        """All rows, about `size` at a time."""
        return map(self._data.decode, super().frames(columns, size))


File = TextFile | ParquetFile


# ---- typed rows ----------------------------------------------------------------------------------


class RowFile:
    r"""The rows of a file, or of several that follow one another, read as often as asked.

    Every batch has the same columns and types, which are those of all files.

    Parameters
    ----------
    path
        By suffix: .csv, .tsv, the same with .gz, .parquet; a folder of such files, a pattern
        (``logs/*.parquet``), or a list.  Files follow one another by name, and have the same
        columns.  A folder that `prepare` wrote, or shards of it, in the order of the rows.
    nulls
        Cells of a text file that mean "missing", besides empty ones.
    types
        What `plain_types` gave for another file: a column of text files keeps its type, so that
        "01" stays text where it was text, whatever the other cells of this file are.
    columns, separator
        Of text files without a first line of names, whatever their suffix: the names, and what
        stands between cells; there are no quotes in them.
    declared
        Columns that may be text in one file and numbers in another.

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
        path: Paths,
        nulls: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        separator: str | None = None,
        declared: Collection[str] = (),
    ) -> None:
        paths = find_paths(path, any_suffix=columns is not None)
        self.path = Path(path) if isinstance(path, str | Path) else paths[0]
        self._missing, self._declared = ["", *nulls], declared
        self._known = {name: named_type(dtype) for name, dtype in (types or {}).items()}
        self._files: list[File] = []
        self._spools: dict[Path, _Spool] = {}
        prepared = cache(PreparedData)  # opened once for all of its shards
        for each in paths:
            if (folder := prepared_folder(each)) is not None:
                self._files.append(ShardFile(each, prepared(folder)))
            elif _is_parquet(each):
                self._files.append(ParquetFile(each, may_be_empty=len(paths) > 1))
            else:
                self._files.append(TextFile(each, separator, columns, has_quotes=columns is None))
            self._check_same_columns(self._files[-1])

    def _check_same_columns(self, file: File) -> None:
        first = self._files[0]
        for one, other in ((first, file), (file, first)):
            there = frozenset(other.columns)
            lost = next((name for name in one.columns if name not in there), None)
            if lost is not None:
                has, has_not = (file, first) if one is file else (first, file)
                raise DataFileError(
                    f"{file.path}: the columns change: {lost!r} is in {has.path.name} and not in "
                    f"{has_not.path.name}; give files of the same columns."
                )

    @property
    def identity(self) -> list[list[Any]]:
        """Path, size and time of every file: another list is another table."""
        found = [(str(file.path), file.path.stat()) for file in self._files]
        return [[path, stat.st_size, stat.st_mtime_ns] for path, stat in found]

    @property
    def types(self) -> dict[str, pl.DataType]:
        """The type of every column, over the whole file or all files, in the first one's order."""
        return self._looked[0]

    @property
    def n_rows(self) -> int:
        """The rows of all files."""
        return self._looked[1]

    @cached_property
    def _looked(self) -> tuple[dict[str, pl.DataType], int]:
        found: dict[str, pl.DataType] = dict.fromkeys(self._files[0].columns, pl.Null())
        n_rows = 0
        for file in self._files:
            own, n = (
                (file.types, file.n_rows) if isinstance(file, ParquetFile) else self._look(file)
            )
            n_rows += n
            for name, dtype in own.items():
                found[name] = self._join(name, found[name], dtype, file)
        if not n_rows:
            raise DataFileError(
                f"{self.path}: the file has a first line but no rows; give one with rows."
            )
        if isinstance(self._files[0], ParquetFile):
            return found, n_rows
        known = {name: self._known.get(name, pl.Null()) for name in found}
        return {name: join_types(known[name], dtype) for name, dtype in found.items()}, n_rows

    def _look(self, file: TextFile) -> tuple[dict[str, pl.DataType], int]:
        """The types of a text file's columns, and the number of its rows."""
        found: dict[str, pl.DataType] = dict.fromkeys(file.columns, pl.Null())
        n_rows = 0
        spool = _Spool() if _is_large(file) else None
        for block in self._parse(file):
            n_rows += len(block)
            for column in block:
                found[column.name] = widen_type(found[column.name], column)
            if spool is not None and not spool.add(block):
                spool = None
        if spool is not None:
            self._spools[file.path] = spool
        return found, n_rows

    def _join(self, name: str, one: pl.DataType, other: pl.DataType, file: File) -> pl.DataType:
        """The type of a column in several files; one that is text in some of them is refused."""
        if one == other or other == pl.Null:
            return one
        if one == pl.Null:
            return other
        plain = [named_type(text) for text in plain_types({"0": one, "1": other}).values()]
        joined = join_types(*plain)
        if joined == pl.String and plain[0] != plain[1] and name not in self._declared:
            raise DataFileError(
                f"{file.path}: column {name!r} holds values of type {other}, and {one} in the "
                f"files before it; write it alike in all, or declare what the column is."
            )
        return joined

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
        for rows in rebatch(self._frames(read, size), size):
            numbers = np.arange(start, start + len(rows), dtype=np.int64)
            start += len(rows)
            if test is not None:
                kept = test.of(rows).fill_null(False)
                rows, numbers = rows.filter(kept), numbers[kept.to_numpy()]
            if len(rows):
                yield numbers, rows if read == wanted else rows.select(wanted)

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
        wanted = {name: self.types[name] for name in columns}
        if len(self._files) == 1 and self._small is not None:
            yield self._small if self._small.columns == columns else self._small.select(columns)
            return
        for file in self._files:
            if isinstance(file, ParquetFile):
                for frame in file.frames(columns, size):
                    yield frame if dict(frame.schema) == wanted else frame.cast(wanted)  # type: ignore[arg-type]
            else:
                for block in self._blocks(file, columns):
                    yield pl.DataFrame([self._as_typed(block[name]) for name in columns])

    @cached_property
    def _small(self) -> pl.DataFrame | None:
        """The rows of a text file that are few: a command goes through them four times."""
        file = self._files[0]
        if isinstance(file, ParquetFile) or _is_large(file):
            return None
        blocks = [pl.DataFrame([self._as_typed(c) for c in block]) for block in self._blocks(file)]
        return pl.concat(blocks) if blocks else None

    def _blocks(
        self, file: TextFile, columns: Sequence[str] | None = None
    ) -> Iterator[pl.DataFrame]:
        """Text cells of some columns or all, null where one means "missing"."""
        spool = self._spools.get(file.path)
        blocks = self._parse(file) if spool is None else spool.blocks(columns)
        return blocks if spool is not None or columns is None else (b[columns] for b in blocks)

    def _parse(self, file: TextFile) -> Iterator[pl.DataFrame]:
        """Text cells as the file has them."""
        cells = pl.when(pl.all().is_in(self._missing)).then(None).otherwise(pl.all()).name.keep()
        # WHY: a thread parses while this one looks at what is parsed.
        for rows in read_ahead(file.rows(), 1) if _is_large(file) else file.rows():
            if len(rows.cells) > FEW_ROWS:
                yield rows.cells.select(cells)
            else:  # WHY: of many columns, whose expressions take longer than their cells
                yield pl.DataFrame([self._clear_few(column) for column in rows.cells])

    def _clear_few(self, column: pl.Series) -> pl.Series:
        texts = column.to_list()
        if not any(text in self._missing for text in texts):
            return column
        cleared = [None if text in self._missing else text for text in texts]
        return pl.Series(column.name, cleared, dtype=pl.String)

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
            for column in rows:
                name, dtype = column.name, column.dtype
                if column.null_count() < len(rows):
                    filled.add(name)
                is_number = dtype.is_numeric() or dtype == pl.Duration
                if is_number or (name in known and known[name].kind == "numeric"):
                    measure = known[name].numeric if name in known else numeric
                    span = spans.setdefault(name, _Span(for_knots=measure == "linear"))
                    span.add(column if dtype == pl.Float64 else numbers_of(column, name))
        if not sample:
            return Schema([])
        schema = Schema.from_frame(pl.concat(sample), overrides=known, numeric=numeric)
        return Schema(_measure(field, spans) for field in schema if field.name in filled)


def _is_large(file: TextFile) -> bool:
    return file.is_packed or file.path.stat().st_size > _SMALL_FILE


class _Spool:
    """Parsed blocks of text on disk, for a file that is gone through again: parsed once.

    Arrow takes two or three times the room of the text; the folder is deleted with this object.
    """

    def __init__(self) -> None:
        self._folder, self._n_blocks = Path(mkdtemp(prefix="openfate-")), 0
        self._delete = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.arrow"

    def add(self, block: pl.DataFrame) -> bool:
        """Keep a block; False where the disk has no room, and nothing is kept any more."""
        try:
            block.write_ipc(self._path(self._n_blocks), compression="uncompressed")
        except _REFUSALS:
            self._delete()
            return False
        self._n_blocks += 1
        return True

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """All blocks, of some columns or all."""
        wanted = None if columns is None else list(columns)
        return (pl.read_ipc(self._path(n), columns=wanted) for n in range(self._n_blocks))


def rebatch(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
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
    """The finite numbers of a column so far: how many, between what, and how spread.

    Of a column whose knots alone are asked for the first of them will do.
    """

    for_knots: bool = False
    n: int = 0
    low: float = np.inf
    high: float = -np.inf
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    first: NDArray[np.float64] = dataclass_field(default_factory=lambda: np.empty(0))

    def add(self, numbers: pl.Series) -> None:
        """Take more numbers in."""
        values = numbers.to_numpy()  # NaN where it is null
        values = values[np.isfinite(values)]
        if not len(values):
            return
        if len(self.first) < _FOR_KNOTS:
            more = values[: _FOR_KNOTS - len(self.first)]
            self.first = np.append(self.first, more) if len(self.first) else more
        if self.for_knots:
            self.n += len(values)
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
    """The field with the bounds, the scale or the knots of its column."""
    span = spans.get(field.name)
    if field.kind != "numeric" or span is None or not span.n:
        return field
    if field.numeric == "log" or field.knots is not None:
        return field
    if field.numeric == "linear":
        knots = Knots.learn(field, span.first)
        return field if knots is None else field.unchecked(knots=tuple(knots.to_json()))
    if field.numeric == "value":
        std = (span.squares / span.n) ** 0.5 if span.low < span.high else 1.0
        return field if field.scale else replace(field, scale=(span.mean, std or 1.0))
    return field if field.bounds else replace(field, bounds=(span.low, span.high))
