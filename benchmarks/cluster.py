"""What steps of training cost on 1, 2 and 4 workers, and a projection from them.

    PYTHONPATH=. python benchmarks/cluster.py OUT.json [--workers 1,2,4] [--steps 12]

Seconds are of the processor, of one worker and a step (the mean over workers, the median over
steps): there may be fewer cores than workers, and other work on them.  Sending is part of it: here
all workers are on one machine, and what a byte costs is what the kernel takes to copy it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openfate.cluster import connect
from openfate.models import FATE, MLP, GraphSAGE
from openfate.training import Settings, train
from openfate_lab.bench.cluster_cost import (
    Cost,
    Machines,
    Step,
    fit,
    simulate,
    step_bytes,
    touched_features,
)
from openfate_lab.bench.record import about, tell, write_result

FIELDS, FEATURES, MASKS, HIDDEN = 20, 200_000, 3, (64, 64)
# Of a GPU against a core of this machine: a fifth of what the fused kernels reach by rows (1,480
# times: ctr-gpu-100k of results/bench/train-gpu.json, ctr-cpu-10k of train-cpu.json), because a
# cluster trains with plain torch.
SPEED = 300.0


class Timed:
    """Mini-batches; each process notes its processor's time whenever it asks for one."""

    def __init__(self, rows: int, n_steps: int, folder: Path) -> None:
        self.rows, self.n_steps, self.folder = rows, n_steps, folder

    def __call__(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Those of an epoch: rows (B, d) of ids, skewed, and labels (B,)."""
        rng = np.random.default_rng(0)
        values = FEATURES // FIELDS
        batches = []
        for _ in range(self.n_steps):
            ids = rng.zipf(1.2, (self.rows, FIELDS)) % values + values * np.arange(FIELDS)
            batches.append((ids.astype(np.int32), rng.integers(0, 2, self.rows).astype(np.float32)))
        times = []
        for batch in batches:
            times.append(time.process_time())
            yield batch
        times.append(time.process_time())
        (self.folder / str(os.getpid())).write_text(json.dumps(np.diff(times).tolist()))


def measure(rows: int, width: int, n_steps: int) -> float:
    """Seconds of the processor of one worker and a step."""
    torch.manual_seed(0)
    net = MLP(width, 1, HIDDEN, batch_norm=True)
    model = FATE(FEATURES, net, GraphSAGE(width), recompose="all")
    settings = Settings.clicks(n_kept=12, n_draws=MASKS, epochs=1, n_ahead=0, adam="lazy")
    with tempfile.TemporaryDirectory() as folder:
        train(model, Timed(rows, n_steps, Path(folder)), settings=settings)
        found = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    return float(np.mean([np.median(times[2:]) for times in found]))


def count(rows: int, width: int, n_workers: int) -> tuple[int, int, int]:
    """U of a mini-batch and of the first worker's part, and the numbers of the network."""
    ids, _ = next(iter(Timed(rows, 1, Path())(1)))
    net, g = MLP(width, 1, HIDDEN, batch_norm=True), GraphSAGE(width)
    weights = sum(p.numel() for m in (net, g) for p in m.parameters())
    return len(np.unique(ids)), len(np.unique(ids[: rows // n_workers])), weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    rows, steps, seconds = [], [], []
    for n_workers in map(int, given.workers.split(",")):
        for embeddings in ("replicated", "sharded"):
            if n_workers == 1 and embeddings == "sharded":
                continue
            with connect("local", workers=n_workers, embeddings=embeddings):
                for n_rows in (2000, 8000):
                    for width in (8, 32):
                        counts = count(n_rows, width, n_workers)
                        steps.append(
                            Step(n_workers, n_rows, FIELDS, width, *counts, MASKS, embeddings)
                        )
                        seconds.append(measure(n_rows, width, given.steps))
                        tell(f"{steps[-1]}: {1000 * seconds[-1]:.1f} ms")
    cost = fit(steps, seconds)
    for step, measured in zip(steps, seconds, strict=True):
        rows.append(
            {
                **asdict(step),
                "bytes": round(step_bytes(step)),
                "measured_ms": round(1000 * measured, 2),
                "modelled_ms": round(1000 * cost.seconds(step), 2),
            }
        )
    result = {**about("cpu"), "cost": asdict(cost), "rows": rows, "projection": project(cost)}
    write_result(result, given.out)


def project(cost: Cost) -> dict[str, Any]:
    """A log of 10^9 features on up to 256 GPUs; what it assumes stands beside."""
    machines = Machines(speed=SPEED, link=50e9, wait=20e-6)
    found = []
    for n_workers in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        n_rows = 8192 * n_workers
        touched, part = (round(touched_features(n, 39, 10**9)) for n in (n_rows, 8192))
        step = Step(n_workers, n_rows, 39, 10, touched, part, 300_000, 5, "sharded")
        found.append(simulate(cost, step, machines))
    return {"machines": asdict(machines), "features": 10**9, "steps": found}


if __name__ == "__main__":
    main()
