"""Bytes of raw files: plain or gzipped text cut at the ends of records, and Parquet, safely.

A record is a line, but a quoted cell may hold ends of lines.  Whatever cannot be read becomes a
DataFileError that names the file.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table.quotes import inside_quotes

__all__ = [
    "fault",
    "is_gzip",
    "parquet",
    "read",
    "read_line",
    "reading",
    "skip",
    "widths",
]

T = TypeVar("T")
LONGEST = 1 << 28  # bytes of one record: beyond it a quote was not closed
_BAD_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)

UNCLOSED = "close the quote or double it"


def fault(path: Path, what: str, remedy: str) -> DataFileError:
    """Make an error that names the file, what is wrong and the remedy."""
    return DataFileError(f"{path}: {what}; {remedy}.")


def reading(path: Path) -> IO[bytes]:
    """Open a file, unpacking it if it begins as gzip does, whatever its name."""
    if is_gzip(path):
        return _safely(path, lambda: cast("IO[bytes]", gzip.open(path)))
    return _safely(path, lambda: path.open("rb"))


def is_gzip(path: Path) -> bool:
    """Say whether a file begins as gzip does."""
    with _safely(path, lambda: path.open("rb")) as file:
        return read(file, path, 2) == b"\x1f\x8b"


def read(content: IO[bytes], path: Path, n_bytes: int) -> bytes:
    """Read some bytes; nothing at the end."""
    return _safely(path, lambda: content.read(n_bytes))


def read_line(content: IO[bytes], path: Path) -> bytes:
    """Read to the end of the line."""
    return _safely(path, lambda: content.readline(LONGEST))


def skip(content: IO[bytes], path: Path, n_bytes: int) -> int:
    """Go on to a place, counting the lines before it."""
    lines = 0
    while n_bytes > 0:
        data = read(content, path, min(n_bytes, 1 << 24))
        if not data:
            raise fault(path, "is shorter than it was", "use --overwrite to begin again")
        lines, n_bytes = lines + data.count(b"\n"), n_bytes - len(data)
    return lines


def _safely(path: Path, read: Callable[[], T]) -> T:
    """Open or read; errors are the file's."""
    try:
        return read()
    except _BAD_GZIP:
        raise fault(path, "the gz file is truncated or damaged", "fetch it again") from None
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error}).") from None


def parquet(path: Path, read: Callable[[], Any]) -> Any:
    """Run a polars reading whose errors are the file's."""
    try:
        return read()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise fault(path, f"cannot be read as Parquet ({reason})", "write it again") from None


def widths(
    data: bytes, separator: str, has_quotes: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each record ends, and how many cells it has."""
    cells = np.frombuffer(data, np.uint8)
    outside = ~inside_quotes(cells) if has_quotes else np.ones(len(cells), bool)
    ends = np.flatnonzero((cells == 10) & outside)
    cuts = np.cumsum((cells == ord(separator)) & outside)
    return ends, np.diff(cuts[ends], prepend=0) + 1
