"""Where the time of ours goes, part by part: on a CPU with a watch, on a GPU from its kernels.

On a CPU every part is timed on its own, between two readings of a clock, so that parts need not add
up to what a whole run takes.  On a GPU kernels run on while Python goes ahead: their own times are
added up, by name.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.table import MultiHot
from openfate.training import Batch, LeanAdam, RowAdam, drop_edges, k_shot, log_loss, n_fold

__all__ = [
    "KERNELS",
    "click_parts",
    "click_prediction_parts",
    "kernel_parts",
    "part_of",
    "table_parts",
    "table_prediction_parts",
]

Rows = Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]]

# Words in the names of kernels; the first part that has one of them takes the kernel.  A part that
# is split has its name before the comma.
KERNELS = {
    "optimizer": ("adam", "_tick_kernel", "_where_kernel", "multi_tensor"),
    "sort": (
        *("sort", "first_kernel", "number_kernel", "pieces_kernel", "chunk_kernel", "scan"),
        "fill_reverse",
    ),
    "sums, over edges": ("features_kernel", "slots_kernel", "rows_", "embedding_bag"),
    "sums, between": ("update_", "gather_kernel", "collect_kernel"),
    "network, folding": ("fold_", "pull_kernel"),
    "network, products": ("gemm", "cutlass", "nvjet", "splitkreduce"),
    "network, passes": ("moments", "layer", "backward", "last_sums", "add_pull", "predict"),
}


class _Watch:
    """Adds up the time since the last call by name."""

    def __init__(self) -> None:
        self.total: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        self.at = time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.total[part] = self.total.get(part, 0.0) + now - self.at
        self.at = now

    def milliseconds(self, repeats: int) -> dict[str, float]:
        return {part: round(seconds / repeats * 1e3, 3) for part, seconds in self.total.items()}


def _there_and_back(watch: _Watch, model: FATE, z: Tensor, y: Tensor) -> None:
    """The network from the sums z and back to them, and from there back to the embeddings."""
    leaf = z.detach().requires_grad_()
    log_loss(model.backbone(leaf), y).backward()  # type: ignore[no-untyped-call]
    watch("network")
    z.backward(leaf.grad)  # type: ignore[no-untyped-call]
    watch("sums")


def table_parts(
    model: FATE, X: MultiHot, y: NDArray[np.int64], repeats: int = 20
) -> dict[str, float]:
    """Milliseconds an epoch."""
    graph, labels = Bipartite.from_multihot(X), torch.from_numpy(y)
    optimizer = LeanAdam([model.W, *model.backbone.parameters()], 1e-2)
    rng, watch = torch.Generator().manual_seed(0), _Watch()
    for _ in range(repeats):
        for kept in n_fold(X.n_features, 5, rng):
            edges = drop_edges(graph, 0.5, rng)
            watch("drop_edge")
            optimizer.zero_grad()
            z = model.sums(graph, kept, edges)
            watch("sums")
            _there_and_back(watch, model, z, labels)
            optimizer.step()
            watch("optimizer")
    return watch.milliseconds(repeats)


@torch.no_grad()
def table_prediction_parts(model: FATE, X: MultiHot, repeats: int = 20) -> dict[str, float]:
    """Milliseconds a prediction of all rows."""
    watch = _Watch()
    for _ in range(repeats):
        graph = Bipartite.from_multihot(X)
        watch("sort")
        z = model.backbone.sums(graph, model.extrapolate(graph))
        watch("sums")
        model.backbone(z)
        watch("network")
    return watch.milliseconds(repeats)


def click_parts(model: FATE, rows: Rows, n_kept: int, n_draws: int) -> dict[str, float]:
    """Milliseconds a mini-batch."""
    watch, rng = _Watch(), torch.Generator().manual_seed(0)
    table = RowAdam(model.W.detach(), 1e-4)
    theta = torch.optim.Adam(model.backbone.parameters(), 1e-4, fused=True)
    watch.start()
    for ids, y in rows:
        batch = Batch.of(ids, y)
        watch("sort")
        table.touch(batch.ids)
        watch("embeddings")
        assert batch.X.field_of is not None
        fields = torch.arange(ids.shape[1])
        for kept in k_shot(fields, n_kept, n_draws, rng)[:, batch.X.field_of]:
            edges = drop_edges(batch.X, 0.5, rng)
            watch("drop_edge")
            theta.zero_grad()
            z = model.sums(batch.X, kept, edges, table.rows)
            watch("sums")
            _there_and_back(watch, model, z, batch.y)
            theta.step()
            table.step()
            watch("optimizer")
        table.release()
        watch("embeddings")
    return watch.milliseconds(len(rows))


@torch.no_grad()
def click_prediction_parts(model: FATE, rows: Rows) -> dict[str, float]:
    """Milliseconds a mini-batch."""
    model.eval()
    watch = _Watch()
    for ids, y in rows:
        batch = Batch.of(ids, y)
        watch("sort")
        W = model.W.index_select(0, batch.ids)
        watch("embeddings")
        kept = torch.ones(len(batch.ids), dtype=torch.bool)
        z = model.sums(batch.X, kept, Edges.of(batch.X), W)
        watch("sums")
        model.backbone(z)
        watch("network")
    return watch.milliseconds(len(rows))


def kernel_parts(run: Callable[[], object], n_batches: int) -> dict[str, float]:
    """Milliseconds that kernels on a GPU take for one of the mini-batches of a run, by part."""
    with warnings.catch_warnings():
        # Torch warns that a profile of several cycles forgets all but the last; this one has one.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with profile(activities=[ProfilerActivity.CUDA]) as told:
            run()
    total: dict[str, float] = {}
    for event in told.key_averages():
        part = part_of(event.key).split(",")[0]
        total[part] = total.get(part, 0.0) + event.self_device_time_total
    return {part: round(us / 1e3 / n_batches, 3) for part, us in total.items() if us > 0}


def part_of(kernel: str) -> str:
    """The part of `KERNELS` that a kernel of this name belongs to, or "other".

    Examples
    --------
    >>> part_of("fold_first_backward"), part_of("DeviceRadixSortOnesweepKernel")
    ('network, folding', 'sort')
    """
    name = kernel.lower()
    parts = (part for part, words in KERNELS.items() if any(word in name for word in words))
    return next(parts, "other")
