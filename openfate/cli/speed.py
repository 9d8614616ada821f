"""Speed: ours beside a peer."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from openfate.cli.flags import Json, names_in
from openfate.errors import InputError

__all__ = ["bench"]

bench = typer.Typer(help="Ours beside a peer, in one run, as ratios.", no_args_is_help=True)


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
