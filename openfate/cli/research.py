"""Commands about data and the story: demo, fetch, prepare."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from openfate.cli.flags import Json, names_in, stderr
from openfate.data.files import check_place
from openfate.errors import InputError

__all__ = ["demo", "fetch", "prepare"]


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    as_json: Json = False,
) -> None:
    """The story in a minute, on scikit-learn's digits, ending in a picture."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--out {out}: the picture is a .png, .svg or .pdf file.")
    check_place(out)
    import torch

    from openfate.experiments.demo import METHODS, run_demo
    from openfate.experiments.present import save_figure

    torch.set_num_threads(1)  # WHY: tensors this small only wait for a second thread
    n_splits = 5
    with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as progress:
        task = progress.add_task("training", total=n_splits * len(METHODS))

        def advance(seed: int, method: str) -> None:
            progress.update(task, advance=1, description=f"split {seed + 1}: {method}")

        try:
            result, figure = run_demo(n_splits, advance)
        except KeyboardInterrupt:
            progress.stop()
            print("openfate: interrupted; nothing was written.", file=sys.stderr)
            raise typer.Exit(130) from None
    result["figure"] = str(save_figure(figure, out))
    if as_json:
        print(json.dumps(result))
        return
    table = Table(title="digits: half of the pixels are known in training, the others appear later")
    table.add_column("method")
    table.add_column("test accuracy", justify="right")
    for row in result["rows"]:
        table.add_row(METHODS[row["method"]], f"{row['accuracy']:.3f} ± {row['std']:.3f}")
    console = Console()
    console.print(table)
    console.print(result["reading"], highlight=False)
    console.print(f"Picture: {out}", highlight=False)


def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Data sets: gene, protein, robot, drive, calls, github.")
    ],
    url: Annotated[
        str | None, typer.Option(help="Another address of the same file or zip.")
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="The hash that the file must have.")] = None,
    as_json: Json = False,
) -> None:
    """Download public data sets into the cache folder and verify them."""
    from rich.progress import DownloadColumn, Progress

    from openfate.data.fetch import fetch as fetch_files

    if len(names) > 1 and (url is not None or sha256 is not None):
        raise InputError("--url and --sha256 belong to one data set: name one alone.")
    columns = (*Progress.get_default_columns(), DownloadColumn())
    files = {}
    with Progress(
        *columns, console=stderr(), transient=True, disable=not stderr().is_terminal
    ) as progress:
        for name in names:
            task = progress.add_task(name, total=None)

            def show(n_bytes: int, total: int | None, task: Any = task) -> None:
                progress.update(task, completed=n_bytes, total=total)

            files[name] = [str(path) for path in fetch_files(name, url, sha256, on_progress=show)]
    if as_json:
        print(json.dumps({"files": files}))
    else:
        print("\n".join(path for paths in files.values() for path in paths))


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

    from openfate.data.clicks import measure as measuring

    with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, description=stage)

        try:
            result = measuring.measured_prepare(
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
    print(json.dumps(result) if as_json else measuring.describe(result))
