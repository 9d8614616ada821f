"""Where tests of Triton kernels run: on a GPU, or on the CPU by ``TRITON_INTERPRET=1``."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from openfate.models import FATE
from openfate.training import Settings
from openfate.training.engine import Seeds, make_engine
from openfate.training.fused.sums import BatchGraph, Keep

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = HAS_TRITON and torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_GPU else "cpu"

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="no GPU with Triton here")
needs_kernels = pytest.mark.skipif(
    not (ON_GPU or INTERPRETED), reason="no GPU with Triton here, and TRITON_INTERPRET is not 1"
)


def as_good_as_plain(fast: Tensor, plain: Tensor, exact: Tensor, slack: float = 1e-6) -> None:
    """Against float64 at most twice the error of plain torch in the same precision."""
    assert fast.isfinite().all()
    error, allowed = (fast - exact).norm(), 2 * (plain - exact).norm()
    assert error <= allowed + slack * exact.norm() + 1e-12, (float(error), float(allowed))


def kept_edges(batch: BatchGraph, keep: Keep) -> Tensor:
    """(B, d) bool: the edges that DropEdge leaves, as the kernels see them; in plain torch."""
    edge = torch.arange(batch.local.numel(), device=batch.local.device)
    there = batch.local.T >= 0
    if keep.seed is None or keep.threshold == 0:
        return there
    low, high = keep.seed & 0xFFFFFFFF, (keep.seed >> 32) & 0xFFFFFFFF
    first, second = _mix(low ^ _mix(high ^ 0x9E3779B9)), _mix(high ^ _mix(low ^ 0x85EBCA6B))
    x = (edge * (first | 1) + second) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = (((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF) >> 8
    return there & (bits >= keep.threshold).view_as(there)


def _mix(x: Tensor) -> Tensor:
    """32-bit finaliser in int64 arithmetic, as `mix_bits`."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def kept_elements(n_rows: int, n_columns: int, p: float, seed: Tensor) -> Tensor:
    """(n_rows, n_columns) bool: the elements that Dropout leaves, by the hash of DropEdge."""
    none = torch.empty(0, dtype=torch.int32, device=seed.device)
    there = torch.zeros(n_columns, n_rows, dtype=torch.int32, device=seed.device)
    return kept_edges(BatchGraph(n_rows, there, *[none] * 5), Keep(p, seed))


def first_gradients(model: FATE, settings: Settings, ids: Any, y: Any) -> dict[str, Tensor]:
    """The gradients of an engine's first step, in float64, by the names of the parameters."""
    engine: Any = make_engine(model, replace(settings, n_draws=1), DEVICE)
    found, W, rooms = {}, torch.zeros_like(model.W), []
    if hasattr(engine, "rooms"):  # the fused engine's, of which the last one checked is used
        check = engine.rooms.check
        engine.rooms.check = lambda *args: rooms.append(check(*args)) or rooms[-1]

    def note_tables(one: Tensor, two: Tensor) -> None:  # the fused engine's, instead of Adam on W
        features = rooms[-1].batch.features
        there = features >= 0
        W[features[there].long()] = (one + two)[there, : W.size(1)]

    def note() -> None:  # instead of Adam on the network, which both engines call
        if not hasattr(engine, "adam"):
            W[batch.ids.long()] = engine.table.rows.grad
        found.update({k: p.grad.clone() for k, p in model.named_parameters() if k != "W"})

    engine.theta.step = note
    if hasattr(engine, "adam"):
        engine.adam.step = note_tables
        engine.rooms.leave = lambda room: None  # nothing is recorded
    batch = engine.prepare(ids, y)
    engine.learn(batch, Seeds.of(0, 1))
    engine.close()
    return {name: value.double() for name, value in (found | {"W": W}).items()}
