"""A 2-layer GraphSAGE over a mini-batch on the GPU; what lies between the sums is in their kernels.

    F0 = W[features], zero where hidden or new                       (U, P)
    G  = norm(mean of F0 over the row's features . N1 + b1)          (B, P), DropEdge
    F1 = norm(F0 R1 + b1)                                            never stored
    F2 = norm(mean of G over the feature's rows . N2 + b2 + F1 R2)   (U, P), DropEdge, same edges

P is H rounded up to a multiple of 4, so that a row is read in pieces of 16 bytes (H = 10: a quarter
less time); columns from H on are zero.  Same numbers as `GraphSAGE(n_layers=2)`.  `forward` and
`backward` are plain functions, which a CUDA graph can record; autograd takes no part.  No atomics:
equal inputs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from openfate.models import GraphSAGE
from openfate.training.fused.kernels import triton
from openfate.training.fused.sage_kernels import (
    collect_kernel,
    gather_kernel,
    rows_backward,
    rows_forward,
    update_backward,
    update_forward,
)
from openfate.training.fused.sums import BatchGraph, Keep, sum_at_features

# Rows or features of a program, and its warps for H <= 16: measured on an H200.
ROWS_FORWARD, ROWS_BACKWARD = (32, 1), (32, 2)
UPDATE_FORWARD, UPDATE_BACKWARD = (64, 4), (16, 1)
ROW_SHARDS, SHARDS = 4224, 2112  # programs that add up gradients, at most


class Sage(NamedTuple):
    """The weights of a `GraphSAGE`, each (H, H) or (H,); or their gradients."""

    N1: Tensor
    b1: Tensor
    R1: Tensor
    N2: Tensor
    b2: Tensor
    R2: Tensor

    @classmethod
    def of(cls, module: GraphSAGE) -> Sage:
        """The live parameters of a module of two layers."""
        return cls(*(p.detach() for p in _parameters(module)))

    @classmethod
    def gradients_of(cls, module: GraphSAGE) -> Sage:
        """Their live gradients."""
        return cls(*(cast("Tensor", p.grad) for p in _parameters(module)))


def _parameters(module: GraphSAGE) -> list[Tensor]:
    layers = zip(module.neighbour, module.root, strict=True)
    pairs = [(cast("nn.Linear", n), cast("nn.Linear", r)) for n, r in layers]
    return [p for n, r in pairs for p in (n.weight, n.bias, r.weight)]


@dataclass(frozen=True)
class Saved:
    """What `backward` needs of `forward`."""

    F0: Tensor  # (U, P)
    mean: Tensor  # (B, P) of F0 over each row's features
    degree: Tensor  # (B,) at least one
    heard: Tensor  # (U, P) sum of G over each feature's rows
    heard_degree: Tensor  # (U,)


def padded(width: int) -> int:
    """P, the columns of a table of that width.

    Examples
    --------
    >>> padded(10), padded(4)
    (12, 4)
    """
    return (width + 3) // 4 * 4


def gather(
    W: Tensor, batch: BatchGraph, kept: Tensor, by_feature: bool = False
) -> tuple[Tensor, Tensor]:
    """W's rows of the batch's features, and which they are.

    Parameters
    ----------
    W
        (D, H); features of an id from D on are new.
    kept
        (d,) bool of the fields; (U,) of the features where masks go `by_feature`.

    Returns
    -------
    F0
        (U, P), zero where a feature is hidden or new.
    kept
        (U,) bool, where it is neither.
    """
    n_features, H = batch.n_features, W.size(1)
    P = padded(H)
    F0 = torch.empty(n_features, P, device=W.device)
    found = torch.empty(n_features, dtype=torch.bool, device=W.device)
    gather_kernel[(triton.cdiv(n_features, 64),)](
        W, batch.features, batch.ptr, batch.edge, kept, F0, found, n_features, len(W),
        N_FIELDS=batch.n_fields, H=H, P=P, C=triton.next_power_of_2(P), BLOCK=64,
        BY_FEATURE=by_feature,
    )  # fmt: skip
    return F0, found


def forward(
    weights: Sage, batch: BatchGraph, F0: Tensor, keep: Keep, normalize: bool = True
) -> tuple[Tensor, Saved]:
    """F2 (U, P) of F0 (U, P), and what `backward` needs.  `keep` may drop edges and hide fields."""
    B, P = batch.n_rows, F0.size(1)
    mean, G = F0.new_empty(B, P), F0.new_empty(B, P)
    degree = F0.new_empty(B)
    rows, warps = ROWS_FORWARD
    rows_forward[(triton.cdiv(B, rows),)](
        F0, batch.local, mean, G, degree, weights.N1, weights.b1, keep.seed, keep.fields, B,
        keep.threshold, BY_FIELD=keep.fields is not None,
        **_edges(batch, keep), **_tile(weights, P, rows, warps, normalize),
    )  # fmt: skip
    heard, heard_degree = sum_at_features(batch, G, Keep(keep.drop_edge, keep.seed))
    F2 = torch.empty_like(F0)
    rows, warps = UPDATE_FORWARD
    update_forward[(triton.cdiv(batch.n_features, rows),)](
        F0, heard, heard_degree, F2, *weights[1:], batch.n_features,
        **_tile(weights, P, rows, warps, normalize),
    )  # fmt: skip
    return F2, Saved(F0, mean, degree, heard, heard_degree)


def backward(
    weights: Sage,
    gradients: Sage,
    batch: BatchGraph,
    saved: Saved,
    dF2: Tensor,
    kept: Tensor,
    keep: Keep,
    normalize: bool = True,
) -> tuple[Tensor, Tensor]:
    """Add to `gradients`, and return two tables (U, P) whose sum is the gradient of F0.

    It is zero where `kept` (U,) is False.  `saved` is what `forward` returned.
    """
    U, B, P = batch.n_features, batch.n_rows, saved.F0.size(1)
    C, F0 = _columns(P), saved.F0
    rows, warps = UPDATE_BACKWARD
    shards = min(triton.cdiv(U, rows), SHARDS)
    message, own = torch.empty_like(F0), torch.empty_like(F0)
    parts = F0.new_empty(shards, 4, C, C)
    update_backward[(shards,)](
        dF2, F0, saved.heard, saved.heard_degree, kept, message, own, parts, *weights[1:], U,
        **_tile(weights, P, rows, warps, normalize),
    )  # fmt: skip
    d = gradients
    _collect(parts, (d.R1, d.N2, d.R2), (d.b1, d.b2))
    rows, warps = ROWS_BACKWARD
    shards = min(triton.cdiv(B, rows), ROW_SHARDS)
    dS, parts = torch.empty_like(saved.mean), F0.new_empty(shards, 2, C, C)
    rows_backward[(shards,)](
        message, batch.local, saved.mean, saved.degree, dS, parts, weights.N1, weights.b1,
        keep.seed, B, keep.threshold,
        **_edges(batch, keep), **_tile(weights, P, rows, warps, normalize),
    )  # fmt: skip
    _collect(parts, (d.N1,), (d.b1,))
    heard, _ = sum_at_features(batch, dS, Keep(keep.drop_edge, keep.seed, features=kept))
    return heard, own


def _collect(parts: Tensor, matrices: tuple[Tensor, ...], vectors: tuple[Tensor, ...]) -> None:
    """Add the sum of the shards' parts to gradients: matrices first, vectors in the last one."""
    shards, n, C, _ = parts.shape
    outs = [*matrices, *[None] * (3 - len(matrices)), *vectors, *[None] * (2 - len(vectors))]
    collect_kernel[(n, C)](
        parts, *outs, shards, N=n, H=len(vectors[0]), C=C, TWO=len(vectors) > 1,
        BLOCK=16384 // C, num_warps=8,
    )  # fmt: skip


def _columns(P: int) -> int:
    return max(16, int(triton.next_power_of_2(P)))  # tl.dot wants 16


def _tile(weights: Sage, P: int, rows: int, warps: int, normalize: bool) -> dict[str, Any]:
    C = _columns(P)
    return {
        **{"H": len(weights.b1), "P": P, "C": C, "BLOCK": rows, "NORM": normalize},
        "num_warps": warps * C // 16,
    }


def _edges(batch: BatchGraph, keep: Keep) -> dict[str, Any]:
    return {"N_FIELDS": batch.n_fields, "UNROLL": 4, "DROP": keep.threshold > 0}
