"""The paper's click experiment: `openfate experiment ctr`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from openfate.cli import Json, names_in
from openfate.errors import InputError
from openfate_lab.cli.experiments import changed, run_trials

__all__ = ["ctr"]


def ctr(
    data: Annotated[
        str | None, typer.Option(help="Folder of the data [env: OPENFATE_DATA].")
    ] = None,
    datasets: Annotated[
        str, typer.Option(help="Also: synthetic; criteo, avazu where DATA/NAME is prepared.")
    ] = "criteo-sample,avazu-sample,flights",
    backbones: Annotated[
        str, typer.Option(help="Some of: nn, deepfm, widedeep, dcn.")
    ] = "nn,deepfm",
    methods: Annotated[
        str,
        typer.Option(
            help="all, or some of: base, pooling, fate, base_dropout, fate_drop_new, oov, hash, "
            "evidence, late_labels."
        ),
    ] = "all",
    trials: Annotated[int, typer.Option(min=1, help="Seeds 0 .. trials - 1.")] = 3,
    masking: Annotated[
        str | None, typer.Option(help="kshot, the paper's, or nfold [default: nfold if synthetic].")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="k (fields kept, the paper's table 4) or B (batch rows).")
    ] = None,
    values: Annotated[str, typer.Option(help="What the sweep takes, such as 11,14,17,20.")] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting, such as lrs=0.001,0.003 or epochs=5; repeatable. Names: masking, "
            "n_kept, n_draws, n_folds, drop_edge, batch_rows, plain_batch_rows, predict_rows, lrs, "
            "lr_factor, epochs, patience, validations, hidden, dropout, normalize, prior_rows, "
            "recompose.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1000, help="Synthetic: rows.")] = 4_000_000,
    features: Annotated[int, typer.Option(min=1, help="Synthetic: features.")] = 1_000_000,
    shape: Annotated[str, typer.Option(help="Synthetic: criteo or avazu.")] = "avazu",
    affinity: Annotated[
        float, typer.Option(min=0, help="Synthetic: how much co-occurrence tells.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/ctr"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes [default: the cores].")] = None,
    as_json: Json = False,
) -> None:
    """The paper's second experiment: clicks by day, new values every day, T1 to T8."""
    from openfate_lab.experiments import ctr as experiment_ctr
    from openfate_lab.experiments.click_data import Synthetic
    from openfate_lab.experiments.click_methods import METHODS
    from openfate_lab.experiments.click_settings import ClickSettings

    chosen = METHODS if methods == "all" else names_in(methods)
    if sweep is not None and methods == "all":
        chosen = ("fate", "fate_drop_new")
    plans = experiment_ctr.make_plans(
        datasets=names_in(datasets),
        backbones=names_in(backbones),
        methods=chosen,
        trials=trials,
        out=out,
        data=data,
        masking=masking,
        sweep=sweep,
        values=_whole_numbers("--values", values),
        changes=changed(ClickSettings(), set_ or []),
        synthetic=Synthetic(rows, shape, features, affinity),  # type: ignore[arg-type]
        command=shlex.join(["openfate", *sys.argv[1:]]),
    )
    records, paths = run_trials(plans, jobs, experiment_ctr.run_trial, experiment_ctr.write_summary)
    content = experiment_ctr.summary(records)
    if as_json:
        print(json.dumps({"experiment": "ctr", "folder": str(out), **content}))
        return
    from rich.console import Console

    from openfate_lab.experiments.present import print_clicks

    print_clicks(content["rows"], content["gains"], Console())
    print("\n".join(map(str, paths)))


def _whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in names_in(text))
    except ValueError:
        raise InputError(f"{flag} {text}: give whole numbers, comma-separated.") from None
    if any(number < 1 for number in numbers):
        raise InputError(f"{flag} {text}: give numbers from 1 up.")
    return numbers
