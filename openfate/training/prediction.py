"""Predictions of mini-batches, each from its own graph, by either engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.errors import check_choice, check_integer
from openfate.graph import Edges
from openfate.models import FATE
from openfate.training.batches import Batch, Batches, prepare_ahead
from openfate.training.engine import Device, takes_fused
from openfate.training.ranks import Ranks
from openfate.training.settings import EngineName, check_device

Predictions = Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]


def predict_batches(
    model: FATE,
    batches: Batches,
    *,
    drop_new: bool = False,
    device: torch.device | str = "cpu",
    n_ahead: int = 2,
    engine: EngineName = "auto",
) -> Predictions:
    """Logits (B,) of each mini-batch from its own graph, beside its labels (B,).

    PAPER: the graph at inference is the mini-batch: a prediction depends on the rows that it comes
    with.  `openfate.models.running` has predictions that do not.

    Parameters
    ----------
    batches
        ids (B, d) and labels (B,), arrays or tensors; ids from D on are new features.  One without
        rows is passed over.
    drop_new
        Leave the new features out, the control that tells what extrapolation adds.
    n_ahead
        Batches that a thread reads in advance; with one or more, a GPU also starts on a batch
        before the predictions of the last one are handed out.
    engine
        As `Settings`.
    """
    check_choice("engine", engine, get_args(EngineName))
    check_integer("n_ahead", n_ahead, 0)
    device = check_device(device)
    with closing(make_predictor(model, device, engine, drop_new)) as predictor:
        yield from predictor.logits(batches, n_ahead)


def make_predictor(
    model: FATE,
    device: Device,
    engine: EngineName = "auto",
    drop_new: bool = False,
    ranks: Ranks | None = None,
) -> Predictor:
    """As `make_engine`; `drop_new` leaves features from id D on out."""
    if ranks is not None and ranks.in_group:
        return Predictor(model, device, drop_new, ranks)
    if takes_fused(engine, model, device):
        # WHY here: this module loads Triton.
        from openfate.training.fused.click_engine import FusedPredictor  # noqa: PLC0415

        return FusedPredictor(model, device, drop_new)
    return Predictor(model, device, drop_new)


class Predictor:
    """Predicts each mini-batch from its own graph, by the model's own forward."""

    def __init__(
        self, model: FATE, device: Device, drop_new: bool, ranks: Ranks | None = None
    ) -> None:
        self.model, self.device, self.drop_new = model, device, drop_new
        self.ranks = ranks or Ranks()

    def logits(self, batches: Batches, n_ahead: int) -> Predictions:
        """Logits (B,) and labels (B,) of each mini-batch."""
        self.model.eval()
        for batch in prepare_ahead(batches, lambda ids, y: Batch.of(ids, y, self.device), n_ahead):
            yield self._predict(batch).float().cpu().numpy(), batch.y.cpu().numpy()

    def close(self) -> None:
        """Free what predicting needed; nothing by default."""

    @torch.no_grad()
    def _predict(self, batch: Batch) -> Tensor:
        model = self.model
        observed = batch.ids < (self.ranks.n_sharded or len(model.W))
        W = model.W.new_zeros(len(batch.ids), model.W.size(1))
        W[observed] = self._rows(batch.ids[observed])
        X = batch.X.keep_features(observed) if self.drop_new else batch.X
        out: Tensor = model(X, observed, Edges.of(X), W)
        return out[:, 0]

    def _rows(self, ids: Tensor) -> Tensor:
        """(U, C) rows of W; where they are sharded all ranks ask for the same."""
        W = self.model.W
        if self.ranks.n_sharded is None:
            return W[ids]
        routes = self.ranks.find(ids)
        return routes.fetch(W[routes.owned])
