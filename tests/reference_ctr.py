"""Naive twins of the click backbones: one row at a time, every pair of features in a loop.

`X` (N, D) is a dense 0-1 table or holds edge values, `W_hat` (D, H + linear) what the backbone is
given, `W` the features' own; the network behind them (`deep`) and its layers are passed in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openfate.models import DCN, MLP, DeepFM, WideDeep


def features_to_cells(X: Tensor, table: Tensor, field_of: list[int], n_fields: int) -> Tensor:
    """Entry (i, f) is the sum over the features of row i that are of field f."""
    cells = []
    for row in X:
        for field in range(n_fields):
            mine = [row[j] * table[j] for j in range(len(row)) if row[j] and field_of[j] == field]
            cells.append(sum(mine) + torch.zeros_like(table[0]))
    return torch.stack(cells).view(len(X), n_fields, *table.shape[1:])


def concatenated(X: Tensor, W_hat: Tensor, field_of: list[int], n_fields: int) -> Tensor:
    """The fields' embeddings side by side: (N, F H)."""
    return features_to_cells(X, W_hat, field_of, n_fields).flatten(1)


def embeddings_of(row: Tensor, table: Tensor) -> list[Tensor]:
    return [row[j] * table[j] for j in range(len(row)) if row[j]]


def widedeep(model: WideDeep, X: Tensor, W_hat: Tensor, W: Tensor) -> Tensor:
    H, zero = model.n_embedding, torch.zeros_like(W_hat[0])
    totals = torch.stack([sum(embeddings_of(row, W_hat)) + zero for row in X])
    return model.deep(totals[:, :H]) + totals[:, H:]


def pairs(fm: str, own: list[Tensor], hats: list[Tensor]) -> Tensor:
    """The factorization machine of one row, pair by pair."""
    total = torch.zeros((), dtype=torch.float64)
    for m in range(len(hats)):
        for other in range(len(hats)):
            if fm == "paper":
                total = total + hats[m] @ hats[other]
            elif fm == "pairs" and m < other:
                total = total + hats[m] @ hats[other]
            elif fm == "cross" and m != other:
                total = total + own[m] @ hats[other] / 2
    return total


def deepfm(model: DeepFM, X: Tensor, W_hat: Tensor, W: Tensor) -> Tensor:
    H = model.n_embedding
    if model.fm == "cross" and model.n_own:  # linear weights of hidden features are read too
        W_hat = torch.cat([W_hat[:, :H], W[:, H:]], 1)
    machine = [
        pairs(model.fm, embeddings_of(row, W[:, :H]), embeddings_of(row, W_hat[:, :H])) for row in X
    ]
    weight = model.fm_scale if model.fm_weight is None else model.fm_weight
    return widedeep(model, X, W_hat, W) + torch.stack(machine)[:, None] * weight


def dcn(model: DCN, x_0: Tensor) -> Tensor:
    """Layer by layer, entry by entry."""
    x = x_0
    for layer in model.cross:
        rows = []
        for i in range(len(x)):
            new = [
                x_0[i, k] * (layer.weight[k] @ x[i] + layer.bias[k]) + x[i, k]
                for k in range(x.size(1))
            ]
            rows.append(torch.stack(new))
        x = torch.stack(rows)
    return x @ model.out.weight.T + model.deep(x_0)


def mlp(model: MLP, z: Tensor) -> Tensor:
    """One row and one unit at a time, without BatchNorm and Dropout."""
    out = []
    for h in z:
        for index, layer in enumerate(model.layers):
            h = torch.stack([w @ h + b for w, b in zip(layer.weight, layer.bias, strict=True)])
            h = h.clamp(min=0) if index < len(model.layers) - 1 else h
        out.append(h)
    return torch.stack(out)
