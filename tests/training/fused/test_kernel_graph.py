"""A batch as a graph of kernels against the same rows as a `Bipartite`: sums, cells, degrees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused import DEVICE, ON_GPU, as_good_as_plain, kept_edges, needs_kernels
from torch import Tensor

from openfate.graph import Bipartite, features_to_cells, features_to_rows, rows_to_features
from openfate.training.fused.sums import BatchGraph, Keep

SHAPES = [(1, 1, 1), (9, 3, 5), (40, 2, 3), (7, 11, 2)]  # rows, fields, values of a field
LARGE = [(5000, 39, 400), (20_000, 3, 4)]
SHAPES += LARGE if ON_GPU else []


def draw(n_rows: int, n_fields: int, n_values: int) -> Tensor:
    rng = torch.Generator().manual_seed(n_rows)
    value = (torch.rand(n_rows, n_fields, generator=rng) ** 3 * n_values).int()
    return (value + n_values * torch.arange(n_fields, dtype=torch.int32)).to(DEVICE)


def both_graphs(shape: tuple[int, int, int], rho: float):
    from openfate.training.fused.graph import KernelGraph

    ids = draw(*shape)
    batch, keep = BatchGraph.from_ids(ids), Keep(rho, torch.tensor([5], device=DEVICE))
    plain = Bipartite.from_fixed(ids)[0]
    return KernelGraph.of(batch, keep), plain.keep_edges(kept_edges(batch, keep).reshape(-1))


def run(sums, graph, table: Tensor, weight: Tensor) -> list[Tensor]:
    table = table.clone().requires_grad_()
    out = sums(graph, table)
    return [out.detach(), *torch.autograd.grad(out, table, weight.to(out.dtype))]


@needs_kernels
@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("width", [(3,), (2, 4)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sums", [features_to_rows, rows_to_features])
def test_sums_and_their_gradients_are_as_good_as_plain_ones(sums, shape, width, rho):
    fast, plain = both_graphs(shape, rho)
    n = (plain.n_features, plain.n_rows)
    n_in, n_out = n if sums is features_to_rows else n[::-1]
    torch.manual_seed(0)
    table = torch.randn(n_in, *width, device=DEVICE)
    weight = torch.randn(n_out, *width, device=DEVICE)
    results = (
        run(sums, graph, numbers, weight)
        for graph, numbers in ((fast, table), (plain, table), (plain, table.double()))
    )
    for one, other, exact in zip(*results, strict=True):
        as_good_as_plain(one, other, exact)


@needs_kernels
@pytest.mark.parametrize("more", [-1, 0, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cells_and_their_gradients_are_those_of_plain_torch(shape, more):
    fast, plain = both_graphs(shape, 0.0)
    n_fields = max(1, shape[1] + more)
    torch.manual_seed(0)
    table = torch.randn(plain.n_features, 3, device=DEVICE)
    weight = torch.randn(shape[0], n_fields, 3, device=DEVICE)

    def cells(graph, table: Tensor) -> Tensor:
        return features_to_cells(graph, table, n_fields)

    one = run(cells, fast, table, weight)
    other, exact = (run(cells, plain, t, weight) for t in (table, table.double()))
    assert torch.equal(one[0], other[0])  # a state alone, not a sum
    as_good_as_plain(one[1], other[1], exact[1])


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_edges_of_features_that_are_not_kept_are_none(shape):
    from openfate.training.fused.graph import KernelGraph

    fast, plain = both_graphs(shape, 0.5)
    kept = torch.arange(plain.n_features, device=DEVICE) % 3 != 1
    fast = KernelGraph.of(fast.batch, replace(fast.keep, features=kept))
    plain = plain.keep_features(kept)
    torch.manual_seed(0)
    on_features, on_rows = (
        torch.randn(n, 3, device=DEVICE) for n in (plain.n_features, plain.n_rows)
    )
    for sums, table in ((features_to_rows, on_features), (rows_to_features, on_rows)):
        torch.testing.assert_close(sums(fast, table), sums(plain, table))
    assert torch.equal(fast.row_degree, plain.row_degree)
    assert torch.equal(fast.feature_degree, plain.feature_degree)
    whole = KernelGraph.of(fast.batch, Keep(features=kept))
    cells = features_to_cells(whole, on_features, shape[1])
    assert torch.equal(cells.abs().sum(-1) > 0, kept[fast.batch.local.T.long()])


@needs_kernels
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("first", ["degrees", "sums"])
def test_degrees_count_the_edges_that_are_left(first, rho):
    from openfate.training.fused.graph import KernelEdges

    fast, plain = both_graphs((40, 2, 3), rho)
    if first == "sums":  # which note them
        features_to_rows(fast, torch.ones(plain.n_features, 2, device=DEVICE))
        rows_to_features(fast, torch.ones(plain.n_rows, 2, device=DEVICE))
    assert torch.equal(fast.row_degree, plain.row_degree)
    assert torch.equal(fast.feature_degree, plain.feature_degree)
    edges = KernelEdges.left_by(fast.batch, fast.keep, fast.keep)
    assert edges.to_rows is edges.to_features
    assert torch.equal(edges.degrees(), torch.cat([plain.feature_degree, plain.row_degree]))
