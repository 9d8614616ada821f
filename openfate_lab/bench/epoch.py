"""One epoch of the paper's click model over a synthetic log: rows a second, and what it learned.

Rows are drawn while the model trains, by processes of their own that write into shared memory, so
that a GPU is not kept waiting; how fast they draw when nobody trains is measured apart.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.models import FATE, MLP, GraphSAGE
from openfate.training import Settings, Step, StreamingAUC, predict_batches, train
from openfate_lab.bench.record import about, check_at_least, check_device, now, tell
from openfate_lab.data.synthetic import BLOCK_ROWS, SyntheticStream

__all__ = ["Drawers", "bench_epoch"]

Rows = tuple[NDArray[np.int32], NDArray[np.float32]]


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
    check_device(device)
    check_at_least(2, rows=n_rows, batch_rows=batch_rows)
    check_at_least(1, workers=1 if n_workers is None else n_workers)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.cuda.reset_peak_memory_stats()
    log = {"n_rows": 2 * n_rows, "n_features": n_features, "n_days": 2}
    stream = SyntheticStream(**log)  # the first day is for training
    network = MLP(10, 1, (400, 400), batch_norm=True, dropout=0.5)
    model = FATE(stream.n_observed, network, GraphSAGE(10), recompose="all")
    n_workers = n_workers or os.cpu_count() or 1
    with Drawers(log, len(stream.fields), n_workers) as drawers:
        draws = _draw_rates(stream, drawers, min(n_rows, n_workers * 8 * BLOCK_ROWS))
        losses: list[float] = []
        n_batches = -(-n_rows // batch_rows)

        def note(step: Step) -> None:
            losses.append(step.train_loss)
            if 10 * step.number // n_batches > 10 * (step.number - 1) // n_batches:
                tell(f"epoch: mini-batch {step.number} of {n_batches}, loss {step.train_loss:.4f}")

        started = now(device)
        train(
            model,
            lambda _: drawers.batches(n_rows, batch_rows),
            settings=Settings.clicks(n_kept=24, n_ahead=3),
            device=device,
            on_step=note,
        )
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
    """Processes that draw blocks of a `SyntheticStream` into shared memory.

    WHY: numpy draws under its global lock, so that threads do not help; and rows that travel
    through a pipe are copied four times.

    Parameters
    ----------
    log
        The arguments of `SyntheticStream`.
    n_fields
        d.
    """

    def __init__(self, log: dict[str, int], n_fields: int, n_workers: int) -> None:
        self.n_fields, self.n_slots = n_fields, 2 * n_workers
        size = self.n_slots * BLOCK_ROWS * (n_fields + 1) * 4
        self.memory = SharedMemory(create=True, size=size)
        self.ids, self.y = _slots(self.memory, self.n_slots, n_fields)
        self.pool = ProcessPoolExecutor(
            n_workers, get_context("spawn"), _set_up, (log, self.memory.name, self.n_slots)
        )

    def __enter__(self) -> Drawers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pool.shutdown(cancel_futures=True)
        del self.ids, self.y  # a memory that arrays look into cannot be closed
        self.memory.close()
        self.memory.unlink()

    def batches(self, n_rows: int, batch_rows: int) -> Iterator[Rows]:
        """The first rows of the log, in order, in batches that are the caller's to keep."""
        ids, y, filled = *self._empty(batch_rows), 0
        for block_ids, block_y in self._blocks(n_rows):
            at = 0
            while at < len(block_y):
                n = min(batch_rows - filled, len(block_y) - at)
                ids[filled : filled + n] = block_ids[at : at + n]
                y[filled : filled + n] = block_y[at : at + n]
                at, filled = at + n, filled + n
                if filled == batch_rows:
                    yield ids, y
                    ids, y, filled = *self._empty(batch_rows), 0
        if filled:
            yield ids[:filled], y[:filled]

    def _empty(self, n_rows: int) -> Rows:
        return np.empty((n_rows, self.n_fields), np.int32), np.empty(n_rows, np.float32)

    def _blocks(self, n_rows: int) -> Iterator[Rows]:
        """Views of blocks, each good until the next one is asked for."""
        numbers = iter(range(-(-n_rows // BLOCK_ROWS)))
        waiting: deque[tuple[int, int, Future[None]]] = deque()

        def ask(slot: int) -> None:
            number = next(numbers, None)
            if number is not None:
                waiting.append((number, slot, self.pool.submit(_draw, number, slot)))

        for slot in range(self.n_slots):
            ask(slot)
        while waiting:
            number, slot, drawn = waiting.popleft()
            drawn.result()
            n = min(BLOCK_ROWS, n_rows - number * BLOCK_ROWS)
            yield self.ids[slot, :n], self.y[slot, :n]
            ask(slot)


def _slots(memory: SharedMemory, n_slots: int, n_fields: int) -> Rows:
    """Ids (slots, rows, d) and labels (slots, rows) in the memory."""
    ids_shape = (n_slots, BLOCK_ROWS, n_fields)
    ids: NDArray[np.int32] = np.ndarray(ids_shape, np.int32, memory.buf)
    y: NDArray[np.float32] = np.ndarray(ids_shape[:2], np.float32, memory.buf, ids.nbytes)
    return ids, y


# In a drawing process: its stream, the memory (which must not be forgotten) and the places in it.
_mine: tuple[SyntheticStream, SharedMemory, Rows] | None = None


def _set_up(log: dict[str, int], name: str, n_slots: int) -> None:
    global _mine
    torch.set_num_threads(1)
    stream, memory = SyntheticStream(**log), SharedMemory(name)
    _mine = stream, memory, _slots(memory, n_slots, len(stream.fields))


def _draw(number: int, slot: int) -> None:
    assert _mine is not None
    stream, _, (ids, y) = _mine
    block = stream.block(number)
    ids[slot, : len(block.y)], y[slot, : len(block.y)] = block.ids, block.y
