"""The backbone against nn.Sequential."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from reference import assert_near
from torch import nn

from openfate.errors import InputError
from openfate.models import MLP
from openfate.models.backbone import drop


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


def test_the_network_of_a_step_is_that_of_a_prediction():
    """A step writes its own backward; a prediction, and a step in half precision, do not."""
    torch.manual_seed(0)
    mlp, z = MLP(6, 3), torch.randn(7, 6)
    assert torch.equal(mlp(z), mlp.eval()(z))
    with torch.autocast("cpu", torch.bfloat16):
        assert mlp.train()(z).dtype == torch.bfloat16


def test_a_strided_input_gives_the_same_logits():
    torch.manual_seed(0)
    mlp, z = MLP(4, 2), torch.randn(4, 5)
    assert_near(mlp(z.T), mlp(z.T.contiguous()), 1e-6)


# ---- BatchNorm and Dropout -----------------------------------------------------------------


def normed(mlp: MLP) -> nn.Sequential:
    """The same layers with BatchNorm as torch would stack them."""
    parts: list[nn.Module] = []
    for layer, norm in zip(mlp.layers, mlp.norms, strict=False):
        parts += [layer, norm, nn.ReLU()]
    return nn.Sequential(*parts, mlp.layers[-1])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hidden", [(8,), (5, 7)], ids=str)
def test_batch_norm_its_gradients_and_its_running_means_equal_torchs(training, hidden):
    torch.manual_seed(0)
    mlp = MLP(6, 2, hidden, batch_norm=True).double().train(training)
    for norm in mlp.norms:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    twin = normed(copy.deepcopy(mlp))
    z = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    ours, theirs = mlp(z), twin(z)
    assert_near(ours, theirs, 1e-12)
    mine = torch.autograd.grad(ours.square().sum(), [z, *mlp.parameters()])
    other = torch.autograd.grad(theirs.square().sum(), [z, *_in_order(twin)])
    for a, b in zip(mine, other, strict=True):
        assert_near(a, b, 1e-10)
    for a, b in zip(mlp.norms, [m for m in twin if isinstance(m, nn.BatchNorm1d)], strict=True):
        assert_near(a.running_mean, b.running_mean, 1e-12)
        assert_near(a.running_var, b.running_var, 1e-12)
        assert int(a.num_batches_tracked) == int(b.num_batches_tracked) == int(training)


def _in_order(twin: nn.Sequential) -> list[nn.Parameter]:
    """Linear layers first, then norms, as `MLP` lists them."""
    kinds = (
        [m for m in twin if isinstance(m, nn.Linear)],
        [m for m in twin if isinstance(m, nn.BatchNorm1d)],
    )
    return [p for kind in kinds for module in kind for p in module.parameters()]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_mean(p):
    torch.manual_seed(0)
    mlp = MLP(1, 1, (4000,), dropout=p)
    nn.init.constant_(mlp.layers[0].weight, 0)
    nn.init.constant_(mlp.layers[0].bias, 1)  # every hidden unit is one
    nn.init.constant_(mlp.layers[1].weight, 1 / 4000)
    nn.init.constant_(mlp.layers[1].bias, 0)
    outputs = mlp(torch.zeros(50, 1))[:, 0].detach()
    assert float(outputs.mean()) == pytest.approx(1, abs=0.03)
    spread = ((p / (1 - p)) / 4000) ** 0.5
    assert float(outputs.std()) == pytest.approx(spread, rel=0.4)
    assert_near(mlp.eval()(torch.zeros(2, 1)), torch.ones(2, 1), 1e-3)


def test_dropout_repeats_with_torchs_seed_and_differs_with_another():
    mlp, z = MLP(3, 2, (16,), dropout=0.5), torch.ones(4, 3)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(mlp(z))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def test_gradients_of_dropped_units_are_zero():
    torch.manual_seed(0)
    h = torch.randn(5, 300, requires_grad=True)
    out = drop(h, 0.4)
    out.sum().backward()
    assert torch.equal(h.grad, (out != 0).float())


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("hidden", [(6,), (5, 7), (4, 4, 4)], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("leading", [(40,), (20, 3)], ids=str)
def test_a_step_with_dropout_has_the_gradients_of_autograd(batch_norm, hidden, p, leading):
    """The written way back, and that of torch's own layers for the same random numbers."""
    torch.manual_seed(0)
    mlp = MLP(6, 2, hidden, batch_norm=batch_norm, dropout=p).double()
    for norm in mlp.norms:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    z = torch.randn(*leading, 6, dtype=torch.float64, requires_grad=True)
    wrt, found = [z, *mlp.parameters()], []
    for layers in (mlp, lambda z: mlp._layers(z.reshape(-1, 6).T).T.view(*leading, 2)):
        torch.manual_seed(1)
        out = layers(z)
        found.append([out, *torch.autograd.grad(out.square().sum(), wrt)])
    for mine, other in zip(*found, strict=True):
        assert_near(mine, other, 1e-10)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_a_dropout_that_leaves_nothing_is_refused(p):
    with pytest.raises(InputError, match=f"dropout={p}: choose a probability from 0 to 0.99."):
        MLP(3, 1, dropout=p)


def test_a_second_derivative_in_training_is_refused_rather_than_wrong():
    net, z = MLP(4, 1), torch.randn(6, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(net(z).square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
