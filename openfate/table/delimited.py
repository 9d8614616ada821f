"""CSV and TSV, gz or not, in pieces of whole records: memory is bounded whatever the file's size.

WHY: polars reads a whole gz into memory and fills up short lines without a word, so the file is cut
into blocks here, every line is checked (its number is in the error), and polars parses the blocks.

Types are those of the whole file, never of a piece of it: each cell has one, and a column's is the
least that holds them all (whole < real, date < time, everything < text).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from typing import cast as cast_type

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table.frame import text_of
from openfate.table.quotes import inside_quotes, last_end, record_ends

__all__ = ["SEPARATORS", "TYPES", "Delimited", "canonical", "cast", "joined"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LONGEST = 64 << 20  # bytes of one record; a quote that is never closed would swallow the file

# What a cell must look like.  "01" and numbers beyond 64 bits are text: their digits are a name.
_WHOLE = "^-?(0|[1-9][0-9]*)$"
_REAL = r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^(?i:nan|[+-]?inf)$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_ZONE = "(Z|[+-][0-9]{2}:?[0-9]{2})$"
_UTC = pl.Datetime("us", "UTC")
_PATTERNS: dict[pl.DataType, str] = {  # the narrower type first
    pl.Boolean(): "^(?i:true|false)$",
    pl.Int64(): _WHOLE,
    pl.Float64(): _REAL,
    pl.Date(): _DATE,
    pl.Datetime("us"): f"{_DATE}|{_TIME}$",
    _UTC: _TIME + _ZONE,
}
TYPES = tuple(_PATTERNS)
_WIDER = {
    (pl.Int64(), pl.Float64()): pl.Float64(),
    (pl.Date(), pl.Datetime("us")): pl.Datetime("us"),
}


class Delimited:
    r"""A CSV or TSV file, read as often as asked, a block of whole records at a time.

    Parameters
    ----------
    path
        By suffix: .csv, .tsv, .csv.gz, .tsv.gz.
    nulls
        Cells that mean "missing", besides empty ones.
    block_bytes
        How much is read at a time.

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
    ...     file = Delimited(path)
    ...     print(file.types(), [block.rows() for block in file.blocks()])
    {'age': Int64, 'job': String} [[('31', 'cook'), (None, 'pilot')]]
    """

    def __init__(self, path: Path, nulls: Sequence[str] = (), block_bytes: int = 4 << 20) -> None:
        self.path, self.nulls, self.block_bytes = path, tuple(nulls), block_bytes
        self.separator = SEPARATORS[Path(path.name.lower().removesuffix(".gz")).suffix]
        self.names = self._header()

    # ---- bytes -> records ----------------------------------------------------------------------

    def _header(self) -> tuple[str, ...]:
        line, block = next(self._records(), (1, b""))
        text = self._decoded(block[: _first_end(block)], line).rstrip("\r\n")
        if not text:
            what = "it starts with a blank line" if block.strip() else "the file is empty"
            raise DataFileError(f"{self.path}: {what}; the first line must name the columns.")
        try:
            names = tuple(next(csv.reader([text], delimiter=self.separator)))
        except csv.Error as error:
            why = "its lines end in CR alone" if "\r" in text else f"its first line, {error}"
            raise DataFileError(
                f"{self.path}: {why}; write names of columns and LF, or CR and LF."
            ) from None
        self._check_names(names)
        return names

    def _check_names(self, names: tuple[str, ...]) -> None:
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise DataFileError(
                f"{self.path}: two columns are called {twice!r}; rename one in the first line."
            )
        if "" in names:
            raise DataFileError(
                f"{self.path}: column {names.index('') + 1} has no name; "
                "give it one in the first line (--exclude can then leave it out)."
            )
        other = next(
            (mark for mark in ";\t,|" if mark != self.separator and mark in names[0]), None
        )
        if len(names) == 1 and other is not None:
            raise DataFileError(
                f"{self.path}: the first line has no {self.separator!r} but {other!r}; "
                f"write the file with {self.separator!r} between its cells."
            )

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole records and the number of each block's first line."""
        line, rest = 1, b""
        with _opened(self.path) as file:
            data = self._read(file).removeprefix(codecs.BOM_UTF8)
            while data:
                block = rest + data
                data = self._read(file)
                if not data and not block.endswith(b"\n"):
                    block += b"\n"
                cut = last_end(block)
                if cut:
                    yield line, block[:cut]
                line += block.count(b"\n", 0, cut)
                rest = block[cut:]
                if rest and (not data or len(rest) > _LONGEST):
                    raise DataFileError(
                        f"{self.path}, line {line}: a quote is opened and never closed; "
                        'close it, and write a quote inside a quoted cell twice ("").'
                    )

    def _read(self, file: IO[bytes]) -> bytes:
        try:
            return file.read(self.block_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataFileError(
                f"{self.path}: not a whole gzip file ({str(error).rstrip('.')}); fetch it again."
            ) from None
        except OSError as error:
            raise DataFileError(f"{self.path}: cannot be read ({error.strerror}).") from None

    # ---- records -> cells ----------------------------------------------------------------------

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Every row, as text with null for a missing cell, some megabytes at a time."""
        is_first = True
        for line, block in self._records():
            start = _first_end(block) if is_first else 0  # behind the header
            is_first = False
            rows = self._checked(block[start:], line + block.count(b"\n", 0, start))
            if rows:
                yield self._parsed(rows)

    def _checked(self, block: bytes, line: int) -> bytes:
        """The block without blank lines, or an error that names the line."""
        self._decoded(block, line)
        codes = np.frombuffer(block, np.uint8)
        self._check_quotes(codes, line)
        outside = ~inside_quotes(codes)
        ends = np.flatnonzero((codes == ord("\n")) & outside)
        starts = np.concatenate([[0], ends + 1])[:-1]
        marks = np.flatnonzero((codes == ord(self.separator)) & outside)
        n_cells = np.searchsorted(marks, ends) - np.searchsorted(marks, starts) + 1
        length = ends - starts - (codes[ends - 1] == ord("\r"))
        # With one column a blank line is a missing cell; with more it is nothing.
        blank = (length <= 0) & (len(self.names) > 1)
        ragged = np.flatnonzero((n_cells != len(self.names)) & ~blank)
        if len(ragged):
            at = ragged[0]
            line += block.count(b"\n", 0, starts[at])
            raise DataFileError(
                f"{self.path}, line {line}: {n_cells[at]} cells, but the first line names "
                f"{len(self.names)} columns; give every line as many."
            )
        if not blank.any():
            return block
        kept = zip(starts[~blank], ends[~blank], strict=True)
        return b"".join(block[start : end + 1] for start, end in kept)

    def _decoded(self, block: bytes, line: int) -> str:
        try:
            return block.decode()
        except UnicodeDecodeError as error:
            line += block.count(b"\n", 0, error.start)
            raise DataFileError(
                f"{self.path}, line {line}: byte 0x{block[error.start]:02x} is not UTF-8; "
                "save the file as UTF-8."
            ) from None

    def _check_quotes(self, codes: NDArray[np.uint8], line: int) -> None:
        """A quote stands at the ends of a cell, or twice inside a quoted one."""
        at = np.flatnonzero(codes == ord('"'))
        if not len(at):
            return
        around = np.concatenate([[ord("\n")], codes, [ord("\n")]])
        neighbours = [ord(mark) for mark in (self.separator, "\n", '"')]
        before, after = around[at[0::2]], around[at[1::2] + 2]
        good = np.isin(before, neighbours), np.isin(after, [*neighbours, ord("\r")])
        bad = np.concatenate([at[0::2][~good[0]], at[1::2][~good[1]]])
        if len(bad):
            line += int((codes[: bad.min()] == ord("\n")).sum())
            raise DataFileError(
                f"{self.path}, line {line}: a quote inside a cell; put the whole cell in quotes "
                'and write the quote inside it twice ("").'
            )

    def _parsed(self, block: bytes) -> pl.DataFrame:
        frame = pl.read_csv(
            io.BytesIO(block),
            has_header=False,
            separator=self.separator,
            schema={f"{at}": pl.String() for at in range(len(self.names))},
        )
        missing = ["", *self.nulls]
        cells = pl.when(pl.all().is_in(missing)).then(None).otherwise(pl.all()).name.keep()
        return frame.select(cells).rename({f"{at}": name for at, name in enumerate(self.names)})

    # ---- types ---------------------------------------------------------------------------------

    def types(self) -> dict[str, pl.DataType]:
        """The type of every column, over the whole file; Null for a column without a value."""
        found: dict[str, pl.DataType] = {}
        for block in self.blocks():
            for name in self.names:
                dtype = found.get(name, pl.Null())
                found[name] = dtype if dtype == pl.String else joined(dtype, _type_of(block[name]))
        if not found:
            raise DataFileError(f"{self.path}: the file has a first line but no rows.")
        return found


def joined(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """Give the least type that holds the cells of both.

    Examples
    --------
    >>> joined(pl.Int64(), pl.Float64()), joined(pl.Int64(), pl.Boolean())
    (Float64, String)
    """
    if one == other or other == pl.Null:
        return one
    if one == pl.Null:
        return other
    return _WIDER.get((one, other)) or _WIDER.get((other, one)) or pl.String()


def cast(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Read the cells as values of `dtype`, null where one is none.

    Examples
    --------
    >>> cast(pl.Series(["1.5", "late"]), pl.Float64()).to_list()
    [1.5, None]
    """
    if dtype == pl.Boolean:
        return text.str.to_lowercase() == "true"
    if dtype == pl.Date:
        return text.str.to_date("%Y-%m-%d", strict=False)
    if dtype == pl.Datetime:
        return _times(text, dtype == _UTC)
    return text.cast(dtype, strict=False)


def canonical(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Write the cells that are values of `dtype` as its values are written, and leave the others.

    A column of numbers that meets a word becomes text; its 517.0 must still be 517.

    Examples
    --------
    >>> canonical(pl.Series(["517.0", "late", None]), pl.Float64()).to_list()
    ['517', 'late', None]
    """
    return text_of(cast(text, dtype), text.name).zip_with(_fits(text, dtype), text)


def _type_of(text: pl.Series) -> pl.DataType:
    """The least type that holds every cell."""
    values = text.drop_nulls().unique()
    if not len(values):
        return pl.Null()
    return next((dtype for dtype in _PATTERNS if _fits(values, dtype).all()), pl.String())


def _fits(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Which cells are values of the type; a missing one is of every type."""
    looks = text.str.contains(_PATTERNS[dtype])
    if not looks.any():
        return looks.fill_null(True)
    is_value = looks & cast(text, dtype).is_not_null()
    if dtype == pl.Float64:  # a whole number beyond 64 bits is a name
        is_value &= ~text.str.contains(_WHOLE) | text.cast(pl.Int64, strict=False).is_not_null()
    return is_value.fill_null(True)


def _times(text: pl.Series, zoned: bool) -> pl.Series:
    """ISO times, with the zone's offset or without; without seconds and alone a date too."""
    plain = text.str.replace("T", " ", literal=True)
    if zoned:
        plain = plain.str.replace("Z$", "+00:00").str.replace("([+-][0-9]{2})([0-9]{2})$", "$1:$2")
    zone = "%:z" if zoned else ""
    formats = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", *([] if zoned else ["%Y-%m-%d"])]
    time_zone = "UTC" if zoned else None
    return pl.DataFrame({text.name: plain}).select(
        pl.coalesce(
            pl.col(text.name).str.to_datetime(
                form + zone, time_unit="us", time_zone=time_zone, strict=False
            )
            for form in formats
        )
    )[text.name]


# ---- bytes ---------------------------------------------------------------------------------------


def _opened(path: Path) -> IO[bytes]:
    try:
        if path.name.lower().endswith(".gz"):
            return cast_type("IO[bytes]", gzip.open(path))
        return path.open("rb")
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror}).") from None


def _first_end(block: bytes) -> int:
    """Where the second record starts."""
    end = block.find(b"\n") + 1
    return int(record_ends(block)[0]) if b'"' in block[:end] else end
