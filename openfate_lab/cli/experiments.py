"""The paper's experiments: uci and openworld; clicks and the rest have files of their own."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openfate.cli import Json, names_in, stderr
from openfate.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["changed", "experiment", "run_trials", "shares_in"]

experiment = typer.Typer(
    help="The paper's experiments: resumable, one folder a trial.", no_args_is_help=True
)


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
        typer.Option(
            "--set",
            help="A training setting, such as drop_edge=0.2; repeatable. Names: masking, n_folds, "
            "n_kept, n_draws, left_out, unit, reading, reference_folds, drop_edge, "
            "drop_edge_directed, async_updates, accumulate_backbone, overwrite_hidden, "
            "redraw_validation, untrained, epochs, lr, lr_extrapolator, batch_size, patience, "
            "mixed_precision, loss.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """The paper's first experiment: accuracy against the share of observed features."""
    from openfate.training import Settings
    from openfate_lab.experiments import uci as experiment_uci
    from openfate_lab.experiments.runner import summarise

    plans = experiment_uci.make_plans(
        datasets=names_in(datasets),
        observed=shares_in(observed),
        methods=experiment_uci.METHODS if methods == "all" else names_in(methods),
        trials=trials,
        out=out,
        data=data,
        compat=compat,
        novelty=novelty,
        split_seed=split_seed,
        changes={"epochs": epochs, **changed(Settings(), set_ or [])},
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = run_trials(plans, jobs, experiment_uci.run_trial, experiment_uci.write_summary)
    rows = summarise(records, plans[0].methods)
    if as_json:
        print(json.dumps({"experiment": "uci", "folder": str(plans[0].folder), "rows": rows}))
        return
    from rich.console import Console

    from openfate_lab.experiments.present import print_table

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
    from openfate_lab.experiments import openworld as experiment_openworld

    plans = experiment_openworld.make_plans(
        datasets=names_in(datasets),
        observed=shares_in(observed),
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
    records, paths = run_trials(
        plans, jobs, experiment_openworld.run_trial, experiment_openworld.write_summary
    )
    content = experiment_openworld.summary(plans, records)
    if as_json:
        about = {"experiment": "openworld", "folder": str(plans[0].folder)}
        print(json.dumps({**about, **content}))
        return
    from rich.console import Console

    from openfate_lab.experiments.present import print_gaps, print_table

    print_table(content["rows"], Console())
    print_gaps(content.get("gap_closed"), Console())
    print("\n".join(map(str, paths)))


def run_trials(
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

    from openfate_lab.experiments.runner import only_writer, run_jobs

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


# ---- reading flags ---------------------------------------------------------------------------


def shares_in(text: str) -> tuple[float, ...]:
    """The shares that a flag names."""
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


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def changed(plain: Any, assignments: list[str]) -> dict[str, Any]:
    """What --set says of the settings `plain`, a dataclass."""
    known = [field.name for field in fields(plain)]
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if name not in known or not equals:
            raise InputError(
                f"--set {assignment}: give NAME=VALUE with a name from {', '.join(known)}."
            )
        changes[name] = _value(name, text, getattr(plain, name))
    return changes


def _value(name: str, text: str, default: Any) -> Any:
    """Read `text` as the type of the setting's default."""
    if isinstance(default, tuple):
        return tuple(_value(name, part, default[0]) for part in names_in(text))
    kind: Any = type(default)
    if default is None:  # a number that may be left out
        kind = int if text.lstrip("+-").isdecimal() else float
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise InputError(f"--set {name}={text}: not {_KINDS[kind]}.") from None
