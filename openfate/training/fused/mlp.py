"""The click model's `MLP`, H - h1 - h2 - 1 with BatchNorm, ReLU and Dropout, in few passes.

    a = z W1^T,  x1 = drop(relu(BN1(a)))      BN1 folds into W1: mean and variance of a column of a
                                              follow from the mean (H,) and covariance (H, H) of z
    y = x1 W2^T, x2 = drop(relu(BN2(y)))      one pass for the statistics of y
    logit = x2 w3 + b3, loss                  x2 is never stored

Forward writes x1 and y, (B, h) each; backward overwrites y by its gradient and writes that of x1.
The three large products are cuBLAS's, in tf32 where torch may use it (as
``torch.set_float32_matmul_precision("high")`` says); everything else is one read of each matrix.
Statistics are in float64.  Dropout bits are a hash of (seed, element), recomputed.  A bias before
BatchNorm has no effect in training: its gradient is zero, and it only moves the running mean.  No
atomics: equal inputs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from openfate.models import MLP
from openfate.training.fused import mlp_backward as backward
from openfate.training.fused import mlp_forward as forward
from openfate.training.fused.kernels import triton

SHARDS = 264  # programs of a kernel that adds up over rows: two for each multiprocessor
# Rows, columns and warps of a program: measured on an H200.
FIRST_LAYER, COLUMN_TILE = (64, 64, 4), (16, 128, 4)
LAST_LAYER = (8, 2)  # rows, warps
PREDICT, PREDICT_PRECISE = (128, 256, 8), (64, 128, 4)
FIRST_BACKWARD = (32, 4, 264)  # rows, warps, programs
FIRST_BACKWARD_PRECISE = (16, 8, 132)


class Weights(NamedTuple):
    """Of a network, or their gradients."""

    W1: Tensor  # (h1, H)
    b1: Tensor  # (h1,)
    gamma1: Tensor
    beta1: Tensor
    W2: Tensor  # (h2, h1)
    b2: Tensor  # (h2,)
    gamma2: Tensor
    beta2: Tensor
    w3: Tensor  # (1, h2)
    b3: Tensor  # (1,)


class Running(NamedTuple):
    """Means and variances that BatchNorm predicts with."""

    mean1: Tensor  # (h1,)
    var1: Tensor
    mean2: Tensor  # (h2,)
    var2: Tensor


@dataclass(frozen=True)
class Network:
    """The live tensors of an `MLP` of two hidden layers with BatchNorm."""

    weights: Weights
    gradients: Weights | None
    running: Running
    eps: float
    momentum: float
    dropout: float

    @classmethod
    def of(cls, module: MLP) -> Network:
        """Of a module; with gradients, where all parameters have one."""
        layers = [cast("nn.Linear", layer) for layer in module.layers]
        norms = [cast("nn.BatchNorm1d", norm) for norm in module.norms]
        parameters = [
            p
            for layer, norm in zip(layers, norms, strict=False)
            for p in (layer.weight, layer.bias, norm.weight, norm.bias)
        ] + [layers[2].weight, layers[2].bias]
        grads = [p.grad for p in parameters if p.grad is not None]
        running = [cast("Tensor", t) for n in norms for t in (n.running_mean, n.running_var)]
        return cls(
            Weights(*(p.detach() for p in parameters)),
            Weights(*grads) if len(grads) == len(parameters) else None,
            Running(*running),
            norms[0].eps,
            cast("float", norms[0].momentum),
            module.dropout,
        )


def loss_and_gradients(
    net: Network,
    z: Tensor,
    y: Tensor,
    seeds: Tensor,
    total: Tensor,
    half: bool = False,
    beside: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the mean log-loss to `total`, write the weights' gradients and return those of rows.

    Running means and variances move on, as BatchNorm's do.

    Parameters
    ----------
    z
        (B, P) sums of embeddings, zero in columns from H on.
    y
        (B,) labels.
    seeds
        (2,) int64 of Dropout in the two layers.
    total
        (1,) float64.
    half
        Store and multiply the (B, h) matrices in bfloat16.
    beside
        (B,) added to the logits.

    Returns
    -------
    (B, P) of z, (B,) of the logits and so of what is beside them
    """
    w, d, B, P = net.weights, cast("Weights", net.gradients), len(z), z.size(1)
    h1, h2, K = len(w.W1), len(w.W2), _augmented(P)
    dtype = torch.bfloat16 if half else torch.float32
    drop = _dropout(net.dropout)
    # First layer.
    first = _First.fold(net, z, K)
    x1 = z.new_empty(B, h1, dtype=dtype)
    _first_layer(z, first.mean, first.V1, first.c1, x1, seeds, drop)
    # Second layer.
    out = x1 @ w.W2.to(dtype).T  # y of the formulas
    rows, cols, warps = COLUMN_TILE
    parts = z.new_empty(SHARDS, 2, h2)
    forward.column_moments[(SHARDS, triton.cdiv(h2, cols))](
        out, parts, B, h=h2, BLOCK=rows, COLS=cols, num_warps=warps
    )
    exact, A2, c2 = _double(z, 3, h2), z.new_empty(h2), z.new_empty(h2)
    fold = {"SHARDS": SHARDS, "SPAN": triton.next_power_of_2(SHARDS), "h": h2, "BLOCK": 8}
    grid = (triton.cdiv(h2, 8),)
    forward.fold_second[grid](
        parts, out, w.gamma2, w.beta2, w.b2, exact, A2, c2, net.running.mean2, net.running.var2,
        B, net.eps, net.momentum, **fold,
    )  # fmt: skip
    # Output, loss, and sums for the way back.
    slopes, losses, sums = z.new_empty(B), z.new_empty(B), z.new_empty(SHARDS, 2)
    last_rows, last_warps = LAST_LAYER
    forward.last_layer[(triton.cdiv(B, last_rows),)](
        out, A2, c2, w.w3, w.b3, y, beside, slopes, losses, seeds, *drop.values, B,
        h=h2, BLOCK=last_rows, COLS=triton.next_power_of_2(h2), DROP=drop.on,
        BESIDE=beside is not None, num_warps=last_warps,
    )  # fmt: skip
    backward.last_sums[(SHARDS, triton.cdiv(h2, cols))](
        out, A2, c2, slopes, losses, parts, sums, seeds, *drop.values, B,
        h=h2, BLOCK=rows // 2, COLS=cols, DROP=drop.on, num_warps=warps,
    )  # fmt: skip
    coefficients = z.new_empty(3, h2)
    backward.fold_last[grid](
        parts, sums, w.w3, exact, c2, d.gamma2, d.beta2, d.w3, d.b3, coefficients, total, B, **fold
    )
    backward.last_backward[(triton.cdiv(B, rows), triton.cdiv(h2, cols))](
        out, A2, c2, slopes, coefficients, seeds, *drop.values, B,
        h=h2, BLOCK=rows, COLS=cols, DROP=drop.on, num_warps=warps,
    )  # fmt: skip
    dy = out  # overwritten
    if half:
        d.W2.copy_(dy.T @ x1)
    else:
        torch.mm(dy.T, x1, out=d.W2)
    # WHY turned twice: cuBLAS takes 0.15 ms this way round, 0.21 the other.
    dx1 = dy @ w.W2.T.contiguous().to(dtype).T
    return first.backward(net, z, x1, dx1, drop), slopes


def logits(net: Network, z: Tensor) -> Tensor:
    """(B,) of z (B, P), with the running means and variances."""
    w, r, P = net.weights, net.running, z.size(1)
    A1, A2 = w.gamma1 * (r.var1 + net.eps).rsqrt(), w.gamma2 * (r.var2 + net.eps).rsqrt()
    V1 = F.pad(w.W1 * A1[:, None], (0, P - w.W1.size(1)))
    # WHY a centre, which cancels in c1: sums differ little between rows, and tf32, which torch does
    # not use for so narrow a product, would round what they have in common.
    centre = z[:1024].mean(0)
    common = (w.W1 * centre[: w.W1.size(1)]).sum(1)  # no product of matrices: float32
    c1, c2 = w.beta1 + A1 * (w.b1 - r.mean1 + common), w.beta2 + A2 * (w.b2 - r.mean2)
    V2, out, precise = w.W2 * A2[:, None], z.new_empty(len(z)), _precise()
    if not precise:
        for V in (V1, V2):
            V.view(torch.int32).add_(0x1000)  # rounded to tf32 where tensor cores cut: see `tf32`
    rows, cols, warps = PREDICT_PRECISE if precise else PREDICT
    forward.predict[(triton.cdiv(len(z), rows),)](
        z, centre, V1, c1, V2, c2, w.w3, w.b3, out, len(z),
        P=P, K=max(16, triton.next_power_of_2(P)), h1=len(w.W1), h2=len(w.W2),
        BLOCK=rows, COLS=cols, STEP=32, PRECISION="tf32x3" if precise else "tf32", num_warps=warps,
    )  # fmt: skip
    return out


def _precise() -> bool:
    """Whether torch may not use tf32."""
    return torch.get_float32_matmul_precision() == "highest"


class _Dropout(NamedTuple):
    values: tuple[int, float]  # threshold of 24 random bits, and the scale of what is left
    on: bool


def _dropout(p: float) -> _Dropout:
    return _Dropout((round(p * 2**24), 1 / (1 - p)), p > 0)


def _augmented(P: int) -> int:
    """K: columns of a tile that holds z and, in its last column, ones."""
    return max(16, int(triton.next_power_of_2(P + 1)))


def _double(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(*shape, dtype=torch.float64)


def _first_layer(
    z: Tensor, mean: Tensor, V1: Tensor, c1: Tensor, x1: Tensor, seeds: Tensor, drop: _Dropout
) -> None:
    """x1 = drop(relu((z - mean) V1^T + c1))."""
    rows, cols, warps = FIRST_LAYER
    h1, P = V1.shape
    forward.first_layer[(triton.cdiv(len(z), rows), triton.cdiv(h1, cols))](
        z, mean, V1, c1, x1, seeds, *drop.values, len(z),
        P=P, K=_augmented(P), h=h1, BLOCK=rows, COLS=cols, DROP=drop.on, num_warps=warps,
    )  # fmt: skip


@dataclass(frozen=True)
class _First:
    """The first layer with BN1 in it: relu((z - mean) V1^T + c1)."""

    V1: Tensor  # (h1, P)
    c1: Tensor  # (h1,)
    mean: Tensor  # (K,) of z, rounded to float32
    centre: Tensor  # (K,) float64: the mean itself
    exact: Tensor  # (2, h1) float64: 1 / deviation of a column of a, and gamma1 times that
    spread: Tensor  # (h1, K) float64: W1 times the covariance of z

    @classmethod
    def fold(cls, net: Network, z: Tensor, K: int) -> _First:
        """Fold the statistics of z (B, P) into W1; move the running ones on."""
        w, P = net.weights, z.size(1)
        h1, H = w.W1.shape
        parts = z.new_empty(SHARDS, K, K)
        forward.moments[(SHARDS,)](z, parts, len(z), P=P, K=K, BLOCK=64, num_warps=4)
        sums = parts.sum(0, dtype=torch.float64)  # of [z - z0, 1]^T [z - z0, 1]
        self = cls(
            z.new_empty(h1, P), z.new_empty(h1), z.new_empty(K),
            _double(z, K), _double(z, 2, h1), _double(z, h1, K),
        )  # fmt: skip
        forward.fold_first[(triton.cdiv(h1, 16),)](
            sums, z, w.W1, w.b1, w.gamma1, w.beta1, self.V1, self.c1, self.mean, self.centre,
            self.exact, self.spread, *net.running[:2], len(z), net.eps, net.momentum,
            H=H, P=P, K=K, h=h1, BLOCK=16,
        )  # fmt: skip
        return self

    def backward(self, net: Network, z: Tensor, x1: Tensor, dx1: Tensor, drop: _Dropout) -> Tensor:
        """Write the gradients of the first layer and return that of z (B, P)."""
        w, d, (B, P), K = net.weights, cast("Weights", net.gradients), z.shape, len(self.mean)
        h1, H = w.W1.shape
        precise = _precise()
        rows, warps, shards = FIRST_BACKWARD_PRECISE if precise else FIRST_BACKWARD
        dz, parts = torch.empty_like(z), z.new_empty(shards, h1, K)
        sizes: dict[str, Any] = {"P": P, "K": K, "h": h1}
        backward.first_backward[(shards,)](
            dx1, x1, z, self.mean, self.V1, dz, parts, drop.values[1], B,
            **sizes, BLOCK=rows, COLS=max(16, triton.next_power_of_2(h1)),
            PRECISION="tf32x3" if precise else "tf32", num_warps=warps, num_stages=1,
        )  # fmt: skip
        pulls = z.new_empty(2, h1)
        backward.fold_first_backward[(h1,)](
            parts, self.mean, self.centre, self.exact, self.spread, w.W1, d.W1, d.gamma1, d.beta1,
            pulls, shards, B, H=H, **sizes, BLOCK=64,
        )  # fmt: skip
        M, v = z.new_empty(K, K), z.new_empty(K)
        backward.pull_kernel[(1,)](w.W1, pulls, M, v, H=H, K=K, h=h1, BLOCK=64)
        backward.add_pull[(triton.cdiv(B, 64),)](
            dz, z, self.mean, M, v, B, P=P, K=K, BLOCK=64, num_warps=2
        )
        return dz
