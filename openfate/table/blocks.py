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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, first_line
from openfate.executor import executor, spread
from openfate.files import add_entry, read_journal, write_whole, writing
from openfate.table.logs import Check, Log, cell_fault, is_invalid
from openfate.table.pieces import work_ahead
from openfate.table.reader import Chunk, File, TextFile, TextRows

Codes = NDArray[np.uint32]  # (C, n)
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, the total
_N_PARTS = 10


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

    @property
    def n_bad(self) -> int:
        """The lines that were left out so far."""
        return sum(block.bad for block in self.blocks)

    def _restore(self, block: Block) -> None:
        path = self._texts_file(len(self.blocks))
        try:
            texts = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataFileError(
                f"{path}: cannot be read ({first_line(error)}); overwrite the folder to begin "
                "again."
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
        write_whole(self._codes_file(number), codes.data)
        return codes

    def take(self, number: int, codes: Codes, texts: Sequence[pl.Series]) -> Codes:
        """Keep cells as block `number` that another process turned into codes of its own.

        Parameters
        ----------
        codes, texts
            (C, n), and of each column the texts behind its codes.
        """
        found = np.empty_like(codes)  # WHY: what came from another process cannot be written to
        for c, (own, kind) in enumerate(zip(texts, self._types, strict=True)):
            found[c] = own.cast(kind).to_physical().to_numpy()[codes[c]]
        write_whole(self._codes_file(number), found.data)
        return found

    def commit(self, codes: Codes, *, file: int, stop: int, bad: int) -> None:
        """Make the next block's codes and the texts that it brought survive a kill."""
        fresh = []
        for c in range(len(codes)):
            texts = self.new_texts(c, codes)
            fresh.append(pl.DataFrame({"text": texts}).with_columns(column=pl.lit(c, pl.UInt16)))
            self.n_texts[c] += len(texts)
        with writing(self._texts_file(len(self.blocks))) as out:
            pl.concat(fresh).write_parquet(out, compression="lz4", statistics=False)
        block = Block(codes.shape[1], file, stop, bad, list(self.n_texts))
        add_entry(self._journal, block)
        self.blocks.append(block)

    def texts(self, column: int) -> pl.Series:
        """Give the texts of a column by code, all that are committed."""
        return self.decode(column, np.arange(self.n_texts[column], dtype=np.uint32))

    def new_texts(self, column: int, codes: Codes) -> pl.Series:
        """Give the texts up to the greatest code of the next block that are not committed yet."""
        end = int(codes[column].max(initial=0)) + 1 if codes.size else 0
        return self.decode(column, np.arange(self.n_texts[column], end, dtype=np.uint32))

    def decode(self, column: int, codes: NDArray[np.uint32]) -> pl.Series:
        """Give the text of each code of a column."""
        return pl.Series(codes).cat.to(self._types[column]).cast(pl.String)

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
    on_progress: Progress,
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
        Called with "reading", the bytes (or Parquet rows) read, and those of all files where they
        are known beforehand: what a gz file unpacks to is not.

    Raises
    ------
    DataFileError
        For lines of another width beyond `bad_lines` and for cells that cannot be used.
    """
    sizes = [file.path.stat().st_size for file in log.files]
    is_plain = all(isinstance(file, TextFile) and not file.is_packed for file in log.files)
    total = sum(sizes) if is_plain else None
    invalid: dict[str, list[int]] = {name: [] for name in log.checks}  # codes

    def encode(item: tuple[int, tuple[int, Chunk]]) -> tuple[int, int, TextRows, Codes]:
        number, (file, chunk) = item
        rows = log.files[file].parse(chunk, blocks.columns)
        codes = blocks.encode(number, rows.cells)
        # WHY: only line numbers are needed from here on; the cells would stay in memory.
        return file, chunk.stop, replace(rows, cells=rows.cells.clear()), codes

    chunks = enumerate(_chunks(log, blocks, chunk_bytes), start=len(blocks.blocks))
    encoded = work_ahead(encode, chunks, workers)
    if executor() is not None:
        encoded = (
            (file, stop, rows, blocks.take(number, codes, texts))
            for number, file, stop, rows, codes, texts in spread(
                ChunkCoder(log.files, blocks.columns), chunks
            )
        )
    for file, stop, rows, codes in encoded:
        if rows.bad:
            _refuse_bad_lines(log.files[file], rows, blocks, bad_lines)
        for name, check in log.checks.items():
            row = _find_invalid(blocks, name, check, codes, invalid[name])
            if row is not None:
                column = blocks.columns.index(name)
                text = blocks.decode(column, codes[column, row : row + 1])[0]
                raise cell_fault(log.files[file].path, rows.line_of(row), name, text, check)
        blocks.commit(codes, file=file, stop=stop, bad=len(rows.bad))
        on_progress("reading", sum(sizes[:file]) + stop, total)


@dataclass(frozen=True)
class ChunkCoder:
    """Turns the cells of chunks into codes, those of each chunk from 0 on, in any process."""

    files: tuple[File, ...]
    columns: tuple[str, ...]

    def __call__(
        self, item: tuple[int, tuple[int, Chunk]]
    ) -> tuple[int, int, int, TextRows, Codes, list[pl.Series]]:
        """Number, file and end of a chunk, its rows without cells, codes (C, n) and their texts."""
        number, (file, chunk) = item
        rows = self.files[file].parse(chunk, self.columns)
        codes, texts = np.empty((len(self.columns), len(rows.cells)), np.uint32), []
        for c, name in enumerate(self.columns):
            kind = pl.Categorical(pl.Categories.random())
            column = rows.cells[name].fill_null("").cast(kind)
            codes[c] = column.to_physical().to_numpy()
            met = np.arange(int(codes[c].max(initial=0)) + 1 if len(column) else 0, dtype=np.uint32)
            texts.append(pl.Series(met).cat.to(kind).cast(pl.String))
        return number, file, chunk.stop, replace(rows, cells=rows.cells.clear()), codes, texts


def _chunks(log: Log, blocks: Blocks, chunk_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """The chunks that no block holds yet, each with the number of its file."""
    last = blocks.blocks[-1] if blocks.blocks else None
    first, stop = (last.file, last.stop) if last else (0, 0)
    for number, file in enumerate(log.files[first:], start=first):
        for chunk in file.chunks(chunk_bytes, stop if number == first else 0):
            yield number, chunk


def _refuse_bad_lines(file: File, rows: TextRows, blocks: Blocks, allowed: int) -> None:
    n_bad = blocks.n_bad + len(rows.bad)
    if n_bad > allowed:
        assert isinstance(file, TextFile)
        seen = f" ({n_bad} such lines so far)" if n_bad > 1 else ""
        remedy = f"repair it, or allow {max(10, 2 * n_bad)} bad lines to be left out{seen}"
        raise file.ragged(*rows.bad[0], remedy)


def _find_invalid(
    blocks: Blocks, name: str, check: Check, codes: Codes, invalid: list[int]
) -> int | None:
    """The first row of the next block whose text is not what it must be.

    `invalid` are the codes of such texts so far: one may have been met by the thread of a later
    block, and its row comes then.
    """
    column = blocks.columns.index(name)
    fresh = blocks.new_texts(column, codes)
    invalid += (is_invalid(fresh, check).arg_true() + blocks.n_texts[column]).to_list()
    if not invalid:
        return None
    return next(iter(np.flatnonzero(np.isin(codes[column], invalid)).tolist()), None)


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
