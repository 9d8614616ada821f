"""Products of matrices, on a CPU by oneDNN where they are large.

WHY: torch multiplies matrices in float32 with MKL, which is made for Intel's processors.  On AMD's
oneDNN, which torch comes with too, takes a half to a quarter of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# WHY so: torch has no public name for it.  It is what torch.compile calls for a layer on a CPU.
_LINEAR: Any = None
if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
    _LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
# Multiplications: below, a call costs more than it saves; of long sums, and of short ones.
_LEAST, _LEAST_OF_SHORT, _SHORT = 1 << 17, 1 << 21, 16


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ b + bias`` without autograd: (m, k), (k, n), (n,) -> (m, n).

    Examples
    --------
    >>> product(torch.eye(2), torch.ones(2, 3), torch.tensor([1.0, 2.0, 3.0]))
    tensor([[2., 3., 4.],
            [2., 3., 4.]])
    """
    if _is_large(a, b):
        found: Tensor = _LINEAR(a, b.T, bias, "none", [], "")
        return found
    return a @ b if bias is None else torch.addmm(bias, a, b)


def products(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` of several pairs: (M, m, k), (M, k, n), (M, 1, n) -> (M, m, n).

    Examples
    --------
    >>> products(torch.ones(2, 1, 3), torch.ones(2, 3, 1)).tolist()
    [[[3.0]], [[3.0]]]
    """
    if a.device.type == "cpu":  # WHY: torch's own for CPUs takes five times as long on thin ones
        own = [None] * len(a) if bias is None else bias[:, 0]
        return torch.stack([product(*each) for each in zip(a, b, own, strict=True)])
    return a @ b if bias is None else torch.baddbmm(bias, a, b)


def affine(bias: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    """A layer over columns: ``weight @ h`` and its bias, (o,), (o, i), (i, N) -> (o, N).

    Examples
    --------
    >>> affine(torch.ones(1), torch.ones(1, 2), torch.eye(2))
    tensor([[2., 2.]])
    """
    if _is_large(weight, h) and not torch.is_autocast_enabled("cpu"):
        found: Tensor = _Affine.apply(bias, weight, h)  # type: ignore[no-untyped-call]
        return found
    return torch.addmm(bias[:, None], weight, h)


def _is_large(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN is there for a product, and pays."""
    if _LINEAR is None or a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    if torch.compiler.is_exporting():  # the sizes of an exported network are not known yet
        return False
    (m, k), n = a.shape, b.size(1)
    least = _LEAST if k >= _SHORT else _LEAST_OF_SHORT
    return m * k * n >= least and n > 1 and b.dtype == a.dtype


class _Affine(torch.autograd.Function):
    """`affine`, of which autograd knows no derivative."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, weight: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(weight, h)
        return product(weight, h).add_(bias[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (weight, h) = grads, ctx.saved_tensors
        at_h = product(weight.T, grad) if ctx.needs_input_grad[2] else None
        return grad.sum(1), product(grad, h.T), at_h
