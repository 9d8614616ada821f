"""Adam on W (D, H) whose gradient lives in batch-local tables (U, P): torch's numbers.

No dense gradient is ever written: 24 bytes of traffic a weight (w, m and v, read and written) and 4
a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openfate.training.fused.kernels import jit, tl, triton
from openfate.training.optim import RowAdam

BLOCK = 1024


class DenseAdam:
    """One step of Adam over all rows of a `RowAdam`'s table, on the table and moments themselves.

    Where that is "lazy", over the batch's rows.

    The number of steps so far is on the device, so that a CUDA graph can replay a step; `adam.t` is
    the caller's to advance.
    """

    def __init__(self, adam: RowAdam) -> None:
        self.W, self.m, self.v, at = adam.table, adam.m, adam.v, adam.table.device
        self.betas, self.eps, self.is_lazy = adam.betas, adam.eps, adam.mode == "lazy"
        self.t = torch.tensor([float(adam.t)], dtype=torch.float64, device=at)
        logs = [adam.lr, *(math.log(beta) for beta in adam.betas)]
        self.rates = torch.tensor(logs, dtype=torch.float64, device=at)
        self.factors = torch.zeros(2, device=at)
        self.where = torch.full((len(self.W),), -1, dtype=torch.int32, device=at)

    def set_batch(self, features: Tensor) -> None:
        """Note where in the batch's tables each feature's gradient is: (U,) ids, -1 for none."""
        self.where.fill_(-1)
        n = len(features)
        _where_kernel[(triton.cdiv(n, BLOCK),)](features, self.where, n, len(self.W), BLOCK=BLOCK)

    def step(self, one: Tensor, two: Tensor | None = None) -> None:
        """The gradient of the batch's rows of W is a table (U, P), or the sum of two."""
        _tick_kernel[(1,)](self.t, self.rates, self.factors)
        n_weights = self.W.numel()
        _adam_kernel[(triton.cdiv(n_weights, BLOCK),)](
            self.W, self.m, self.v, one, two, self.where, self.factors, n_weights,
            1 - self.betas[0], 1 - self.betas[1], self.eps,
            H=self.W.size(1), P=one.size(1), BLOCK=BLOCK, TWO=two is not None, LAZY=self.is_lazy,
        )  # fmt: skip


@jit
def _tick_kernel(t, rates, factors):  # type: ignore[no-untyped-def]
    """The next step's number, rate and scale: lr / (1 - b1^t), 1 / sqrt(1 - b2^t)."""
    now = tl.load(t) + 1.0
    tl.store(t, now)
    one = 1.0 - tl.exp(now * tl.load(rates + 1))
    two = 1.0 - tl.exp(now * tl.load(rates + 2))
    tl.store(factors, (tl.load(rates) / one).to(tl.float32))
    tl.store(factors + 1, (1.0 / tl.sqrt(two)).to(tl.float32))


@jit
def _adam_kernel(  # type: ignore[no-untyped-def]
    W, M, V, one, two, where, factors, n_weights, one_b1, one_b2, eps,
    H: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, TWO: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n_weights
    w = tl.load(W + at, mask=there)
    m = tl.load(M + at, mask=there)
    v = tl.load(V + at, mask=there)
    local = tl.load(where + at // H, mask=there, other=-1)
    place = local.to(tl.int64) * P + at % H
    g = tl.load(one + place, mask=local >= 0, other=0.0)
    if TWO:
        g += tl.load(two + place, mask=local >= 0, other=0.0)
    if LAZY:
        there &= local >= 0
    m += one_b1 * (g - m)
    v += one_b2 * (g * g - v)
    tl.store(M + at, m, mask=there)
    tl.store(V + at, v, mask=there)
    rate, scale = tl.load(factors), tl.load(factors + 1)
    tl.store(W + at, w - rate * m / (tl.sqrt(v) * scale + eps), mask=there)


@jit
def _where_kernel(features, where, n_features, n_observed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    id_ = tl.load(features + u, mask=u < n_features, other=-1)
    tl.store(where + id_, u, mask=(id_ >= 0) & (id_ < n_observed))
