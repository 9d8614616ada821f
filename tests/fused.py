"""Where tests of Triton kernels run: on a GPU, or on the CPU by ``TRITON_INTERPRET=1``."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.training import Settings
from openfate.training import engine as engines
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


def interpret_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fused engine run on a CPU, where the kernels are interpreted program by program."""
    if not INTERPRETED:
        return
    from openfate.training.fused import click_engine, mlp

    # WHY: each place for a chunk of edges is a program, and a room has 256 of them or more.
    monkeypatch.setattr(click_engine, "_round_up", lambda n: n + 1)
    monkeypatch.setattr(mlp, "SHARDS", 2)
    monkeypatch.setattr(mlp, "FIRST_BACKWARD_PRECISE", (16, 8, 2))
    at = engines._device_obstacle
    monkeypatch.setattr(
        engines, "_device_obstacle", lambda m, d: None if str(d) == "cpu" else at(m, d)
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


def drop_as_kernels_do(engine: Any, seeds: Seeds) -> None:
    """Let a plain engine drop, in its next mini-batch, the edges that the fused one drops."""
    from openfate.training.fused.click_engine import _draws

    drawn = _draws(torch.ones(16, 0, dtype=torch.bool), seeds)[:, :8].contiguous()
    steps = iter(drawn.view(torch.int64)[:, 0].to(DEVICE).split(1))

    def left_of(X: Bipartite, rho: float, seed: Tensor) -> Bipartite:
        assert X.field_of is not None
        n_fields = int(X.field_of.max()) + 1  # of all features, also where edges are out
        there = torch.zeros(n_fields, X.n_rows, dtype=torch.int32, device=seed.device)
        left = kept_edges(BatchGraph(X.n_rows, there, *[there[:0, 0]] * 5), Keep(rho, seed))
        row = torch.arange(X.n_rows, device=seed.device).repeat_interleave(X.row_ptr.diff())
        return X.keep_edges(left[row, X.field_of[X.feature]])

    def draw(X: Bipartite, rho: float) -> Edges:
        seed = next(steps)
        if not engine.settings.drop_edge_directed:
            return Edges.of(left_of(X, rho, seed))
        return Edges(left_of(X, rho, seed), left_of(X, rho, ~seed))

    engine.draw_edges = draw


def first_gradients(model: FATE, settings: Settings, ids: Any, y: Any) -> dict[str, Tensor]:
    """The gradients of an engine's first mini-batch, in float64, by the names of the parameters.

    Nothing is stepped meanwhile: of several masks the last one's, and the extrapolator's, which
    pile up, of all of them.
    """
    engine: Any = make_engine(model, replace(settings, n_draws=1), DEVICE)
    found, W, rooms = {}, torch.zeros_like(model.W), []
    if hasattr(engine, "rooms"):  # the fused engine's, of which the last one checked is used
        check = engine.rooms.check
        engine.rooms.check = lambda *args: rooms.append(check(*args)) or rooms[-1]

    def note_tables(one: Tensor, two: Tensor | None = None) -> None:
        """The fused engine's, instead of Adam on W."""
        features, both = rooms[-1].batch.features, one if two is None else one + two
        there = features >= 0
        W[features[there].long()] = both[there, : W.size(1)]

    def note() -> None:  # instead of Adam on the network, which both engines call
        if not hasattr(engine, "adam"):
            W[batch.ids.long()] = engine.table.rows.grad
        note_those_of("backbone")

    def note_those_of(part: str) -> None:
        grads = {k: p.grad for k, p in model.named_parameters() if k.startswith(part)}
        found.update({k: g.clone() for k, g in grads.items() if g is not None})

    def forget() -> None:  # instead of Adam on W, the plain engine's
        engine.table.rows.grad = None

    engine.theta.step = note
    engine.omega.step = lambda: note_those_of("extrapolator")
    if hasattr(engine, "adam"):
        engine.adam.step = note_tables
        engine.rooms.leave = lambda room: None  # nothing is recorded
    else:
        engine.table.step = forget
        drop_as_kernels_do(engine, Seeds.of(0, 1))
    batch = engine.prepare(ids, y)
    engine.learn(batch, Seeds.of(0, 1))
    engine.close()
    return {name: value.double() for name, value in (found | {"W": W}).items()}
