"""Commands about data and the story: demo, fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from openfate.cli import Json, interruptible, make_progress
from openfate.errors import InputError
from openfate.files import check_place


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    as_json: Json = False,
) -> None:
    """The story in a minute, on scikit-learn's digits, ending in a picture."""
    from rich.console import Console

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--out {out}: the picture is a .png, .svg or .pdf file.")
    check_place(out)
    import torch

    from openfate_lab.experiments import DEMO_METHODS, make_tables, run_demo, save_figure

    torch.set_num_threads(1)  # WHY: tensors this small only wait for a second thread
    n_splits = 3
    with interruptible("nothing was written"), make_progress() as progress:
        task = progress.add_task("training", total=n_splits * len(DEMO_METHODS))

        def advance(seed: int, method: str) -> None:
            progress.update(task, advance=1, description=f"split {seed + 1}: {method}")

        result, figure = run_demo(n_splits, advance)
    result["figure"] = str(save_figure(figure, out))
    if as_json:
        print(json.dumps(result))
        return
    known = f"{result['observed']:.0%} of the pixels are known in training"
    title = f"digits: {known}, the others appear later"
    scores = {row["method"]: f"{row['accuracy']:.3f} ± {row['std']:.3f}" for row in result["rows"]}
    cells = [(title, DEMO_METHODS[name], "test accuracy", text) for name, text in scores.items()]
    console = Console()
    for part in (*make_tables(cells), result["reading"], f"Picture: {out}"):
        console.print(part, highlight=False)


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

    from openfate_lab.data import fetch as fetch_files

    if len(names) > 1 and (url is not None or sha256 is not None):
        raise InputError("--url and --sha256 belong to one data set: name one alone.")
    files = {}
    with make_progress(*Progress.get_default_columns(), DownloadColumn()) as progress:
        for name in names:
            task = progress.add_task(name, total=None)

            def show(n_bytes: int, total: int | None, task: Any = task) -> None:
                progress.update(task, completed=n_bytes, total=total)

            files[name] = [str(path) for path in fetch_files(name, url, sha256, on_progress=show)]
    if as_json:
        print(json.dumps({"files": files}))
    else:
        print("\n".join(path for paths in files.values() for path in paths))
