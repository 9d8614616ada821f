"""Measure the fused GPU engine beside plain torch and the PyG twin: writes gpu-engine.json.

    PYTHONPATH=. python benchmarks/gpu_engine.py OUT.json

Criteo-shaped mini-batches: 39 fields, 2.65 million features, skewed values, already on the device.
A mini-batch is 5 steps of k-shot (k = 24) and one of the extrapolator.  All sides may use tf32.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from equality import equality
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from openfate.models import FATE, MLP, GraphSAGE
from openfate.training import Settings, k_shot, predict_batches, train
from openfate_lab.bench.parts import KERNELS, part_of
from openfate_lab.bench.pyg_twin import CtrTwin
from openfate_lab.bench.record import about

D, FIELDS, WIDTH, HIDDEN, STEPS = 2_650_000, 39, 10, 400, 5
BANDWIDTH, TF32 = 4.8e12, 495e12  # bytes and operations a second of an H200, by its data sheet
CARDINALITIES = [
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
]


def sizes() -> Tensor:
    size = [200] * 13 + [min(c, 410_000) for c in CARDINALITIES]
    size[15] += D - sum(size)
    return torch.tensor(size, device="cuda", dtype=torch.float64)


def batch(n_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator("cuda").manual_seed(seed)
    size = sizes()
    draws = torch.rand(n_rows, FIELDS, generator=rng, device="cuda", dtype=torch.float64)
    ids = (torch.floor(draws**10 * size) + size.cumsum(0) - size).int()
    return ids, (torch.rand(n_rows, generator=rng, device="cuda") < 0.25).float()


def model(dropout: float = 0.5) -> FATE:
    torch.manual_seed(0)
    net = MLP(WIDTH, 1, (HIDDEN, HIDDEN), batch_norm=True, dropout=dropout)
    return FATE(D, net, GraphSAGE(WIDTH), recompose="all").cuda()


def clean() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def kernels(work: Callable[[], None]) -> list[tuple[str, float, int]]:
    """Name, milliseconds and calls of all kernels."""
    with profiler(activities=[ProfilerActivity.CUDA]) as p:
        work()
        torch.cuda.synchronize()
    rows = [(e.key, e.self_device_time_total / 1e3, e.count) for e in p.key_averages()]
    return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def parts(rows: list[tuple[str, float, int]], n: int) -> dict[str, float]:
    total = dict.fromkeys([*KERNELS, "other"], 0.0)
    for name, ms, _ in rows:
        total[part_of(name)] += ms / n
    return total


def floors(B: int, U: int) -> dict[str, float]:
    """Milliseconds below which no part can be: each matrix read or written once, or arithmetic."""
    E, P, S = B * FIELDS, 12, STEPS
    table, rows, hidden = 4 * U * P, 4 * B * P, 4 * B * HIDDEN
    bytes_of = {
        "sort": 12 * E,
        "sums, over edges": S * (6 * 4 * E + 6 * table + 8 * rows),
        "sums, between": S * (10 * table),
        "network, passes": S * 7 * hidden,
        "optimizer": S * (24 * D * WIDTH + 4 * D),
    }
    out = {part: n / BANDWIDTH * 1e3 for part, n in bytes_of.items()}
    products = max(3 * 2 * B * HIDDEN**2 / TF32, 6 * hidden / BANDWIDTH)
    return {**out, "network, products": S * products * 1e3}


def train_ours(batches, n: int, profile: bool, **change) -> dict:
    before = clean()
    settings = Settings.clicks(n_kept=24, n_draws=STEPS, n_ahead=0, **change)
    ends: list[float] = []
    made = model()
    source = [batches[i % len(batches)] for i in range(n + 4)]
    train(
        made, lambda epoch: source, settings=settings, device="cuda",
        on_step=lambda _: ends.append(time.perf_counter()),
    )  # fmt: skip
    took = [1e3 * (b - a) for a, b in itertools.pairwise(ends)][3:]
    row = {"ms": statistics.median(took), "slowest_ms": max(took)}
    row["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    if profile:  # the same again, so that setting up is over when it counts
        state = {}

        def on_step(step) -> None:
            if step.number == 4:
                torch.cuda.synchronize()
                state["p"] = profiler(activities=[ProfilerActivity.CUDA])
                state["p"].start()
            if step.number == 8:
                torch.cuda.synchronize()
                state["p"].stop()

        eight = [batches[i % len(batches)] for i in range(8)]
        train(made, lambda epoch: eight, settings=settings, device="cuda", on_step=on_step)
        rows = [(e.key, e.self_device_time_total / 1e3, e.count) for e in state["p"].key_averages()]
        rows = sorted((r for r in rows if r[1] > 0), key=lambda r: -r[1])
        row["parts_ms"] = parts(rows, 4)
        row["busy_ms"] = sum(row["parts_ms"].values())
        U = len(batches[0][0].unique())
        floor = floors(len(batches[0][0]), U)
        row["floor_fraction"] = {p: floor[p] / row["parts_ms"][p] for p in floor}
        row["kernels"] = [(k[:60], ms / 4, c // 4) for k, ms, c in rows[:40]]
    return row


def infer_ours(batches, n: int, engine: str) -> dict:
    made, source = model().eval(), [batches[i % len(batches)] for i in range(n + 4)]
    before, ends = clean(), []
    for _ in predict_batches(made, source, device="cuda", engine=engine):
        ends.append(time.perf_counter())
    took = [1e3 * (b - a) for a, b in itertools.pairwise(ends)][3:-1]
    row = {"ms": statistics.median(took)}
    row["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    if engine == "fused":
        rows = kernels(lambda: list(predict_batches(made, source, device="cuda", engine=engine)))
        row["parts_ms"] = parts(rows, len(source))
        row["busy_ms"] = sum(row["parts_ms"].values())
        row["kernels"] = [(k[:60], ms / len(source), c) for k, ms, c in rows[:16]]
    return row


def twin_row(batches, n: int) -> tuple[dict, dict]:
    before = clean()
    field_of = torch.repeat_interleave(torch.arange(FIELDS, device="cuda"), sizes().long())
    twin, rng = CtrTwin(field_of), torch.Generator().manual_seed(0)
    rows = [(ids.long(), y) for ids, y in batches]

    def timed(work: Callable[[int], None], n: int) -> float:
        took = []
        for i in range(n + 2):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work(i)
            torch.cuda.synchronize()
            took.append(1e3 * (time.perf_counter() - start))
        return statistics.median(took[2:])

    def mini_batch(i: int) -> None:
        kept = k_shot(torch.arange(FIELDS), 24, STEPS, rng).float().cuda()
        twin.mini_batch(*rows[i % len(rows)], kept)

    train = {"ms": timed(mini_batch, n)}
    train["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    twin.net.eval()
    everything, twin.drop_edge = torch.ones(FIELDS, device="cuda"), 0.0

    @torch.no_grad()
    def predict(i: int) -> None:
        twin._logits(rows[i % len(rows)][0], everything)

    return train, {"ms": timed(predict, 3 * n)}


def main() -> None:
    torch.set_float32_matmul_precision("high")
    out = {
        "bench": "gpu-engine",
        **about("cuda"),
        "unit": "milliseconds a mini-batch, median",
        "after 50 steps": {},
        "rows": {},
    }
    few = [batch(20_000, 100 + seed) for seed in range(10)]
    field_of = torch.repeat_interleave(torch.arange(FIELDS, device="cuda"), sizes().long())
    for name, precision, times in (
        *(("tf32", "high", 1.0), ("float32", "highest", 1.0)),
        *(("tf32, start times 30", "high", 30.0), ("float32, start times 30", "highest", 30.0)),
        *(("tf32, start times 300", "high", 300.0), ("float32, start times 300", "highest", 300.0)),
    ):
        torch.set_float32_matmul_precision(precision)
        found = out["after 50 steps"][name] = equality(model(0.0), few, field_of, STEPS, times)
        for what, row in found.items():
            print(name, what, json.dumps(row), flush=True)
    del few
    torch.set_float32_matmul_precision("high")
    only = [int(float(x)) for x in sys.argv[2:]] or [100_000, 1_000_000]
    for B in only:
        batches, large = [batch(B, seed) for seed in range(4)], B >= 500_000
        n = 12 if large else 30
        row = {"train": {}, "infer": {}}
        out["rows"][str(B)] = row

        def note(kind: str, name: str, found: dict, row=row, B=B) -> None:
            row[kind][name] = found
            short = {k: v for k, v in found.items() if k != "kernels"}
            print(B, kind, name, json.dumps(short), flush=True)
            with open(sys.argv[1], "w") as file:
                json.dump(out, file, indent=1)

        note("train", "fused", train_ours(batches, n, True, engine="fused"))
        mixed = {"engine": "fused", "mixed_precision": True}
        note("train", "fused_mixed_precision", train_ours(batches, n, True, **mixed))
        note("infer", "fused", infer_ours(batches, 2 * n, "fused"))
        train, infer = twin_row(batches, 3 if large else 6)
        note("train", "twin", train)
        note("infer", "twin", infer)
        note("train", "plain", train_ours(batches, 1 if large else 4, False, engine="plain"))
        note("infer", "plain", infer_ours(batches, 4, "plain"))
        row["ratio"] = {
            f"{kind} {key}": row[kind]["twin"][key] / row[kind]["fused"][key]
            for kind, key in (("train", "ms"), ("train", "peak_gb"), ("infer", "ms"))
        }
        print(B, "ratio", row["ratio"], flush=True)
        with open(sys.argv[1], "w") as file:
            json.dump(out, file, indent=1)
        del batches


if __name__ == "__main__":
    main()
