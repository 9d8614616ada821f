"""`openfate bench`: ours beside a peer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openfate.cli import Json, interruptible, names_in
from openfate.errors import InputError

if TYPE_CHECKING:
    from openfate_lab.bench.cases import Bench

bench = typer.Typer(help="Ours beside a peer, in one run, as ratios.", no_args_is_help=True)

Cases = Annotated[
    str | None,
    typer.Option(
        help="Names, comma-separated [default: those of the device]. cpu: uci-robot, uci-github, "
        "ctr-cpu-2k, ctr-cpu-10k; cuda: ctr-gpu-100k, ctr-gpu-1m."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds of both sides in turn.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of both sides.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Out = Annotated[
    Path | None, typer.Option(help="Also write the result: a .json file, or a folder for one.")
]


def _add(name: Bench, text: str) -> None:
    @bench.command(name, help=text)
    def command(
        cases: Cases = None,
        repeats: Repeats = 5,
        threads: Threads = 1,
        device: Device = "cpu",
        out: Out = None,
        as_json: Json = False,
    ) -> None:
        from openfate_lab.bench.command import bench_sides, describe
        from openfate_lab.bench.record import check_out, write_result

        names = None if cases is None else names_in(cases)
        if names is not None and not names:
            raise InputError("--cases is empty: name one or more.")
        check_out(out)
        with interruptible("nothing was written"):
            result = bench_sides(name, names, repeats, threads, device)
            if out is not None:
                print(write_result(result, out), file=sys.stderr)
        print(json.dumps(result) if as_json else describe(result))


_add("train", "Algorithm 1, an epoch or a mini-batch, ours against PyTorch Geometric.")
_add("infer", "Prediction of rows with new features, ours against PyTorch Geometric.")
