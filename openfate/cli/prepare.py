"""`openfate prepare`: a raw click log to shards of feature ids, once, for many fits."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.progress import Progress

from openfate.cli.command import Answer, stderr
from openfate.table import describe_preparation, measured_prepare


def prepare(
    raw: Path,
    *,
    out: Path,
    format: str,
    target: str | None = None,
    time: str | None = None,
    drop: tuple[str, ...] = (),
    log: tuple[str, ...] = (),
    hour: str = "raw",
    threshold: int = 4,
    count_on: str = "train",
    bad_lines: int = 0,
    overwrite: bool = False,
    measure: bool = False,
) -> Answer:
    """Raw click logs to shards of feature ids, out of core; goes on after an interruption.

    Parameters
    ----------
    raw
        A raw log, or a folder of its files.
    out
        Folder of the prepared data.
    format
        criteo, avazu or csv (CSV, TSV, Parquet).
    target
        csv: the label's column.
    time
        csv: the column to split by.
    drop
        csv: columns to leave out.
    log
        csv: numbers to discretise as Criteo's.
    hour
        avazu: raw or of-day.
    threshold
        Fewer occurrences than this are rare.
    count_on
        train, or all as the released code.
    bad_lines
        Lines of a wrong width to leave out.
    overwrite
        Replace old data.
    measure
        Time a bare polars scan of the files too.
    """
    with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, description=stage)

        result = measured_prepare(
            *(raw, out, format, measure),
            target=target,
            time=time,
            drop=drop,
            log=log,
            hour=hour,
            threshold=threshold,
            count_on=count_on,
            bad_lines=bad_lines,
            overwrite=overwrite,
            command=shlex.join(["openfate", *sys.argv[1:]]),
            on_progress=show,
        )
    return result, [describe_preparation(result)]
