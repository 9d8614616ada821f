"""The fused engine: Algorithm 1 on mini-batches of clicks in Triton kernels and CUDA graphs.

A step of the paper's click model is kernels from end to end; one of another model has some parts in
plain torch (`openfate.training.fused.coverage`, `composed`), between the same kernels.

A step reads W and the moments of its Adam where they are, and writes them, the network's weights
and BatchNorm's running statistics back: nothing is copied out.  No kernel uses atomics, and random
bits are hashes of the mini-batch's seeds: equal runs give equal bits, without a switch.

A step is some sixty short kernels, which take longer to launch than to run at B = 100,000.  Batches
of one shape (B, d) therefore share a room, tensors that stay where they are; what happens in a room
is done once as it stands, which also compiles it, and replayed from a recording from then on.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.models import FATE
from openfate.training.batches import (
    Array,
    Batches,
    IdBatch,
    check_ids,
    check_labels,
    prepare_ahead,
)
from openfate.training.checkpoint import Checkpoint
from openfate.training.engine import Device, Engine, Seeds, check_observed
from openfate.training.fused import mlp, sage
from openfate.training.fused.adam import DenseAdam
from openfate.training.fused.composed import Composed, Live, Seen
from openfate.training.fused.coverage import Parts, deep_network, may_be_recorded
from openfate.training.fused.sums import BatchGraph, Keep, sum_at_features, sum_at_rows
from openfate.training.masking import draw_masks
from openfate.training.optim import RowAdam
from openfate.training.prediction import Predictions, Predictor
from openfate.training.settings import Settings

N_ROOMS = 2  # rooms that are kept: of full batches, and of the last one of an epoch
N_SEEDS = 3  # of a step: DropEdge, and Dropout in two layers


_log = logging.getLogger(__name__)


class FusedEngine(Engine):
    """What `fused_obstacle` lets pass.  Adam on W is dense, the numbers of "exact", or "lazy".

    `parts` tells what has kernels, and why the rest is plain torch; so does the log, once.
    """

    theta: torch.optim.Adam
    table: RowAdam

    def __init__(self, model: FATE, settings: Settings, device: Device) -> None:
        super().__init__(model, settings, device)
        self.parts, g = Parts.of(model, settings), model.extrapolator
        _log.info("engine 'fused': %s", self.parts.told())
        # WHY: torch's own, whose count of steps is on the device, where a recording reads it.
        adam: dict[str, Any] = {"betas": (0.9, settings.beta2), "fused": True}
        self.theta = torch.optim.Adam(model.backbone.parameters(), settings.lr, **adam)
        self.theta.param_groups[0]["capturable"] = model.W.is_cuda
        self.of_omega = [] if g is None else list(g.parameters())
        if self.of_omega:
            self.omega = torch.optim.Adam(self.of_omega, settings.lr_extrapolator, **adam)
        for p in (*model.backbone.parameters(), *self.of_omega):
            p.grad = torch.zeros_like(p)
        self.adam = DenseAdam(self.table)
        self.live = Live(model, self.parts)
        self.composed = Composed(model, self.live)
        self.by_feature = settings.masking == "n_fold"
        self.total = torch.zeros(1, dtype=torch.float64, device=model.W.device)
        step = self._step if self.parts.is_chain(model) else self._composed_step
        records = may_be_recorded(model.backbone)
        self.rooms = _Rooms(self._fill, step, by_feature=self.by_feature, records=records)
        self.n_unnoted = 0  # steps that the table has not been told of

    def prepare(self, ids: Array, y: Array) -> IdBatch:
        """Rows on the device; their graph is made there when it is their turn."""
        return IdBatch.of(ids, y, self.device)

    def learn(self, batch: IdBatch, seeds: Seeds | None = None) -> float:
        """Step phi and W at every mask, omega once; the mean loss of the masks."""
        assert seeds is not None
        if self.live.net is None:
            torch.manual_seed(seeds.dropout)
            if not self.model.training:
                self.model.train()
        room = self.rooms.enter(batch)
        self.mask_rng.manual_seed(seeds.masks)
        if not self.by_feature:
            draws = self._draw(batch.ids.size(1), seeds)
        room = self.rooms.check(room, batch)  # the host waits here
        check_observed(room.highest, len(self.model.W))
        if self.by_feature:
            draws = self._draw(room.n_touched, seeds)
        for draw in draws:
            room.draw[: len(draw)].copy_(draw)
            room.second()
            if not self.settings.async_updates:
                self._end_outer()
        if self.settings.async_updates:
            self._end_outer()
        if self.live.net is not None:
            for norm in cast("Any", deep_network(self.model.backbone)).norms:
                cast("Tensor", norm.num_batches_tracked).add_(len(draws))
        self.n_unnoted += len(draws)
        loss = float(self.total) / len(draws)
        self.rooms.leave(room)
        return loss

    def close(self) -> None:
        """Free the recordings and their memory."""
        self.rooms.close()

    def settle(self) -> None:
        """W is up to date; the table's notes become so."""
        self.table.note_steps(self.n_unnoted)
        self.n_unnoted = 0

    def state(self) -> dict[str, dict[str, Tensor]]:
        """As the plain engine's."""
        self.settle()
        return super().state()

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Also from a checkpoint of the plain engine, some of whose rows wait for their drift."""
        super().load_state(checkpoint)
        self.table.settle(moments=True)
        self.adam.t.fill_(self.table.t)

    def _draw(self, n_masked: int, seeds: Seeds) -> Tensor:
        """What the steps of a mini-batch draw, on the device soon: see `_draws`."""
        draws = _draws(draw_masks(self.settings, n_masked, self.mask_rng), seeds)
        draws = draws.pin_memory() if self.model.W.is_cuda else draws
        return draws.to(self.model.W.device, non_blocking=True)

    def _end_outer(self) -> None:
        if self.of_omega:
            self.omega.step()
            cast("torch.optim.Adam", self.omega).zero_grad(set_to_none=False)

    # ---- on the device ---------------------------------------------------------------------

    def _fill(self, room: _Room) -> None:
        room.fill()
        self.adam.set_batch(room.batch.features)
        self.total.zero_()

    def _step(self, room: _Room) -> None:
        """Kernels from end to end."""
        own, s, batch = self.live, self.settings, room.batch
        assert own.net is not None and own.weights is not None and own.gradients is not None
        keep = Keep(s.drop_edge, room.seeds[:1], fields=None if self.by_feature else room.kept)
        F0, kept = sage.gather(own.W, batch, room.kept, self.by_feature)
        F2, states = sage.forward(own.weights, batch, F0, keep, own.normalize)
        z, _ = sum_at_rows(batch, F2)
        dz, _ = mlp.loss_and_gradients(
            own.net, z, room.y, room.seeds[1:], self.total, s.mixed_precision
        )
        dF2, _ = sum_at_features(batch, dz)
        tables = sage.backward(
            own.weights, own.gradients, batch, states, dF2, kept, keep, own.normalize
        )
        self.adam.step(*tables)
        self.theta.step()

    def _composed_step(self, room: _Room) -> None:
        """Some parts in plain torch."""
        s, batch, own = self.settings, room.batch, None
        F0, may_use = sage.gather(self.live.W, batch, room.kept, self.by_feature)
        if self.model.backbone.reads_own:
            everything = torch.ones(batch.n_fields, dtype=torch.bool, device=F0.device)
            own, _ = sage.gather(self.live.W, batch, everything)
        there = may_use if s.columns_only else None
        keep = Keep(s.drop_edge, room.seeds[:1], features=there)
        # WHY the inverse: a seed of its own, without another number to draw.
        other = replace(keep, seed=~room.seeds[:1]) if s.drop_edge_directed else keep
        seen = Seen(batch, F0, may_use, own, keep, other, Keep(features=there))
        tables = self.composed.learn(seen, room.y, room.seeds[1:], self.total, s.mixed_precision)
        self.adam.step(*tables)
        self.theta.step()


class FusedPredictor(Predictor):
    """The same in Triton kernels; always in float32, or tf32 where torch may."""

    def __init__(self, model: FATE, device: Device, drop_new: bool) -> None:
        super().__init__(model, device, drop_new)
        parts = Parts.of(model)
        self.live = Live(model, parts)
        self.composed = Composed(model, self.live)
        records = may_be_recorded(model.backbone)
        forward = self._forward if parts.is_chain(model) else self._composed_forward
        self.rooms = _Rooms(forward, records=records)

    def logits(self, batches: Batches, n_ahead: int) -> Predictions:
        """Logits (B,) and labels (B,) of each mini-batch."""
        self.model.eval()
        under_way: list[_UnderWay] = []
        for rows in prepare_ahead(batches, lambda ids, y: IdBatch.of(ids, y, self.device), n_ahead):
            under_way.append(self._launch(rows))
            if len(under_way) > min(n_ahead, 1):
                yield self._result(under_way.pop(0))
        for last in under_way:
            yield self._result(last)

    def close(self) -> None:
        """Free the recordings and their memory."""
        self.rooms.close()

    def _launch(self, rows: IdBatch) -> _UnderWay:
        """Everything up to the transfer to the host, which nobody waits for."""
        room = self.rooms.enter(rows)
        answers = [_to_host(room.logits), _to_host(room.facts)]
        labels = _to_host(rows.y) if rows.labels is None else torch.from_numpy(rows.labels)
        done = torch.cuda.current_stream().record_event() if rows.y.is_cuda else None
        self.rooms.leave(room)
        return _UnderWay(rows, room, answers[0], answers[1], labels, done)

    def _result(self, one: _UnderWay) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if one.done is not None:
            one.done.synchronize()
        logits = one.logits
        if not one.room.check_facts(one.facts.tolist(), one.rows):
            logits = self.rooms.larger(one.rows).logits.cpu()
        return logits.numpy(), one.labels.numpy()

    def _forward(self, room: _Room) -> None:
        own = self.live
        assert own.net is not None and own.weights is not None
        room.fill(len(own.W) if self.drop_new else None)
        F0, _ = sage.gather(own.W, room.batch, torch.ones_like(room.kept))
        F2, _ = sage.forward(own.weights, room.batch, F0, Keep(), own.normalize)
        room.logits.copy_(mlp.logits(own.net, sum_at_rows(room.batch, F2)[0]))

    def _composed_forward(self, room: _Room) -> None:
        room.fill(len(self.live.W) if self.drop_new else None)
        F0, observed = sage.gather(self.live.W, room.batch, torch.ones_like(room.kept))
        own = F0 if self.model.backbone.reads_own else None
        room.logits.copy_(self.composed.logits(Seen(room.batch, F0, observed, own)))


class _UnderWay(NamedTuple):
    rows: IdBatch
    room: _Room
    logits: Tensor  # (B,) pinned, there when `done`
    facts: Tensor
    labels: Tensor
    done: Any


def _draws(kept: Tensor, seeds: Seeds) -> Tensor:
    """(S, 8 N_SEEDS + n) bytes on the host: seeds, then what (S, n) each step keeps.

    n fields, or features of the mini-batch.
    """
    sequence = np.random.SeedSequence([seeds.dropout, seeds.edges])
    numbers = sequence.generate_state(len(kept) * N_SEEDS, np.uint64).view(np.uint8)
    drawn = torch.from_numpy(numbers).view(len(kept), -1)
    return torch.cat([drawn, kept.view(torch.uint8)], 1)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, under way."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


# ---- rooms -----------------------------------------------------------------------------------


class _Room:
    """Tensors that stay where they are, for batches of one shape."""

    def __init__(
        self, shape: torch.Size, size: tuple[int, ...], at: torch.device, by_feature: bool
    ) -> None:
        n_rows, n_fields = shape
        self.batch = BatchGraph.room(n_rows, n_fields, (size[0], size[1], size[2]), at)
        self.ids = torch.empty(shape, dtype=torch.int32, device=at)
        self.y, self.logits = torch.empty(n_rows, device=at), torch.empty(n_rows, device=at)
        n_masked = size[0] if by_feature else n_fields
        self.draw = torch.zeros(8 * N_SEEDS + n_masked, dtype=torch.uint8, device=at)
        self.seeds = self.draw[: 8 * N_SEEDS].view(torch.int64)
        self.kept = self.draw[8 * N_SEEDS :].view(torch.bool)  # (d,), or (U,) by feature
        # Size that the batch needs (3), negative ids, highest id, labels that are neither 0 nor 1.
        self.facts = torch.zeros(6, dtype=torch.int64, device=at)
        self.first = self.second = _Task(lambda: None)
        self.n_uses, self.highest, self.n_touched = 0, -1, 0

    def fill(self, n_observed: int | None = None) -> None:
        """Make the graph of `ids`, only of those below `n_observed` if given; note the facts."""
        negative = None
        if n_observed is not None:
            negative = (self.ids < 0).sum()
            self.ids.masked_fill_(self.ids >= n_observed, -1)
        needed = self.batch.fill_(self.ids)
        wrong = ((self.y != 0) & (self.y != 1)).sum()
        # Edges of negative ids come first in the order of features.
        negative = self.batch.ptr[0].long() if negative is None else negative
        others = [negative, self.batch.features.max().long(), wrong]
        self.facts.copy_(torch.cat([needed, torch.stack(others)]))

    def check_facts(self, facts: list[int], rows: IdBatch) -> bool:
        """Whether the batch had room; refuse it where something is wrong with it."""
        *needed, negative, self.highest, wrong = facts
        self.n_touched = needed[0]
        if negative:
            check_ids(int(rows.ids.min()))
        if wrong:
            check_labels(rows.y)
        return all(n <= there for n, there in zip(needed, self.batch.size, strict=True))


class _Rooms:
    """Rooms by the shape of a batch, and what is done in them.

    `first` is done when a batch enters, `second` as often as the caller likes; the last of them is
    only recorded where it `records`.
    """

    def __init__(
        self,
        first: Callable[[_Room], None],
        second: Callable[[_Room], None] | None = None,
        *,
        by_feature: bool = False,
        records: bool = True,
    ) -> None:
        self.first, self.second = first, second
        self.by_feature, self.records = by_feature, records
        self.rooms: dict[torch.Size, _Room] = {}
        self.pool: Any = None  # memory of all recordings: no two of them run at once
        self.n_made = 0

    def enter(self, rows: IdBatch) -> _Room:
        """A batch's room, with the batch in it if it fits: see `check`."""
        rows.wait()
        shape = rows.ids.shape
        room = self.rooms.pop(shape, None)
        if room is None:
            room = self._make(rows, 1.03)
        self.rooms[shape] = room  # now the last one
        while len(self.rooms) > N_ROOMS:
            del self.rooms[next(iter(self.rooms))]
        self._take(room, rows)
        return room

    def check(self, room: _Room, rows: IdBatch) -> _Room:
        """The same room, or a larger one if the batch did not fit; waits for the device."""
        return room if room.check_facts(room.facts.tolist(), rows) else self.larger(rows)

    def larger(self, rows: IdBatch) -> _Room:
        """A new room in which a batch fits, with the batch in it."""
        room = self.rooms[rows.ids.shape] = self._make(rows, 1.25)
        self._take(room, rows)
        room.check_facts(room.facts.tolist(), rows)
        return room

    def leave(self, room: _Room) -> None:
        """Record what was done, in the first room at once, in others when they are used again."""
        room.n_uses += 1
        if not room.ids.is_cuda or room.first.graph or (room.n_uses == 1 and self.n_made > 1):
            return
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        if self.records or self.second is not None:
            room.first.record(self.pool)
        if self.records and self.second is not None:
            room.second.record(self.pool)

    def close(self) -> None:
        """Free the recordings and their memory, which nobody may be using."""
        for room in self.rooms.values():
            room.first = room.second = _Task(lambda: None)
        self.rooms.clear()

    def _make(self, rows: IdBatch, slack: float) -> _Room:
        size = BatchGraph.from_ids(rows.ids).size
        more = tuple(_round_up(int(n * slack)) for n in size)
        room = _Room(rows.ids.shape, more, rows.ids.device, self.by_feature)
        first, second = self.first, self.second
        room.first = _Task(lambda: first(room))
        if second is not None:
            room.second = _Task(lambda: second(room))
        self.n_made += 1
        return room

    @staticmethod
    def _take(room: _Room, rows: IdBatch) -> None:
        room.ids.copy_(rows.ids)
        room.y.copy_(rows.y)
        room.first()


def _round_up(n: int) -> int:
    """To one of 16 sizes between powers of two: at most 6 % more."""
    step = max(256, 1 << max(0, n.bit_length() - 5))
    return -(-max(n, 1) // step) * step


class _Task:
    """Work on the device: done as it stands, or replayed once it was recorded."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()

    def record(self, pool: Any) -> None:
        """Record the work, which is not done; it must have been done before."""
        # WHY: a recording that is freed while another one is made spoils it.
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            # WHY thread_local: another thread may copy the next batches meanwhile.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self.work()
        finally:
            if was_enabled:
                gc.enable()
        self.graph = graph
