"""One epoch of the paper's click model over a synthetic log: rows a second, and what it learned.

Rows are drawn while the model trains, by processes of their own, so that a GPU is not kept waiting;
how fast they draw when nobody trains is measured apart.  Or they lie on disk, as `fit` keeps rows
that are many, and are read while the model trains.  Beside the rows a second of the epoch stand
those of its mini-batches alone, rows at hand, and of the peer's.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from openfate.models import FATE
from openfate.table import Batch, DiskRows, MultiHot, RowWriter, batches_of
from openfate.training import Settings, Step, StreamingAUC, predict_batches, train
from openfate_lab.arguments import at_least
from openfate_lab.bench.cases import ClickCase, milliseconds
from openfate_lab.bench.memory import forget_peak
from openfate_lab.bench.record import about, now, tell, use_device
from openfate_lab.data import BLOCK_ROWS, SyntheticStream


def bench_epoch(
    n_rows: int = 20_000_000,
    device: str = "cuda",
    batch_rows: int = 100_000,
    n_features: int = 5_300_000,
    n_workers: int | None = None,
    on_disk: bool = False,
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
    on_disk
        Whether the rows lie on disk before the epoch begins.
    """
    use_device(device)
    at_least(2, n_rows=n_rows, batch_rows=batch_rows)
    at_least(1, n_workers=1 if n_workers is None else n_workers)
    if device == "cuda":
        forget_peak()
    log = {"n_rows": 2 * n_rows, "n_features": n_features, "n_days": 2}
    stream = SyntheticStream(**log)  # the first day is for training
    case = ClickCase(batch_rows, n_features=stream.n_observed, device=device)
    model = case.model()
    n_workers = n_workers or os.cpu_count() or 1
    drawers = Drawers(log, n_workers)
    draws = _draw_rates(stream, drawers, min(n_rows, n_workers * 8 * BLOCK_ROWS))
    losses: list[float] = []
    n_batches = -(-n_rows // batch_rows)

    def note(step: Step) -> None:
        losses.append(step.train_loss)
        if 10 * step.number // n_batches > 10 * (step.number - 1) // n_batches:
            tell(f"epoch: mini-batch {step.number} of {n_batches}, loss {step.train_loss:.4f}")

    def run(rows: Callable[[int, int], Iterator[Batch]]) -> float:
        started = now(device)
        settings = Settings.clicks(n_kept=24, n_ahead=3)
        train(
            model,
            lambda _: rows(n_rows, batch_rows),
            settings=settings,
            device=device,
            on_step=note,
        )
        return now(device) - started

    if on_disk:
        with tempfile.TemporaryDirectory(prefix="openfate-epoch-") as folder:
            seconds = run(Stored(Path(folder), drawers.batches(n_rows, _STORED_ROWS)).batches)
    else:
        seconds = run(drawers.batches)
    peak_bytes = _peak_bytes(device)
    draw_seconds = n_rows / draws["rows_per_second"]
    tenth = max(1, len(losses) // 10)
    row = {
        "n_rows": n_rows,
        "batch_rows": batch_rows,
        "n_observed": stream.n_observed,
        "rows": "on disk" if on_disk else "drawn",
        "seconds": round(seconds, 3),
        "rows_per_second": round(n_rows / seconds),
        **_rates_of_mini_batches(case),
        "drawing": {**draws, "seconds": round(draw_seconds, 3)},
        "drawing_share": round(draw_seconds / seconds, 3),
        "peak_bytes": peak_bytes,
        "loss_of_first_tenth": round(float(np.mean(losses[:tenth])), 5),
        "loss_of_last_tenth": round(float(np.mean(losses[-tenth:])), 5),
        "validation": _validate(model, stream, device, batch_rows),
    }
    return {"bench": "epoch", **about(device), "workers": n_workers, "rows": [row]}


def _rates_of_mini_batches(case: ClickCase) -> dict[str, int | None]:
    """Rows a second of one mini-batch after the other, rows at hand: ours, and the peer's."""
    sides = {"ours": (case.ours(), 3)}
    if find_spec("torch_geometric") is not None:
        sides["peer"] = (case.peer(), 1)
    ms = milliseconds(sides, repeats=3)
    rates = {side: round(1e3 * case.n_rows / ms[side]) for side in sides}
    return {
        "mini_batches_rows_per_second": rates["ours"],
        "peer_rows_per_second": rates.get("peer"),
    }


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


# ---- rows on disk --------------------------------------------------------------------------

_STORED_ROWS = 1 << 20  # that are written at once


class Stored:
    """Rows of a folder, as `fit` keeps those of a table on disk; their labels stay in memory."""

    def __init__(self, folder: Path, drawn: Iterator[Batch]) -> None:
        writer, labels, n_features = RowWriter(folder, has_values=False), [], 0
        for ids, y in drawn:
            row_ptr = np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
            n_features = max(n_features, int(ids.max()) + 1)
            writer.append(MultiHot(row_ptr, ids.ravel(), n_features))
            labels.append(y)
        self.X, self.y = DiskRows(folder, n_features), np.concatenate(labels)

    def batches(self, n_rows: int, batch_rows: int) -> Iterator[Batch]:
        """The first rows, in order."""
        for start in range(0, n_rows, batch_rows):
            end = min(start + batch_rows, n_rows)
            yield self.X.cut(start, end).ids.reshape(end - start, -1), self.y[start:end]


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
