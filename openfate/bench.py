"""Ours beside the peer, in one run, as a ratio.

Runs as `openfate bench train` and, where only torch, torch_geometric and numpy are installed, as
`python -m openfate.bench train`.  Tables are generated with the shape of the data set that a case
is named after (training rows, half of its 0-1 features, skew): nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.data.multihot import MultiHot
from openfate.errors import InputError, OpenFATEError
from openfate.graph.bipartite import Bipartite
from openfate.models.backbone import MLP
from openfate.models.extrapolator import GCN
from openfate.models.fate import FATE
from openfate.training.dropedge import drop_edges
from openfate.training.loop import train
from openfate.training.masking import n_fold
from openfate.training.metrics import log_loss
from openfate.training.settings import Settings

__all__ = ["CASES", "bench_train", "main"]

WIDTH = 8


@dataclass(frozen=True)
class Case:
    """The shape of a training matrix: rows x observed features, ids a row on average, classes."""

    n_rows: int
    n_features: int
    per_row: float
    n_classes: int

    def table(self) -> tuple[MultiHot, NDArray[np.int64]]:
        """Random rows whose features have skewed frequencies, and random classes."""
        rng = np.random.default_rng(0)
        weight = 1 / (np.arange(self.n_features) + 5.0)
        n_draws = round(self.n_rows * self.per_row * 1.25)  # repeated entries fall together
        feature = rng.choice(self.n_features, n_draws, p=weight / weight.sum())
        row = rng.integers(0, self.n_rows, n_draws)
        X = MultiHot.from_entries(row, feature, self.n_rows, self.n_features)
        surplus = X.nnz - round(self.n_rows * self.per_row)
        keep = np.sort(rng.permutation(X.nnz)[max(surplus, 0) :])
        X = MultiHot.from_entries(X.row_of[keep], X.ids[keep], self.n_rows, self.n_features)
        return X, rng.integers(0, self.n_classes, self.n_rows)


CASES = {
    "uci-robot": Case(n_rows=3273, n_features=118, per_row=12.0, n_classes=4),
    "uci-github": Case(n_rows=22620, n_features=2002, per_row=9.2, n_classes=2),
}


def bench_train(
    cases: Sequence[str] = tuple(CASES), repeats: int = 5, threads: int = 1
) -> dict[str, Any]:
    """One epoch of Algorithm 1 without validation: ours against the PyG twin.

    Parameters
    ----------
    cases
        Names from `CASES`.
    repeats
        Rounds; in each both sides run in turn, and medians over all epochs are compared.
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
    ours, peer = _ours(CASES[name]), _peer(CASES[name])
    ours(1), peer(1)  # warm up
    ours_times: list[float] = []
    peer_times: list[float] = []
    for _ in range(repeats):
        ours_times += ours(10)
        peer_times += peer(2)
    ours_ms, peer_ms = (statistics.median(times) * 1e3 for times in (ours_times, peer_times))
    return {
        "case": name,
        "ours": round(ours_ms, 3),
        "peer": round(peer_ms, 3),
        "peer_name": "PyTorch Geometric",
        "unit": "ms/epoch",
        "ratio": round(peer_ms / ours_ms, 2),
        "ours_bytes": _peak_bytes(name, "ours"),
        "peer_bytes": _peak_bytes(name, "peer"),
        "parts": _parts(CASES[name]),
    }


def _ours(case: Case) -> Callable[[int], list[float]]:
    """A function that trains n epochs and returns the seconds of each."""
    X, y = case.table()

    def run(n_epochs: int) -> list[float]:
        model = FATE(X.n_features, MLP(WIDTH, case.n_classes), GCN(WIDTH))
        ends: list[float] = []
        settings = Settings(epochs=n_epochs + 1)
        train(model, X, y, settings, on_step=lambda _: ends.append(time.perf_counter()))
        return np.diff(ends).tolist()

    return run


def _peer(case: Case) -> Callable[[int], list[float]]:
    from openfate.pyg_twin import UciTwin

    X, y = case.table()
    row, feature = torch.from_numpy(X.row_of), torch.from_numpy(X.ids.astype(np.int64))
    shape = (X.n_rows, X.n_features)
    twin = UciTwin(row, feature, shape, torch.from_numpy(y), case.n_classes, width=WIDTH)

    def run(n_epochs: int) -> list[float]:
        seconds = []
        for _ in range(n_epochs):
            started = time.perf_counter()
            twin.epoch()
            seconds.append(time.perf_counter() - started)
        return seconds

    return run


def _parts(case: Case, repeats: int = 20) -> dict[str, float]:
    """Milliseconds an epoch of ours that each part takes, timed on its own."""
    X, y = case.table()
    graph, labels = Bipartite.from_multihot(X), torch.from_numpy(y)
    model = FATE(X.n_features, MLP(WIDTH, case.n_classes), GCN(WIDTH))
    optimizer = torch.optim.Adam([model.W, *model.backbone.parameters()], 1e-2, fused=True)
    rng = torch.Generator().manual_seed(0)
    total = dict.fromkeys(("drop_edge", "forward", "backward", "optimizer"), 0.0)
    for _ in range(repeats):
        for kept in n_fold(X.n_features, 5, rng):
            at = [time.perf_counter()]
            edges = drop_edges(graph, 0.5, rng)
            at.append(time.perf_counter())
            optimizer.zero_grad()
            loss = log_loss(model(graph, kept, edges), labels)
            at.append(time.perf_counter())
            loss.backward()  # type: ignore[no-untyped-call]
            at.append(time.perf_counter())
            optimizer.step()
            at.append(time.perf_counter())
            for part, seconds in zip(total, np.diff(at), strict=True):
                total[part] += float(seconds)
    return {part: round(seconds / repeats * 1e3, 3) for part, seconds in total.items()}


# ---- memory: each side in a process of its own ----------------------------------------------


def _peak_bytes(case: str, side: str) -> int | None:
    """Peak memory over what the imports took; None where the system does not tell."""
    command = [sys.executable, "-m", "openfate.bench", "memory", case, side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def _print_memory(case: str, side: str) -> int:
    run = {"ours": _ours, "peer": _peer}[side]
    run(Case(64, 16, 4.0, 2))(1)  # what torch loads on first use is not part of the run
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    except OSError:
        return 1
    before = _kilobytes(status, "VmRSS")
    run(CASES[case])(2)
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
        lines.append(f"{row['case']:<12} {figures}   {memory}")
        parts = ", ".join(f"{part} {ms:.1f}" for part, ms in row["parts"].items())
        lines.append(f"{'':<12} parts of ours, timed apart: {parts}")
    peer = result["rows"][0]["peer_name"] if result["rows"] else ""
    return "\n".join([*lines, f"ms an epoch, {result['threads']} thread(s); peer: {peer}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m openfate.bench`."""
    parser = argparse.ArgumentParser(prog="python -m openfate.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train", help="one epoch of training, ours against PyG")
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
