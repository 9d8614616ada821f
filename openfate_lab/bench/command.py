"""Ours beside the peer, in one run, as a ratio.

Runs as `openfate bench train` and `openfate bench infer` and, where only torch, torch_geometric and
numpy are installed, as `python -m openfate_lab.bench`, which has two more: `scale`, time and memory
against the size of a mini-batch, and `epoch`, a whole epoch of a synthetic click log.  What is
measured stands in `openfate_lab.bench.cases`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch

from openfate.errors import InputError, OpenFATEError
from openfate_lab.bench.cases import CASES, Bench, Case, cases_of
from openfate_lab.bench.epoch import bench_epoch
from openfate_lab.bench.floor import Peaks
from openfate_lab.bench.memory import peak_bytes, print_memory
from openfate_lab.bench.record import (
    about,
    check_at_least,
    check_device,
    check_out,
    megabytes,
    tell,
    write_result,
)
from openfate_lab.bench.scale import bench_scale, describe_scale

__all__ = ["CASES", "bench_sides", "describe", "main"]


def bench_sides(
    bench: Bench = "train",
    cases: Sequence[str] | None = None,
    repeats: int = 5,
    threads: int = 1,
    device: str = "cpu",
) -> dict[str, Any]:
    """Ours against the PyG twin: Algorithm 1 without validation, or prediction with new features.

    Parameters
    ----------
    bench
        "train": an epoch or a mini-batch; "infer": the prediction of rows.
    cases
        Names from `CASES`; None for all those of the device.
    repeats
        Rounds; in each both sides run in turn, and medians over all of them are compared.
    threads
        Of both sides.  One, as in the experiments, which run trials side by side; with more, a busy
        machine measures how long threads wait for one another.
    device
        "cpu" or "cuda"; cases are made for one of them.
    """
    check_device(device)
    check_at_least(1, repeats=repeats, threads=threads)
    cases = cases_of(device) if cases is None else cases
    _check_cases(cases, device)
    if find_spec("torch_geometric") is None:
        raise OpenFATEError(
            "the peer needs torch_geometric: pip install 'openfate[peers]' -c constraints.txt."
        )
    torch.set_num_threads(threads)
    if device == "cuda":  # for both sides
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    peaks = Peaks.measure(device)
    rows = []
    for number, name in enumerate(cases, 1):
        tell(f"{bench} {number} of {len(cases)}: {name}")
        rows.append(_bench_case(name, bench, repeats, peaks))
    found = {"bytes_per_second": round(peaks.bytes_per_second), "flops": round(peaks.flops)}
    return {"bench": bench, **about(device), "peaks": found, "rows": rows}


def _check_cases(cases: Sequence[str], device: str) -> None:
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        raise InputError(f"case {unknown[0]!r} is unknown: choose from {', '.join(CASES)}.")
    other = [case for case in cases if CASES[case].device != device]
    if other:
        raise InputError(
            f"case {other[0]!r} is for the device {CASES[other[0]].device}: "
            f"those of {device} are {', '.join(cases_of(device))}."
        )


def _bench_case(name: str, bench: Bench, repeats: int, peaks: Peaks) -> dict[str, Any]:
    case = CASES[name]
    ms = _milliseconds(case, bench, repeats)
    row: dict[str, Any] = {"case": name, "ours": round(ms["ours"], 3), "peer": round(ms["peer"], 3)}
    row |= {"peer_name": "PyTorch Geometric", "unit": case.unit(bench)}
    row["ratio"] = round(ms["peer"] / ms["ours"], 2)
    if "ours_same_mlp" in ms:
        row["ours_same_mlp"] = round(ms["ours_same_mlp"], 3)
        row["ratio_same_mlp"] = round(ms["peer"] / ms["ours_same_mlp"], 2)
    row |= {f"{side}_bytes": peak_bytes(case, bench, side) for side in ("ours", "peer")}
    parts = case.parts(bench)
    floors = {part: floor.milliseconds(peaks) for part, floor in case.floors(bench).items()}
    reached = {part: _round(floors[part] / parts[part]) for part in floors if parts.get(part)}
    return {**row, "parts": parts, "floor_fraction": reached}


def _milliseconds(case: Case, bench: Bench, repeats: int) -> dict[str, float]:
    """The median time of each side."""
    sides = case.sides(bench)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for run, _ in sides.values():
        run(1)  # warm up
    for _ in range(repeats):  # in turn: a machine that grows busy slows them all down
        for side, (run, n_times) in sides.items():
            times[side] += run(n_times)
    return {side: statistics.median(seconds) * 1e3 for side, seconds in times.items()}


def _round(share: float) -> float:
    """Two digits."""
    return float(f"{share:.2g}")


# ---- command line --------------------------------------------------------------------------

_DEFAULT = "[default: %(default)s]"


def describe(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    lines = [f"{'case':<12} {'ours':>9} {'peer':>9} {'ratio':>6}   memory, ours / peer"]
    for row in result["rows"]:
        memory = " / ".join(megabytes(row[key]) for key in ("ours_bytes", "peer_bytes"))
        figures = f"{row['ours']:>9.1f} {row['peer']:>9.1f} {row['ratio']:>6.1f}"
        lines.append(f"{row['case']:<12} {figures}   {memory}   {row['unit']}")
        if "ratio_same_mlp" in row:
            same = f"{row['ours_same_mlp']:>9.1f} {'':>9} {row['ratio_same_mlp']:>6.1f}"
            lines.append(f"{'':<12} {same}   with the peer's network")
        for part, ms in row["parts"].items():
            floor = row["floor_fraction"].get(part)
            share = "" if floor is None else f" (floor {100 * floor:.2g} %)"
            lines.append(f"{'':<12} {ms:>9.1f} {'':>16}   {part}{share}")
    peer = result["rows"][0]["peer_name"] if result["rows"] else ""
    where = f"{result['machine']}, load {result['load_average']}"
    lines.append(f"{result['threads']} thread(s) each; peer: {peer}; {where}")
    lines.append(
        "Below a case: parts of ours, which need not add up, and the share of their time that "
        "memory or arithmetic alone would take (floor)."
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m openfate_lab.bench`."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "memory":
            torch.set_num_threads(options.threads)
            return print_memory(options.case, options.bench, options.side)
        check_out(options.out)
        result = _measure(options)
        if options.out is not None:
            print(write_result(result, options.out), file=sys.stderr)
    except OpenFATEError as error:
        print(f"openfate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("openfate: interrupted; nothing was written.", file=sys.stderr)
        return 130
    print(json.dumps(result) if options.json else _as_text(result))
    return 0


def _as_text(result: dict[str, Any]) -> str:
    if result["bench"] == "epoch":
        return json.dumps(result, indent=1)
    return describe_scale(result) if result["bench"] == "scale" else describe(result)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.command == "scale":
        rows, fields = _numbers("--rows", options.rows), _numbers("--fields", options.fields)
        n = options.features
        return bench_scale(rows, fields, options.device, n, options.repeats, options.threads)
    if options.command == "epoch":
        return bench_epoch(
            options.rows, options.device, options.batch_rows, options.features, options.workers
        )
    cases = None if options.cases is None else options.cases.split(",")
    bench = cast(Bench, options.command)
    return bench_sides(bench, cases, options.repeats, options.threads, options.device)


def _numbers(flag: str, text: str | None) -> list[int] | None:
    """Whole numbers with commas between them; 1e5 is one."""
    if text is None:
        return None
    try:
        numbers = [float(word) for word in text.split(",")]
        if all(n >= 1 and n == int(n) for n in numbers):
            return [int(n) for n in numbers]
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{flag} {text}: give integers from 1 with commas between them.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m openfate_lab.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in [("train", "training"), ("infer", "prediction")]:
        sides = commands.add_parser(name, help=f"{text}, ours against PyG")
        sides.add_argument("--cases", help="names, comma-separated [default: all of the device]")
        _add_sides(sides)
    scale = commands.add_parser("scale", help="time and memory against rows and fields")
    scale.add_argument("--rows", help="such as 1e5,2e5 [default: 1e3 .. 1e4, on a GPU 1e5 .. 1e6]")
    scale.add_argument("--fields", help="such as 15,39 [default: 15 .. 39]")
    scale.add_argument(
        "--features", type=int, help="of 39 fields [default: 100,000, on a GPU 2,650,000]"
    )
    _add_sides(scale)
    epoch = commands.add_parser("epoch", help="an epoch of FATE-NN over a synthetic click log")
    epoch.add_argument("--rows", type=int, default=20_000_000, help=_DEFAULT)
    epoch.add_argument("--batch-rows", type=int, default=100_000, help=_DEFAULT)
    epoch.add_argument(
        "--features", type=int, default=5_300_000, help=f"half of them observed {_DEFAULT}"
    )
    epoch.add_argument("--workers", type=int, help="processes that draw rows [default: the cores]")
    _add_common(epoch, "cuda")
    memory = commands.add_parser("memory", help="peak bytes of one side (used by the others)")
    memory.add_argument("case", help="a name, or JSON")
    memory.add_argument("bench", choices=("train", "infer"))
    memory.add_argument("side", choices=("ours", "peer"))
    memory.add_argument("--threads", type=int, default=1, help=_DEFAULT)
    return parser


def _add_sides(parser: argparse.ArgumentParser) -> None:
    """Of those that compare two sides."""
    parser.add_argument("--repeats", type=int, default=5, help=f"rounds of both in turn {_DEFAULT}")
    parser.add_argument("--threads", type=int, default=1, help=f"of both sides {_DEFAULT}")
    _add_common(parser, "cpu")


def _add_common(parser: argparse.ArgumentParser, device: str) -> None:
    parser.add_argument("--device", default=device, help=f"cpu or cuda {_DEFAULT}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="a .json file, or a folder for one")


if __name__ == "__main__":
    sys.exit(main())
