"""Algorithm 1 of the paper: fast updates of the backbone, slow updates of the extrapolator.

`train` reads like the algorithm box.  It needs torch and numpy alone and writes no files: progress
goes out through `on_step`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import BatchNorm1d

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, Edges, full_precision, touched_features
from openfate.models import FATE, GCN, field_means
from openfate.seeds import checked_seed
from openfate.table import MultiHot
from openfate.training.dropedge import drop_edges
from openfate.training.history import BestWeights, Epoch, History
from openfate.training.losses import mean_loss
from openfate.training.masking import k_shot, leave_out, n_fold
from openfate.training.optim import LeanAdam
from openfate.training.rows import Rows, check_fields, check_rows
from openfate.training.settings import Settings, cuda_devices, usable_device

__all__ = ["Epoch", "History", "train"]

# WHY: 2^24 numbers are 64 MiB, of which a forward holds some five at a time.
_STATES_AT_ONCE = 2**24

Validation = tuple[MultiHot, ArrayLike] | tuple[MultiHot, ArrayLike, ArrayLike | None]


@dataclass(frozen=True)
class _Target:
    y: Tensor
    weight: Tensor | None


@dataclass(frozen=True)
class _Batch:
    X: Bipartite
    target: _Target
    ids: Tensor | None  # the features behind the columns of X; None for all


@dataclass(frozen=True)
class _Validation:
    X: Bipartite  # the rows to predict
    graph: Bipartite  # what the extrapolator sees: training and validation rows
    target: _Target
    masks: Tensor  # (S, D)


def train(
    model: FATE,
    X: MultiHot,
    y: ArrayLike,
    settings: Settings | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    validation: Validation | None = None,
    field_of: NDArray[np.integer] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_step: Callable[[Epoch], None] | None = None,
) -> History:
    """Train a model with Algorithm 1 and leave in it the weights of the best epoch.

    Parameters
    ----------
    model
        Trained in place; its features are the columns of `X`.
    X, y
        Training rows (N, D) over the observed features, and what `Settings.loss` is of: classes
        (N,) from 0, labels (N, K) of 0 and 1, or numbers (N,).
    settings
        `openfate.training.settings.Settings`; its defaults where not given.
    sample_weight
        (N,) the weight of each row in the loss; a row of weight 0 is in the graph alone.
    validation
        Rows, targets and, if wanted, weights; the epoch with the least validation loss is kept
        (the last one without).  The loss is averaged over masks that are fixed for the run, without
        DropEdge; the extrapolator sees training and validation rows.
    field_of
        (D,) the field of each feature, needed by a backbone that sums fields apart.  A feature
        without training rows ends with the mean embedding of its field, or zero, and is listed in
        `History.untrained`.
    seed
        Of masks, DropEdge, Dropout and mini-batches; the model's start is drawn when it is made.
    device
        Where to train; the model is moved there.
    on_step
        Called after each epoch.

    Returns
    -------
    History
        The losses of every epoch, and which one was kept.

    Examples
    --------
    >>> from openfate.models import MLP
    >>> from openfate.models import GCN
    >>> X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 8, n_features=4)
    >>> y = np.array([0, 1, 0, 1] * 8)
    >>> history = train(FATE(4, MLP(8, 2), GCN(8)), X, y, Settings(epochs=3), validation=(X, y))
    >>> len(history.epochs)
    3
    """
    settings = settings or Settings()
    rows = check_rows(model, settings.loss, "training", X, y, sample_weight)
    later = None
    if validation is not None:
        later = check_rows(model, settings.loss, "validation", *validation)
    device, seed = usable_device(device), checked_seed(seed)
    model.to(device)
    run = _Run(model, rows, settings, field_of, seed, device)
    backbone = LeanAdam([model.W, *model.backbone.parameters()], settings.lr)
    omega = model.extrapolator.parameters() if model.extrapolator is not None else []
    extrapolator = LeanAdam(omega, settings.lr_extrapolator)
    views = run.validation_views(later) if later is not None else None

    history = History(untrained=run.untrained.tolist())
    with run.running(history):
        for number in range(1, settings.epochs + 1):
            losses = []
            model.train()
            for batch in run.batches():
                extrapolator.zero_grad()
                if settings.accumulate_backbone:  # REFERENCE: T2
                    backbone.zero_grad()
                with run.omega_unchanged():
                    for kept in run.masks(batch):
                        if settings.overwrite_hidden:  # PAPER: T5, W[f_j] <- 0 as printed
                            run.erase(kept, batch)
                        X_s = batch.X.keep_features(kept) if settings.columns_only else batch.X
                        edges = run.edges(X_s, settings.drop_edge)
                        if not settings.accumulate_backbone:
                            backbone.zero_grad()
                        loss = run.loss(X_s, kept, edges, batch.target, batch.ids)
                        loss.backward()  # type: ignore[no-untyped-call]
                        backbone.step()  # theta: at every mask
                        if not settings.async_updates:
                            extrapolator.step()
                            extrapolator.zero_grad()
                        losses.append(loss.detach())
                if settings.async_updates:
                    extrapolator.step()  # omega: once, with the accumulated gradient
            run.end_of_epoch(number, losses, views, history)
            if on_step is not None:
                on_step(history.epochs[-1])
            if run.out_of_patience(history):
                history.stopped_early = True
                break
    return history


class _Run:
    """What one run draws and builds: batches, masks, edges and the views for validation."""

    def __init__(
        self,
        model: FATE,
        rows: Rows,
        settings: Settings,
        field_of: NDArray[np.integer] | None,
        seed: int,
        device: torch.device,
    ) -> None:
        X = rows.X
        self.model, self.rows, self.X = model, rows, X
        self.settings, self.device, self.seed = settings, device, seed
        self.field_of = check_fields(model, field_of)
        # WHY: BatchNorm has no variance of a single row.
        self.least_rows = 2 if any(isinstance(m, BatchNorm1d) for m in model.modules()) else 1
        if X.n_rows < self.least_rows:
            raise InputError("one training row: BatchNorm needs two or more.")
        if settings.batch_size is not None and settings.batch_size < self.least_rows:
            raise InputError("batch_size=1: BatchNorm needs two rows or more at a time.")
        self.mask_rng = torch.Generator().manual_seed(seed)
        self.edge_rng = torch.Generator(device).manual_seed(seed + 1)
        self.row_rng = np.random.default_rng([seed, 2])
        self.best = BestWeights(model)
        self.untrained = np.flatnonzero(X.feature_degree == 0)
        if settings.untrained == "field_mean":
            with torch.no_grad():
                model.W[self.untrained] = 0  # nothing will ever train their random start
        self.fixed_masks = self._draw() if settings.masking == "leave_out" else None
        self.whole = self._batch(None) if settings.batch_size is None else None

    @contextmanager
    def running(self, history: History) -> Iterator[None]:
        """The epochs.  In the end, also when interrupted, the caller has what was best so far."""
        started = time.perf_counter()
        # WHY: fork_rng, because Dropout draws from torch's own generator.
        with torch.random.fork_rng(cuda_devices(self.device)):
            torch.manual_seed(self.seed + 2)
            try:
                yield
            finally:
                self.restore_best()
                history.seconds = time.perf_counter() - started

    def _draw(self) -> Tensor:
        """Masks (S, D) of one iteration."""
        s, D, rng = self.settings, self.X.n_features, self.mask_rng
        if s.masking == "n_fold":
            return n_fold(D, s.n_folds, rng, reference=s.reference_folds)
        if s.masking == "leave_out":
            return leave_out(D, s.left_out, rng)
        if s.masking == "k_shot":
            if s.unit == "field" and self.field_of is None:
                raise InputError("unit='field' needs field_of, the field of each feature.")
            unit_of = self.field_of if s.unit == "field" else torch.arange(D)
            assert unit_of is not None and s.n_kept is not None
            return k_shot(unit_of, s.n_kept, s.n_draws, rng)
        return torch.ones(1, D, dtype=torch.bool)

    def batches(self) -> Iterator[_Batch]:
        """The mini-batches of an epoch, each with only the features that its rows touch."""
        if self.whole is not None:
            yield self.whole
            return
        size = self.settings.batch_size or self.X.n_rows
        order, weight = self.row_rng.permutation(self.X.n_rows), self.rows.weight
        starts = list(range(0, len(order), size))
        if len(order) - starts[-1] < self.least_rows:
            starts.pop()  # the last is too short: the one before it takes it in
        for start, end in itertools.pairwise([*starts, len(order)]):
            rows = order[start:end]
            if weight is None or weight[rows].any():  # a mean over no weight is not a number
                yield self._batch(rows)

    def _batch(self, rows: NDArray[np.integer] | None) -> _Batch:
        """A batch of the given rows, or of all rows over all features."""
        if rows is None:
            graph = self._graph(self.X)
            return _Batch(graph, self._target(self.rows.y, self.rows.weight), None)
        local, ids = touched_features(self.X.select_rows(rows))
        weight = None if self.rows.weight is None else self.rows.weight[rows]
        touched = torch.from_numpy(ids.astype(np.int64))
        target = self._target(self.rows.y[rows], weight)
        return _Batch(self._graph(local, touched), target, touched.to(self.device))

    def _graph(self, X: MultiHot, ids: Tensor | None = None) -> Bipartite:
        """The graph of rows over all features, or over those of `ids`; it knows their fields."""
        graph = Bipartite.from_multihot(X, self.device)
        if self.field_of is None:
            return graph
        fields = self.field_of if ids is None else self.field_of[ids]
        return graph.with_fields(fields.to(self.device))

    def masks(self, batch: _Batch) -> Tensor:
        """Masks (S, D) of one iteration, over the features of the batch."""
        kept = self._draw() if self.fixed_masks is None else self.fixed_masks
        kept = kept.to(self.device)
        return kept if batch.ids is None else kept[:, batch.ids]

    def edges(self, X: Bipartite, rho: float) -> Edges:
        """The edges on which this step's messages travel."""
        if self.model.extrapolator is None:
            return Edges.of(X)
        return drop_edges(X, rho, self.edge_rng, self.settings.drop_edge_directed)

    def omega_unchanged(self) -> AbstractContextManager[None]:
        """The masks of one iteration, during which only theta is updated."""
        g = self.model.extrapolator
        if self.settings.async_updates and isinstance(g, GCN):
            return g.unchanged()
        return nullcontext()

    def loss(
        self,
        X: Bipartite,
        kept: Tensor,
        edges: Edges,
        target: _Target,
        ids: Tensor | None = None,
    ) -> Tensor:
        """The loss of one mask, or the mean of several."""
        mixed = self.settings.mixed_precision
        with torch.autocast(self.device.type, torch.bfloat16) if mixed else nullcontext():
            # WHY: backward of index_select is half as long as that of W[ids].
            W = None if ids is None else self.model.W.index_select(0, ids)
            outputs = self.model(X, kept, edges, W)
        # WHY: a loss in bfloat16 would round to three digits.
        return mean_loss(self.settings.loss, full_precision(outputs), target.y, target.weight)

    def erase(self, kept: Tensor, batch: _Batch) -> None:
        """Set the embeddings of hidden features to zero in place."""
        hidden = (~kept).nonzero()[:, 0]
        with torch.no_grad():
            self.model.W[hidden if batch.ids is None else batch.ids[hidden]] = 0

    def validation_views(self, rows: Rows) -> _Validation:
        """What the validation loss of every epoch is computed from, built once."""
        X = rows.X
        graph = Bipartite.from_multihot(MultiHot.stack([self.X, X]), self.device)
        rng_state = self.mask_rng.get_state()
        # A plain network is validated as it will be used: with all of its features.
        plain = self.model.extrapolator is None
        masks = torch.ones(1, X.n_features, dtype=torch.bool) if plain else self._draw()
        self.mask_rng.set_state(rng_state.clone())  # WHY: validation must not change the run
        target = self._target(rows.y, rows.weight)
        return _Validation(self._graph(X), graph, target, masks.to(self.device))

    @torch.no_grad()
    def validation_loss(self, views: _Validation) -> float:
        """The loss over all masks; many at once where the graph is the same for all of them."""
        self.model.eval()
        X, graph, target, masks = views.X, views.graph, views.target, views.masks
        redraw = self.settings.redraw_validation and self.model.extrapolator is not None
        if not redraw and not self.settings.columns_only:
            n_states = (graph.n_rows + graph.n_features) * self.model.W.size(1)
            parts = torch.split(masks, max(1, _STATES_AT_ONCE // n_states))
            shares = [len(part) / len(masks) for part in parts]
            means = [self.loss(X, part.T, Edges.of(graph), target) for part in parts]
            return float(sum(m * share for m, share in zip(means, shares, strict=True)))
        losses = []
        for kept in self._draw().to(self.device) if redraw else masks:
            X_s, seen = X, graph
            if self.settings.columns_only:
                X_s, seen = X.keep_features(kept), graph.keep_features(kept)
            # REFERENCE: DropEdge in validation too.
            edges = self.edges(seen, self.settings.drop_edge if redraw else 0.0)
            losses.append(self.loss(X_s, kept, edges, target))
        return float(torch.stack(losses).mean())

    def end_of_epoch(
        self, number: int, losses: list[Tensor], views: _Validation | None, history: History
    ) -> None:
        """Note the losses, and the weights if they are the best so far."""
        settings = self.settings
        train_loss = float(torch.stack(losses).mean())
        validation_loss = math.nan if views is None else self.validation_loss(views)
        told = [train_loss] if views is None else [train_loss, validation_loss]
        bad = next((loss for loss in told if not math.isfinite(loss)), None)
        if bad is not None:
            raise OpenFATEError(
                f"training diverged: the loss of epoch {number} is {bad}. "
                f"Lower lr={settings.lr} or lr_extrapolator={settings.lr_extrapolator}."
            )
        history.epochs.append(Epoch(number, train_loss, validation_loss))
        if views is None or validation_loss < self.best.loss:
            history.best_epoch = number
            self.best.keep(validation_loss)

    def out_of_patience(self, history: History) -> bool:
        """Whether epochs are left but none of the last ones was better than the best."""
        number, patience = history.epochs[-1].number, self.settings.patience
        if patience is None or number == self.settings.epochs:
            return False
        return number - history.best_epoch >= patience

    def restore_best(self) -> None:
        """Put the weights of the best epoch back into the model."""
        self.best.restore()
        self.model.eval()
        self.fill_untrained()

    def fill_untrained(self) -> None:
        """Give features without training rows the mean embedding of their field, or zero."""
        if self.settings.untrained == "leave" or self.field_of is None or not len(self.untrained):
            return
        fields = self.field_of.to(self.device)
        trained = torch.from_numpy(self.X.feature_degree > 0).to(self.device)
        with torch.no_grad():
            # field_means takes the first rows of W as the known ones: put the trained ones there.
            order, n = torch.argsort(~trained, stable=True), int(trained.sum())
            H = self.model.backbone.width  # own columns stay zero
            W = self.model.W[order[:n], :H]
            self.model.W[order[n:], :H] = field_means(W, fields[order])[n:]

    def _target(self, y: NDArray[Any], weight: NDArray[np.float64] | None) -> _Target:
        """Targets on the device, floating ones in the model's precision."""
        dtype = self.model.W.dtype
        target = torch.from_numpy(y).to(self.device, torch.int64 if y.dtype.kind == "i" else dtype)
        if weight is None:
            return _Target(target, None)
        return _Target(target, torch.from_numpy(weight).to(self.device, dtype))
