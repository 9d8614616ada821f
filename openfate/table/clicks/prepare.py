"""From raw click logs to shards of feature ids, out of core: `openfate prepare`.

Three passes.  The text is read once and its cells become codes (`blocks`); the codes are counted in
training, validation and test rows; the values get their ids (`vocabulary`) and the shards are
written.  Memory holds the distinct texts and a few blocks, never the rows.  Each finished block and
shard is kept if the process ends; manifest.json, written last, makes the data set.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from openfate.errors import DataFileError, InputError
from openfate.files import writing
from openfate.table.clicks.blocks import Blocks, read_log
from openfate.table.clicks.logs import Format, Log, open_log
from openfate.table.clicks.parts import Parts, split_log
from openfate.table.clicks.shard_writer import (
    IdTables,
    Progress,
    count_codes,
    write_shards,
    write_vocabulary,
)
from openfate.table.clicks.shards import VERSION, PreparedData, Shard
from openfate.table.clicks.textfile import is_gzip
from openfate.table.clicks.vocabulary import CountOn, FieldIds, number_field

__all__ = ["PAPER_COUNTS", "prepare"]

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
    format, target, time, drop, log, hour
        What the log is: see `openfate.table.clicks.logs.open_log`.  The split goes by calendar day
        (Avazu), by `time` in ten parts, or in the order of the rows in ten equal parts.
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
    plan = _Plan(
        settings={
            "format": format,
            "hour": hour if format == "avazu" else None,
            "target": source.target,
            "time": source.time,
            "log": list(source.meaning),
            "drop": list(drop),
            "threshold": _at_least(1, "threshold", threshold),
            "count_on": _one_of(count_on, "count_on", ("train", "all")),
            "bad_lines": _at_least(0, "bad_lines", bad_lines),
            "shard_rows": _at_least(1, "shard_rows", shard_rows),
        },
        files=[
            {"name": path.name, "bytes": path.stat().st_size, "changed": path.stat().st_mtime_ns}
            for path in source.files
        ],
    )
    size = _at_least(1, "chunk_bytes", chunk_bytes)
    threads = _at_least(1, "workers", workers if workers is not None else os.cpu_count() or 1)
    tell: Progress = on_progress or (lambda *_: None)
    on_place = _reading(source, [file["bytes"] for file in plan.files], tell)
    folder = Path(out)
    with _only_writer(folder):
        work = _open_folder(folder, plan, overwrite)
        blocks = Blocks(work / "blocks", source.read_columns)
        read_log(source, blocks, size, threads, bad_lines, on_place)
        parts = split_log(source, blocks)
        fields = _number(source, blocks, parts, plan, tell)
        ids = IdTables.of(source, blocks, fields)
        shards = write_shards(folder, work / "shards.jsonl", parts, ids, shard_rows, threads, tell)
        vocabulary = write_vocabulary(folder, work, source, fields)
        manifest = {
            "version": VERSION,
            "command": command,
            "settings": plan.settings,
            "source": [{name: file[name] for name in ("name", "bytes")} for file in plan.files],
            "target": source.target,
            "n_rows": blocks.n_rows,
            "n_bad_lines": sum(block.bad for block in blocks.blocks),
            "n_features": ids.n_features,
            "n_observed": ids.n_observed,
            "report": _report(format, fields, shards),
            "fields": ids.entries,
            "vocabulary": vocabulary,
            "parts": {part: [asdict(shard) for shard in found] for part, found in shards.items()},
            "versions": _versions(),
        }
        with writing(folder / "manifest.json") as file:
            file.write(json.dumps(manifest, indent=1).encode())
        shutil.rmtree(work)
    return PreparedData(folder)


@dataclass(frozen=True)
class _Plan:
    """All that the result depends on; an interrupted preparation goes on only with the same."""

    settings: dict[str, Any]
    files: list[dict[str, Any]]


@contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Hold the folder: a second preparation there is refused."""
    # WHY: beside `out`, which must not be made before it is known to be free; and it stays, or
    # one who has opened it and one who makes it anew would both hold "the" lock.
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with (out.parent / f".{out.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{out}: another preparation is writing there; wait for it, or give another "
                    "folder."
                ) from None
            yield
    except OSError as error:
        # A full disk may show itself anywhere; what is finished is kept.
        raise DataFileError(f"{out}: cannot be written ({error.strerror or error}).") from None


def _open_folder(out: Path, plan: _Plan, overwrite: bool) -> Path:
    """Make `out` ready and give the folder for what is unfinished."""
    work, plan_text = out / ".work", json.dumps(asdict(plan))
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give a folder.")
    for stray in (*out.glob(".*.parquet.*"), *out.glob("shards/.*.parquet.*")):
        stray.unlink()  # what a killed run left half-written
    if (out / "manifest.json").exists():
        if not overwrite:
            raise InputError(f"{out}: holds prepared data already; --overwrite replaces it.")
        _clear(out)
    elif (work / "plan.json").exists():
        if (work / "plan.json").read_text() == plan_text:
            return work
        if not overwrite:
            raise InputError(
                f"{out}: holds an unfinished preparation of other files or settings; "
                "--overwrite begins again."
            )
        _clear(out)
    elif out.exists() and any(path != work for path in out.iterdir()):
        # WHY: never deleted, even by --overwrite: these are not files of ours.
        raise InputError(f"{out}: is not empty and holds no prepared data; give a new folder.")
    with writing(work / "plan.json") as file:
        file.write(plan_text.encode())
    return work


def _clear(out: Path) -> None:
    """Delete what a preparation writes, the manifest first, and nothing else."""
    (out / "manifest.json").unlink(missing_ok=True)
    (out / "vocabulary.parquet").unlink(missing_ok=True)
    for name in ("shards", ".work"):
        shutil.rmtree(out / name, ignore_errors=True)


def _reading(source: Log, sizes: Sequence[int], tell: Progress) -> Callable[[int, int], None]:
    """Progress over all files; what a gz file unpacks to is not known beforehand."""
    is_plain = source.separator is not None and not any(map(is_gzip, source.files))

    def on_place(file: int, stop: int) -> None:
        tell("reading", sum(sizes[:file]) + stop, sum(sizes) if is_plain else None)

    return on_place


def _number(
    source: Log, blocks: Blocks, parts: Parts, plan: _Plan, tell: Progress
) -> list[FieldIds]:
    counts = count_codes(blocks, parts, tell)
    threshold, count_on = plan.settings["threshold"], plan.settings["count_on"]
    return [
        number_field(
            blocks.texts(c), counts[c], source.meaning.get(name, "text"), threshold, count_on
        )
        for c, name in enumerate(source.fields, start=1)  # column 0 is the target
    ]


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
        raise InputError(f"{name} must be a whole number from {least} up, not {value!r}.")
    return value


def _one_of(value: str, name: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
    return value
