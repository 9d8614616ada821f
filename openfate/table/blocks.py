"""A log as codes on disk: the first pass of a preparation, kept block by block.

A code is a number that a column gives to each distinct text as it meets it.  Memory holds the
texts, never the rows.  A block is a file of codes (C, n); with it goes a file of the texts that
were new, and a line in the journal, which commits it: what the journal names survives a kill.
The rows belong to parts in time order: train, validation, T1, T2, ...

PAPER: section 4.2; Avazu's first calendar day trains, the second validates, the third to tenth are
T1 to T8; Criteo, which has no time column, is cut into ten equal parts in order.
REFERENCE: the released code cuts Avazu by row numbers, a day off, and drops the last four million
rows; ours go by the column `hour`.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.files import writing
from openfate.table.logs import Log, cell_fault, is_invalid
from openfate.table.reader import Chunk, File, Rows, TextFile

Codes = NDArray[np.uint32]  # (C, n)
_N_PARTS = 10


def add_entry(journal: Path, entry: Any, *, sync: bool = False) -> None:
    """Append a dataclass to a journal; with `sync` it survives a power cut, else a kill."""
    with journal.open("a") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_journal(journal: Path) -> list[dict[str, Any]]:
    """Read the entries of a journal; cut off one that a killed process left half-written.

    Examples
    --------
    >>> read_journal(Path("nowhere.jsonl"))
    []
    """
    entries: list[dict[str, Any]] = []
    if not journal.exists():
        return entries
    whole = journal.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):  # WHY: half a line would spoil the next one
        with writing(journal) as file:
            file.write(whole[:end])
    return [json.loads(line) for line in whole[:end].splitlines()]


@dataclass(frozen=True)
class Block:
    """A committed block: its rows, where in the log it ends, and the lines it left out."""

    rows: int
    file: int
    stop: int
    bad: int
    n_texts: list[int]


class Blocks:
    """Blocks of codes in a folder, and the texts behind the codes; opens what is there already.

    Parameters
    ----------
    folder
        Where they are kept.
    columns
        The names of the columns, C of them.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     blocks = Blocks(Path(folder), ["city"])
    ...     codes = blocks.encode(0, pl.DataFrame({"city": ["Rome", "Oslo", "Rome"]}))
    ...     blocks.commit(codes, file=0, stop=99, bad=0)
    ...     again = Blocks(Path(folder), ["city"])
    ...     again.read(0).tolist(), again.texts(0).to_list()
    ([[0, 1, 0]], ['Rome', 'Oslo'])
    """

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self.folder, self.columns = folder, tuple(columns)
        self.blocks: list[Block] = []
        # WHY: polars' categories are a hash map of texts that grows and that threads may share.
        self._types = [pl.Categorical(pl.Categories.random()) for _ in columns]
        # WHY: the map lives only as long as a column of its type does.
        self._alive = [pl.Series([], dtype=kind) for kind in self._types]
        self.n_texts = [0] * len(columns)  # distinct ones that each column has shown
        self._journal = folder / "journal.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        for entry in read_journal(self._journal):
            self._restore(Block(**entry))

    @property
    def n_rows(self) -> int:
        """N so far."""
        return sum(block.rows for block in self.blocks)

    def _restore(self, block: Block) -> None:
        path = self._texts_file(len(self.blocks))
        try:
            texts = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataFileError(
                f"{path}: cannot be read ({reason}); overwrite the folder to begin again."
            ) from None
        for c, kind in enumerate(self._types):
            own = texts.filter(pl.col("column") == c)["text"]
            codes = own.cast(kind).to_physical().to_numpy()
            if not np.array_equal(codes, self.n_texts[c] + np.arange(len(own))):
                raise DataFileError(
                    f"{path}: its texts do not give their codes again; "
                    "overwrite the folder to begin again."
                )
        self.n_texts = list(block.n_texts)
        self.blocks.append(block)

    def encode(self, number: int, cells: pl.DataFrame) -> Codes:
        """Turn text cells into codes and keep them as block `number`; threads may call it."""
        columns = zip(self.columns, self._types, strict=True)
        coded = cells.select(
            pl.col(name).fill_null("").cast(kind).to_physical() for name, kind in columns
        )
        codes = np.empty((len(self.columns), len(cells)), np.uint32)
        for c, column in enumerate(coded):
            codes[c] = column.to_numpy()
        with writing(self._codes_file(number)) as file:
            file.write(codes.data)
        return codes

    def commit(self, codes: Codes, *, file: int, stop: int, bad: int) -> None:
        """Make the next block's codes and the texts that it brought survive a kill."""
        fresh = []
        for c, column in enumerate(codes):
            texts = self.texts(c, self.n_texts[c], int(column.max()) + 1 if len(column) else 0)
            fresh.append(pl.DataFrame({"text": texts}).with_columns(column=pl.lit(c, pl.UInt16)))
            self.n_texts[c] += len(texts)
        with writing(self._texts_file(len(self.blocks))) as out:
            pl.concat(fresh).write_parquet(out, compression="lz4", statistics=False)
        block = Block(codes.shape[1], file, stop, bad, list(self.n_texts))
        add_entry(self._journal, block, sync=True)
        self.blocks.append(block)

    def texts(self, column: int, first: int = 0, last: int | None = None) -> pl.Series:
        """Give the texts of a column by code: all that are committed, or those of some codes."""
        end = self.n_texts[column] if last is None else max(first, last)
        codes = pl.Series(np.arange(first, end, dtype=np.uint32))
        return codes.cat.to(self._types[column]).cast(pl.String)

    def read(self, number: int, column: int | None = None) -> Codes:
        """Read a block's codes, (C, n), or those of one column, (n,)."""
        n, path = self.blocks[number].rows, self._codes_file(number)
        if column is not None:
            return np.fromfile(path, np.uint32, n, offset=4 * n * column)
        return np.fromfile(path, np.uint32).reshape(len(self.columns), n)

    def _codes_file(self, number: int) -> Path:
        return self.folder / f"codes-{number:06}.bin"

    def _texts_file(self, number: int) -> Path:
        return self.folder / f"texts-{number:06}.parquet"


def read_log(
    log: Log,
    blocks: Blocks,
    chunk_bytes: int,
    workers: int,
    bad_lines: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Bring the blocks up to the end of the log, going on where they stop.

    Parameters
    ----------
    log, blocks
        From where and to where.
    chunk_bytes, workers
        The text of a block, and how many are worked on at once: they bound the memory.
    bad_lines
        How many lines of another width may be left out.
    on_progress
        Called with the file's number and the place in it (bytes, or Parquet rows).

    Raises
    ------
    DataFileError
        For lines of another width beyond `bad_lines` and for cells that cannot be used.
    """
    keeper = _Keeper(log, blocks, bad_lines)
    pending: deque[tuple[int, int, Future[tuple[Rows, Codes]]]] = deque()

    def keep_next() -> None:
        file, stop, work = pending.popleft()
        keeper.keep(file, stop, *work.result())
        on_progress(file, stop)

    with ThreadPoolExecutor(workers) as pool:
        try:
            chunks = _chunks(log, blocks, chunk_bytes)
            for number, (file, chunk) in enumerate(chunks, start=len(blocks.blocks)):
                work = pool.submit(_encode, log.files[file], blocks, number, chunk)
                pending.append((file, chunk.stop, work))
                while len(pending) > workers:
                    keep_next()
            while pending:
                keep_next()
        finally:
            for _, _, work in pending:
                work.cancel()


def _chunks(log: Log, blocks: Blocks, chunk_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """The chunks that no block holds yet, each with the number of its file."""
    last = blocks.blocks[-1] if blocks.blocks else None
    first, stop = (last.file, last.stop) if last else (0, 0)
    for number, file in enumerate(log.files[first:], start=first):
        for chunk in file.chunks(chunk_bytes, stop if number == first else 0):
            yield number, chunk


def _encode(file: File, blocks: Blocks, number: int, chunk: Chunk) -> tuple[Rows, Codes]:
    rows = file.parse(chunk, blocks.columns)
    codes = blocks.encode(number, rows.cells)
    # WHY: only line numbers are needed from here on; the cells would stay in memory.
    return replace(rows, cells=rows.cells.clear()), codes


class _Keeper:
    """Commits blocks in order and refuses what cannot be used, naming the line."""

    def __init__(self, log: Log, blocks: Blocks, bad_lines: int) -> None:
        self.log, self.blocks, self.bad_lines = log, blocks, bad_lines
        self.n_bad = sum(block.bad for block in blocks.blocks)
        self.checks = {log.columns.index(name): check for name, check in log.checks.items()}
        self._n_checked = {c: blocks.n_texts[c] for c in self.checks}
        self._invalid: dict[int, list[int]] = {c: [] for c in self.checks}

    def keep(self, number: int, stop: int, rows: Rows, codes: Codes) -> None:
        file = self.log.files[number]
        self.n_bad += len(rows.bad)
        if self.n_bad > self.bad_lines:
            assert isinstance(file, TextFile)
            seen = f"{self.n_bad} such lines so far, " if self.n_bad > 1 else ""
            allowed = max(10, 2 * self.n_bad)
            remedy = f"{seen}repair them, or allow {allowed} bad lines to be left out"
            raise file.ragged(*rows.bad[0], remedy)
        for column in self.checks:
            self._refuse_invalid(column, file.path, rows, codes[column])
        self.blocks.commit(codes, file=number, stop=stop, bad=len(rows.bad))

    def _refuse_invalid(
        self, column: int, path: Path, rows: Rows, codes: NDArray[np.uint32]
    ) -> None:
        first, check = self._n_checked[column], self.checks[column]
        last = int(codes.max(initial=0)) + 1
        if last > first:
            invalid = is_invalid(self.blocks.texts(column, first, last), check).arg_true()
            self._invalid[column] += (invalid + first).to_list()
            self._n_checked[column] = last
        if not self._invalid[column]:
            return
        # WHY: an invalid text may have been met by a later block's thread; its line comes then.
        at = np.flatnonzero(np.isin(codes, self._invalid[column]))
        if len(at):
            code, name = int(codes[at[0]]), self.blocks.columns[column]
            text = self.blocks.texts(column, code, code + 1)[0]
            raise cell_fault(path, rows.line_of(int(at[0])), name, text, check)


# ---- parts ---------------------------------------------------------------------------------------


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
            f"{log.path}: {blocks.n_rows} rows cannot be split into {_N_PARTS} parts; "
            f"give {_N_PARTS} rows or more."
        )
    if log.time is None:
        return Parts(_names(_N_PARTS), blocks)
    column = log.columns.index(log.time)
    of_code = _by_day(log, blocks, column) if log.by_day else _by_time(log, blocks, column)
    return Parts(_names(int(of_code.max()) + 1), blocks, column, of_code)


def _names(n: int) -> tuple[str, ...]:
    return ("train", "validation", *(f"T{t}" for t in range(1, n - 1)))


def _by_day(log: Log, blocks: Blocks, column: int) -> NDArray[np.int8]:
    """(codes,) the place of each code's calendar day among all days."""
    days, place = np.unique(blocks.texts(column).str.slice(0, 6).to_numpy(), return_inverse=True)
    if not 3 <= len(days) <= 100:
        raise DataFileError(
            f"{log.path}: {len(days)} calendar days in {log.time!r}; a day each for training, "
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
            f"{log.path}: the times in {log.time!r} are too few, or too unequal, for "
            f"{_N_PARTS} parts; without a time column the rows are split in their order."
        )
    return part
