"""Engines: who computes the steps of a mini-batch.

`train` knows no more of an engine than `loss = engine.learn(engine.prepare(ids, y), seeds)`.

`Engine` is torch's autograd, for every model and device; its `learn` reads like the algorithm box
of the paper.  The fused engine of `openfate.training.fused` does the same in Triton kernels, for
mini-batches of clicks on a GPU: what has no kernels is left to torch part by part (its `coverage`),
and `fused_obstacle` tells what it cannot take.  Both keep their state in optimizers of the same
form, so that one can go on from the other's checkpoint.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges, full_precision
from openfate.models import FATE, GCN, MLP, SGC, Backbone, DeepFM, GraphSAGE, Members
from openfate.training import checkpoint as saved
from openfate.training.batches import Array, Bag, Batch
from openfate.training.checkpoint import Checkpoint
from openfate.training.fused.coverage import Parts
from openfate.training.lines import Lines
from openfate.training.masking import draw_masks, drop_edges
from openfate.training.metrics import loss_and_slope, mean_loss, mean_of_members
from openfate.training.optim import LeanAdam, Optimizer, RowAdam, make_optimizer, rate_at
from openfate.training.ranks import Ranks
from openfate.training.settings import EngineName, Settings
from openfate.training.sharded import ShardedRowAdam

Device = torch.device | str
_EVERYTHING = (torch.empty(0),)  # the one mask of rows in bags, which is not looked at


class Seeds(NamedTuple):
    """Of one mini-batch of a stream: so a run goes on from a checkpoint as if never stopped."""

    dropout: int
    masks: int
    edges: int

    @classmethod
    def of(cls, seed: int, number: int) -> Seeds:
        """Of mini-batch `number` of the run with that seed."""
        return cls(*np.random.SeedSequence([seed, number]).generate_state(3).tolist())


def make_engine(
    model: FATE, settings: Settings, device: Device, ranks: Ranks | None = None
) -> Engine:
    """The engine of a stream that the settings name, or the fastest that fits.

    Examples
    --------
    >>> model = FATE(4, MLP(8, 1), GraphSAGE(8), recompose="all")
    >>> make_engine(model, Settings.clicks(n_kept=1, engine="fused"), "cpu")
    Traceback (most recent call last):
        ...
    openfate.errors.InputError: engine='fused' does not fit: device=cpu is no GPU. Choose \
engine='auto', which takes plain torch then.
    """
    if ranks is not None and ranks.in_group:
        if settings.engine == "fused":
            raise InputError("engine='fused' is of one process: a cluster takes 'auto' or 'plain'.")
        return Engine(model, settings, device, ranks=ranks)
    if takes_fused(settings.engine, model, device, settings):
        # WHY here: this module loads Triton.
        from openfate.training.fused.click_engine import FusedEngine  # noqa: PLC0415

        return FusedEngine(model, settings, device)
    return Engine(model, settings, device)


def takes_fused(
    engine: EngineName, model: FATE, device: Device, settings: Settings | None = None
) -> bool:
    """Whether an engine's name and what is in its way choose the fused one."""
    obstacle = fused_obstacle(model, device, settings)
    if engine == "fused" and obstacle is not None:
        raise InputError(
            f"engine='fused' does not fit: {obstacle}. Choose engine='auto', which takes plain "
            "torch then."
        )
    if engine == "auto":
        return obstacle is None and why_unmeasured(model, settings) is None
    return engine == "fused"


def fused_obstacle(model: FATE, device: Device, settings: Settings | None = None) -> str | None:
    """Why the fused engine cannot predict with a model, or train with settings; None if it can."""
    in_the_way = _device_obstacle(model, torch.device(device))
    return in_the_way or next(_obstacles(model, settings), None)


def _device_obstacle(model: FATE, at: torch.device) -> str | None:
    if at.type != "cuda":
        return f"device={at} is no GPU"
    if at.index not in (None, torch.cuda.current_device()) or not model.W.is_cuda:
        return f"the model is on {model.W.device}, or device={at} is not the current one"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def _obstacles(model: FATE, settings: Settings | None) -> Iterator[str]:
    """What in a model, or in settings, no part of the fused engine can do."""
    if model.W.dtype != torch.float32:
        yield f"the model is in {model.W.dtype}, not in float32"
    if model.W.numel() >= 2**31:
        yield f"the embeddings are {model.W.numel()} numbers, not fewer than 2^31"
    net, g = model.backbone, model.extrapolator
    if net.n_outputs != 1:
        yield f"the backbone has {net.n_outputs} outputs, and clicks have 1"
    if type(net).sums not in (Backbone.sums, DeepFM.sums):
        yield f"the backbone {type(net).__name__} goes over edges itself"
    if g is not None and type(g) not in (GCN, SGC, GraphSAGE):
        yield f"the extrapolator {type(g).__name__} may go over edges itself"
    if settings is not None and settings.cell_dropout:
        yield "cell_dropout gives edges values"


def why_unmeasured(model: FATE, settings: Settings | None = None) -> str | None:
    """Why nobody has measured the fused engine on a model; None for the paper's click model."""
    return next(_unmeasured(model, settings), None)


def _unmeasured(model: FATE, settings: Settings | None) -> Iterator[str]:
    yield from filter(None, Parts.of(model, settings))
    if type(model.backbone) is not MLP:
        yield f"the backbone is {type(model.backbone).__name__}, not MLP"
    if model.recompose != "all":
        yield f"recompose={model.recompose!r}, not 'all'"
    if settings is None:
        return
    if settings.masking == "n_fold":
        yield "masking='n_fold' hides features, not fields"
    if settings.adam == "lazy":
        yield "adam='lazy' is not dense Adam"
    if not settings.async_updates:
        yield "async_updates=False"


def check_observed(highest: int, n_observed: int) -> None:
    """Refuse a training row with a feature that the model does not own."""
    if highest >= n_observed:
        raise InputError(
            f"a training row has the feature id {highest}, but the model's observed ids end at "
            f"{n_observed - 1}: make the model for all features of the training rows."
        )


def batch_is_whole(batch: Batch | Bag) -> bool:
    """Whether the features of a mini-batch are all of the model's."""
    return isinstance(batch, Batch) and batch.whole


class Engine:
    """Torch's autograd, for every model and device; a kind of it may compute otherwise.

    Of a table, W is stepped with the backbone, as dense as it is.  In a stream, and in bags of a
    table with ``adam="lazy"``, the embeddings of a mini-batch are copied out of W once, stepped in
    the copy and written back.  `theta` and `omega` are its optimizers; `table` is then that of W,
    by touched rows.

    Parameters
    ----------
    seed
        Of masks, dropped cells and DropEdge in a table; None: a stream, whose mini-batches come
        with seeds of their own.
    field_of
        (D,) the field of each feature of a table.
    by_rows
        Whether the mini-batches of a table are bags over the features that they touch.
    lines
        The knots of such a table.
    n_steps
        Of the whole run over a table, for the schedule of learning rates.
    shown
        (D, M, 1) of networks side by side: 1 where a feature may be seen by each, else 0.
    ranks
        The processes that train together.
    """

    theta: Optimizer
    omega: Optimizer
    table: RowAdam | None
    sharded: ShardedRowAdam | None = None  # in place of `table`, where ranks share out the rows

    def __init__(
        self,
        model: FATE,
        settings: Settings,
        device: Device,
        seed: int | None = None,
        field_of: Tensor | None = None,
        *,
        by_rows: bool = False,
        lines: Lines | None = None,
        n_steps: int | None = None,
        shown: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.settings, self.device = model, settings, torch.device(device)
        self.ranks, self.seed, self.n_learned = ranks or Ranks(), seed, 0
        self.is_stream, self.lines, self.n_steps = seed is None, lines, n_steps
        self.shown = shown
        self.mask_rng, self.edge_rng = torch.Generator(), torch.Generator(device)
        self.field_of, self.fixed_masks = field_of, None
        s, g = settings, model.extrapolator
        theta = list(model.backbone.parameters())
        self.table, betas = None, (0.9, s.beta2)
        if seed is None and self.ranks.n_sharded is not None:
            self.sharded = ShardedRowAdam(model.W.detach(), self.ranks.find, s.lr, s.adam)
            self.table = self.sharded.own
        elif seed is None:
            self.table = RowAdam(model.W.detach(), s.lr, mode=s.adam)
        else:
            if by_rows:
                own: dict[str, Any] = {"weight_decay": s.weight_decay, "lines": lines}
                self.table = RowAdam(model.W.detach(), s.lr, mode="lazy", betas=betas, **own)
            else:
                theta = [model.W, *theta]
            self.mask_rng.manual_seed(seed)
            self.edge_rng.manual_seed(seed + 1)
            self.fixed_masks = self.draw_masks() if s.masking == "leave_out" else None
        omega = [] if g is None else g.parameters()
        self.theta = make_optimizer(theta, s.lr, s.optimizer, s.weight_decay, betas)
        self.omega = make_optimizer(omega, s.lr_extrapolator, s.optimizer, s.weight_decay, betas)

    def prepare(self, ids: Array, y: Array) -> Any:
        """What `learn` takes, of ids (B, d) and labels (B,); may run in another thread."""
        if self.sharded is not None:
            return Batch.of(*self.ranks.cut_ids(ids, y), self.device)
        return self.ranks.own_batch(Batch.of(ids, y, self.device))

    def learn(self, batch: Any, seeds: Seeds | None = None) -> Tensor | float:
        """Algorithm 1: step phi and W at every mask, omega once; the mean loss of the masks."""
        if isinstance(batch, Bag) and self._is_written_out(batch):
            return self._learn_members(batch)
        s, theta, omega, table = self.settings, self.theta, self.omega, self.table
        if seeds is not None:
            torch.manual_seed(seeds.dropout)
            self.mask_rng.manual_seed(seeds.masks)
            self.edge_rng.manual_seed(seeds.edges)
        self.n_learned += 1
        if table is not None and isinstance(batch, Bag):
            assert batch.touched is not None
            table.touch(batch.touched)
        elif table is not None:
            assert isinstance(batch, Batch)
            check_observed(int(batch.ids[-1]), self.ranks.n_sharded or len(self.model.W))
            (self.sharded or table).touch(batch.ids)
        self._set_rates()
        if not self.model.training:  # WHY: it asks every layer
            self.model.train()
        losses = []
        share = self.ranks.share(batch.y, batch.weight)
        omega.zero_grad()
        if s.accumulate_backbone:  # REFERENCE: T2
            theta.zero_grad()
        with self._omega_unchanged():
            for kept in self._draw_for(batch, seeds):
                if s.overwrite_hidden and isinstance(batch, Batch):
                    with torch.no_grad():  # PAPER: T5, W[f_j] <- 0 as printed
                        self.model.W[batch.ids[(~kept).nonzero()[:, 0]]] = 0
                if not s.accumulate_backbone:
                    theta.zero_grad()
                loss = self._loss(batch, kept)
                self._backward(loss, batch, share)
                theta.step()  # phi and W: at every mask
                if self.sharded is not None:
                    self.sharded.step(share)
                elif table is not None:
                    table.step()
                if not s.async_updates:
                    self._step_omega(share)
                    omega.zero_grad()
                losses.append(loss.detach())
        if s.async_updates:
            self._step_omega(share)  # omega: once, with the accumulated gradient
        if self.sharded is not None:
            self.sharded.release()
        elif table is not None:
            table.release()
        self.ranks.agree_(self.model)
        return self.ranks.mean(torch.stack(losses).mean(), share)

    def _draw_for(self, batch: Batch | Bag, seeds: Seeds | None) -> Iterable[Tensor]:
        """The masks of a mini-batch; in a group all have the same, and dropped cells of their own.

        WHY drawn anew there: the ranks draw for different numbers of cells, so that generators that
        run through would part, and a checkpoint would have to keep all of them.
        """
        if not self.ranks.in_group:
            return self._masks(batch)
        seed, number = (self.seed, self.n_learned) if seeds is None else (seeds.masks, 0)
        assert seed is not None
        shared, own = (self.ranks.seed(seed, number, of_rows) for of_rows in (False, True))
        self.mask_rng.manual_seed(shared)
        masks = self._masks(batch)
        self.mask_rng.manual_seed(own)
        self.edge_rng.manual_seed(own + 1)
        torch.manual_seed(own + 2)
        return masks

    def _backward(self, loss: Tensor, batch: Batch | Bag, share: float) -> None:
        """The gradients of phi and W, over the rows of all ranks."""
        if self.ranks.is_alone:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        exchanged: list[Tensor] = list(self.model.backbone.parameters())
        if self.table is None:
            exchanged.insert(0, self.model.W)
        piled = [parameter.grad for parameter in exchanged]  # of the masks before: exchanged
        for parameter in exchanged:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        touched = batch.ids if self.table is None and isinstance(batch, Batch) else None
        self.ranks.add_up_(exchanged, share, None if batch_is_whole(batch) else touched)
        if self.table is not None and self.sharded is None:
            self.ranks.add_up_([self.table.rows], share)
        for parameter, before in zip(exchanged, piled, strict=True):
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad + before

    def _step_omega(self, share: float) -> None:
        g = self.model.extrapolator
        if g is not None:
            self.ranks.add_up_(list(g.parameters()), share)
        self.omega.step()

    def _set_rates(self) -> None:
        """The learning rates of this step of a table."""
        s = self.settings
        if s.schedule == "constant" or self.n_steps is None:
            return
        assert isinstance(self.theta, LeanAdam)
        assert isinstance(self.omega, LeanAdam)
        rate = rate_at(max(self.theta.steps), self.n_steps)
        self.theta.lr, self.omega.lr = rate * s.lr, rate * s.lr_extrapolator
        if self.table is not None:
            self.table.lr = rate * s.lr

    # ---- what a step draws ---------------------------------------------------------------------

    def draw_masks(self) -> Tensor:
        """Masks (S, D) over all features of a table."""
        unit_of = self.field_of if self.settings.unit == "field" else None
        return draw_masks(self.settings, len(self.model.W), self.mask_rng, unit_of)

    def _masks(self, batch: Batch | Bag) -> Iterable[Tensor]:
        """(S, U): which features of the mini-batch each of its steps may use."""
        if isinstance(batch, Bag):
            return _EVERYTHING
        X, s = batch.X, self.settings
        if self.table is None:
            kept = self.draw_masks() if self.fixed_masks is None else self.fixed_masks
            kept = kept.to(self.device)
            return kept if batch.whole else kept[:, batch.ids]
        if s.masking != "k_shot":
            return draw_masks(s, X.n_features, self.mask_rng).to(self.device)
        assert X.field_of is not None
        kept = draw_masks(s, X.n_edges // X.n_rows, self.mask_rng)  # (S, d)
        return kept.to(self.device)[:, X.field_of]

    def draw_edges(self, X: Bipartite, rho: float) -> Edges:
        """The edges on which messages travel, each removed with probability `rho`."""
        if self.model.extrapolator is None:
            return Edges.of(X)
        return drop_edges(X, rho, self.edge_rng, self.settings.drop_edge_directed)

    def _drop_cells(
        self, value: Tensor | None, n_cells: int, within: Tensor | None = None
    ) -> Tensor:
        """(E,) what each entry counts: its value scaled up, or zero where its cell is dropped."""
        W, p = self.model.W, self.settings.cell_dropout
        kept = torch.rand(n_cells, generator=self.mask_rng) >= p
        if within is not None:  # the second knot of a cell shares the fate of the first
            kept = torch.where(within.cpu(), kept.roll(1), kept)
        scale = kept.to(W.device, W.dtype) / (1 - p)
        return scale if value is None else value.to(W.dtype) * scale

    # ---- the loss ------------------------------------------------------------------------------

    def _omega_unchanged(self) -> AbstractContextManager[None]:
        """The masks of one iteration, during which only theta is updated."""
        g = self.model.extrapolator
        if self.settings.async_updates and isinstance(g, GCN):
            return g.unchanged()
        return nullcontext()

    def _loss(self, batch: Batch | Bag, kept: Tensor) -> Tensor:
        """The loss of one mask, with DropEdge, Dropout and dropped cells."""
        s, model = self.settings, self.model
        if isinstance(batch, Bag):
            return self.bag_loss(batch, training=True)
        X = batch.X.keep_features(kept) if s.columns_only else batch.X
        edges = self.draw_edges(X, s.drop_edge)
        if s.cell_dropout:
            X = X.with_values(self._drop_cells(X.value, X.n_edges))
        if self.sharded is not None:
            W = self.sharded.rows
        elif self.table is not None:
            W = self.table.rows
        else:
            # WHY: backward of index_select is half as long as that of W[ids].
            W = model.W if batch.whole else model.W.index_select(0, batch.ids)
        return self.loss(X, kept, edges, W, batch)

    def loss(
        self, X: Bipartite, kept: Tensor, edges: Edges, W: Tensor, target: Batch | Bag
    ) -> Tensor:
        """The loss of one mask, or the mean of several."""
        with self._precision():
            outputs = self.model(X, kept, edges, W)
        return self._mean_loss(outputs, target)

    def bag_loss(self, bag: Bag, training: bool = False) -> Tensor:
        """The loss of rows of a plain network."""
        value = bag.value
        if training and self.settings.cell_dropout:
            value = self._drop_cells(value, len(bag.ids), bag.within)
        W = self.table.rows if training and self.table is not None else self.model.W
        if self.shown is not None:
            seen = self.shown if bag.touched is None else self.shown[bag.touched]
            W = (W.view(len(W), seen.size(1), -1) * seen).view_as(W)
        with self._precision():
            outputs = self.model.backbone(bag.sums(W, value))
        if not training and outputs.dim() > 2:
            outputs = mean_of_members(self.settings.loss, full_precision(outputs))
        return self._mean_loss(outputs, bag)

    def _is_written_out(self, bag: Bag) -> bool:
        """Whether the gradients of a mini-batch are computed without autograd."""
        is_plain = self.ranks.is_alone and not self.settings.mixed_precision
        of_members = isinstance(self.model.backbone, Members) and self.table is not None
        return is_plain and of_members and bag.turned is not None

    @torch.no_grad()
    def _learn_members(self, bag: Bag) -> Tensor:
        """A step of networks side by side, with gradients that are written out.

        WHY: `bag_loss` and autograd say the same, but of so small a step calls that compute nothing
        would be a quarter.
        """
        net, table, seen = self.model.backbone, self.table, self.shown
        assert isinstance(net, Members)
        assert table is not None and bag.touched is not None
        self.n_learned += 1
        rows = W = table.touch(bag.touched).detach()
        self._set_rates()
        if not self.model.training:
            self.model.train()
        value = bag.value
        if self.settings.cell_dropout:
            value = self._drop_cells(value, len(bag.ids), bag.within)
        if seen is not None:
            seen = seen[bag.touched]
            W = (rows.view(len(rows), seen.size(1), -1) * seen).view_as(rows)
        loss, at_sums = net.learn(bag.sums(W, value), partial(self._loss_and_slope, bag))
        grad = bag.sums_back(at_sums, value)
        if seen is not None:
            grad.view(len(rows), seen.size(1), -1).mul_(seen)
        self.theta.step()
        table.step(grad)
        table.release()
        return loss

    def _loss_and_slope(self, bag: Bag, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return loss_and_slope(self.settings.loss, outputs, bag.y, bag.weight)

    def _precision(self) -> AbstractContextManager[Any]:
        mixed = self.settings.mixed_precision
        return torch.autocast(self.device.type, torch.bfloat16) if mixed else nullcontext()

    def _mean_loss(self, outputs: Tensor, target: Batch | Bag) -> Tensor:
        # WHY: a loss in bfloat16 would round to three digits.
        return mean_loss(self.settings.loss, full_precision(outputs), target.y, target.weight)

    # ---- between mini-batches ------------------------------------------------------------------

    def settle(self) -> None:
        """Bring the model's W up to now: rows of a stream may wait for their drift."""
        if self.table is not None:
            self.table.settle()

    def close(self) -> None:
        """Free what training needed beside the state; nothing by default."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """All that a run needs to go on, beside the model; the tensors are the live ones."""
        optimizers = {"theta": self.theta, "omega": self.omega}
        found = {name: saved.optimizer_state(each) for name, each in optimizers.items()}
        if self.table is not None:
            found["rows"] = self.table.state()
        if self.is_stream:  # whose random numbers begin anew at each batch
            return found
        numbers = {"masks": self.mask_rng.get_state(), "edges": self.edge_rng.get_state()}
        numbers["learned"] = torch.tensor(self.n_learned)
        if self.device.type == "cuda":
            numbers["cuda"] = torch.cuda.get_rng_state(self.device)
        return {**found, "random": {**numbers, "dropout": torch.get_rng_state()}}

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on from the parts of a checkpoint that `state` names."""
        saved.load_optimizer(self.theta, saved.part(checkpoint, "theta"))
        saved.load_optimizer(self.omega, saved.part(checkpoint, "omega"))
        if self.table is not None:
            self.table.load_state(saved.part(checkpoint, "rows"))
        if self.is_stream:
            return
        numbers = {k: v.cpu() for k, v in saved.part(checkpoint, "random").items()}
        self.n_learned = int(numbers.get("learned", 0))  # not in checkpoints of before
        self.mask_rng.set_state(numbers["masks"])
        self.edge_rng.set_state(numbers["edges"])
        torch.set_rng_state(numbers["dropout"])
        if "cuda" in numbers:
            torch.cuda.set_rng_state(numbers["cuda"], self.device)
