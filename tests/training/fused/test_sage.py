"""The fused GraphSAGE against the module, in float32 and float64: states and all gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from fused import DEVICE, ON_GPU, as_good_as_plain, kept_edges, needs_kernels
from torch import Tensor

from openfate.graph import Bipartite, Edges
from openfate.models import GraphSAGE
from openfate.training.fused.sums import BatchGraph, Keep

CASES = [  # rows, fields, values of a field, width
    (40, 4, 30, 10),
    (130, 3, 2, 5),
    (17, 1, 40, 1),
    (60, 2, 9, 28),
    (2, 9, 3, 3),
]
LARGE = [(3000, 39, 400, 10), (20_000, 3, 4, 16), (1000, 200, 20, 12)]


def draw(n_rows: int, n_fields: int, n_values: int) -> Tensor:
    rng = torch.Generator().manual_seed(n_rows)
    value = (torch.rand(n_rows, n_fields, generator=rng) ** 3 * n_values).int()
    return (value + n_values * torch.arange(n_fields, dtype=torch.int32)).to(DEVICE)


def module_run(
    module: GraphSAGE, graph: Bipartite, left: Tensor, F0: Tensor, weight: Tensor
) -> list[Tensor]:
    """States after both layers, and the gradients of F0 and all parameters."""
    edges = Edges.of(graph.keep_edges(left.reshape(-1)))
    states = F0.clone().requires_grad_()
    out = module(states, edges)
    return [out.detach(), *torch.autograd.grad(out, [states, *_ordered(module)], weight)]


def _ordered(module: GraphSAGE) -> list[Tensor]:
    both = zip(module.neighbour, module.root, strict=True)
    return [p for n, r in both for p in (n.weight, n.bias, r.weight)]


@needs_kernels
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("case", CASES + (LARGE if ON_GPU else []), ids=str)
def test_states_and_gradients_are_as_good_as_plain_ones(case, normalize, rho):
    from openfate.training.fused import sage as fused

    n_rows, n_fields, n_values, H = case
    if H == 1 and normalize:
        pytest.skip("all states are 1 or -1: gradients are rounding alone")
    torch.manual_seed(0)
    ids = draw(n_rows, n_fields, n_values)
    module = GraphSAGE(H, normalize=normalize).to(DEVICE)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    W = torch.randn(n_fields * n_values, H, device=DEVICE)
    kept_fields = torch.arange(n_fields, device=DEVICE) % 3 != 1
    batch = BatchGraph.from_ids(ids)
    keep = Keep(rho, torch.tensor([77], device=DEVICE), fields=kept_fields)

    F0, kept = fused.gather(W, batch, kept_fields)
    features = batch.features.long()
    assert torch.equal(kept, kept_fields[features // n_values])
    assert torch.equal(F0[:, :H], W[features] * kept[:, None]) and not F0[:, H:].any()

    weights, gradients = fused.Sage.of(module), fused.Sage.gradients_of(module)
    F2, saved = fused.forward(weights, batch, F0, keep, normalize)
    weight = torch.randn(len(F2), H, device=DEVICE)
    dF2 = torch.nn.functional.pad(weight, (0, F2.size(1) - H))
    one, two = fused.backward(weights, gradients, batch, saved, dF2, kept, keep, normalize)
    assert not F2[:, H:].any() and not (one + two)[~kept].any()

    graph, left = Bipartite.from_fixed(ids)[0], kept_edges(batch, keep)
    start = F0[:, :H]
    plain = module_run(module, graph, left, start, weight)
    exact = module_run(copy.deepcopy(module).double(), graph, left, start.double(), weight.double())
    for runs in (plain, exact):
        runs[1] = runs[1] * kept[:, None]
    fast = [F2[:, :H], (one + two)[:, :H], *gradients]
    for f, p, e in zip(fast, plain, exact, strict=True):
        as_good_as_plain(f, p, e)


@needs_kernels
def test_gradients_add_up():
    from openfate.training.fused import sage as fused

    ids, H = draw(30, 3, 5), 4
    module = GraphSAGE(H).to(DEVICE)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    weights, gradients = fused.Sage.of(module), fused.Sage.gradients_of(module)
    batch, kept_fields = BatchGraph.from_ids(ids), torch.ones(3, dtype=torch.bool, device=DEVICE)
    F0, kept = fused.gather(torch.randn(15, H, device=DEVICE), batch, kept_fields)
    keep = Keep(fields=kept_fields)
    F2, saved = fused.forward(weights, batch, F0, keep)
    dF2 = torch.nn.functional.pad(torch.randn_like(F2[:, :H]), (0, F2.size(1) - H))
    once: list[Tensor] = []
    for _ in range(2):
        fused.backward(weights, gradients, batch, saved, dF2, kept, keep)
        once = once or [g.clone() for g in gradients]
    for one, both in zip(once, gradients, strict=True):
        assert one.any()
        torch.testing.assert_close(both, 2 * one)


@needs_kernels
def test_features_may_be_hidden_one_by_one():
    from openfate.training.fused import sage as fused

    ids = draw(20, 3, 5)
    batch, W = BatchGraph.from_ids(ids), torch.randn(12, 4, device=DEVICE)  # 12 of 15 observed
    kept = torch.arange(batch.n_features, device=DEVICE) % 3 > 0
    F0, found = fused.gather(W, batch, kept, by_feature=True)
    features = batch.features.long()
    assert torch.equal(found, kept & (features < 12))
    assert torch.equal(F0[found], W[features[found]]) and not F0[~found].any()


@needs_kernels
def test_new_features_start_at_zero():
    from openfate.training.fused import sage as fused

    ids = torch.tensor([[0, 3], [1, 7]], device=DEVICE)
    batch = BatchGraph.from_ids(ids)
    everything = torch.ones(2, dtype=torch.bool, device=DEVICE)
    F0, kept = fused.gather(torch.ones(4, 4, device=DEVICE), batch, everything)
    assert kept.tolist() == [True, True, True, False] and F0.sum(1).tolist() == [4, 4, 4, 0]
