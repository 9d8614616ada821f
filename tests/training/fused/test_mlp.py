"""The fused network against the module: loss, gradients, running statistics and predictions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from fused import DEVICE, ON_GPU, as_good_as_plain, kept_elements, needs_gpu, needs_kernels
from torch import Tensor, nn

from openfate.models import MLP

CASES = [  # rows, width, hidden layers
    (70, 10, (40, 24)),
    (33, 3, (16, 50)),
    (2, 1, (5, 7)),
    (50, 28, (9, 8)),
]
LARGE = [(10_000, 10, (400, 400)), (4097, 28, (500, 512)), (100_000, 10, (400, 400))]
BEFORE_NORM = ("layers.0.bias", "layers.1.bias")  # no gradient but rounding's


@pytest.fixture(autouse=True)
def few_shards(monkeypatch):
    """Programs that the interpreter would go through one by one."""
    if ON_GPU:
        return
    from openfate.training.fused import mlp

    monkeypatch.setattr(mlp, "SHARDS", 3)
    monkeypatch.setattr(mlp, "FIRST_BACKWARD_PRECISE", (16, 8, 3))


def network(width: int, hidden: tuple[int, int], dropout: float) -> MLP:
    torch.manual_seed(0)
    net = MLP(width, 1, hidden, batch_norm=True, dropout=dropout).to(DEVICE)
    for norm in net.norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.1)
        nn.init.normal_(norm.running_mean)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    return net


def some_sums(n_rows: int, width: int) -> Tensor:
    """(B, P) sums whose means are far from zero, as those of embeddings are."""
    torch.manual_seed(1)
    z = torch.randn(n_rows, width) * torch.rand(width) + 3 * torch.randn(width)
    return F.pad(z, (0, -width % 4)).to(DEVICE)


def module_run(
    net: MLP, z: Tensor, y: Tensor, seeds: Tensor, beside: Tensor | None = None
) -> dict[str, Tensor]:
    """Loss, gradients and running statistics of the module's layers, with the kernels' Dropout."""
    net, p = copy.deepcopy(net).to(z.dtype).train(), net.dropout
    z = z[:, : net.width].clone().requires_grad_()
    logit = z.new_zeros(len(z)) if beside is None else beside.to(z.dtype)
    logit.requires_grad_()
    h = z
    for layer, norm, seed in zip(net.layers, net.norms, seeds.split(1), strict=False):
        h = norm(layer(h)).relu()
        h = h * kept_elements(*h.shape, p, seed).to(h.dtype) / (1 - p)
    loss = F.binary_cross_entropy_with_logits(net.layers[2](h)[:, 0] + logit, y.to(h.dtype))
    names, parameters = zip(*net.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, [z, logit, *parameters])
    state = {name: b.detach() for name, b in net.named_buffers() if b.is_floating_point()}
    found = zip(["z", "logits", *names], grads, strict=True)
    return {"loss": loss.detach(), **state, **dict(found)}


def fused_run(
    net: MLP, z: Tensor, y: Tensor, seeds: Tensor, half: bool, beside: Tensor | None = None
) -> dict[str, Tensor]:
    from openfate.training.fused import mlp as fused

    net = copy.deepcopy(net)
    for p in net.parameters():
        p.grad = torch.full_like(p, torch.nan)
        if p.dim() == 1:
            p.grad.zero_()  # biases before BatchNorm stay so
    total = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    network = fused.Network.of(net)
    dz, slopes = fused.loss_and_gradients(network, z, y, seeds, total, half, beside)
    assert not dz[:, net.width :].any()
    state = {name: b for name, b in net.named_buffers() if b.is_floating_point()}
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {"loss": total[0], "z": dz[:, : net.width], "logits": slopes, **state, **grads}


@needs_kernels
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES + (LARGE if ON_GPU else []), ids=str)
def test_gradients_and_statistics_are_as_good_as_plain_ones(case, dropout, is_beside):
    n_rows, width, hidden = case
    net, z = network(width, hidden, dropout), some_sums(n_rows, width)
    y = (torch.arange(n_rows, device=DEVICE) % 3 == 0).float()
    seeds = torch.tensor([99, -12345], device=DEVICE)
    beside = 2 * torch.randn(n_rows, device=DEVICE) if is_beside else None
    fast = fused_run(net, z, y, seeds, half=False, beside=beside)
    plain = module_run(net, z, y, seeds, None if beside is None else beside.clone())
    exact = module_run(net, z.double(), y, seeds, beside)
    assert fast.keys() == plain.keys()
    for name, value in exact.items():
        if name in BEFORE_NORM:
            assert not fast[name].any()
        elif n_rows > 2:  # of two rows BatchNorm leaves a sign and rounding
            # ReLU may switch one element more or less: 1e-3 of its column's gradient.
            as_good_as_plain(fast[name], plain[name], value, 1e-3 if n_rows > 1000 else 1e-5)
    torch.testing.assert_close(fast["loss"], exact["loss"], atol=1e-5, rtol=1e-5)


@needs_kernels
def test_half_precision_is_near():
    net, z = network(10, (40, 24), 0.5), some_sums(200, 10)
    y = (torch.arange(200, device=DEVICE) % 3 == 0).float()
    seeds = torch.tensor([99, 12345], device=DEVICE)
    half = fused_run(net, z, y, seeds, half=True)
    exact = module_run(net, z.double(), y, seeds)
    assert abs(float(half["loss"] - exact["loss"])) < 2e-3
    for name in ("z", "layers.0.weight", "layers.1.weight", "layers.2.weight"):
        assert (half[name] - exact[name]).norm() < 0.15 * exact[name].norm()


@needs_kernels
@pytest.mark.parametrize("case", CASES + (LARGE if ON_GPU else []), ids=str)
def test_predictions_are_as_good_as_plain_ones(case):
    from openfate.training.fused import mlp as fused

    n_rows, width, hidden = case
    net, z = network(width, hidden, 0.5).eval(), some_sums(n_rows, width)
    with torch.no_grad():
        plain = net(z[:, :width])[:, 0]
        exact = copy.deepcopy(net).double()(z[:, :width].double())[:, 0]
        as_good_as_plain(fused.logits(fused.Network.of(net), z), plain, exact)


@needs_gpu
def test_predictions_in_tf32_are_as_good_as_plain_ones_where_sums_hardly_differ():
    """Sums of 39 states of length one differ little between rows, and tf32 has ten bits."""
    from openfate.training.fused import mlp as fused

    net, z = network(10, (400, 400), 0.5), some_sums(5000, 10)
    z[:, :10] = 20 + 0.05 * z[:, :10]
    for _ in range(100):  # running means and variances become those of z
        net(z[:, :10])
    net.eval()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.no_grad():
            plain = net(z[:, :10])[:, 0]
        ours = fused.logits(fused.Network.of(net), z)
    finally:
        torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(z[:, :10].double())[:, 0]
    assert (ours - exact).norm() <= 0.01 * (exact - exact.mean()).norm()
    as_good_as_plain(ours, plain, exact)


@needs_kernels
def test_two_runs_give_the_same_bits():
    net, z = network(10, (40, 24), 0.5), some_sums(300, 10)
    y, seeds = torch.ones(300, device=DEVICE), torch.tensor([5, 6], device=DEVICE)
    one, two = (fused_run(net, z, y, seeds, half=False) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
