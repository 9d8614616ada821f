"""Speed: ours beside a peer, and how it grows (`openfate experiment scalability`)."""

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

__all__ = ["bench", "scalability"]

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


@bench.command("train")
def bench_train(
    cases: Cases = None,
    repeats: Repeats = 5,
    threads: Threads = 1,
    device: Device = "cpu",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Algorithm 1, an epoch or a mini-batch, ours against PyTorch Geometric."""
    _bench("train", cases, repeats, threads, device, out, as_json)


@bench.command("infer")
def bench_infer(
    cases: Cases = None,
    repeats: Repeats = 5,
    threads: Threads = 1,
    device: Device = "cpu",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Prediction of rows with new features, ours against PyTorch Geometric."""
    _bench("infer", cases, repeats, threads, device, out, as_json)


def _bench(
    name: Bench,
    cases: str | None,
    repeats: int,
    threads: int,
    device: str,
    out: Path | None,
    as_json: bool,
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


def scalability(
    measured: Annotated[
        Path | None,
        typer.Option(
            help="What `python -m openfate_lab.bench scale --out FILE` wrote, on a GPU perhaps "
            "[default: measure now, on the CPU]."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/scalability"),
    as_json: Json = False,
) -> None:
    """Time and memory of a mini-batch against its rows and its fields, with lines fitted."""
    from openfate_lab.bench.record import typed_command
    from openfate_lab.experiments.runner import only_writer
    from openfate_lab.experiments.scalability import (
        describe_line,
        fit_lines,
        read_measured,
        write_report,
    )

    result = None if measured is None else read_measured(measured)
    with interruptible("nothing was written"), only_writer(out):
        if result is None:
            from openfate_lab.bench.scale import bench_scale

            result = bench_scale()
        fits = fit_lines(result["rows"])
        paths = write_report(result, out, typed_command())
    if as_json:
        print(json.dumps({"experiment": "scalability", "folder": str(out), "rows": fits}))
        return
    print("\n".join([*map(describe_line, fits), *map(str, paths)]))
