"""The fused engine: Algorithm 1 for the paper's click model in Triton kernels and CUDA graphs.

A step reads W and the moments of its Adam where they are, and writes them, the network's weights
and BatchNorm's running statistics back: nothing is copied out.  No kernel uses atomics, and random
bits are hashes of the mini-batch's seeds: equal runs give equal bits, without a switch.

A step is some sixty short kernels, which take longer to launch than to run at B = 100,000.  Batches
of one shape (B, d) therefore share a room, tensors that stay where they are; what happens in a room
is done once as it stands, which also compiles it, and replayed from a recording from then on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.models import FATE, MLP, GraphSAGE
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
from openfate.training.fused.sums import BatchGraph, Keep, sum_at_features, sum_at_rows
from openfate.training.masking import draw_masks
from openfate.training.optim import RowAdam
from openfate.training.prediction import Predictions, Predictor
from openfate.training.settings import Settings

N_ROOMS = 2  # rooms that are kept: of full batches, and of the last one of an epoch
N_SEEDS = 3  # of a step: DropEdge, and Dropout in two layers


class FusedEngine(Engine):
    """What `fused_obstacle` lets pass.  Adam on W is dense: the numbers of "exact"."""

    theta: torch.optim.Adam
    omega: torch.optim.Adam
    table: RowAdam

    def __init__(self, model: FATE, settings: Settings, device: Device) -> None:
        super().__init__(model, settings, device)
        # WHY: torch's own, whose count of steps is on the device, where a recording reads it.
        self.theta = torch.optim.Adam(model.backbone.parameters(), settings.lr, fused=True)
        self.theta.param_groups[0]["capturable"] = model.W.is_cuda
        omega = _extrapolator(model).parameters()
        self.omega = torch.optim.Adam(omega, settings.lr_extrapolator, fused=True)
        for p in (*model.backbone.parameters(), *_extrapolator(model).parameters()):
            p.grad = torch.zeros_like(p)
        self.adam = DenseAdam(self.table)
        self.live = _Live(model)
        self.weights_gradients = sage.Sage.gradients_of(_extrapolator(model))
        self.total = torch.zeros(1, dtype=torch.float64, device=model.W.device)
        self.rooms = _Rooms(self._fill, self._step)
        self.n_unnoted = 0  # steps that the table has not been told of

    def prepare(self, ids: Array, y: Array) -> IdBatch:
        """Rows on the device; their graph is made there when it is their turn."""
        return IdBatch.of(ids, y, self.device)

    def learn(self, batch: IdBatch, seeds: Seeds | None = None) -> float:
        """Step phi and W at every mask, omega once; the mean loss of the masks."""
        assert seeds is not None
        room = self.rooms.enter(batch)
        self.mask_rng.manual_seed(seeds.masks)
        draws = _draws(draw_masks(self.settings, batch.ids.size(1), self.mask_rng), seeds)
        draws = draws.pin_memory() if batch.ids.is_cuda else draws
        draws = draws.to(batch.ids.device, non_blocking=True)
        room = self.rooms.check(room, batch)  # the host waits here
        check_observed(room.highest, len(self.model.W))
        for draw in draws:
            room.draw.copy_(draw)
            room.second()
        self.omega.step()
        self.omega.zero_grad(set_to_none=False)
        for norm in cast("MLP", self.model.backbone).norms:
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

    # ---- on the device ---------------------------------------------------------------------

    def _fill(self, room: _Room) -> None:
        room.fill()
        self.adam.set_batch(room.batch.features)
        self.total.zero_()

    def _step(self, room: _Room) -> None:
        own, s, batch = self.live, self.settings, room.batch
        keep = Keep(s.drop_edge, room.seeds[:1], fields=room.kept)
        F0, kept = sage.gather(own.W, batch, room.kept)
        F2, states = sage.forward(own.weights, batch, F0, keep, own.normalize)
        z, _ = sum_at_rows(batch, F2)
        dz = mlp.loss_and_gradients(
            own.net, z, room.y, room.seeds[1:], self.total, s.mixed_precision
        )
        dF2, _ = sum_at_features(batch, dz)
        gradients = self.weights_gradients
        tables = sage.backward(
            own.weights, gradients, batch, states, dF2, kept, keep, own.normalize
        )
        self.adam.step(*tables)
        self.theta.step()


class FusedPredictor(Predictor):
    """The same in Triton kernels; always in float32, or tf32 where torch may."""

    def __init__(self, model: FATE, device: Device, drop_new: bool) -> None:
        super().__init__(model, device, drop_new)
        self.live, self.rooms = _Live(model), _Rooms(self._forward)

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
        room.fill(len(own.W) if self.drop_new else None)
        everything = torch.ones_like(room.kept)
        F0, _ = sage.gather(own.W, room.batch, everything)
        F2, _ = sage.forward(own.weights, room.batch, F0, Keep(), own.normalize)
        room.logits.copy_(mlp.logits(own.net, sum_at_rows(room.batch, F2)[0]))


class _UnderWay(NamedTuple):
    rows: IdBatch
    room: _Room
    logits: Tensor  # (B,) pinned, there when `done`
    facts: Tensor
    labels: Tensor
    done: Any


class _Live:
    """The live tensors of a model."""

    def __init__(self, model: FATE) -> None:
        g = _extrapolator(model)
        self.W, self.net = model.W.detach(), mlp.Network.of(cast("MLP", model.backbone))
        self.weights, self.normalize = sage.Sage.of(g), g.normalize


def _extrapolator(model: FATE) -> GraphSAGE:
    return cast("GraphSAGE", model.extrapolator)


def _draws(kept: Tensor, seeds: Seeds) -> Tensor:
    """(S, 8 N_SEEDS + d) bytes on the host: seeds, then which fields (S, d) each step keeps."""
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

    def __init__(self, shape: torch.Size, size: tuple[int, ...], at: torch.device) -> None:
        n_rows, n_fields = shape
        self.batch = BatchGraph.room(n_rows, n_fields, (size[0], size[1], size[2]), at)
        self.ids = torch.empty(shape, dtype=torch.int32, device=at)
        self.y, self.logits = torch.empty(n_rows, device=at), torch.empty(n_rows, device=at)
        self.draw = torch.zeros(8 * N_SEEDS + n_fields, dtype=torch.uint8, device=at)
        self.seeds = self.draw[: 8 * N_SEEDS].view(torch.int64)
        self.kept = self.draw[8 * N_SEEDS :].view(torch.bool)  # (d,)
        # Size that the batch needs (3), negative ids, highest id, labels that are neither 0 nor 1.
        self.facts = torch.zeros(6, dtype=torch.int64, device=at)
        self.first = self.second = _Task(lambda: None)
        self.n_uses, self.highest = 0, -1

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
        if negative:
            check_ids(int(rows.ids.min()))
        if wrong:
            check_labels(rows.y)
        return all(n <= there for n, there in zip(needed, self.batch.size, strict=True))


class _Rooms:
    """Rooms by the shape of a batch, and what is done in them.

    `first` is done when a batch enters, `second` as often as the caller likes.
    """

    def __init__(
        self, first: Callable[[_Room], None], second: Callable[[_Room], None] | None = None
    ) -> None:
        self.first, self.second = first, second
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
        room.first.record(self.pool)
        if self.second is not None:
            room.second.record(self.pool)

    def close(self) -> None:
        """Free the recordings and their memory, which nobody may be using."""
        for room in self.rooms.values():
            room.first = room.second = _Task(lambda: None)
        self.rooms.clear()

    def _make(self, rows: IdBatch, slack: float) -> _Room:
        size = BatchGraph.from_ids(rows.ids).size
        more = tuple(_round_up(int(n * slack)) for n in size)
        room = _Room(rows.ids.shape, more, rows.ids.device)
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
