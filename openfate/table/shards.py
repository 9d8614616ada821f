"""Prepared data: shards of feature ids on disk, written once, read in batches, resumable.

The folder holds manifest.json (written last: without it there is no data set), vocabulary.parquet
and shards/PART-NNNNN.parquet with one int32 column of ids for each field, and the label.
B rows of a batch, d fields.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, InputError
from openfate.files import writing
from openfate.records import Between, Shape, read_record
from openfate.table.blocks import Codes, Parts, add_entry, read_journal, work_ahead
from openfate.table.ids import FieldIds, Progress
from openfate.table.logs import LABELS
from openfate.table.pieces import Batch, batches_of, read_ahead

VERSION = 1


@dataclass(frozen=True)
class Shard:
    """A file of rows: how many, their clicks, their cells of new features, and its hash."""

    file: str
    rows: int
    clicks: int
    new_cells: int
    bytes: int
    sha256: str


# What is relied on in a manifest.
_COUNT = Between(0)
_SHARD: Shape = {
    **{"file": str, "rows": _COUNT, "clicks": _COUNT, "new_cells": _COUNT, "bytes": _COUNT},
    "sha256": str,
    re.compile("|".join(field.name for field in fields(Shard))): object,  # and nothing else
}
_MANIFEST = {
    **{"target": str, "n_rows": int, "n_features": int, "n_observed": int, "n_bad_lines": int},
    **{"report": dict, "versions": dict, "command": object, "vocabulary": {"file": str}},
    "fields": [
        {"name": str, "observed": [int, int], "new": [int, int]},
    ],
    "parts": {str: [_SHARD]},
}


class PreparedData:
    """A folder that `prepare` wrote.

    Parameters
    ----------
    folder
        Where manifest.json is.

    Attributes
    ----------
    fields
        The names of the fields, d of them.
    parts
        "train", "validation", "T1", "T2", ...
    n_rows, n_features, n_observed
        N, D, and how many of the D features training rows hold: those with the smaller ids.
    report
        How many features are in training rows, new in validation, new in test; the paper's
        counts beside them where it gives any; the share of new cells in each part.
    manifest
        All that manifest.json says.

    Raises
    ------
    DataFileError
        Where there is no manifest, or it is another program's.

    Examples
    --------
    >>> PreparedData("/nowhere")
    Traceback (most recent call last):
    openfate.errors.DataFileError: /nowhere: no prepared data here (manifest.json is missing); \
run `openfate prepare`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self.fields = tuple(field["name"] for field in self.manifest["fields"])
        self.parts = tuple(self.manifest["parts"])
        self.n_rows = int(self.manifest["n_rows"])
        self.n_features = int(self.manifest["n_features"])
        self.n_observed = int(self.manifest["n_observed"])
        self.report: dict[str, Any] = self.manifest["report"]
        self._right: set[str] = set()

    @cached_property
    def field_of(self) -> NDArray[np.int32]:
        """(D,) the field of each feature, an index into `fields`."""
        field = np.empty(self.n_features, np.int32)
        for f, entry in enumerate(self.manifest["fields"]):
            for first, n in (entry["observed"], entry["new"]):
                field[first : first + n] = f
        return field

    def vocabulary(self) -> pl.LazyFrame:
        """Give every value with its id and counts; a missing cell is null, rare ones share an id.

        Columns: field, value, id, kind ("observed", "rare", "new"), count, train, validation, test.
        """
        return pl.scan_parquet(self.folder / self.manifest["vocabulary"]["file"])

    def shards(self, part: str) -> tuple[Shard, ...]:
        """List the files of a part, in order."""
        if part not in self.parts:
            raise InputError(f"unknown part {part!r} (parts: {', '.join(self.parts)}).")
        return tuple(Shard(**entry) for entry in self.manifest["parts"][part])

    def rows_in(self, part: str) -> int:
        """Count the rows of a part."""
        return sum(shard.rows for shard in self.shards(part))

    def batches(
        self,
        part: str = "train",
        batch_rows: int = 100_000,
        *,
        seed: int | None = None,
        skip_batches: int = 0,
    ) -> Iterator[Batch]:
        """Iterate over a part, the next batches being read by a thread meanwhile.

        Parameters
        ----------
        part
            One of `parts`.
        batch_rows
            B; the last batch may be smaller.
        seed
            None keeps the order of the rows.  A seed mixes the shards and the rows inside each;
            give another for each epoch.
        skip_batches
            Leave out the first batches, as after a kill; the others are what they would be.

        Yields
        ------
        tuple
            (B, d) feature ids and (B,) labels, 0.0 or 1.0.

        Raises
        ------
        DataFileError
            Where a shard is missing or has changed since the manifest was written.
        """
        shards = self.shards(part)
        sizes = [shard.rows for shard in shards]
        batches = batches_of(sizes, lambda n: self._load(shards[n]), batch_rows, seed, skip_batches)
        return read_ahead(batches)

    def read(self, part: str) -> Batch:
        """Read a whole part into memory."""
        batches = [self._load(shard) for shard in self.shards(part)]
        ids, y = zip(*batches, strict=True) if batches else ((), ())
        nothing = np.empty((0, len(self.fields)), np.int32)
        return np.concatenate([nothing, *ids]), np.concatenate([nothing[:, 0], *y], dtype="f4")

    def _load(self, shard: Shard) -> Batch:
        path = self.folder / shard.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataFileError(
                f"{path}: cannot be read ({error.strerror or error}); run `openfate prepare` again."
            ) from None
        # WHY: hashed once for each shard and opening; a second epoch only compares sizes.
        changed = len(content) != shard.bytes
        if not changed and shard.file not in self._right:
            changed = hashlib.sha256(content).hexdigest() != shard.sha256
        if changed:
            raise DataFileError(
                f"{path}: has changed since manifest.json was written; "
                "prepare it again, overwriting it."
            )
        self._right.add(shard.file)
        frame = pl.read_parquet(BytesIO(content))
        y = frame[self.manifest["target"]].cast(pl.Float32).to_numpy()
        return frame.select(self.fields).to_numpy(order="c"), y


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = read_record(
            folder / "manifest.json", _shape, "prepare it again, overwriting it"
        )
    except FileNotFoundError:
        raise DataFileError(
            f"{folder}: no prepared data here (manifest.json is missing); run `openfate prepare`."
        ) from None
    return manifest


def _shape(content: Any) -> Shape:
    """What is relied on; of another version, that it is another."""
    is_ours = isinstance(content, dict) and content.get("version") == VERSION
    return _MANIFEST if is_ours else {"version": Between(VERSION, VERSION)}


# ---- writing -----------------------------------------------------------------------------------


def write_shards(
    out: Path,
    journal: Path,
    parts: Parts,
    ids: Sequence[FieldIds],
    shard_rows: int,
    workers: int,
    on_progress: Progress,
) -> dict[str, list[Shard]]:
    """Write the shards that `journal` does not name yet; returns all of them by part."""
    writer = _Writer(out, journal, parts, ids)
    rows = writer.held.sum(0).tolist()
    pieces = [
        _Piece(part, f"shards/{name}-{number:05}.parquet", first, min(first + shard_rows, n))
        for part, (name, n) in enumerate(zip(parts.names, rows, strict=True))
        for number, first in enumerate(range(0, n, shard_rows))
    ]
    shards: dict[str, list[Shard]] = {name: [] for name in parts.names}
    done = 0
    for piece, shard in zip(pieces, work_ahead(writer.write, pieces, workers), strict=True):
        if shard.file not in writer.kept:
            add_entry(journal, shard)
        shards[parts.names[piece.part]].append(shard)
        done += shard.rows
        on_progress("writing", done, parts.blocks.n_rows)
    return shards


@dataclass(frozen=True)
class _Piece:
    """Rows first to last of a part, which become one shard."""

    part: int
    file: str
    first: int
    last: int


class _Writer:
    """Turns codes into ids and labels, a shard at a time; threads may share it."""

    def __init__(self, out: Path, journal: Path, parts: Parts, ids: Sequence[FieldIds]) -> None:
        self.out, self.parts, self.blocks = out, parts, parts.blocks
        labels = [LABELS.get(text, -1) for text in self.blocks.texts(0)]
        # (codes,) the label or the feature id, in the order of the blocks' columns
        self.tables: list[NDArray[Any]] = [
            np.array(labels, np.int8),
            *(field.ids(field.lookup) for field in ids),
        ]
        self.n_observed = sum(field.n_observed for field in ids)
        self.held = np.array(
            [
                np.bincount(parts.of_block(number), minlength=len(parts.names))
                for number in range(len(self.blocks.blocks))
            ]
        )  # (blocks, parts)
        found = [Shard(**entry) for entry in read_journal(journal)]
        self.kept = {shard.file: shard for shard in found if self._is_whole(shard)}

    def _is_whole(self, shard: Shard) -> bool:
        path = self.out / shard.file
        return path.is_file() and path.stat().st_size == shard.bytes

    def write(self, piece: _Piece) -> Shard:
        """Write a shard that an interrupted run did not finish."""
        if piece.file in self.kept:
            return self.kept[piece.file]
        columns = [
            pl.Series(name, table[column])
            for name, table, column in zip(
                self.blocks.columns, self.tables, self._gather(piece), strict=False
            )
        ]
        frame = pl.DataFrame([*columns[1:], columns[0]])
        content = BytesIO()
        # WHY: zstd at level 1 writes three times as fast as the default for files 2 % larger.
        frame.write_parquet(content, compression="zstd", compression_level=1, statistics=False)
        data = content.getbuffer()
        with writing(self.out / piece.file) as file:
            file.write(data)
        new_cells = sum(int((column >= self.n_observed).sum()) for column in columns[1:])
        clicks, digest = int(columns[0].cast(pl.Int64).sum()), hashlib.sha256(data).hexdigest()
        return Shard(piece.file, len(frame), clicks, new_cells, len(data), digest)

    def _gather(self, piece: _Piece) -> Codes:
        """Collect the codes of a piece's rows from the blocks that hold them."""
        held = self.held[:, piece.part]
        ends = np.cumsum(held)
        found = []
        for number in range(
            int(np.searchsorted(ends, piece.first, side="right")),
            int(np.searchsorted(ends, piece.last, side="left")) + 1,
        ):
            if not held[number]:
                continue
            codes, before = self.blocks.read(number), int(ends[number] - held[number])
            if held[number] < codes.shape[1]:
                codes = codes[:, self.parts.of_block(number) == piece.part]
            found.append(codes[:, max(piece.first - before, 0) : piece.last - before])
        return np.concatenate(found, axis=1)


def write_vocabulary(out: Path, work: Path, ids: Sequence[FieldIds]) -> dict[str, object]:
    """Write every value with its id and counts; returns what the manifest keeps of the file."""
    files = []
    for number, field in enumerate(ids):
        table = field.values.select(
            pl.lit(field.name).alias("field"),
            "value",
            pl.Series("id", field.ids(field.values["place"].to_numpy())),
            *("kind", "count", "train", "validation", "test"),
        )
        files.append(work / f"vocabulary-{number:05}.parquet")
        _save(files[-1], table.lazy(), "lz4")
    path = out / "vocabulary.parquet"
    # WHY: the table of all fields may be as large as the texts in memory; it is streamed.
    _save(path, pl.scan_parquet(files), "zstd")
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _save(path: Path, frame: pl.LazyFrame, compression: Literal["lz4", "zstd"]) -> None:
    try:
        with writing(path) as file:
            frame.sink_parquet(file, compression=compression, row_group_size=1 << 18)
    except pl.exceptions.PolarsError as error:  # a full disk, in polars' words
        reason = str(error).splitlines()[0]
        raise DataFileError(f"{path}: cannot be written ({reason}).") from None
