"""One epoch of the paper's click model over a synthetic log: rows a second, and what it learned.

Rows are drawn while the model trains, by processes of their own, so that a GPU is not kept waiting;
how fast they draw when nobody trains is measured apart.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from openfate.models import FATE
from openfate.table import Batch, batches_of
from openfate.training import Settings, Step, StreamingAUC, predict_batches, train
from openfate_lab.arguments import at_least
from openfate_lab.bench.cases import ClickCase
from openfate_lab.bench.memory import forget_peak
from openfate_lab.bench.record import about, now, tell, use_device
from openfate_lab.data import BLOCK_ROWS, SyntheticStream


def bench_epoch(
    n_rows: int = 20_000_000,
    device: str = "cuda",
    batch_rows: int = 100_000,
    n_features: int = 5_300_000,
    n_workers: int | None = None,
) -> dict[str, Any]:
    """Train FATE-NN on `n_rows` rows of `SyntheticStream`, of Criteo's shape, once.

    Parameters
    ----------
    batch_rows
        B.
    n_features
        Of the log, about half of them observed; the others are new in the validation rows.
    n_workers
        Processes that draw rows; as many as there are cores by default.
    """
    use_device(device)
    at_least(2, n_rows=n_rows, batch_rows=batch_rows)
    at_least(1, n_workers=1 if n_workers is None else n_workers)
    if device == "cuda":
        forget_peak()
    log = {"n_rows": 2 * n_rows, "n_features": n_features, "n_days": 2}
    stream = SyntheticStream(**log)  # the first day is for training
    model = ClickCase(batch_rows, n_features=stream.n_observed).model()
    n_workers = n_workers or os.cpu_count() or 1
    drawers = Drawers(log, n_workers)
    draws = _draw_rates(stream, drawers, min(n_rows, n_workers * 8 * BLOCK_ROWS))
    losses: list[float] = []
    n_batches = -(-n_rows // batch_rows)

    def note(step: Step) -> None:
        losses.append(step.train_loss)
        if 10 * step.number // n_batches > 10 * (step.number - 1) // n_batches:
            tell(f"epoch: mini-batch {step.number} of {n_batches}, loss {step.train_loss:.4f}")

    def read(epoch: int) -> Iterator[Batch]:
        return drawers.batches(n_rows, batch_rows)

    started = now(device)
    settings = Settings.clicks(n_kept=24, n_ahead=3)
    train(model, read, settings=settings, device=device, on_step=note)
    seconds = now(device) - started
    draw_seconds = n_rows / draws["rows_per_second"]
    tenth = max(1, len(losses) // 10)
    row = {
        "n_rows": n_rows,
        "batch_rows": batch_rows,
        "n_observed": stream.n_observed,
        "seconds": round(seconds, 3),
        "rows_per_second": round(n_rows / seconds),
        "drawing": {**draws, "seconds": round(draw_seconds, 3)},
        "drawing_share": round(draw_seconds / seconds, 3),
        "peak_bytes": _peak_bytes(device),
        "loss_of_first_tenth": round(float(np.mean(losses[:tenth])), 5),
        "loss_of_last_tenth": round(float(np.mean(losses[-tenth:])), 5),
        "validation": _validate(model, stream, device, batch_rows),
    }
    return {"bench": "epoch", **about(device), "workers": n_workers, "rows": [row]}


def _draw_rates(stream: SyntheticStream, drawers: Drawers, n_rows: int) -> dict[str, float]:
    """Rows a second of one process alone, and of all of them when nobody trains."""
    stream.block(0)
    started = time.perf_counter()
    drawn = len(stream.block(0).y)
    alone = drawn / (time.perf_counter() - started)
    for _ in drawers.batches(n_rows, BLOCK_ROWS):  # the processes start and set up
        pass
    started = time.perf_counter()
    for _ in drawers.batches(n_rows, BLOCK_ROWS):
        pass
    together = n_rows / (time.perf_counter() - started)
    return {"rows_per_second": round(together), "rows_per_second_of_one": round(alone)}


def _validate(
    model: FATE, stream: SyntheticStream, device: str, batch_rows: int, n_rows: int = 200_000
) -> dict[str, float]:
    """AUC on the first rows of the second day, a tenth of whose values are new."""
    first = itertools.islice(stream.batches("validation", batch_rows), -(-n_rows // batch_rows))
    score, clicks = StreamingAUC(), 0.0
    for logits, y in predict_batches(model, first, device=device):
        score.add(logits, y)
        clicks += float(y.sum())
    shares = {"auc": score.value(), "base_rate": clicks / score.n_rows}
    shares["auc_of_the_true_logits"] = stream.ceiling("validation")["all"]
    return {"n_rows": score.n_rows, **{name: round(x, 4) for name, x in shares.items()}}


def _peak_bytes(device: str) -> int:
    """What the run held at most: on the GPU, or in this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ---- drawing rows --------------------------------------------------------------------------


class Drawers:
    """Processes that draw blocks of a `SyntheticStream`, which come by shared memory and in order.

    WHY: numpy draws under its global lock, so that threads do not help.

    Parameters
    ----------
    log
        The arguments of `SyntheticStream`.
    """

    def __init__(self, log: dict[str, int], n_workers: int) -> None:
        self.numbers: list[int] = []  # of the blocks to draw: the processes stay for the next ones
        self.loader = DataLoader(
            _Blocks(log),
            batch_size=None,
            sampler=self.numbers,
            num_workers=n_workers,
            multiprocessing_context="spawn",
            persistent_workers=True,
        )

    def batches(self, n_rows: int, batch_rows: int) -> Iterator[Batch]:
        """The first rows of the log, in order."""
        sizes = [min(BLOCK_ROWS, n_rows - first) for first in range(0, n_rows, BLOCK_ROWS)]
        self.numbers[:] = range(len(sizes))
        blocks = iter(self.loader)

        def load(number: int) -> Batch:
            ids, y = next(blocks)
            return ids[: sizes[number]].numpy(), y[: sizes[number]].numpy()

        return batches_of(sizes, load, batch_rows)


class _Blocks(Dataset[tuple[Tensor, Tensor]]):
    """Blocks by number; each process makes the stream for itself."""

    def __init__(self, log: dict[str, int]) -> None:
        self.log = log

    @cached_property
    def stream(self) -> SyntheticStream:
        return SyntheticStream(**self.log)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        block = self.stream.block(number)
        return torch.from_numpy(block.ids), torch.from_numpy(block.y)
