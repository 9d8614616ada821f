"""Commands about the paper: the demonstration, its data, its experiments, and speed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openfate.cli.flags import Json, names_in, stderr
from openfate.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["bench", "demo", "experiment", "fetch"]

experiment = typer.Typer(
    help="The paper's experiments: resumable, one folder a trial.", no_args_is_help=True
)
bench = typer.Typer(help="Ours beside a peer, in one run, as ratios.", no_args_is_help=True)


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
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.absolute().parent}.")
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


@experiment.command()
def uci(
    data: Annotated[
        str | None, typer.Option(help="Folder of the data [env: OPENFATE_DATA].")
    ] = None,
    datasets: Annotated[
        str, typer.Option(help="Also: digits, protein-noleak, drive-sample.")
    ] = "gene,protein,robot,drive,calls,github",
    observed: Annotated[
        str, typer.Option(help="Shares of observed features.")
    ] = "0.3,0.4,0.5,0.6,0.7,0.8",
    methods: Annotated[
        str,
        typer.Option(
            help="all, or some of: fate, fate_drop_new, base, base_dropout, average, knn, "
            "pooling, inl, oracle."
        ),
    ] = "all",
    trials: Annotated[int, typer.Option(min=1, help="Seeds 0 .. trials - 1.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/uci"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes [default: the cores].")] = None,
    compat: Annotated[
        str | None, typer.Option(help="reference: the released code; paper: its words.")
    ] = None,
    novelty: Annotated[
        str, typer.Option(help="values: 0-1 features; columns: whole raw columns.")
    ] = "values",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 200,
    split_seed: Annotated[
        int | None, typer.Option(help="One split for all trials: spread of inits only.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A training setting, such as drop_edge=0.2; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The paper's first experiment: accuracy against the share of observed features."""
    from openfate.experiments import uci as experiment_uci
    from openfate.experiments.runner import summarise

    plans = experiment_uci.make_plans(
        datasets=names_in(datasets),
        observed=_shares(observed),
        methods=experiment_uci.METHODS if methods == "all" else names_in(methods),
        trials=trials,
        out=out,
        data=data,
        compat=compat,
        novelty=novelty,
        split_seed=split_seed,
        changes=_changes(epochs, set_ or []),
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = _run_trials(
        plans, jobs, experiment_uci.run_trial, experiment_uci.write_summary
    )
    rows = summarise(records, plans[0].methods)
    if as_json:
        print(json.dumps({"experiment": "uci", "folder": str(plans[0].folder), "rows": rows}))
        return
    from rich.console import Console

    from openfate.experiments.present import print_table

    print_table(rows, Console())
    print("\n".join(map(str, paths)))


@experiment.command()
def openworld(
    data: Annotated[
        str | None, typer.Option(help="Folder of the data [env: OPENFATE_DATA].")
    ] = None,
    datasets: Annotated[
        str, typer.Option(help="Or logs in time order: flights, criteo-sample, avazu-sample.")
    ] = "gene,calls,github,protein-noleak,robot",
    observed: Annotated[str, typer.Option(help="Shares of observed features.")] = "0.3,0.5,0.8",
    methods: Annotated[
        str,
        typer.Option(
            help="all, or some of: lightgbm_drop, lightgbm_evidence, lightgbm_oracle, the same of "
            "catboost and logistic, fate, fate_auto, fate_auto_drop; for logs: drop, evidence, "
            "late_labels."
        ),
    ] = "all",
    trials: Annotated[int, typer.Option(min=1, help="Seeds 0 .. trials - 1.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/openworld"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes [default: the cores].")] = None,
    novelty: Annotated[
        str, typer.Option(help="values: 0-1 features; columns: whole raw columns.")
    ] = "values",
    base: Annotated[str, typer.Option(help="Logs: logistic, lightgbm or catboost.")] = "logistic",
    label_delay: Annotated[str, typer.Option(help="Logs: when labels come: 30m, 6h, 1d.")] = "1d",
    min_rows: Annotated[
        int, typer.Option(min=1, help="Logs: a feature of fewer training rows counts as new.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Beyond the paper: what new features are worth to models fitted without them."""
    from openfate.experiments import openworld as experiment_openworld

    plans = experiment_openworld.make_plans(
        datasets=names_in(datasets),
        observed=_shares(observed),
        methods=None if methods == "all" else names_in(methods),
        trials=trials,
        out=out,
        data=data,
        novelty=novelty,
        base=base,
        label_delay=label_delay,
        min_rows=min_rows,
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = _run_trials(
        plans, jobs, experiment_openworld.run_trial, experiment_openworld.write_summary
    )
    content = experiment_openworld.summary(plans, records)
    if as_json:
        about = {"experiment": "openworld", "folder": str(plans[0].folder)}
        print(json.dumps({**about, **content}))
        return
    from rich.console import Console

    from openfate.experiments.present import print_gaps, print_table

    print_table(content["rows"], Console())
    print_gaps(content.get("gap_closed"), Console())
    print("\n".join(map(str, paths)))


def _run_trials(
    plans: Sequence[Any],
    jobs: int | None,
    run_trial: Callable[[Any], dict[str, Any]],
    write_summary: Callable[[Any], list[Path]],
) -> tuple[list[dict[str, Any]], list[Path]]:
    """Run what is left of an experiment; all records, and the files that sum them up."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from openfate.experiments.runner import only_writer, run_jobs

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}")
    finished = [plan.finished() for plan in plans]
    records = [record for record in finished if record is not None]
    pending = [plan for plan, record in zip(plans, finished, strict=True) if record is None]
    with only_writer(plans[0].folder), Progress(*columns, text, console=stderr()) as progress:
        first = "starting" if pending else "nothing left to run"
        task = progress.add_task(first, total=len(plans), completed=len(records))
        try:
            for plan, record in run_jobs(run_trial, pending, jobs or os.cpu_count() or 1):
                records.append(record)
                progress.update(task, advance=1, description=plan.title)
        except KeyboardInterrupt:
            progress.stop()
            left = f"{len(records)} of {len(plans)} trials are done and kept"
            print(f"openfate: interrupted; {left}: run it again to go on.", file=sys.stderr)
            raise typer.Exit(130) from None
        return records, write_summary(plans)


@bench.command("train")
def bench_train(
    cases: Annotated[
        str, typer.Option(help="Names, comma-separated.")
    ] = "uci-robot,uci-github,ctr-cpu-2k,ctr-cpu-10k",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of both sides in turn.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of both sides.")] = 1,
    as_json: Json = False,
) -> None:
    """Algorithm 1 on the CPU, an epoch or a mini-batch, ours against PyTorch Geometric."""
    from openfate import bench as benchmark

    if not names_in(cases):
        raise InputError("--cases is empty: name one or more.")
    result = benchmark.bench_train(names_in(cases), repeats, threads)
    print(json.dumps(result) if as_json else benchmark.describe(result))


# ---- reading flags ---------------------------------------------------------------------------


def _shares(text: str) -> tuple[float, ...]:
    shares = []
    for part in names_in(text):
        try:
            share = float(part)
        except ValueError:
            raise InputError(
                f"--observed {part}: not a number; give shares such as 0.3,0.5."
            ) from None
        if not 0 < share < 1:
            raise InputError(f"--observed {part}: a share lies between 0 and 1, such as 0.5.")
        shares.append(share)
    return tuple(dict.fromkeys(shares))


def _changes(epochs: int, assignments: list[str]) -> dict[str, Any]:
    """What --epochs and --set say, in one go, so that their order does not matter."""
    from openfate.training.settings import Settings

    plain, changes = Settings(), {"epochs": epochs}
    known = [field.name for field in fields(Settings)]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if name not in known or not equals:
            raise InputError(
                f"--set {assignment}: give NAME=VALUE with a name from {', '.join(known)}."
            )
        changes[name] = _value(name, text, getattr(plain, name))
    return changes


def _value(name: str, text: str, default: object) -> Any:
    """Read `text` as the type of the setting's default."""
    kind: Any = int if default is None else type(default)
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise InputError(f"--set {name}={text}: not a value of type {kind.__name__}.") from None
