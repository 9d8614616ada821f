"""ContextMap: an extrapolator of one round of messages, rows -> features, in closed form.

The context of a feature is the mean, over its n_j rows, of the rows' summed embeddings z_i:

    c_j     = sum over rows i of j of (z_i - mean z) / (n_j + prior_rows)
    w_hat_j = scale c_j M

For observed features both w_j and the context without w_j itself are known; ridge regression
between them gives M.  It is the paper's extrapolator with one mean-aggregating layer, whose weights
are solved for instead of trained, so that a probe can afford to fit it in every draw.

N rows, D features, H width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openfate.graph import Bipartite, Edges, features_to_rows, rows_to_features, touched_features
from openfate.table import MultiHot

_CHUNK = 1 << 16  # rows at a time: bounds the memory of messages


class ContextMap(nn.Module):
    """Embeddings of new features by a linear map of their contexts.

    Parameters
    ----------
    width
        H.
    prior_rows
        Rows of no context at all that a feature starts with, so that one of few rows says little.
    scale
        How much of the guessed embeddings is used.

    Shapes
    ------
    states (D, H), output alike

    Examples
    --------
    >>> X = MultiHot.from_rows([[0, 2], [1, 3]] * 4, 4)
    >>> W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> ContextMap.solve(W, X).M.round(decimals=2)  # what stands together looks alike
    tensor([[ 0.5800, -0.5800],
            [-0.5800,  0.5800]])
    """

    M: Tensor
    mean: Tensor

    def __init__(self, width: int, prior_rows: float = 3.0, scale: float = 1.0) -> None:
        super().__init__()
        self.width, self.prior_rows, self.scale = width, prior_rows, scale
        self.register_buffer("M", torch.zeros(width, width))
        self.register_buffer("mean", torch.zeros(width))  # of z over the training rows

    @classmethod
    def solve(cls, W: Tensor, X: MultiHot, scale: float = 1.0, ridge: float = 1.0) -> ContextMap:
        """The map that gives the observed features' embeddings best from their contexts.

        Parameters
        ----------
        W
            (D, H) learned embeddings.
        X
            (N, D) training rows; a feature counts by the number of its rows.
        ridge
            Times the mean eigenvalue of the contexts.
        """
        W = W.detach().double()
        extrapolator = cls(W.size(1), scale=scale).double()
        values = np.ones(X.nnz) if X.values is None else X.values.astype(np.float64)
        total, squares = (
            torch.from_numpy(np.bincount(X.ids, v, X.n_features)) for v in (values, values**2)
        )
        extrapolator.mean = total @ W / max(X.n_rows, 1)
        n = torch.from_numpy(X.feature_degree).double()[:, None]
        share = n / n.sum().clamp(min=1)
        centred = W - (share * W).sum(0)
        sums = -squares[:, None] * centred  # WHY: a feature is no part of its own context
        for part in cut_rows(X):
            local, ids = touched_features(part)
            at, graph = torch.from_numpy(ids).long(), Bipartite.from_multihot(local)
            sums[at] += rows_to_features(graph, extrapolator.row_messages(W[at], graph))
        context = sums / (n + extrapolator.prior_rows)
        context = context - (share * context).sum(0)
        gram = context.T @ (n * context)
        size = gram.trace() / len(gram)
        if size > 0:
            target = context.T @ (n * centred)
            gram = gram + ridge * size * torch.eye(len(gram), dtype=gram.dtype)
            # WHY: as it is read from a file: by another layout the last bits would differ.
            extrapolator.M = torch.linalg.solve(gram, target).contiguous()
        return extrapolator.float()

    def forward(self, states: Tensor, edges: Edges, wanted: Tensor | None = None) -> Tensor:
        """Embeddings of all features, or of the `wanted` ones: (W, H)."""
        to_features = edges.to_features
        sums = rows_to_features(to_features, self.row_messages(states, edges.to_rows))
        out = self.from_sums(states, sums, to_features.feature_degree)
        return out if wanted is None else out.index_select(0, wanted)

    def row_messages(self, features: Tensor, X: Bipartite) -> Tensor:
        """What each row sends to its features: (D, H) -> (N, H)."""
        return features_to_rows(X, features) - self.mean

    def from_sums(self, features: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
        """Embeddings (D, H) from running sums of messages and the number of rows, (D, H), (D,)."""
        context = sums / (counts.to(sums.dtype) + self.prior_rows)[:, None]
        return self.scale * (context @ self.M)

    def rescale(self, scale: float) -> ContextMap:
        """A copy that uses another part of the embeddings."""
        other = ContextMap(self.width, self.prior_rows, scale)
        other.M, other.mean = self.M, self.mean
        return other

    def options(self) -> dict[str, Any]:
        """What else than its width makes one again."""
        return {"name": "context", "prior_rows": self.prior_rows, "scale": self.scale}


def cut_rows(X: MultiHot) -> Iterator[MultiHot]:
    """The rows in parts that messages of fit into memory."""
    if X.n_rows <= _CHUNK:
        yield X
        return
    for start in range(0, X.n_rows, _CHUNK):
        yield X.select_rows(np.arange(start, min(start + _CHUNK, X.n_rows)))
