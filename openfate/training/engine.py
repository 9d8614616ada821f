"""Engines: who computes the steps of a mini-batch, and its predictions.

The loop of `train_stream` knows no more of an engine than this:

    for kept in engine.start(batch, seeds):     the masks of the mini-batch
        engine.step(kept)                       phi and W: at every mask
    loss = engine.end()                         omega: once, with the accumulated gradient

`PlainEngine` is torch's autograd, for every model and device.  The fused engine of
`_triton_engine.py` does the same in Triton kernels, for the paper's click model on a GPU; `unfit`
and `unfit_settings` tell what it takes.  Both keep their state in the same optimizers, so that one
can go on from the other's checkpoint.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges, full_precision
from openfate.models import FATE, MLP, GraphSAGE
from openfate.training import checkpoint as saved
from openfate.training.batches import Batch, Batches, Table, prepared
from openfate.training.checkpoint import Checkpoint
from openfate.training.dropedge import drop_edges
from openfate.training.masking import k_shot, n_fold
from openfate.training.metrics import log_loss
from openfate.training.optim import RowAdam
from openfate.training.settings import EngineName, StreamSettings

__all__ = ["Engine", "PlainEngine", "Predictor", "Seeds", "make_engine", "make_predictor"]

B = TypeVar("B")
Device = torch.device | str
MAX_WIDTH, MAX_HIDDEN = 28, 512  # of the fused engine: what a program's registers hold


class Seeds(NamedTuple):
    """Of one mini-batch."""

    dropout: int
    masks: int
    edges: int

    @classmethod
    def of(cls, seed: int, number: int) -> Seeds:
        """Of mini-batch `number` of the run with that seed."""
        return cls(*np.random.SeedSequence([seed, number]).generate_state(3).tolist())


class Engine(ABC, Generic[B]):
    """Trains on one mini-batch after the other; `theta`, `table` and `omega` are its optimizers."""

    def __init__(self, model: FATE, settings: StreamSettings, device: Device) -> None:
        self.model, self.settings, self.device = model, settings, device
        self.table = RowAdam(model.W.detach(), settings.lr, mode=settings.adam)
        self.theta = torch.optim.Adam(model.backbone.parameters(), settings.lr, fused=True)
        g = list(model.extrapolator.parameters()) if model.extrapolator is not None else []
        # WHY: Adam refuses an empty list, which is what a plain network has.
        self.omega = torch.optim.Adam(
            g or [torch.zeros(1)], settings.lr_extrapolator, fused=bool(g)
        )
        self.mask_rng = torch.Generator()

    @abstractmethod
    def prepare(self, ids: Table, y: Table) -> B:
        """What `start` takes, of ids (B, d) and labels (B,); may run in another thread."""

    @abstractmethod
    def start(self, batch: B, seeds: Seeds) -> Iterable[Tensor]:
        """Begin a mini-batch; what `step` is to be called with, one after the other."""

    @abstractmethod
    def step(self, kept: Tensor) -> None:
        """Step phi and W once; add to the gradient of omega."""

    @abstractmethod
    def end(self) -> float:
        """Step omega; the mean loss of the steps."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the model's W, and the state of its optimizer, up to now."""

    def close(self) -> None:
        """Free what training needed beside the state; nothing by default."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """All that a run needs to go on, beside the model; the tensors are the live ones."""
        return {
            "rows": self.table.state(),
            "theta": saved.optimizer_state(self.theta),
            "omega": saved.optimizer_state(self.omega),
        }

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on from the parts of a checkpoint that `state` names."""
        self.table.load_state(saved.part(checkpoint, "rows"))
        saved.load_optimizer(self.theta, saved.part(checkpoint, "theta"))
        saved.load_optimizer(self.omega, saved.part(checkpoint, "omega"))

    def field_masks(self, n_fields: int) -> Tensor:
        """(S, d) bool on the host: the fields that each step of k-shot keeps; one step for none."""
        s = self.settings
        if s.masking == "none":
            return torch.ones(1, n_fields, dtype=torch.bool)
        assert s.n_kept is not None
        return k_shot(torch.arange(n_fields), s.n_kept, s.n_draws, self.mask_rng)


class Predictor(Protocol):
    """Predicts each mini-batch from its own graph."""

    def logits(
        self, batches: Batches, n_ahead: int
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Logits (B,) and labels (B,) of each mini-batch."""

    def close(self) -> None:
        """Free what predicting needed."""


def make_engine(model: FATE, settings: StreamSettings, device: Device) -> Engine[Any]:
    """The engine that the settings name, or the fastest that fits.

    Examples
    --------
    >>> model = FATE(4, MLP(8, 1), GraphSAGE(8), recompose="all")
    >>> make_engine(model, StreamSettings(n_kept=1, engine="fused"), "cpu")
    Traceback (most recent call last):
        ...
    openfate.errors.InputError: engine='fused' does not fit: device=cpu is no GPU. Choose \
engine='auto', which takes plain torch then.
    """
    if _fits(settings.engine, unfit(model, device) or unfit_settings(settings)):
        # WHY here: this module loads Triton.
        from openfate.training.fused.fused_engine import FusedEngine  # noqa: PLC0415

        return FusedEngine(model, settings, device)
    return PlainEngine(model, settings, device)


def make_predictor(
    model: FATE, device: Device, engine: EngineName = "auto", drop_new: bool = False
) -> Predictor:
    """Likewise for predictions; `drop_new` leaves features from id D on out."""
    if _fits(engine, unfit(model, device)):
        from openfate.training.fused.fused_engine import FusedPredictor  # noqa: PLC0415

        return FusedPredictor(model, device, drop_new)
    return PlainPredictor(model, device, drop_new)


def _fits(engine: EngineName, reason: str | None) -> bool:
    if engine == "fused" and reason is not None:
        raise InputError(
            f"engine='fused' does not fit: {reason}. Choose engine='auto', which takes plain torch "
            "then."
        )
    return engine != "plain" and reason is None


def unfit(model: FATE, device: Device) -> str | None:
    """Why the fused engine cannot predict with a model on a device; None if it can."""
    at = torch.device(device)
    if at.type != "cuda":
        return f"device={device} is no GPU"
    if at.index not in (None, torch.cuda.current_device()) or not model.W.is_cuda:
        return f"the model is on {model.W.device}, or device={device} is not the current one"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if model.W.dtype != torch.float32:
        return f"the model is in {model.W.dtype}, not in float32"
    if model.W.numel() >= 2**31:
        return f"the embeddings are {model.W.numel()} numbers, not fewer than 2^31"
    net, g = model.backbone, model.extrapolator
    if type(net) is not MLP or len(net.layers) != 3 or len(net.norms) != 2 or net.n_fields:
        return (
            f"the backbone is {type(net).__name__}, not an MLP of two hidden layers with "
            "batch_norm=True and pool='sum'"
        )
    if net.n_outputs != 1:
        return f"the backbone has {net.n_outputs} outputs, not 1"
    hidden = max(len(cast("Tensor", norm.weight)) for norm in net.norms)
    if net.width > MAX_WIDTH or hidden > MAX_HIDDEN:
        return f"widths {net.width} and {hidden} are not at most {MAX_WIDTH} and {MAX_HIDDEN}"
    if type(g) is not GraphSAGE or g.n_layers != 2:
        return f"the extrapolator is {type(g).__name__}, not a GraphSAGE of 2 layers"
    if g.log_prior is not None:
        return "the GraphSAGE has prior_rows"
    if model.recompose != "all":
        return f"recompose={model.recompose!r}, not 'all'"
    return None


def unfit_settings(settings: StreamSettings) -> str | None:
    """Why the fused engine cannot train with these settings; None if it can."""
    if settings.masking == "n_fold":
        return "masking='n_fold' hides features, not fields"
    if settings.masking == "k_shot" and settings.reading == "columns":
        return "reading='columns' takes edges out"
    if settings.adam == "lazy":
        return "adam='lazy' is not dense Adam"
    return None


def check_observed(highest: int, n_observed: int) -> None:
    """Refuse a training row with a feature that the model does not own."""
    if highest >= n_observed:
        raise InputError(
            f"a training row has the feature id {highest}, but the model's observed ids end at "
            f"{n_observed - 1}: make the model for all features of the training rows."
        )


class PlainEngine(Engine[Batch]):
    """Torch's autograd.

    The embeddings of a mini-batch are copied out of W once, stepped in the copy and written back.
    """

    def __init__(self, model: FATE, settings: StreamSettings, device: Device) -> None:
        super().__init__(model, settings, device)
        self.edge_rng = torch.Generator(device)
        self.losses: list[Tensor] = []

    def prepare(self, ids: Table, y: Table) -> Batch:
        """The graph of the batch."""
        return Batch.of(ids, y, self.device)

    def start(self, batch: Batch, seeds: Seeds) -> Tensor:
        """(S, U): which features of the mini-batch each of its steps may use."""
        check_observed(int(batch.ids[-1]), len(self.model.W))
        torch.manual_seed(seeds.dropout)
        self.mask_rng.manual_seed(seeds.masks)
        self.edge_rng.manual_seed(seeds.edges)
        self.model.train()
        self.omega.zero_grad()
        self.table.touch(batch.ids)
        self.batch, self.losses = batch, []
        X = batch.X
        if self.settings.masking == "n_fold":
            return n_fold(X.n_features, self.settings.n_folds, self.mask_rng).to(self.device)
        assert X.field_of is not None
        return self.field_masks(X.n_edges // X.n_rows).to(self.device)[:, X.field_of]

    def step(self, kept: Tensor) -> None:
        """One mask: forward, backward, Adam."""
        self.theta.zero_grad()
        loss = log_loss(self._logits(self.batch.X, kept), self.batch.y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.theta.step()
        self.table.step()
        self.losses.append(loss.detach())

    def _logits(self, X: Bipartite, kept: Tensor) -> Tensor:
        """What the touched rows of W predict under one mask, with DropEdge and Dropout."""
        if self.settings.masking == "k_shot" and self.settings.reading == "columns":
            X = X.keep_features(kept)
        edges = Edges.of(X)
        if self.model.extrapolator is not None:
            edges = drop_edges(X, self.settings.drop_edge, self.edge_rng)
        kind, half = torch.device(self.device).type, torch.bfloat16
        with torch.autocast(kind, half) if self.settings.mixed_precision else nullcontext():
            out: Tensor = self.model(X, kept, edges, self.table.rows)
        return full_precision(out)

    def end(self) -> float:
        """Write the touched rows back."""
        self.omega.step()
        self.table.release()
        return float(torch.stack(self.losses).mean())

    def settle(self) -> None:
        """Rows that wait for their drift are not what the model has."""
        self.table.settle()


class PlainPredictor:
    """The model's own forward, on the graph of each mini-batch."""

    def __init__(self, model: FATE, device: Device, drop_new: bool) -> None:
        self.model, self.device, self.drop_new = model, device, drop_new

    def logits(
        self, batches: Batches, n_ahead: int
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Logits (B,) and labels (B,) of each mini-batch."""
        self.model.eval()
        for batch in prepared(batches, lambda ids, y: Batch.of(ids, y, self.device), n_ahead):
            yield self._predict(batch).float().cpu().numpy(), batch.y.cpu().numpy()

    def close(self) -> None:
        """Nothing to free."""

    @torch.no_grad()
    def _predict(self, batch: Batch) -> Tensor:
        model = self.model
        observed = batch.ids < len(model.W)
        W = model.W.new_zeros(len(batch.ids), model.W.size(1))
        W[observed] = model.W[batch.ids[observed]]
        X = batch.X.keep_features(observed) if self.drop_new else batch.X
        out: Tensor = model(X, observed, Edges.of(X), W)
        return out[:, 0]
