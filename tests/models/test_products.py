"""Products by oneDNN are as exact as torch's, with the same gradients."""

from __future__ import annotations

import pytest
import torch
from reference import assert_near

from openfate.models import products as module
from openfate.models.products import affine, product, products

SHAPES = [(3, 4, 5), (0, 300, 300), (200, 128, 128), (130, 20_000, 1), (2048, 32, 64)]  # m, k, n


def pair(m, k, n, turned):
    a, b = torch.randn(m, k), torch.randn(k, n)
    return (a.T.contiguous().T, b) if turned == "a" else (a, b.T.contiguous().T)


@pytest.mark.parametrize("turned", ["a", "b"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_as_near_to_double_precision_as_torchs(shape, turned):
    torch.manual_seed(0)
    a, b = pair(*shape, turned)
    bias = torch.randn(shape[2])
    exact = a.double() @ b.double()
    for ours, theirs, wanted in (
        (product(a, b), a @ b, exact),
        (product(a, b, bias), torch.addmm(bias, a, b), exact + bias.double()),
        (products(a[None].expand(2, -1, -1), torch.stack([b, b]))[1], a @ b, exact),
    ):
        assert ours.shape == wanted.shape
        error, own = ((x - wanted).abs().max() if x.numel() else 0 for x in (ours, theirs))
        assert error <= 2 * own + 1e-6


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_has_the_gradients_of_autograd(shape, is_there, monkeypatch):
    if not is_there:  # torch without oneDNN, or another one
        monkeypatch.setattr(module, "_LINEAR", None)
    torch.manual_seed(0)
    o, i, n = shape
    wrt = [torch.randn(size, requires_grad=True) for size in ((o,), (o, i), (i, n))]
    found = []
    for out in (affine(*wrt), wrt[0][:, None] + wrt[1] @ wrt[2]):
        found.append([out, *torch.autograd.grad(out.square().mean() if o else out.sum(), wrt)])
    for mine, other in zip(*found, strict=True):
        other = other.detach()
        assert_near(mine, other, 1e-4 * (1 + float(other.abs().max() if other.numel() else 0)))


def test_double_precision_stays():
    a, b = torch.randn(200, 128, dtype=torch.float64), torch.randn(128, 128, dtype=torch.float64)
    assert torch.equal(product(a, b), a @ b)
