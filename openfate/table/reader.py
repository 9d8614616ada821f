"""Files of rows: CSV, TSV, gz or not, and Parquet; larger than memory, in chunks of whole records.

WHY: polars unpacks a whole gz into memory and fills up short lines without a word, so text is cut
into chunks here, the width of every line is checked, and polars parses the chunks.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table.frame import text_of

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LONGEST = 64 << 20  # bytes of one record; a quote that is never closed would swallow the file
_PARQUET_ROWS = 1 << 17
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
class Rows:
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
    def _open(self) -> Iterator[IO[bytes]]:
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

    def _read_header(self, content: IO[bytes], line: bytes) -> list[str]:
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
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
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

    def _skip(self, content: IO[bytes], n_bytes: int) -> int:
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

    def rows(self, chunk_bytes: int = 4 << 20) -> Iterator[Rows]:
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

    def parse(self, chunk: Chunk, columns: Sequence[str] | None = None) -> Rows:
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
                return Rows(cells, chunk.line)
        return self._parse_by_line(chunk, names)

    def _parse_by_line(self, chunk: Chunk, names: Sequence[str]) -> Rows:
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
        return Rows(cells, chunk.line, line[good], bad)

    def _cells(self, data: bytes, names: Sequence[str]) -> pl.DataFrame | None:
        if not data:
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        try:
            return pl.read_csv(
                data,
                separator=self.separator,
                has_header=False,
                quote_char='"' if self.has_quotes else None,
                schema=dict.fromkeys(self.columns, pl.String),
            ).select(names)
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


def suffix_of(path: Path) -> str:
    """Give the suffix that tells what a file holds, packed or not.

    Examples
    --------
    >>> suffix_of(Path("rows.CSV.gz"))
    '.csv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


class ParquetFile:
    """A Parquet file, or a folder of them, read as often as asked.

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

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() and not any(path.rglob("*.parquet")):
            raise DataFileError(f"{path}: the folder holds no .parquet file.")
        with self._named():
            self._scan = pl.scan_parquet(path / "**/*.parquet" if path.is_dir() else path)
            self.types: dict[str, pl.DataType] = dict(self._scan.collect_schema())
            self.n_rows = int(self._scan.select(pl.len()).collect().item())
        if not self.n_rows:
            raise DataFileError(f"{path}: the file has columns but no rows.")
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

    def rows(self) -> Iterator[Rows]:
        """Every row as text."""
        return map(self.parse, self.chunks())

    def parse(self, chunk: Chunk, columns: Sequence[str] | None = None) -> Rows:
        """Read a chunk's cells as text; threads may call it."""
        rows = self._scan.slice(chunk.start, chunk.stop - chunk.start)
        with self._named():
            frame = rows.select(columns or self.columns).collect()
        cells = pl.DataFrame([text_of(column, column.name) for column in frame])
        return Rows(cells, chunk.line)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn what polars says of the file into an error that names it."""
        try:
            yield
        except _REFUSALS as error:
            what = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise DataFileError(f"{self.path}: cannot be read as Parquet ({what}).") from None


File = TextFile | ParquetFile
