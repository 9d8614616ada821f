"""Naive twins of the fast functions: dense matrices, double loops, nothing clever.

X (N, D) is a dense 0-1 tensor.  Where messages travel in two directions `to_rows` and `to_features`
(both (N, D)) hold the edges of each.  `values` (N, D), where given, multiply messages; degrees are
sums of X all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate.graph import Bipartite
from openfate.table import MultiHot

# ---- tables --------------------------------------------------------------------------------


def random_table(seed: int, n_rows: int = 7, n_features: int = 6, share: float = 0.35) -> Tensor:
    """A random X; where there is room, its first row and its second feature are empty."""
    X = (np.random.default_rng(seed).random((n_rows, n_features)) < share).astype(np.float64)
    if n_rows > 3 and n_features > 3:
        X[0] = 0
        X[:, 1] = 0
    return torch.from_numpy(X)


def random_values(seed: int, n_rows: int = 7, n_features: int = 6) -> Tensor:
    """Values that float32 can hold, some negative and a fifth of them zero."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.8)
    return torch.from_numpy(values.astype(np.float32).astype(np.float64))


def multihot(X: Tensor, values: Tensor | None = None) -> MultiHot:
    """A dense table as the package takes it."""
    n_features = X.size(1)
    row, feature = np.nonzero(X.numpy())
    numbers = None if values is None else values.numpy()[row, feature]
    return MultiHot.from_entries(row, feature, X.size(0), n_features, numbers)


def bipartite(X: Tensor, device: str = "cpu", values: Tensor | None = None) -> Bipartite:
    """A dense table as a graph."""
    return Bipartite.from_multihot(multihot(X, values), device)


def dense_by_row(graph: Bipartite, with_values: bool = False) -> Tensor:
    """(N, D) edges of each pair, or their value, read from the list that is ordered by row."""
    X = torch.zeros(graph.n_rows, graph.n_features, dtype=torch.float64)
    for i in range(graph.n_rows):
        for edge in range(int(graph.row_ptr[i]), int(graph.row_ptr[i + 1])):
            X[i, int(graph.feature[edge])] += float(graph.value[edge]) if with_values else 1
    return X


def dense_by_feature(graph: Bipartite, with_values: bool = False) -> Tensor:
    """(N, D) edges of each pair, or their value, read from the list that is ordered by feature."""
    X = torch.zeros(graph.n_rows, graph.n_features, dtype=torch.float64)
    for j in range(graph.n_features):
        for edge in range(int(graph.feature_ptr[j]), int(graph.feature_ptr[j + 1])):
            value = float(graph.value_by_feature[edge]) if with_values else 1
            X[int(graph.row[edge]), j] += value
    return X


# ---- sums ----------------------------------------------------------------------------------


def features_to_rows(X: Tensor, table: Tensor, values: Tensor | None = None) -> Tensor:
    """Entry i is the sum of table[j], times the edge's value, over the features j of row i."""
    zero, V = torch.zeros_like(table[:1].sum(0)), X if values is None else values
    sums = [
        zero + sum(V[i, j] * table[j] for j in range(X.size(1)) if X[i, j])
        for i in range(X.size(0))
    ]
    return torch.stack(sums) if sums else table.new_zeros(0, *table.shape[1:])


def rows_to_features(X: Tensor, table: Tensor, values: Tensor | None = None) -> Tensor:
    """Entry j is the sum of table[i], times the edge's value, over the rows i of feature j."""
    return features_to_rows(X.T, table, None if values is None else values.T)


# ---- extrapolators -------------------------------------------------------------------------


def adjacency(to_rows: Tensor, to_features: Tensor) -> Tensor:
    """(D + N, D + N) features first: entry [target, source] is one where a message travels."""
    n_rows, n_features = to_rows.shape
    A = torch.zeros(n_features + n_rows, n_features + n_rows, dtype=to_rows.dtype)
    A[n_features:, :n_features] = to_rows
    A[:n_features, n_features:] = to_features.T
    return A


def normalised(to_rows: Tensor, to_features: Tensor, values: Tensor | None = None) -> Tensor:
    """A_hat: self-loops, and every edge over the root of the in-degrees of both of its ends."""
    A = adjacency(to_rows, to_features)
    scale = (A.sum(1) + 1) ** -0.5
    if values is not None:
        A = adjacency(to_rows * values, to_features * values)
    A = A + torch.eye(len(A), dtype=A.dtype)
    return scale[:, None] * A * scale[None, :]


def gcn(
    states: Tensor,
    to_rows: Tensor,
    to_features: Tensor,
    P: Sequence[Tensor],
    bias: Sequence[Tensor],
    values: Tensor | None = None,
) -> Tensor:
    """Layer by layer on all nodes: h <- A_hat h P + bias."""
    A = normalised(to_rows, to_features, values).to(states.dtype)
    h = torch.cat([states, states.new_zeros(len(to_rows), states.size(1))])
    for P_l, bias_l in zip(P, bias, strict=True):
        h = A @ h @ P_l + bias_l
    return h[: len(states)]


def sgc(
    states: Tensor,
    to_rows: Tensor,
    to_features: Tensor,
    weight: Tensor,
    bias: Tensor,
    n_layers: int,
    values: Tensor | None = None,
) -> Tensor:
    """The walk first, then one affine map; `weight` is an nn.Linear's."""
    A = normalised(to_rows, to_features, values).to(states.dtype)
    h = torch.cat([states, states.new_zeros(len(to_rows), states.size(1))])
    for _ in range(n_layers):
        h = A @ h
    return h[: len(states)] @ weight.T + bias


def sage(
    states: Tensor,
    to_rows: Tensor,
    to_features: Tensor,
    layers: Sequence[tuple[Tensor, Tensor, Tensor]],
    normalize: bool,
    values: Tensor | None = None,
    prior_rows: Tensor | float = 0.0,
) -> Tensor:
    """Layers of (neighbour weight, bias, root weight), the weights an nn.Linear's."""
    A = adjacency(to_rows, to_features).to(states.dtype)
    V = 1.0 if values is None else adjacency(values, values).to(states.dtype)
    is_feature = (torch.arange(len(A)) < len(states)).to(states.dtype)[:, None]
    mean = A * V / (A.sum(1, keepdim=True) + prior_rows * is_feature).clamp(min=1)
    h = torch.cat([states, states.new_zeros(len(to_rows), states.size(1))])
    for neighbour, bias, root in layers:
        h = mean @ h @ neighbour.T + bias + h @ root.T
        h = F.normalize(h, dim=1) if normalize else h
    return h[: len(states)]


# ---- the model and the baselines -----------------------------------------------------------


def fate(
    W: Tensor,
    kept: Tensor,
    X: Tensor,
    extrapolate: Callable[[Tensor], Tensor] | None,
    backbone: Callable[[Tensor], Tensor],
    recompose: str,
) -> Tensor:
    """Logits of a training step: hidden features start at zero and use the network's output."""
    states = torch.where(kept[:, None], W, 0.0)
    if extrapolate is None:
        W_hat = states
    else:
        out = extrapolate(states)
        W_hat = out if recompose == "all" else torch.where(kept[:, None], W, out)
    return backbone(X.to(W.dtype) @ W_hat)


def pooling(W: Tensor, X: Tensor) -> Tensor:
    """For each new feature: the mean over its rows of the mean of the row's observed features."""
    result = list(W)
    for new in range(len(W), X.size(1)):
        row_means = []
        for row in X[X[:, new] == 1]:
            known = [W[j] for j in range(len(W)) if row[j]]
            row_means.append(sum(known) / max(1, len(known)) + torch.zeros_like(W[0]))
        result.append(sum(row_means) / max(1, len(row_means)) + torch.zeros_like(W[0]))
    return torch.stack(result)


def jaccard(X: Tensor, one: int, other: int) -> float:
    """Rows that have both features over rows that have either."""
    has_one, has_other = (
        set(X[:, one].nonzero()[:, 0].tolist()),
        set(X[:, other].nonzero()[:, 0].tolist()),
    )
    return len(has_one & has_other) / max(1, len(has_one | has_other))


def knn(W: Tensor, X: Tensor, share: float) -> Tensor:
    """For each new feature: the mean of the top `share` of the observed ones by Jaccard's index."""
    result = list(W)
    for new in range(len(W), X.size(1)):
        ranked = sorted(range(len(W)), key=lambda j: -jaccard(X, new, j))
        result.append(W[ranked[: max(1, math.ceil(share * len(W)))]].mean(0))
    return torch.stack(result)


# ---- losses --------------------------------------------------------------------------------


def row_loss(loss: str, outputs: Tensor, y: Tensor) -> Tensor:
    """Of one row's outputs (C,); every formula written out."""
    if loss == "squared_error":
        return (outputs[0] - y) ** 2
    if loss == "absolute_error":
        return (outputs[0] - y).abs()
    if loss == "log_loss" and len(outputs) > 1:
        return -(outputs.exp()[y] / outputs.exp().sum()).log()
    p = 1 / (1 + (-outputs).exp())
    labels = y if loss == "multilabel" else y[None]
    each = [-(p[k] if labels[k] else 1 - p[k]).log() for k in range(len(p))]
    return sum(each) / len(each)


def mean_loss(loss: str, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum of w l over sum of w."""
    w = torch.ones(len(outputs), dtype=outputs.dtype) if weight is None else weight
    total = sum(w[i] * row_loss(loss, outputs[i], y[i]) for i in range(len(outputs)))
    return total / w.sum()


# ---- comparing -----------------------------------------------------------------------------


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """No entry differs by more than `tolerance` times the largest one (or one)."""
    assert actual.shape == expected.shape
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    error = (actual.detach().double() - expected.detach().double()).abs()
    assert float(error.max() if error.numel() else 0.0) <= tolerance * scale
