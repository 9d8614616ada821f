"""The command that prepares a log: prepare."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from openfate.cli.flags import Json, names_in, stderr

__all__ = ["prepare"]


def prepare(
    raw: Annotated[Path, typer.Argument(help="A raw log, or a folder of its files.")],
    out: Annotated[Path, typer.Option(help="Folder of the prepared data.")],
    format: Annotated[str, typer.Option(help="criteo, avazu or csv (CSV, TSV, Parquet).")],
    target: Annotated[str | None, typer.Option(help="csv: the label's column.")] = None,
    time: Annotated[str | None, typer.Option(help="csv: the column to split by.")] = None,
    drop: Annotated[str, typer.Option(help="csv: columns to leave out.")] = "",
    log: Annotated[str, typer.Option(help="csv: numbers to discretise as Criteo's.")] = "",
    hour: Annotated[str, typer.Option(help="avazu: raw or of-day.")] = "raw",
    threshold: Annotated[int, typer.Option(help="Fewer occurrences than this are rare.")] = 4,
    count_on: Annotated[str, typer.Option(help="train, or all as the released code.")] = "train",
    bad_lines: Annotated[int, typer.Option(help="Lines of a wrong width to leave out.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace old data.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a bare polars scan of the files too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Raw click logs to shards of feature ids, out of core; goes on after an interruption."""
    from rich.progress import Progress

    from openfate.table import describe_preparation, measured_prepare

    with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, description=stage)

        try:
            result = measured_prepare(
                *(raw, out, format, measure),
                target=target,
                time=time,
                drop=names_in(drop),
                log=names_in(log),
                hour=hour,
                threshold=threshold,
                count_on=count_on,
                bad_lines=bad_lines,
                overwrite=overwrite,
                command=shlex.join(["openfate", *sys.argv[1:]]),
                on_progress=show,
            )
        except KeyboardInterrupt:
            progress.stop()
            print("openfate: interrupted; run it again to go on from there.", file=sys.stderr)
            raise typer.Exit(130) from None
    print(json.dumps(result) if as_json else describe_preparation(result))
