"""The rows of a raw log in chunks that fit in memory, parsed to text cells.

Chunks are cut at ends of lines and parsed by polars, each on its own, so that many can be parsed at
once and a line of the wrong width can be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.clicks.logs import Log, check_header, header_of
from openfate.table.clicks.textfile import (
    LONGEST,
    UNCLOSED,
    fault,
    parquet,
    read,
    read_line,
    reading,
    skip,
    widths,
)
from openfate.table.frame import text_of
from openfate.table.quotes import last_end

__all__ = ["Chunk", "Rows", "parse", "read_chunks"]

_PARQUET_ROWS = 1 << 17


@dataclass(frozen=True)
class Chunk:
    """A piece of a file: whole lines, or a range of Parquet rows.

    `start` and `stop` are places in the (unpacked) file, bytes or rows; `line` is its first line.
    """

    file: int
    line: int
    start: int
    stop: int
    data: bytes


@dataclass(frozen=True)
class Rows:
    """A parsed chunk: text cells, and the lines that had another width, as (line, width)."""

    chunk: Chunk
    frame: pl.DataFrame
    lines: NDArray[np.int64] | None
    bad: list[tuple[int, int]]

    def line_of(self, row: int) -> int:
        """Give the line of the file that a row stands on."""
        return self.chunk.line + row if self.lines is None else int(self.lines[row])


def read_chunks(log: Log, chunk_bytes: int, file: int = 0, offset: int = 0) -> Iterator[Chunk]:
    """Cut a log at ends of records into pieces of about `chunk_bytes`, from a place on."""
    cut = _cut_parquet if log.separator is None else _cut_text
    for number in range(file, len(log.files)):
        yield from cut(log, number, offset if number == file else 0, chunk_bytes)


def _cut_text(log: Log, file: int, offset: int, chunk_bytes: int) -> Iterator[Chunk]:
    path = log.files[file]
    with reading(path) as content:
        line = 1 + skip(content, path, offset)
        rest = b""
        if offset == 0:
            first = read_line(content, path)
            if log.has_header:
                check_header(path, header_of(path, log.separator), log.columns)
                offset, line = len(first), 2
            else:
                rest = first.removeprefix(b"\xef\xbb\xbf")
                offset = len(first) - len(rest)
        while data := read(content, path, chunk_bytes):
            # WHY: to the end of the line, so that mostly nothing is left over and copied again.
            data = b"".join((rest, data, read_line(content, path)))
            end = last_end(data) if log.has_quotes else data.rfind(b"\n") + 1
            if end == 0 and len(data) > LONGEST:
                raise fault(path, f"line {line} is longer than {LONGEST} bytes", UNCLOSED)
            if end:
                yield Chunk(file, line, offset, offset + end, data[:end])
                line, offset = line + data.count(b"\n", 0, end), offset + end
            rest = data[end:]
        rest = rest.rstrip(b"\r\n")
        if log.has_quotes and rest.count(b'"') % 2:
            raise fault(path, f"a quote in line {line} or below is not closed", UNCLOSED)
        if rest:
            yield Chunk(file, line, offset, offset + len(rest), rest + b"\n")


def _cut_parquet(log: Log, file: int, offset: int, _: int) -> Iterator[Chunk]:
    path = log.files[file]
    n_rows = parquet(path, lambda: pl.scan_parquet(path).select(pl.len()).collect().item())
    for first in range(offset, n_rows, _PARQUET_ROWS):
        yield Chunk(file, first + 1, first, min(first + _PARQUET_ROWS, n_rows), b"")


def parse(log: Log, chunk: Chunk) -> Rows:
    """Read a chunk's cells as text; lines of another width are left out and listed."""
    if log.separator is None:
        return _parse_parquet(log, chunk)
    data = chunk.data
    if not log.has_quotes or b'"' not in data:
        frame = _parse_text(log, data)
        n_cuts = np.count_nonzero(np.frombuffer(data, np.uint8) == ord(log.separator))
        # WHY: polars fills short lines with nulls but refuses long ones, so a chunk that it takes
        # and that has the right number of separators has no wrong line.
        if frame is not None and n_cuts == len(frame) * (len(log.columns) - 1):
            return Rows(chunk, frame, None, [])
    return _parse_line_by_line(log, chunk)


def _parse_line_by_line(log: Log, chunk: Chunk) -> Rows:
    """Find the lines of another width, and parse the rest."""
    data, path = chunk.data, log.files[chunk.file]
    ends, width = widths(data, str(log.separator), log.has_quotes)
    cells = np.frombuffer(data, np.uint8)
    newlines = np.cumsum(cells == ord("\n"))
    line = chunk.line + np.concatenate([[0], newlines[ends[:-1]]])
    starts = np.concatenate([[0], ends[:-1] + 1])
    good = width == len(log.columns)
    # Blank lines, often at the end of a file, are no rows and no faults.
    wrong = ~good & (ends - starts > (cells[ends - 1] == ord("\r")))
    if not good.all():
        kept = zip(starts[good], ends[good], strict=True)
        data = b"".join(data[start : end + 1] for start, end in kept)
    frame = _parse_text(log, data)
    if frame is None or len(frame) != good.sum():
        last = chunk.line + chunk.data.count(b"\n") - 1
        raise fault(
            path,
            f"lines {chunk.line} to {last} are not a table of text in UTF-8",
            "write it again in UTF-8, quoting by the rules of CSV",
        )
    bad = [(int(a), int(b)) for a, b in zip(line[wrong], width[wrong], strict=True)]
    return Rows(chunk, frame, line[good], bad)


def _parse_text(log: Log, data: bytes) -> pl.DataFrame | None:
    names = list(log.read_columns)
    if not data:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    try:
        return pl.read_csv(
            data,
            separator=str(log.separator),
            has_header=False,
            quote_char='"' if log.has_quotes else None,
            schema=dict.fromkeys(log.columns, pl.String),
        ).select(names)
    except pl.exceptions.PolarsError:
        return None


def _parse_parquet(log: Log, chunk: Chunk) -> Rows:
    path = log.files[chunk.file]
    rows = pl.scan_parquet(path).slice(chunk.start, chunk.stop - chunk.start)
    frame = parquet(path, lambda: rows.select(log.read_columns).collect())
    return Rows(chunk, pl.DataFrame([text_of(column, column.name) for column in frame]), None, [])
