"""The first pass of a preparation: every text cell becomes a code, kept on disk block by block.

A code is a number that a column gives to each distinct text as it meets it.  Memory holds the
texts, never the rows.  A block is a file of codes (C, n); with it goes a file of the texts that
were new, and a line in the journal, which commits it: what the journal names survives a kill.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.files import writing
from openfate.table.clicks.chunks import Chunk, Rows, parse, read_chunks
from openfate.table.clicks.logs import Log, Meaning
from openfate.table.clicks.textfile import parquet
from openfate.table.clicks.vocabulary import is_invalid

__all__ = ["Blocks", "read_log"]

Codes = NDArray[np.uint32]  # (C, n)
Check = Meaning | Literal["label", "time"]
_ASK = {
    "label": "a label is 0 or 1",
    "log": "give numbers, or leave cells empty",
    "hour": "give YYMMDDHH",
    "time": "give every row a time",
}


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
        self._n_texts = [0] * len(columns)
        folder.mkdir(parents=True, exist_ok=True)
        self._restore()

    @property
    def n_rows(self) -> int:
        """N so far."""
        return sum(block.rows for block in self.blocks)

    @property
    def _journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def _restore(self) -> None:
        if not self._journal.exists():
            return
        for line in self._journal.read_text().splitlines():
            try:
                block = Block(**json.loads(line))
            except ValueError:  # the process ended within the line: the block is not committed
                break
            texts = parquet(
                self._texts_file(len(self.blocks)),
                lambda: pl.read_parquet(self._texts_file(len(self.blocks))),
            )
            for c, kind in enumerate(self._types):
                own = texts.filter(pl.col("column") == c)["text"]
                codes = own.cast(kind).to_physical().to_numpy()
                if not np.array_equal(codes, self._n_texts[c] + np.arange(len(own))):
                    raise DataFileError(
                        f"{self.folder}: its texts do not give their codes again; "
                        "use --overwrite to begin again."
                    )
            self._n_texts = list(block.n_texts)
            self.blocks.append(block)
        # WHY: half a line would spoil the next one.
        lines = [json.dumps(asdict(block)) + "\n" for block in self.blocks]
        with writing(self._journal) as file:
            file.write("".join(lines).encode())

    def encode(self, number: int, frame: pl.DataFrame) -> Codes:
        """Turn text cells into codes and keep them as block `number`; threads may call it."""
        columns = zip(self.columns, self._types, strict=True)
        coded = frame.select(
            pl.col(name).fill_null("").cast(kind).to_physical() for name, kind in columns
        )
        codes = np.empty((len(self.columns), len(frame)), np.uint32)
        for c, column in enumerate(coded):
            codes[c] = column.to_numpy()
        with writing(self._codes_file(number)) as file:
            file.write(codes.data)
        return codes

    def commit(self, codes: Codes, *, file: int, stop: int, bad: int) -> None:
        """Make the next block's codes and the texts that it brought survive a kill."""
        last = codes.max(axis=1, initial=0) if codes.size else np.zeros(len(codes), np.uint32)
        fresh = []
        for c in range(len(self.columns)):
            texts = self.texts_between(c, self._n_texts[c], int(last[c]) + 1 if codes.size else 0)
            fresh.append(pl.DataFrame({"text": texts}).with_columns(column=pl.lit(c, pl.UInt16)))
            self._n_texts[c] += len(texts)
        with writing(self._texts_file(len(self.blocks))) as out:
            pl.concat(fresh).write_parquet(out, compression="lz4", statistics=False)
        block = Block(codes.shape[1], file, stop, bad, list(self._n_texts))
        with self._journal.open("a") as journal:
            journal.write(json.dumps(asdict(block)) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self.blocks.append(block)

    def texts_between(self, column: int, first: int, last: int) -> pl.Series:
        """The texts of some codes of a column, committed or not."""
        if last <= first:
            return pl.Series([], dtype=pl.String)
        codes = pl.Series(np.arange(first, last, dtype=np.uint32))
        return codes.cat.to(self._types[column]).cast(pl.String)

    def n_texts(self, column: int) -> int:
        """How many distinct texts a column has shown."""
        return self._n_texts[column]

    def texts(self, column: int) -> pl.Series:
        """The texts of a column, by code."""
        return self.texts_between(column, 0, self._n_texts[column])

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
    last = blocks.blocks[-1] if blocks.blocks else None
    place = (last.file, last.stop) if last else (0, 0)
    pending: deque[Future[tuple[Rows, Codes]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            chunks = read_chunks(log, chunk_bytes, *place)
            for number, chunk in enumerate(chunks, start=len(blocks.blocks)):
                pending.append(pool.submit(_encode, log, blocks, number, chunk))
                while len(pending) > workers:
                    on_progress(*keeper.keep(*pending.popleft().result()))
            while pending:
                on_progress(*keeper.keep(*pending.popleft().result()))
        finally:
            for future in pending:
                future.cancel()


def _encode(log: Log, blocks: Blocks, number: int, chunk: Chunk) -> tuple[Rows, Codes]:
    rows = parse(log, chunk)
    codes = blocks.encode(number, rows.frame)
    # WHY: only line numbers are needed from here on; the cells and the text would stay in memory.
    return replace(rows, chunk=replace(chunk, data=b""), frame=rows.frame.clear()), codes


class _Keeper:
    """Commits blocks in order and refuses what cannot be used, naming the line."""

    def __init__(self, log: Log, blocks: Blocks, bad_lines: int) -> None:
        self.log, self.blocks, self.bad_lines = log, blocks, bad_lines
        self.n_bad = sum(block.bad for block in blocks.blocks)
        self.checks = _checks(log)
        self._checked = {c: blocks.n_texts(c) for c in self.checks}
        self._invalid: dict[int, list[int]] = {c: [] for c in self.checks}

    def keep(self, rows: Rows, codes: Codes) -> tuple[int, int]:
        chunk = rows.chunk
        self.n_bad += len(rows.bad)
        if self.n_bad > self.bad_lines:
            line, width = rows.bad[0]
            seen = f" ({self.n_bad} such lines so far)" if self.n_bad > 1 else ""
            raise self.log.fault(
                chunk.file,
                f"line {line} has {width} columns, not {len(self.log.columns)}{seen}",
                f"repair it, or leave such lines out with --bad-lines {max(10, 2 * self.n_bad)}",
            )
        for column in self.checks:
            self._refuse_invalid(column, rows, codes[column])
        self.blocks.commit(codes, file=chunk.file, stop=chunk.stop, bad=len(rows.bad))
        return chunk.file, chunk.stop

    def _refuse_invalid(self, column: int, rows: Rows, codes: NDArray[np.uint32]) -> None:
        first, check = self._checked[column], self.checks[column]
        last = int(codes.max(initial=0)) + 1
        if last > first:
            texts = self.blocks.texts_between(column, first, last)
            self._invalid[column] += (first + np.flatnonzero(is_invalid(texts, check))).tolist()
            self._checked[column] = last
        if not self._invalid[column]:
            return
        # WHY: an invalid text may have been met by a later block's thread; its line comes then.
        at = np.flatnonzero(np.isin(codes, self._invalid[column]))
        if len(at):
            text = self.blocks.texts_between(column, int(codes[at[0]]), int(codes[at[0]]) + 1)[0]
            raise self.log.fault(
                rows.chunk.file,
                f"line {rows.line_of(int(at[0]))}, column {self.blocks.columns[column]!r} holds "
                f"{reprlib.repr(text) if text else 'nothing'}",
                _ASK[check],
            )


def _checks(log: Log) -> dict[int, Check]:
    """What the texts of some columns must be, by the column's place."""
    place = {name: c for c, name in enumerate(log.read_columns)}
    checks: dict[int, Check] = {place[name]: check for name, check in log.meaning.items()}
    if log.time is not None:
        checks[place[log.time]] = "hour" if log.by_day else "time"
    return {place[log.target]: "label", **checks}
