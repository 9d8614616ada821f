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


def _step(
    watch: _Watch,
    model: FATE,
    X: Bipartite,
    y: Tensor,
    kept: Tensor,
    rng: torch.Generator,
    optimizer: torch.optim.Optimizer | LeanAdam,
    table: RowAdam | None = None,
) -> None:
    """One mask of a step: there and back, the network apart from the sums that it reads."""
    edges = drop_edges(X, 0.5, rng)
    watch("drop_edge")
    optimizer.zero_grad()
    z = model.sums(X, kept, edges, None if table is None else table.rows)
    watch("sums")
    leaf = z.detach().requires_grad_()
    log_loss(model.backbone(leaf), y).backward()  # type: ignore[no-untyped-call]
    watch("network")
    z.backward(leaf.grad)  # type: ignore[no-untyped-call]
    watch("sums")
    optimizer.step()
    if table is not None:
        table.step()
    watch("optimizer")


def table_parts(
    model: FATE, X: MultiHot, y: NDArray[np.int64], repeats: int = 20
) -> dict[str, float]:
    """Milliseconds an epoch."""
    graph, labels = Bipartite.from_multihot(X), torch.from_numpy(y)
    optimizer = LeanAdam([model.W, *model.backbone.parameters()], 1e-2)
    rng, watch = torch.Generator().manual_seed(0), _Watch()
    for _ in range(repeats):
        for kept in n_fold(X.n_features, 5, rng):
            _step(watch, model, graph, labels, kept, rng, optimizer)
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
            _step(watch, model, batch.X, batch.y, kept, rng, theta, table)
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
    for name, ms, _ in kernel_times(told):
        part = part_of(name).split(",")[0]
        total[part] = total.get(part, 0.0) + ms
    return {part: round(ms / n_batches, 3) for part, ms in total.items()}


def kernel_times(told: profile) -> list[tuple[str, float, int]]:
    """Name, milliseconds and calls of the kernels of a profile, the longest first."""
    found = [(e.key, e.self_device_time_total / 1e3, e.count) for e in told.key_averages()]
    return sorted((kernel for kernel in found if kernel[1] > 0), key=lambda kernel: -kernel[1])


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
