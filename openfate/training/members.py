"""Members: plain networks over summed embeddings, trained with feature dropout.

    z_i = sum over the features j of row i of  b_ij w_j / (1 - dropout),   b_ij = 1 or, dropped, 0

A row without some of its features is what the network will meet, so it trains on such rows.
N rows, D features, H width, C' outputs, E cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, touched_features
from openfate.models import FATE, MLP, Backbone
from openfate.table import MultiHot
from openfate.training.loop import Epoch, Validation
from openfate.training.losses import Loss, mean_loss
from openfate.training.rows import check_rows

__all__ = ["AutoSettings", "logits_of", "sums_of", "train_members"]


@dataclass(frozen=True)
class AutoSettings:
    """How the network is made and trained; the defaults were chosen on splits of their own.

    Parameters
    ----------
    width, hidden
        H, and the widths of the hidden layers behind the sum.
    dropout
        The probability that a cell of a training row is dropped.
    n_members
        Networks whose predictions are averaged.
    epochs, patience
        The most epochs, and how many without a lower validation loss are waited for.
    lr, weight_decay, batch_size
        Of AdamW.
    """

    width: int = 64
    hidden: tuple[int, ...] = (128,)
    dropout: float = 0.2
    n_members: int = 2
    epochs: int = 100
    patience: int = 8
    lr: float = 3e-3
    weight_decay: float = 1e-2
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("width", "n_members", "epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: choose a whole number from 1 up.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: choose a number from 0 to below 1.")


def train_members(
    X: MultiHot,
    y: ArrayLike,
    n_outputs: int,
    settings: AutoSettings | None = None,
    *,
    loss: Loss = "log_loss",
    sample_weight: ArrayLike | None = None,
    validation: Validation | None = None,
    epochs: Sequence[int] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_step: Callable[[Epoch], None] | None = None,
    start: Sequence[FATE] | None = None,
    backbone: Callable[[], Backbone] | None = None,
    field_of: NDArray[np.integer] | None = None,
) -> tuple[list[FATE], list[int]]:
    """Train networks for any loss.

    Parameters
    ----------
    X
        Rows (N, D) over the observed features.
    y
        As the loss takes it: see `openfate.training.losses`.
    n_outputs
        C'; one for two classes.
    settings
        The defaults where not given.
    validation, epochs
        Rows for early stopping, or instead of them the epochs of each member.
    sample_weight
        (N,) how much each row counts.
    on_step
        Called after each epoch of each member.
    start
        Networks to go on from; features without a row keep their embeddings.
    backbone
        Makes the backbone of a member; by default the `MLP` that the settings tell.
    field_of
        (D,) the field of each feature, for a backbone that sums fields apart.

    Returns
    -------
    members, best_epochs
        On the CPU, with the weights of their best epochs.
    """
    settings = settings or AutoSettings()
    make = backbone or (lambda: MLP(settings.width, n_outputs, settings.hidden))
    members, best = [], []
    with torch.random.fork_rng(devices=[]):
        for member in range(settings.n_members):
            torch.manual_seed(seed + 1000 * member)
            model = FATE(X.n_features, make())
            run = _Member(model, field_of, loss, settings, seed + 1000 * member, device)
            if start is not None:
                run.model.load_state_dict(start[member].state_dict())
            rows = run.rows("training", X, y, sample_weight)
            spared = None
            if validation is not None and epochs is None:
                spared = run.rows("validation", *validation)
            n_epochs = settings.epochs if epochs is None else epochs[member]
            if start is None:
                run.forget(X.feature_degree == 0)
            best.append(run.train(rows, n_epochs, spared, on_step))
            members.append(run.model.cpu())
    return members, best


class _Member:
    """One network and its training."""

    def __init__(
        self,
        model: FATE,
        field_of: NDArray[np.integer] | None,
        loss: Loss,
        settings: AutoSettings,
        seed: int,
        device: torch.device | str,
    ) -> None:
        with torch.no_grad():  # WHY: Xavier's bound shrinks with D and starts slowly
            model.W[:, : model.backbone.width].normal_(0, 0.1)
        self.model, self.field_of = model.to(device), field_of
        self.loss, self.settings = loss, settings
        self.order = np.random.default_rng([seed, 4])
        self.dropped = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def forget(self, features: NDArray[np.bool_]) -> None:
        """Set the embeddings of features (D,) to zero: those that nothing will train."""
        self.model.W[torch.from_numpy(features)] = 0

    def rows(
        self, name: str, X: MultiHot, y: ArrayLike, weight: ArrayLike | None = None
    ) -> _Labelled:
        """Rows as training takes them, checked."""
        rows = check_rows(self.model, self.loss, name, X, y, weight)
        dtype = torch.int64 if self.loss == "log_loss" else torch.float32
        device = self.model.W.device
        target = torch.from_numpy(rows.y).to(device, dtype)
        weights = rows.weight
        tensor = None if weights is None else torch.from_numpy(weights).to(device, torch.float32)
        return _Labelled(rows.X, target, tensor)

    def train(
        self,
        rows: _Labelled,
        epochs: int,
        validation: _Labelled | None,
        on_step: Callable[[Epoch], None] | None,
    ) -> int:
        """Train, keep the weights of the best epoch (the last without validation), return it."""
        s = self.settings
        step = torch.optim.AdamW(
            self.model.parameters(), s.lr, weight_decay=s.weight_decay, fused=True
        )
        best_loss, best_epoch, best_state = math.inf, epochs, None
        for epoch in range(1, epochs + 1):
            train_loss = self._epoch(rows, step)
            loss = math.nan if validation is None else self._loss(validation)
            if on_step is not None:
                on_step(Epoch(epoch, train_loss, loss))
            if validation is None:
                continue
            if loss < best_loss:
                best_loss, best_epoch = loss, epoch
                best_state = {k: v.clone() for k, v in self.model.state_dict().items()}
            elif epoch - best_epoch >= s.patience:
                break
        if best_state is not None:
            self.model.load_state_dict(best_state)
        return best_epoch

    def _epoch(self, rows: _Labelled, step: torch.optim.Optimizer) -> float:
        order, losses = self.order.permutation(rows.X.n_rows), []
        for start in range(0, len(order), self.settings.batch_size):
            batch = rows.select(order[start : start + self.settings.batch_size])
            if batch.weight is not None and not bool(batch.weight.any()):
                continue
            logits = self._logits(batch.X, self.settings.dropout)
            step.zero_grad()
            loss = mean_loss(self.loss, logits, batch.y, batch.weight)
            loss.backward()  # type: ignore[no-untyped-call]
            step.step()
            losses.append(loss.detach())
        return self._finite("training", float(torch.stack(losses).mean()))

    @torch.no_grad()
    def _loss(self, rows: _Labelled) -> float:
        logits = self._logits(rows.X)
        loss = mean_loss(self.loss, logits, rows.y, rows.weight)
        return self._finite("validation", float(loss))

    def _logits(self, X: MultiHot, dropout: float = 0.0) -> Tensor:
        return logits_of(self.model, X, self.field_of, dropout, self.dropped)

    def _finite(self, name: str, loss: float) -> float:
        if not math.isfinite(loss):
            raise OpenFATEError(
                f"training diverged: the {name} loss is {loss}. Lower lr={self.settings.lr}."
            )
        return loss


@dataclass(frozen=True)
class _Labelled:
    X: MultiHot
    y: Tensor
    weight: Tensor | None

    def select(self, rows: NDArray[np.intp]) -> _Labelled:
        at = torch.from_numpy(rows).to(self.y.device)
        weight = None if self.weight is None else self.weight[at]
        return _Labelled(self.X.select_rows(rows), self.y[at], weight)


def logits_of(
    model: FATE,
    X: MultiHot,
    field_of: NDArray[np.integer] | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Logits (N, C') of rows, cells dropped at random where asked."""
    backbone = model.backbone
    kept = _kept(X, model.W, dropout, generator)
    if backbone.n_fields is None and type(backbone).lift is Backbone.lift:
        # WHY: embedding_bag and not our own sums: a mini-batch needs no second direction.
        logits: Tensor = backbone(sums_of(model, X, kept))
        return logits
    local, ids = touched_features(X)
    graph = Bipartite.from_multihot(local, model.W.device)
    if kept is not None:
        graph = graph.with_values(kept)
    if field_of is not None:
        graph = graph.with_fields(torch.from_numpy(field_of[ids]).to(model.W.device))
    W = model.W.index_select(0, torch.from_numpy(ids).to(model.W.device))
    return backbone.logits(graph, W, W)


def _kept(
    X: MultiHot, W: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None
) -> Tensor | None:
    """(E,) what each cell counts: its value, or zero where it is dropped; None for ones."""
    weights = None
    if X.values is not None:
        weights = torch.from_numpy(X.values).to(W.device, W.dtype)
    if dropout:
        kept = torch.rand(X.nnz, generator=generator) >= dropout
        scale = kept.to(W.device, W.dtype) / (1 - dropout)
        weights = scale if weights is None else weights * scale
    return weights


def sums_of(model: FATE, X: MultiHot, kept: Tensor | None = None) -> Tensor:
    """Summed embeddings (N, H + n_own); each cell counts as `kept` (E,) says, or its value."""
    kept = _kept(X, model.W) if kept is None else kept
    ids = torch.from_numpy(X.ids.astype(np.int64)).to(model.W.device)
    starts = torch.from_numpy(X.row_ptr[:-1]).to(model.W.device)
    return F.embedding_bag(ids, model.W, starts, mode="sum", per_sample_weights=kept)
