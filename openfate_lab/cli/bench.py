"""`openfate bench`: ours beside a peer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from openfate.cli import Answer, Parameter, make_command, read_signature

# What each command says of itself, and the function that it runs.
_BENCHES = {
    "train": ("Algorithm 1, an epoch or a mini-batch, ours against PyTorch Geometric.", "sides"),
    "infer": ("Prediction of rows with new features, ours against PyTorch Geometric.", "sides"),
    "table": ("Fit, bulk prediction and one row of a table, ours against LightGBM.", "table"),
    "clicks": ("A raw log to a scored day, ours against FuxiCTR and LightGBM.", "clicks"),
    "serve": ("Requests to a service, ours against FastAPI around LightGBM.", "serve"),
}
_HOMES = {
    "sides": "openfate_lab.bench.command:bench_sides",
    "table": "openfate_lab.bench.tables:bench_table",
    "clicks": "openfate_lab.bench.clicks:bench_clicks",
    "serve": "openfate_lab.bench.serve:bench_serve",
}
_OUT = Parameter(
    "out", Path | None, None, "Also write the result: a .json file, or a folder for one."
)


def add_bench(app: typer.Typer) -> None:
    """Add `openfate bench` and its commands, whose flags are the arguments of what they run."""
    group = typer.Typer(help="Ours beside a peer, in one run, as ratios.", no_args_is_help=True)
    for bench in _BENCHES:
        group.command(bench)(_make_command(bench))
    app.add_typer(group, name="bench")


def _make_command(bench: str) -> Callable[..., None]:
    text, run = _BENCHES[bench]
    found = read_signature(_HOMES[run])
    parameters = (*(one for one in found.parameters if one.name != "bench"), _OUT)
    flags = [replace(parameter, positional=False) for parameter in parameters]
    signature = replace(found, name=bench, summary=text, parameters=tuple(flags))
    return make_command(signature, partial(_run, bench), left="nothing was written")


def _run(bench: Any, out: Path | None, **given: Any) -> Answer:
    from openfate_lab import bench as benches

    benches.check_out(out)
    run: dict[str, Callable[..., dict[str, Any]]]
    run = {
        "table": benches.bench_table,
        "clicks": benches.bench_clicks,
        "serve": benches.bench_serve,
    }
    result = run.get(bench, partial(benches.bench_sides, bench))(**given)
    if out is not None:
        print(benches.write_result(result, out), file=sys.stderr)
    return result, [benches.describe(result)]
