"""Which part each row of a log belongs to: train, validation, T1, T2, ... in time order.

PAPER: section 4.2; Avazu's first calendar day trains, the second validates, the third to tenth are
T1 to T8; Criteo, which has no time column, is cut into ten equal parts in order.
REFERENCE: the released code cuts Avazu by row numbers, a day off, and drops the last four million
rows; ours go by the column `hour`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table.clicks.blocks import Blocks
from openfate.table.clicks.logs import Log

__all__ = ["Parts", "split_log"]

_N_PARTS = 10


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a log that has been read into blocks.

    Parameters
    ----------
    names
        "train", "validation", "T1", ...
    blocks
        The rows.
    column, of_code
        Where the split goes by a column: its place, and the part of each of its codes.
    """

    names: tuple[str, ...]
    blocks: Blocks
    column: int | None = None
    of_code: NDArray[np.int8] | None = None

    def of_block(self, number: int) -> NDArray[np.int8]:
        """(n,) the part of each row of a block."""
        if self.column is not None and self.of_code is not None:
            return self.of_code[self.blocks.read(number, self.column)]
        first = sum(block.rows for block in self.blocks.blocks[:number])
        row = np.arange(first, first + self.blocks.blocks[number].rows)
        return (row * len(self.names) // self.blocks.n_rows).astype(np.int8)


def split_log(log: Log, blocks: Blocks) -> Parts:
    """Split a log by day, by its time column, or by the order of its rows."""
    if blocks.n_rows < _N_PARTS:
        raise DataFileError(
            f"{log.files[0]}: {blocks.n_rows} rows cannot be split into {_N_PARTS} parts; "
            f"give {_N_PARTS} rows or more."
        )
    if log.time is None:
        return Parts(_names(_N_PARTS), blocks)
    column = log.read_columns.index(log.time)
    of_code = _by_day(log, blocks, column) if log.by_day else _by_time(log, blocks, column)
    return Parts(_names(int(of_code.max()) + 1), blocks, column, of_code)


def _names(n: int) -> tuple[str, ...]:
    return ("train", "validation", *(f"T{t}" for t in range(1, n - 1)))


def _by_day(log: Log, blocks: Blocks, column: int) -> NDArray[np.int8]:
    """(codes,) the place of each code's calendar day among all days."""
    days, place = np.unique(blocks.texts(column).str.slice(0, 6).to_numpy(), return_inverse=True)
    if not 3 <= len(days) <= 100:
        raise DataFileError(
            f"{log.files[0]}: {len(days)} calendar days in {log.time!r}; a day each for training, "
            "validation and test is needed, and 100 at most are taken."
        )
    return place.astype(np.int8)


def _by_time(log: Log, blocks: Blocks, column: int) -> NDArray[np.int8]:
    """(codes,) ten parts of about the same size; rows of the same time stay together."""
    texts = blocks.texts(column)
    counts = np.zeros(len(texts), np.int64)
    for number in range(len(blocks.blocks)):
        counts += np.bincount(blocks.read(number, column), minlength=len(texts))
    numbers = texts.cast(pl.Float64, strict=False)
    # WHY: dates written as texts, such as 2013-01-31, are in order as texts.
    order = (texts if numbers.null_count() else numbers).arg_sort().to_numpy()
    before = np.cumsum(counts[order]) - counts[order]
    part = np.empty(len(texts), np.int8)
    part[order] = before * _N_PARTS // counts.sum()
    if len(np.unique(part[counts > 0])) < _N_PARTS:
        raise DataFileError(
            f"{log.files[0]}: the times in {log.time!r} are too few, or too unequal, for "
            f"{_N_PARTS} parts; without a time column the rows are split in their order."
        )
    return part
