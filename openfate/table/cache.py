"""A folder in which a table becomes rows of ids, stage by stage; what is finished survives a kill.

    plan.json                 what table and settings it belongs to, written first
    fitted.json, .parquet     the encoder of the rows that are learned from
    grown.json, .parquet      the same with what only spared rows hold
    rows/                     X on disk (`disk`)

A folder of another plan is never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from openfate.errors import DataFileError, InputError
from openfate.files import unwritable, write_whole, writing
from openfate.table.counts import Mask
from openfate.table.disk import DiskRows, RowWriter
from openfate.table.encoder import Encoder
from openfate.table.frame import Table, read_table
from openfate.table.multihot import MultiHot
from openfate.table.schema import Schema


@dataclass(frozen=True)
class Encoded:
    """Rows of ids, and what gave them.

    Parameters
    ----------
    encoder
        Of the rows that are learned from.
    grown
        The same with ids for what only spared rows hold.
    X
        All rows, by the ids of `grown`.
    """

    encoder: Encoder
    grown: Encoder
    X: MultiHot


def encode_table(schema: Schema, table: Table, spared: Mask, min_count: int = 1) -> Encoded:
    """Encode a table in memory.

    Examples
    --------
    >>> import numpy as np
    >>> table = read_table(pl.DataFrame({"job": ["cook", "judge"]}))
    >>> encoded = encode_table(Schema.from_frame(table), table, np.array([False, True]))
    >>> encoded.encoder.n_features, encoded.X.ids.tolist()
    (1, [0, 1])
    """
    encoder = Encoder(schema)
    grown = encoder.fit_sparing(table, spared, min_count=min_count)
    return Encoded(encoder, grown, grown.encode(table))


class RowCache:
    """A folder that holds the rows of one table.

    Parameters
    ----------
    folder
        New, empty, or one in which the same plan was begun.
    plan
        What the rows depend on, for JSON: files, schema, settings.  Where its "table" is None
        nobody can tell whether rows are the same, and what such a plan left is begun anew.

    Raises
    ------
    InputError
        Where the folder holds something else.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> parts = [pl.DataFrame({"job": ["cook", "judge"]}), pl.DataFrame({"job": ["cook"]})]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = RowCache(Path(folder), {"table": "jobs"})
    ...     encoded = cache.encode(Schema.from_frame(parts[0]), parts, np.zeros(3, bool))
    ...     encoded.X.n_rows, encoded.X.load().ids.tolist()
    (3, [0, 1, 0])
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder = folder
        text = json.dumps(plan, sort_keys=True)
        file = folder / "plan.json"
        is_held = file.exists()
        held = file.read_text(encoding="utf-8") if is_held else None
        if held == text and plan["table"] is not None:
            return
        if is_held and not _is_nameless(held):
            raise InputError(
                f"{folder}: holds the rows of another table, or of other settings; give the same "
                "again to go on, delete it, or give another folder."
            )
        is_foreign = folder.exists() and any(path.name != ".lock" for path in folder.iterdir())
        if not is_held and is_foreign:
            raise InputError(f"{folder}: is not empty and holds no rows of ours; give another.")
        if is_held:
            self.clear()
        write_whole(file, text.encode())

    def clear(self) -> None:
        """Delete all that is in the folder, the plan last."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "plan.json"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != ".lock":
                path.unlink(missing_ok=True)

    def encode(
        self, schema: Schema, frames: Iterable[Any], spared: Mask, min_count: int = 1
    ) -> Encoded:
        """Encode frames, or go on where that ended; memory holds one of them at a time.

        Parameters
        ----------
        schema
            The fields.
        frames
            They give the same rows in the same order whenever they are iterated over.
        spared
            (N,) the rows that are not learned from.
        min_count
            As in `Encoder.fit`.
        """
        encoder, grown = self._read_encoder("fitted"), self._read_encoder("grown")
        if encoder is None or grown is None:
            encoder = Encoder(schema)
            grown = encoder.fit_sparing(frames, spared, min_count=min_count)
            self._write_encoder("fitted", encoder)
            self._write_encoder("grown", grown)
        writer = RowWriter(self.folder / "rows", has_values=grown.has_values)
        n_passed = 0
        for frame in frames if writer.n_rows < len(spared) else ():
            table = read_table(frame)
            n_passed += table.n_rows
            if n_passed > writer.n_rows:
                first = table.n_rows - (n_passed - writer.n_rows)
                rest = table.select_rows(slice(first, table.n_rows)) if first else table
                writer.append(grown.encode(rest))
        if writer.n_rows != len(spared):
            raise DataFileError(
                f"{self.folder}: {len(spared)} rows were counted and {writer.n_rows} encoded; "
                "they change while they are read."
            )
        return Encoded(encoder, grown, DiskRows(self.folder / "rows", grown.n_features))

    def _write_encoder(self, name: str, encoder: Encoder) -> None:
        header, vocabulary = encoder.to_parts()
        try:
            with writing(self.folder / f"{name}.parquet") as file:
                vocabulary.write_parquet(file, compression="lz4")
        except pl.exceptions.PolarsError as error:  # a full disk, in polars' words
            raise unwritable(self.folder, error) from None
        write_whole(self.folder / f"{name}.json", json.dumps(header).encode())

    def _read_encoder(self, name: str) -> Encoder | None:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        header = json.loads(path.read_text(encoding="utf-8"))
        return Encoder.from_parts(header, pl.read_parquet(path.with_suffix(".parquet")))


def _is_nameless(plan: str | None) -> bool:
    try:
        return plan is not None and json.loads(plan)["table"] is None
    except (ValueError, KeyError, TypeError):
        return False
