"""Ours beside the peer, in one run, as a ratio.

Runs as `openfate bench train` and, where only torch, torch_geometric and numpy are installed, as
`python -m openfate.bench train`.  What is measured stands in `openfate.bench_cases`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from openfate.bench_cases import CASES
from openfate.errors import InputError, OpenFATEError

__all__ = ["CASES", "bench_train", "main"]


def bench_train(
    cases: Sequence[str] = tuple(CASES), repeats: int = 5, threads: int = 1
) -> dict[str, Any]:
    """Algorithm 1 without validation, an epoch or a mini-batch: ours against the PyG twin.

    Parameters
    ----------
    cases
        Names from `CASES`.
    repeats
        Rounds; in each both sides run in turn, and medians over all of them are compared.
    threads
        Of both sides.  One, as in the experiments, which run trials side by side; with more, a busy
        machine measures how long threads wait for one another.
    """
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        raise InputError(f"case {unknown[0]!r} is unknown: choose from {', '.join(CASES)}.")
    if find_spec("torch_geometric") is None:
        raise OpenFATEError(
            "the peer needs torch_geometric: pip install 'openfate[peers]' -c constraints.txt."
        )
    torch.set_num_threads(threads)
    rows = [_bench_case(name, repeats) for name in cases]
    machine = {
        "machine": platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {"bench": "train", "device": "cpu", **machine, "rows": rows}


def _bench_case(name: str, repeats: int) -> dict[str, Any]:
    case = CASES[name]
    sides = case.sides()
    times: dict[str, list[float]] = {side: [] for side in sides}
    for run, _ in sides.values():
        run(1)  # warm up
    for _ in range(repeats):  # in turn: a machine that grows busy slows them all down
        for side, (run, n_times) in sides.items():
            times[side] += run(n_times)
    ms = {side: statistics.median(seconds) * 1e3 for side, seconds in times.items()}
    sides.clear()  # WHY: what follows needs their memory
    row: dict[str, Any] = {"case": name, "ours": round(ms["ours"], 3), "peer": round(ms["peer"], 3)}
    row |= {"peer_name": "PyTorch Geometric", "unit": case.unit}
    row["ratio"] = round(ms["peer"] / ms["ours"], 2)
    if "ours_same_mlp" in ms:
        row["ours_same_mlp"] = round(ms["ours_same_mlp"], 3)
        row["ratio_same_mlp"] = round(ms["peer"] / ms["ours_same_mlp"], 2)
    row |= {f"{side}_bytes": _peak_bytes(name, side) for side in ("ours", "peer")}
    return {**row, "parts": case.parts()}


# ---- memory: each side in a process of its own ----------------------------------------------


def _peak_bytes(case: str, side: str) -> int | None:
    """Peak memory over what the imports took; None where the system does not tell."""
    command = [sys.executable, "-m", "openfate.bench", "memory", case, side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def _print_memory(name: str, side: str) -> int:
    small, case = CASES[name].tiny(), CASES[name]
    # What torch loads on first use is not part of the run.
    (small.ours() if side == "ours" else small.peer())(1)
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    except OSError:
        return 1
    before = _kilobytes(status, "VmRSS")
    (case.ours() if side == "ours" else case.peer())(2)
    print((_kilobytes(status, "VmHWM") - before) * 1024)
    return 0


def _kilobytes(status: Path, key: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


# ---- command line --------------------------------------------------------------------------


def describe(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    lines = [f"{'case':<12} {'ours':>9} {'peer':>9} {'ratio':>6}   memory, ours / peer"]
    for row in result["rows"]:
        memory = " / ".join(
            "?" if row[key] is None else f"{row[key] / 2**20:.0f} MiB"
            for key in ("ours_bytes", "peer_bytes")
        )
        figures = f"{row['ours']:>9.1f} {row['peer']:>9.1f} {row['ratio']:>6.1f}"
        lines.append(f"{row['case']:<12} {figures}   {memory}   {row['unit']}")
        if "ratio_same_mlp" in row:
            same = f"{row['ours_same_mlp']:>9.1f} {'':>9} {row['ratio_same_mlp']:>6.1f}"
            lines.append(f"{'':<12} {same}   with the peer's network")
        parts = ", ".join(f"{part} {ms:.1f}" for part, ms in row["parts"].items())
        lines.append(f"{'':<12} parts of ours, timed apart: {parts}")
    peer = result["rows"][0]["peer_name"] if result["rows"] else ""
    return "\n".join([*lines, f"{result['threads']} thread(s) each; peer: {peer}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m openfate.bench`."""
    parser = argparse.ArgumentParser(prog="python -m openfate.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train", help="training, ours against PyG")
    train_parser.add_argument("--cases", default=",".join(CASES), help="names, comma-separated")
    train_parser.add_argument("--repeats", type=int, default=5)
    train_parser.add_argument("--threads", type=int, default=1, help="of both sides")
    train_parser.add_argument("--json", action="store_true")
    memory_parser = commands.add_parser("memory", help="peak bytes of one side (used by train)")
    memory_parser.add_argument("case", choices=CASES)
    memory_parser.add_argument("side", choices=("ours", "peer"))
    options = parser.parse_args(arguments)
    if options.command == "memory":
        return _print_memory(options.case, options.side)
    try:
        result = bench_train(options.cases.split(","), options.repeats, options.threads)
    except OpenFATEError as error:
        print(f"openfate: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else describe(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
