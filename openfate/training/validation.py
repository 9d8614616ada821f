"""How good a model is on rows apart: the loss of a table, the ROC-AUC of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.table import MultiHot
from openfate.training.batches import Batches
from openfate.training.engine import PlainEngine
from openfate.training.metrics import StreamingAUC
from openfate.training.prediction import make_predictor
from openfate.training.rows import Rows
from openfate.training.sources import StreamSource, TableSource

# WHY: 2^24 numbers are 64 MiB, of which a forward holds some five at a time.
_STATES_AT_ONCE = 2**24


class TableValidation:
    """The loss of rows over masks that are drawn once; built once for a run.

    The extrapolator sees training and validation rows.  A plain network is validated as it will be
    used: with all of its features.
    """

    def __init__(self, source: TableSource, engine: PlainEngine, rows: Rows) -> None:
        self.engine, self.settings = engine, source.settings
        self.bag = source.bag(rows) if source.in_bags else None
        if self.bag is not None:
            return
        self.rows = source.batch(rows)
        self.graph = Bipartite.from_multihot(MultiHot.stack([source.rows.X, rows.X]), source.device)
        plain, state = engine.model.extrapolator is None, engine.mask_rng.get_state()
        masks = torch.ones(1, rows.X.n_features).bool() if plain else engine.draw_masks()
        engine.mask_rng.set_state(state)  # WHY: validation must not change the run
        self.masks = masks.to(source.device)
        self.redraw = self.settings.redraw_validation and not plain

    @torch.no_grad()
    def measure(self) -> tuple[float, float]:
        """The loss over all masks, many at once where they share the graph; nan for an AUC."""
        engine, model = self.engine, self.engine.model
        model.eval()
        if self.bag is not None:
            return float(engine.bag_loss(self.bag)), math.nan
        if self.redraw or self.settings.columns_only:
            masks = engine.draw_masks().to(self.masks.device) if self.redraw else self.masks
            return float(torch.stack([self._loss(kept) for kept in masks]).mean()), math.nan
        n_states = (self.graph.n_rows + self.graph.n_features) * model.W.size(1)
        parts = torch.split(self.masks, max(1, _STATES_AT_ONCE // n_states))
        edges, shares = Edges.of(self.graph), [len(part) / len(self.masks) for part in parts]
        means = [engine.loss(self.rows.X, part.T, edges, model.W, self.rows) for part in parts]
        return float(sum(m * share for m, share in zip(means, shares, strict=True))), math.nan

    def _loss(self, kept: Tensor) -> Tensor:
        """Of one mask, whose graph is its own."""
        X, seen, s = self.rows.X, self.graph, self.settings
        if s.columns_only:
            X, seen = X.keep_features(kept), seen.keep_features(kept)
        # REFERENCE: DropEdge in validation too.
        edges = self.engine.draw_edges(seen, s.drop_edge if self.redraw else 0.0)
        return self.engine.loss(X, kept, edges, self.engine.model.W, self.rows)


class StreamValidation:
    """ROC-AUC and log-loss of batches, each a graph of its own, with new features in it."""

    def __init__(self, source: StreamSource, batches: Callable[[], Batches]) -> None:
        self.batches, self.settings = batches, source.settings
        self.predictor = make_predictor(source.model, source.device, source.settings.engine)

    def measure(self) -> tuple[float, float]:
        """Log-loss and ROC-AUC of rows of both classes."""
        score, n_clicks = StreamingAUC(), 0
        for logits, y in self.predictor.logits(self.batches(), self.settings.n_ahead):
            score.add(logits, y)
            n_clicks += int((y == 1).sum())
        if n_clicks in (0, score.n_rows):
            held = (
                f"{score.n_rows} rows of class {int(n_clicks > 0)}" if score.n_rows else "no rows"
            )
            raise InputError(
                f"validation holds {held}: a ROC-AUC needs rows of both classes; give more rows, "
                "or validation=None."
            )
        return score.log_loss, score.value()

    def close(self) -> None:
        """Free what predicting needed."""
        self.predictor.close()
