"""Ours beside the peer, in one run, as a ratio.

Runs as `openfate bench train` and `openfate bench infer` and, where only torch, torch_geometric and
numpy are installed, as `python -m openfate_lab.bench`, which has two more: `scale`, time and memory
against the size of a mini-batch, and `epoch`, a whole epoch of a synthetic click log.  What is
measured stands in `openfate_lab.bench.cases`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from openfate.errors import InputError, OpenFATEError
from openfate_lab.arguments import at_least
from openfate_lab.bench import record
from openfate_lab.bench.cases import CASES, Bench, cases_of, milliseconds
from openfate_lab.bench.clicks import describe_clicks, print_clicks_side
from openfate_lab.bench.epoch import bench_epoch
from openfate_lab.bench.floor import Peaks
from openfate_lab.bench.memory import peak_bytes, print_memory
from openfate_lab.bench.scale import bench_scale, describe_scale
from openfate_lab.bench.serve import describe_serve
from openfate_lab.bench.tables import describe_table, print_side


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
    record.use_device(device)
    at_least(1, repeats=repeats, threads=threads)
    cases = cases_of(device) if cases is None else cases
    _check_cases(cases, device)
    if find_spec("torch_geometric") is None:
        raise OpenFATEError(
            "the peer needs torch_geometric: pip install 'openfate[peers]' -c constraints.txt."
        )
    torch.set_num_threads(threads)
    peaks = Peaks.measure(device)
    rows = []
    for number, name in enumerate(cases, 1):
        record.tell(f"{bench} {number} of {len(cases)}: {name}")
        rows.append(_bench_case(name, bench, repeats, peaks))
    found = {"bytes_per_second": round(peaks.bytes_per_second), "flops": round(peaks.flops)}
    return {"bench": bench, **record.about(device), "peaks": found, "rows": rows}


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
    ms = milliseconds(case.sides(bench), repeats)
    row: dict[str, Any] = {"case": name, "ours": round(ms["ours"], 3), "peer": round(ms["peer"], 3)}
    row |= {"peer_name": "PyTorch Geometric", "unit": case.unit(bench)}
    row["ratio"] = round(ms["peer"] / ms["ours"], 2)
    for variant in ms.keys() - {"ours", "peer"}:
        row[variant] = round(ms[variant], 3)
        row[variant.replace("ours", "ratio")] = round(ms["peer"] / ms[variant], 2)
    row |= {f"{side}_bytes": peak_bytes(case, bench, side) for side in ("ours", "peer")}
    parts = case.parts(bench)
    reached = {
        part: float(f"{floor.milliseconds(peaks) / parts[part]:.2g}")
        for part, floor in case.floors(bench).items()
        if parts.get(part)
    }
    return {**row, "parts": parts, "floor_fraction": reached}


# ---- command line --------------------------------------------------------------------------

_DEFAULT = "[default: %(default)s]"
_VARIANTS = {"same_mlp": "with the peer's network", "plain": "in plain torch"}  # of ours
_DESCRIBED = {"table": describe_table, "clicks": describe_clicks, "serve": describe_serve}


def describe(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    if result["bench"] in _DESCRIBED:
        return _DESCRIBED[result["bench"]](result)
    lines = [f"{'case':<12} {'ours':>9} {'peer':>9} {'ratio':>6}   memory, ours / peer"]
    for row in result["rows"]:
        memory = " / ".join(record.megabytes(row[key]) for key in ("ours_bytes", "peer_bytes"))
        figures = f"{row['ours']:>9.1f} {row['peer']:>9.1f} {row['ratio']:>6.1f}"
        lines.append(f"{row['case']:<12} {figures}   {memory}   {row['unit']}")
        for variant, text in _VARIANTS.items():
            if f"ratio_{variant}" in row:
                same = f"{row[f'ours_{variant}']:>9.1f} {'':>9} {row[f'ratio_{variant}']:>6.1f}"
                lines.append(f"{'':<12} {same}   {text}")
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
    given = vars(_parser().parse_args(arguments))
    run, as_json, out = given.pop("run"), given.pop("json", False), given.pop("out", None)
    try:
        record.check_out(out)
        result = run(**given)
        if run in (print_memory, print_side, print_clicks_side):
            return int(result)
        if out is not None:
            print(record.write_result(result, out), file=sys.stderr)
    except OpenFATEError as error:
        print(f"openfate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("openfate: interrupted; nothing was written.", file=sys.stderr)
        return 130
    print(json.dumps(result) if as_json else _as_text(result))
    return 0


def _as_text(result: dict[str, Any]) -> str:
    if result["bench"] == "epoch":
        return json.dumps(result, indent=1)
    return describe_scale(result) if result["bench"] == "scale" else describe(result)


def _numbers(text: str) -> list[int]:
    """Integers with commas between them; 1e5 is one."""
    try:
        numbers = [float(word) for word in text.split(",")]
        if all(n >= 1 and n == int(n) for n in numbers):
            return [int(n) for n in numbers]
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: give integers from 1 with commas between them.")


def _parser() -> argparse.ArgumentParser:
    """A flag's `dest` is the argument of the function that the command runs."""
    parser = argparse.ArgumentParser(prog="python -m openfate_lab.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add(name: str, run: Callable[..., object], text: str, **more: str) -> Callable[..., object]:
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run, **more)
        return command.add_argument

    def add_output(flag: Callable[..., object], device: str) -> None:
        flag("--device", default=device, help=f"cpu or cuda {_DEFAULT}")
        flag("--json", action="store_true", help="print JSON")
        flag("--out", type=Path, help="a .json file, or a folder for one")

    def add_sides(flag: Callable[..., object]) -> None:
        flag("--repeats", type=int, default=5, help=f"rounds of both in turn {_DEFAULT}")
        flag("--threads", type=int, default=1, help=f"of both sides {_DEFAULT}")
        add_output(flag, "cpu")

    for bench, text in (("train", "training"), ("infer", "prediction")):
        flag = add(bench, bench_sides, f"{text}, ours against PyG", bench=bench)
        names = "names, comma-separated [default: all of the device]"
        flag("--cases", type=lambda text: text.split(","), help=names)
        add_sides(flag)
    flag = add("scale", bench_scale, "time and memory against rows and fields")
    sizes = "such as 1e5,2e5 [default: 1e3 .. 1e4, on a GPU 1e5 .. 1e6]"
    flag("--rows", type=_numbers, help=sizes)
    flag("--fields", type=_numbers, help="such as 15,39 [default: 15 .. 39]")
    features = "of 39 fields [default: 100,000, on a GPU 2,650,000]"
    flag("--features", dest="n_features", type=int, help=features)
    add_sides(flag)
    flag = add("epoch", bench_epoch, "an epoch of FATE-NN over a synthetic click log")
    flag("--rows", dest="n_rows", type=int, default=20_000_000, help=_DEFAULT)
    flag("--batch-rows", type=int, default=100_000, help=_DEFAULT)
    observed = f"half of them observed {_DEFAULT}"
    flag("--features", dest="n_features", type=int, default=5_300_000, help=observed)
    workers = "processes that draw rows [default: the cores]"
    flag("--workers", dest="n_workers", type=int, help=workers)
    flag("--on-disk", action="store_true", help="rows lie on disk before the epoch begins")
    add_output(flag, "cuda")
    flag = add("memory", print_memory, "peak bytes of one side (used by the others)")
    flag("case", help="a name, or JSON")
    flag("bench", choices=("train", "infer"))
    flag("side", choices=("ours", "peer"))
    flag("--threads", type=int, default=1, help=_DEFAULT)
    text = "one side of `openfate bench clicks` (used by it)"
    flag = add("clicks-side", print_clicks_side, text)
    flag("side", choices=("ours", "fuxictr", "lightgbm"))
    flag("folder", help="of train.csv and day.csv")
    flag("strategy", choices=("none", "fate"))
    flag("--threads", type=int, default=1, help=_DEFAULT)
    flag = add("side", print_side, "one side of a case of `openfate bench table` (used by it)")
    flag("case", help="a name")
    flag("side", choices=("ours", "peer"))
    flag("--threads", type=int, default=1, help=_DEFAULT)
    return parser
