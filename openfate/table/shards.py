"""Prepared data: shards of feature ids on disk, read in batches; `preparation` writes them.

The folder holds manifest.json (written last: without it there is no data set), vocabulary.parquet
and shards/PART-NNNNN.parquet with one int32 column of ids for each field, and the label.
B rows of a batch, d fields.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError, InputError
from openfate.records import Between, Shape, read_record
from openfate.table.pieces import Batch, batches_of, read_ahead

VERSION = 1
RARE = "(rare)"  # what stands for the values that share a feature


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
_SHARD: Shape = {
    **{field.name: str if field.type == "str" else Between(0) for field in fields(Shard)},
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


def prepared_folder(path: Path) -> Path | None:
    """The prepared data that a folder is, or that a file is a shard of, if there is any."""
    folder = path if path.is_dir() else path.parent.parent
    is_ours = path.is_dir() or path.parent.name == "shards"
    return folder if is_ours and (folder / "manifest.json").is_file() else None


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

    @cached_property
    def _texts(self) -> pl.Series:
        """(D,) the value of each feature."""
        value = pl.when(pl.col("kind") == "rare").then(pl.lit(RARE)).otherwise("value")
        found = self.vocabulary().select("id", value.alias("value")).unique("id").collect()
        return found.sort("id")["value"]

    def decode(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a shard with the values that their ids stand for, `RARE` for all rare ones."""
        return pl.DataFrame(
            [
                self._texts.gather(column).alias(column.name)
                if column.name in self.fields
                else column
                for column in rows
            ]
        )

    def files(self) -> list[Path]:
        """The shards of all parts, in the order of the rows."""
        return [self.folder / shard.file for part in self.parts for shard in self.shards(part)]

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
        batches = batches_of(sizes, lambda n: self._load(shards[n]), batch_rows, seed)
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
