"""The backbone against nn.Sequential."""

from __future__ import annotations

import itertools

import pytest
import torch
from reference import assert_near
from torch import nn

from openfate.models.backbone import MLP


def sequential(mlp: MLP) -> nn.Sequential:
    """The same layers as torch would stack them."""
    with_relus = itertools.chain.from_iterable((layer, nn.ReLU()) for layer in mlp.layers)
    return nn.Sequential(*list(with_relus)[:-1])


@pytest.mark.parametrize("leading", [(), (1,), (0,), (9,), (5, 3), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("hidden", [(), (8,), (8, 8), (5, 7, 3)], ids=str)
@pytest.mark.parametrize("n_outputs", [1, 4])
def test_mlp_equals_a_sequence_of_linear_layers(leading, hidden, n_outputs):
    torch.manual_seed(0)
    mlp, z = MLP(6, n_outputs, hidden), torch.randn(*leading, 6)
    out = mlp(z)
    assert out.shape == (*leading, n_outputs)
    assert_near(out, sequential(mlp)(z), 1e-6)


def test_gradients_equal_those_of_the_sequence():
    torch.manual_seed(0)
    mlp, z = MLP(6, 3).double(), torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    wrt = [z, *mlp.parameters()]
    ours = torch.autograd.grad(mlp(z).square().sum(), wrt)
    theirs = torch.autograd.grad(sequential(mlp)(z).square().sum(), wrt)
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other, 1e-12)


def test_a_strided_input_gives_the_same_logits():
    torch.manual_seed(0)
    mlp, z = MLP(4, 2), torch.randn(4, 5)
    assert_near(mlp(z.T), mlp(z.T.contiguous()), 1e-6)
