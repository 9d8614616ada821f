"""`openfate prepare`: a raw click log to shards of feature ids, once, for many fits."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from openfate.cli.command import Answer, make_progress
from openfate.table import describe_preparation, measured_prepare


def prepare(
    raw: Path,
    *,
    out: Path,
    format: Literal["criteo", "avazu", "csv"],
    measure: bool = False,
    **settings: Any,
) -> Answer:
    """Raw click logs to shards of feature ids, out of core; goes on after an interruption.

    Parameters
    ----------
    raw
        A raw log, or a folder of its files.
    out
        Folder of the prepared data.
    format
        csv: CSV, TSV, Parquet.
    measure
        Time a bare polars scan of the files too.
    settings
        The other arguments of `openfate.table.prepare`.
    """
    with make_progress() as progress:
        task = progress.add_task("reading", total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, description=stage)

        command = shlex.join(["openfate", *sys.argv[1:]])
        result = measured_prepare(
            raw, out, format, measure, command=command, on_progress=show, **settings
        )
    return result, [describe_preparation(result)]
