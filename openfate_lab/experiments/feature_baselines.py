"""The paper's baselines that estimate new features without learning (appendix, baselines).

Each takes W (D, H) of a plain network and the graph of the rows at hand, whose features from D on
are new, and returns W_hat (D', H).  Edge values multiply what is pooled; similarities and means
count edges.  Base, Oracle and INL are ways of training, not of estimating:
see `openfate_lab.experiments.uci`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, features_to_rows, rows_to_features


def average(W: Tensor, graph: Bipartite) -> Tensor:
    """Every new feature takes the mean of all observed embeddings.

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 2], [1]], n_features=3))
    >>> average(torch.tensor([[1.0], [3.0]]), graph)
    tensor([[1.],
            [3.],
            [2.]])
    """
    return torch.cat([W, W.mean(0).expand(graph.n_features - len(W), -1)])


def pooling(W: Tensor, graph: Bipartite, binary: bool = False) -> Tensor:
    """Mean over a feature's rows of the mean over each row's observed features.

    REFERENCE: `binary` takes the plain mean of all observed features that share a row with it, once
    each.

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1, 2], [1, 2]], n_features=3))
    >>> pooling(torch.tensor([[1.0], [3.0]]), graph)
    tensor([[1.0000],
            [3.0000],
            [2.5000]])
    """
    n_new = graph.n_features - len(W)
    if binary:
        together = (cooccurrence(graph, len(W)) > 0).to(W.dtype)
        return torch.cat([W, together @ W / together.sum(1, keepdim=True).clamp(min=1)])
    known = torch.cat([torch.ones_like(W[:, :1]), W.new_zeros(n_new, 1)])
    padded = torch.cat([W, W.new_zeros(n_new, W.size(1))])
    n_known = features_to_rows(graph.without_values(), known)  # (N, 1) observed in each row
    row_mean = features_to_rows(graph, padded) / n_known.clamp(min=1)
    total = rows_to_features(graph, row_mean)[len(W) :]
    return torch.cat([W, total / graph.feature_degree[len(W) :, None].clamp(min=1)])


def knn(W: Tensor, graph: Bipartite, share: float = 0.2, similarity: str = "jaccard") -> Tensor:
    """Mean embedding of the observed features most similar to a new one: the top `share` of them.

    Similarity is Jaccard's, rows in common over rows of either.  REFERENCE:
    `similarity="cooccurrence"` counts the rows in common (the released code also takes a random
    tenth of the candidates where there are more than 200; we take them all).

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 2], [0, 2], [1]], n_features=3))
    >>> knn(torch.tensor([[1.0], [3.0]]), graph)
    tensor([[1.],
            [3.],
            [1.]])
    """
    if similarity not in ("jaccard", "cooccurrence"):
        raise InputError(f"similarity={similarity!r}: choose 'jaccard' or 'cooccurrence'.")
    common = cooccurrence(graph, len(W))  # (D' - D, D)
    score = common
    if similarity == "jaccard":
        degree = graph.feature_degree.to(W.dtype)
        union = degree[len(W) :, None] + degree[None, : len(W)] - common
        score = common / union.clamp(min=1)
    # A stable sort: ties go to the lower id on every device.
    order = score.argsort(dim=1, descending=True, stable=True)
    top = order[:, : max(1, math.ceil(share * len(W)))]
    return torch.cat([W, W[top].mean(1)])


def cooccurrence(graph: Bipartite, n_observed: int) -> Tensor:
    """(D' - D, D): in how many rows each new feature meets each observed one."""
    graph = graph.without_values()
    columns = []
    for start in range(0, n_observed, 256):  # WHY: (N, D) at once would not fit for wide tables
        chunk = torch.arange(start, min(start + 256, n_observed))
        one_hot = torch.zeros(graph.n_features, len(chunk))
        one_hot[chunk, torch.arange(len(chunk))] = 1
        has = features_to_rows(graph, one_hot.to(graph.row_degree.device))  # (N, chunk)
        columns.append(rows_to_features(graph, has)[n_observed:])
    return torch.cat(columns, 1)
