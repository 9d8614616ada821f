"""The last passes of a preparation: counting codes by part, and writing shards and vocabulary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.files import writing
from openfate.table.clicks.blocks import Blocks
from openfate.table.clicks.logs import Log
from openfate.table.clicks.parts import Parts
from openfate.table.clicks.shards import Shard
from openfate.table.clicks.vocabulary import LABELS, Counts, FieldIds, place

__all__ = ["IdTables", "count_codes", "write_shards", "write_vocabulary"]

Progress = Callable[[str, int, int | None], None]
_COUNTED_ROWS = 1 << 20  # rows whose codes are counted together


def count_codes(blocks: Blocks, parts: Parts, on_progress: Progress) -> list[Counts]:
    """For each column, (3, codes): how often each code is in training, validation, test rows."""
    n_codes = [blocks.n_texts(c) for c in range(len(blocks.columns))]
    counts = [np.zeros((3, n), np.uint32) for n in n_codes]
    waiting: list[list[NDArray[np.uint32]]] = [[], [], []]

    def count(kind: int) -> None:
        for c, n in enumerate(n_codes):
            codes = np.concatenate([block[c] for block in waiting[kind]])
            counts[c][kind] += np.bincount(codes, minlength=n).astype(np.uint32)
        waiting[kind].clear()

    done = 0
    for number in range(len(blocks.blocks)):
        codes, kinds = blocks.read(number), np.minimum(parts.of_block(number), 2)
        for kind in np.unique(kinds):
            waiting[kind].append(codes if (kinds == kind).all() else codes[:, kinds == kind])
            # WHY: bincount walks over all codes each time, so that few great steps cost less.
            if sum(block.shape[1] for block in waiting[kind]) > _COUNTED_ROWS:
                count(kind)
        done += codes.shape[1]
        on_progress("counting", done, blocks.n_rows)
    for kind in range(3):
        if waiting[kind]:
            count(kind)
    return counts


@dataclass(frozen=True, eq=False)
class IdTables:
    """What turns codes into ids and labels.

    Parameters
    ----------
    names
        The target and the fields, in the order of the blocks' columns.
    tables
        For each of them, (codes,) the label or the feature id.
    entries
        For each field: its name, and the first id and the number of its features.
    n_observed, n_features
        How many features training rows hold, and D.
    """

    names: tuple[str, ...]
    tables: list[NDArray[Any]]
    entries: list[dict[str, Any]]
    n_observed: int
    n_features: int

    @classmethod
    def of(cls, log: Log, blocks: Blocks, fields: Sequence[FieldIds]) -> IdTables:
        """Put the fields' features in one row of ids."""
        labels = [LABELS.get(text, -1) for text in blocks.texts(0)]
        tables: list[NDArray[Any]] = [np.array(labels, np.int8)]
        entries = []
        n_observed = sum(field.n_observed for field in fields)
        n_features = n_observed + sum(field.n_new for field in fields)
        if n_features >= 2**31:
            raise DataFileError(
                f"{log.files[0]}: {n_features} features do not fit in 32 bits; raise --threshold, "
                "or leave a column out with --drop."
            )
        for name, (field, observed, new) in zip(log.fields, place(fields), strict=True):
            tables.append(_ids(field.lookup, observed, new))
            rare = (
                None if field.rare is None else int(_ids(np.array([field.rare]), observed, new)[0])
            )
            entries.append(
                {
                    "name": name,
                    "kind": log.meaning.get(name, "text"),
                    "observed": [observed, field.n_observed],
                    "new": [new, field.n_new],
                    "rare": rare,
                }
            )
        return cls((log.target, *log.fields), tables, entries, n_observed, n_features)


def _ids(places: NDArray[Any], observed: int, new: int) -> NDArray[np.int32]:
    return np.where(places >= 0, places + observed, new - 1 - places).astype(np.int32)


@dataclass(frozen=True)
class _Piece:
    """Rows first to last of a part, which become one shard."""

    part: int
    file: str
    first: int
    last: int


def write_shards(
    out: Path,
    journal: Path,
    parts: Parts,
    ids: IdTables,
    shard_rows: int,
    workers: int,
    on_progress: Progress,
) -> dict[str, list[Shard]]:
    """Write the shards that `journal` does not name yet; returns all of them by part."""
    blocks = parts.blocks
    kept = _kept(out, journal)
    held = np.array(
        [
            np.bincount(parts.of_block(b), minlength=len(parts.names))
            for b in range(len(blocks.blocks))
        ]
    )  # (blocks, parts)
    pieces = list(_pieces(parts.names, held.sum(0).tolist(), shard_rows))
    shards: dict[str, list[Shard]] = {name: [] for name in parts.names}
    done = 0
    with ThreadPoolExecutor(workers) as pool, journal.open("a") as lines:

        def write(piece: _Piece) -> Shard:
            return kept.get(piece.file) or _write_shard(out, piece, parts, held[:, piece.part], ids)

        try:
            for piece, shard in zip(pieces, pool.map(write, pieces), strict=True):
                if shard.file not in kept:
                    lines.write(json.dumps(asdict(shard)) + "\n")
                    lines.flush()
                shards[parts.names[piece.part]].append(shard)
                done += shard.rows
                on_progress("writing", done, blocks.n_rows)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return shards


def _kept(out: Path, journal: Path) -> dict[str, Shard]:
    """The shards that an interrupted run finished."""
    kept = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            shard = Shard(**json.loads(line))
        except ValueError:  # the process ended within the line
            continue
        path = out / shard.file
        if path.is_file() and path.stat().st_size == shard.bytes:
            kept[shard.file] = shard
    return kept


def _pieces(names: Sequence[str], rows: Sequence[int], shard_rows: int) -> Iterator[_Piece]:
    for part, (name, n) in enumerate(zip(names, rows, strict=True)):
        for number, first in enumerate(range(0, n, shard_rows)):
            file = f"shards/{name}-{number:05}.parquet"
            yield _Piece(part, file, first, min(first + shard_rows, n))


def _write_shard(
    out: Path, piece: _Piece, parts: Parts, held: NDArray[np.int64], ids: IdTables
) -> Shard:
    codes = _gather(piece, parts, held)  # (C, n)
    columns = [
        pl.Series(name, table[column])
        for name, table, column in zip(ids.names, ids.tables, codes, strict=False)
    ]
    frame = pl.DataFrame([*columns[1:], columns[0]])
    content = BytesIO()
    # WHY: zstd at level 1 writes three times as fast as the default for files 2 % larger.
    frame.write_parquet(content, compression="zstd", compression_level=1, statistics=False)
    data = content.getbuffer()
    with writing(out / piece.file) as file:
        file.write(data)
    new_cells = sum(int((column >= ids.n_observed).sum()) for column in columns[1:])
    clicks, digest = int(columns[0].cast(pl.Int64).sum()), hashlib.sha256(data).hexdigest()
    return Shard(piece.file, len(frame), clicks, new_cells, len(data), digest)


def _gather(piece: _Piece, parts: Parts, held: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Collect the codes of a piece's rows from the blocks that hold them."""
    ends = np.cumsum(held)
    found = []
    for number in range(
        int(np.searchsorted(ends, piece.first, side="right")),
        int(np.searchsorted(ends, piece.last, side="left")) + 1,
    ):
        if not held[number]:
            continue
        codes, before = parts.blocks.read(number), int(ends[number] - held[number])
        if held[number] < codes.shape[1]:
            codes = codes[:, parts.of_block(number) == piece.part]
        found.append(codes[:, max(piece.first - before, 0) : piece.last - before])
    return np.concatenate(found, axis=1)


def write_vocabulary(
    out: Path, work: Path, log: Log, fields: Sequence[FieldIds]
) -> dict[str, object]:
    """Write every value with its id and counts; returns what the manifest keeps of the file."""
    files = []
    for f, (name, (field, observed, new)) in enumerate(zip(log.fields, place(fields), strict=True)):
        ids = _ids(field.values["place"].to_numpy(), observed, new)
        table = field.values.select(
            pl.lit(name).alias("field"),
            "value",
            pl.Series("id", ids),
            *("kind", "count", "train", "validation", "test"),
        )
        files.append(work / f"vocabulary-{f:05}.parquet")
        _saving(files[-1], table.lazy(), "lz4")
    path = out / "vocabulary.parquet"
    # WHY: the table of all fields may be as large as the texts in memory; it is streamed.
    _saving(path, pl.scan_parquet(files), "zstd")
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _saving(path: Path, frame: pl.LazyFrame, compression: Literal["lz4", "zstd"]) -> None:
    try:
        with writing(path) as file:
            frame.sink_parquet(file, compression=compression, row_group_size=1 << 18)
    except pl.exceptions.PolarsError as error:  # a full disk, in polars' words
        reason = str(error).splitlines()[0]
        raise DataFileError(f"{path}: cannot be written ({reason}).") from None
