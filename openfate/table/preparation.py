"""From raw click logs to shards of feature ids, out of core: `openfate prepare`.

Three passes.  The text is read once and its cells become codes (`blocks`); the codes are counted in
training, validation and test rows; the values get their ids (`ids`) and the shards are written
(`shards`).  Memory holds the distinct texts and a few blocks, never the rows.  Each finished block
and shard is kept if the process ends; manifest.json, written last, makes the data set.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from openfate.errors import DataFileError, InputError
from openfate.files import hold_folder, writing
from openfate.table.blocks import Blocks, read_log, split_log
from openfate.table.ids import CountOn, FieldIds, Progress, number_fields
from openfate.table.logs import Format, Log, open_log
from openfate.table.reader import TextFile
from openfate.table.shards import VERSION, PreparedData, Shard, write_shards, write_vocabulary

# PAPER: appendix, dataset splits; features in training, new in validation, new in test.
PAPER_COUNTS = {
    "criteo": {"in_training": 1340248, "new_in_validation": 472023, "new_in_test": 835210},
    "avazu": {"in_training": 618411, "new_in_validation": 248614, "new_in_test": 1151000},
}


def prepare(
    raw: str | Path,
    out: str | Path,
    format: Format,
    *,
    target: str | None = None,
    time: str | None = None,
    drop: Sequence[str] = (),
    log: Sequence[str] = (),
    hour: Literal["raw", "of-day"] = "raw",
    threshold: int = 4,
    count_on: CountOn = "train",
    bad_lines: int = 0,
    overwrite: bool = False,
    chunk_bytes: int = 1 << 25,
    shard_rows: int = 250_000,
    workers: int | None = None,
    command: str = "",
    on_progress: Progress | None = None,
) -> PreparedData:
    r"""Turn raw click logs into a prepared data set.

    Parameters
    ----------
    raw
        A file, or a folder of files that follow one another by name; text may be gzipped.
    out
        The folder to write; a preparation that was interrupted there goes on.
    format
        What the log is: see `openfate.table.open_log`.  The split goes by calendar day
        (Avazu), by `time` in ten parts, or in the order of the rows in ten equal parts.
    target
        csv: the label's column.
    time
        csv: the column to split by.
    drop
        csv: columns to leave out.
    log
        csv: numbers to discretise as Criteo's.
    hour
        avazu: the hour as it is, or of the day.
    threshold
        Values counted fewer times than this share their field's rare feature; 1 keeps all.
    count_on
        "train": counted on training rows; a value that they do not hold is new, from its first
        row.  "all": on all rows, as the released code does.
    bad_lines
        How many lines with another number of columns may be left out, and counted.
    overwrite
        Delete a data set that is there already.
    chunk_bytes, shard_rows, workers
        The text read at once, the rows of a shard, and the threads (by default the cores); the
        ids do not depend on them.
    command
        Kept in the manifest.
    on_progress
        Called with "reading", "counting" or "writing", what is done, and the total if known.

    Raises
    ------
    InputError
        For arguments that cannot be used, or an `out` that is in use.
    DataFileError
        For raw files that cannot be used; it names the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = "".join(f"{i % 2},city{i // 7}\n" for i in range(100))
    ...     _ = Path(folder, "rows.csv").write_text("click,city\n" + rows)
    ...     data = prepare(f"{folder}/rows.csv", f"{folder}/out", "csv", target="click")
    ...     ids, y = next(data.batches("train"))
    >>> data.n_observed, data.n_features, ids.ravel().tolist()
    (2, 15, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    """
    source = open_log(raw, format, target=target, time=time, drop=drop, log=log, hour=hour)
    settings = {
        "format": format,
        "hour": hour if format == "avazu" else None,
        "target": source.target,
        "time": source.time,
        "log": list(source.meaning),
        "drop": list(drop),
        "threshold": _at_least(1, "threshold", threshold),
        "count_on": count_on,
        "bad_lines": _at_least(0, "bad_lines", bad_lines),
        "shard_rows": _at_least(1, "shard_rows", shard_rows),
    }
    if count_on not in get_args(CountOn):
        raise InputError(f"count_on must be one of train, all, not {count_on!r}.")
    size = _at_least(1, "chunk_bytes", chunk_bytes)
    threads = _at_least(1, "workers", workers if workers is not None else os.cpu_count() or 1)
    tell: Progress = on_progress or (lambda *_: None)
    folder = Path(out)
    try:
        # WHY: the lock lies beside `out`, which must not be made before it is known to be free.
        with hold_folder(folder, folder.parent / f".{folder.name}.lock"):
            work = _open_folder(folder, _plan(source, settings), overwrite)
            blocks = Blocks(work / "blocks", source.columns)
            read_log(source, blocks, size, threads, bad_lines, _on_place(source, tell))
            parts = split_log(source, blocks)
            fields = number_fields(source, blocks, parts, threshold, count_on, tell)
            journal = work / "shards.jsonl"
            shards = write_shards(folder, journal, parts, fields, shard_rows, threads, tell)
            n_observed = sum(field.n_observed for field in fields)
            manifest = {
                "version": VERSION,
                "command": command,
                "settings": settings,
                "source": [
                    {"name": file.path.name, "bytes": file.path.stat().st_size}
                    for file in source.files
                ],
                "target": source.target,
                "n_rows": blocks.n_rows,
                "n_bad_lines": sum(block.bad for block in blocks.blocks),
                "n_features": n_observed + sum(field.n_new for field in fields),
                "n_observed": n_observed,
                "report": _report(format, fields, shards),
                "fields": [field.entry() for field in fields],
                "vocabulary": write_vocabulary(folder, work, fields),
                "parts": {part: [asdict(one) for one in found] for part, found in shards.items()},
                "versions": _versions(),
            }
            with writing(folder / "manifest.json") as file:
                file.write(json.dumps(manifest, indent=1).encode())
            shutil.rmtree(work)
    except OSError as error:
        # A full disk may show itself anywhere; what is finished is kept.
        raise DataFileError(f"{out}: cannot be written ({error.strerror or error}).") from None
    return PreparedData(folder)


def _plan(source: Log, settings: dict[str, Any]) -> str:
    """All that the result depends on; an interrupted preparation goes on only with the same."""
    stats = [(file.path.name, file.path.stat()) for file in source.files]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return json.dumps({"settings": settings, "files": files})


def _open_folder(out: Path, plan: str, overwrite: bool) -> Path:
    """Make `out` ready and give the folder for what is unfinished."""
    work = out / ".work"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give a folder.")
    for stray in (*out.glob(".*.parquet.*"), *out.glob("shards/.*.parquet.*")):
        stray.unlink()  # what a killed run left half-written
    held = None
    if (out / "manifest.json").exists():
        held = "prepared data already"
    elif (work / "plan.json").exists():
        if (work / "plan.json").read_text() == plan:
            return work
        held = "an unfinished preparation of other files or settings"
    elif out.exists() and any(path != work for path in out.iterdir()):
        # WHY: never deleted, even to overwrite: these are not files of ours.
        raise InputError(f"{out}: is not empty and holds no prepared data; give a new folder.")
    if held is not None and not overwrite:
        raise InputError(f"{out}: holds {held}; overwrite it, or give a new folder.")
    if held is not None:
        _clear(out)
    with writing(work / "plan.json") as file:
        file.write(plan.encode())
    return work


def _clear(out: Path) -> None:
    """Delete what a preparation writes, the manifest first, and nothing else."""
    (out / "manifest.json").unlink(missing_ok=True)
    (out / "vocabulary.parquet").unlink(missing_ok=True)
    for name in ("shards", ".work"):
        shutil.rmtree(out / name, ignore_errors=True)


def _on_place(source: Log, tell: Progress) -> Callable[[int, int], None]:
    """Progress over all files; what a gz file unpacks to is not known beforehand."""
    sizes = [file.path.stat().st_size for file in source.files]
    is_plain = all(isinstance(file, TextFile) and not file.is_packed for file in source.files)

    def on_place(file: int, stop: int) -> None:
        tell("reading", sum(sizes[:file]) + stop, sum(sizes) if is_plain else None)

    return on_place


def _report(format: str, fields: list[FieldIds], shards: dict[str, list[Shard]]) -> dict[str, Any]:
    n_new = sum(field.n_new for field in fields)
    in_validation = sum(field.n_new_in_validation for field in fields)
    share = {
        part: sum(shard.new_cells for shard in found)
        / max(1, len(fields) * sum(shard.rows for shard in found))
        for part, found in shards.items()
    }
    return {
        "features": {
            "in_training": sum(field.n_observed for field in fields),
            "new_in_validation": in_validation,
            "new_in_test": n_new - in_validation,
        },
        "paper": PAPER_COUNTS.get(format),
        "new_cells": {part: round(value, 6) for part, value in share.items()},
    }


def _versions() -> dict[str, str]:
    return {
        # WHY: by name; the package's lazy names would count as imports of torch.
        "openfate": import_module("openfate").__version__,
        "polars": pl.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _at_least(least: int, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be an integer from {least} up, not {value!r}.")
    return value
