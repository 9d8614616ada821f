"""The rest of the paper's experiments: ablation, map and generalization."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from openfate.cli import Json, names_in
from openfate.errors import InputError
from openfate_lab.cli.experiments import run_trials, shares_in

__all__ = ["ablation", "generalization", "map_"]

Data = Annotated[str | None, typer.Option(help="Folder of the data [env: OPENFATE_DATA].")]
Trials = Annotated[int, typer.Option(min=1, help="Seeds 0 .. trials - 1.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes [default: the cores].")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]


def ablation(
    data: Data = None,
    datasets: Annotated[
        str, typer.Option(help="drive: its sample where the whole file is not there.")
    ] = "gene,protein,robot,drive,calls,github",
    observed: Annotated[
        str, typer.Option(help="Shares of observed features; all: 0.3 to 0.8.")
    ] = "0.5",
    trials: Trials = 5,
    variants: Annotated[
        str,
        typer.Option(
            help="all (the paper's), or some of: full, no_drop_edge, joint, leave_out, n_fold_2, "
            "n_fold_10, k_shot_1, k_shot_5, k_shot_10, leave_out_long, k_shot_1_long."
        ),
    ] = "all",
    out: Out = Path("results/ablation"),
    jobs: Jobs = None,
    compat: Annotated[
        str | None, typer.Option(help="reference: the released code; paper: its words.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 200,
    search: Annotated[
        bool, typer.Option("--search", help="The paper's grid instead, chosen on validation rows.")
    ] = False,
    search_trials: Annotated[int, typer.Option(min=1, help="Seeds to search with.")] = 1,
    as_json: Json = False,
) -> None:
    """The paper's Table 3: FATE without one of its parts, or with other masks."""
    from openfate_lab.experiments import ablation as table
    from openfate_lab.experiments import search as grid

    used = table.replace_missing(names_in(datasets), data)
    for name, other in used.items():
        if name != other:
            print(f"openfate: {name} is not there: {other} takes its place.", file=sys.stderr)
    shared: dict[str, Any] = {
        "datasets": tuple(dict.fromkeys(used.values())),
        "observed": shares_in("0.3,0.4,0.5,0.6,0.7,0.8" if observed == "all" else observed),
        "trials": search_trials if search else trials,
        "out": out,
        "data": data,
        "compat": compat,
        "changes": {"epochs": epochs},
        "command": shlex.join(["openfate", *sys.argv[1:]]),
    }
    plans: list[Any]
    if search:
        plans = grid.make_plans(**shared)
        records, paths = run_trials(plans, jobs, grid.run_search, grid.write_summary)
    else:
        names = table.PAPERS_OWN if variants == "all" else names_in(variants)
        plans = table.make_plans(variants=names, **shared)
        records, paths = run_trials(plans, jobs, table.run_trial, table.write_summary)
    rows = table.rows_of(records)
    if as_json:
        about = {"experiment": "ablation", "folder": str(plans[0].folder)}
        replaced = {name: other for name, other in used.items() if name != other}
        notes = table.notes(rows)
        print(json.dumps({**about, "replaced": replaced, "notes": notes, "rows": rows}))
        return
    from rich.console import Console

    table.print_rows(rows, Console())
    print("\n".join(map(str, paths)))


def map_(
    data: Data = None,
    datasets: Annotated[
        str, typer.Option(help="A row of the picture each.")
    ] = "gene,protein,robot",
    observed: Annotated[str, typer.Option(help="Shares of observed features.")] = "0.5",
    seed: Annotated[int, typer.Option(min=0, help="Of the picture, and the first of them.")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="Seeds to measure.")] = 5,
    perplexity: Annotated[float, typer.Option(help="Of t-SNE.")] = 30.0,
    out: Out = Path("results/map"),
    jobs: Jobs = None,
    compat: Annotated[
        str | None, typer.Option(help="reference: the released code; paper: its words.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 200,
    as_json: Json = False,
) -> None:
    """The paper's t-SNE figure, with measures of what it shows."""
    from openfate_lab.experiments import map as picture

    plans = picture.make_plans(
        seed=seed,
        perplexity=perplexity,
        datasets=names_in(datasets),
        observed=shares_in(observed),
        trials=trials,
        out=out,
        data=data,
        compat=compat,
        changes={"epochs": epochs},
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = run_trials(plans, jobs, picture.run_trial, picture.write_summary)
    rows = picture.summary(records)
    if as_json:
        print(json.dumps({"experiment": "map", "folder": str(plans[0].folder), "rows": rows}))
        return
    from rich.console import Console

    picture.print_rows(rows, Console())
    print("\n".join(map(str, paths)))


def generalization(
    data: Data = None,
    datasets: Annotated[str, typer.Option(help="Data sets of whole raw columns.")] = "robot,gene",
    model: Annotated[
        str, typer.Option(help="fate; or theory: the very model that the paper analyses.")
    ] = "fate",
    kept: Annotated[
        str, typer.Option(help="k-shot: shares k / d of the fields kept.")
    ] = "0.25,0.5,0.75",
    folds: Annotated[str, typer.Option(help="n-fold: n, of which one part is hidden.")] = "2,3,5",
    trials: Annotated[int, typer.Option(min=1, help="Splits of fields and rows.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="theory: steps of SGD.")] = 1000,
    lr: Annotated[float, typer.Option(help="theory: its step size.")] = 0.1,
    epochs: Annotated[int, typer.Option(min=1, help="fate: passes over training rows.")] = 200,
    out: Out = Path("results/generalization"),
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """The generalisation gap, by rows and by features, beside the bound of Theorem 1."""
    from openfate_lab.experiments import gaps
    from openfate_lab.experiments import generalization as study

    plans = study.make_plans(
        model=model,
        kept=_numbers("--kept", kept),
        folds=[int(n) for n in _numbers("--folds", folds)],
        steps=steps,
        lr=lr,
        datasets=names_in(datasets),
        trials=trials,
        out=out,
        data=data,
        changes={"epochs": epochs},
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = run_trials(plans, jobs, study.run_trial, gaps.write_summary)
    rows = gaps.gap_rows(records)
    bounds = gaps.bounds(rows, *gaps.steps_of(plans[0]))
    if as_json:
        about = {"experiment": "generalization", "folder": str(plans[0].folder)}
        print(json.dumps({**about, "about": gaps.ABOUT, "rows": rows, "bounds": bounds}))
        return
    from rich.console import Console

    gaps.print_rows(rows, bounds, Console())
    print("\n".join(map(str, paths)))


def _numbers(flag: str, text: str) -> list[float]:
    """The numbers that a flag lists."""
    try:
        return [float(part) for part in names_in(text)]
    except ValueError:
        raise InputError(f"{flag} {text}: give numbers with commas between them.") from None
