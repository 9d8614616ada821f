"""The two dual sums, and their gradients, against double loops."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_near, bipartite, multihot, random_table, random_values

from openfate.graph import Bipartite, features_to_rows, rows_to_features

SHAPES = [(0, 3), (1, 1), (1, 5), (5, 1), (7, 6), (20, 11), (3, 0)]
TRAILING = [(1,), (8,), (9,), (40,), (3, 8), (2, 1, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
PAIRS = [
    (features_to_rows, reference.features_to_rows, 1),
    (rows_to_features, reference.rows_to_features, 0),
]
seeds = st.integers(0, 2**16)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("trailing", TRAILING, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_sums_and_gradients_equal_the_double_loop(
    fast, naive, side, shape, trailing, dtype, device
):
    X = random_table(0, *shape)
    table = random(1, shape[side], *trailing, dtype=dtype).requires_grad_()
    weight = random(2, shape[1 - side], *trailing, dtype=dtype)
    moved = table.detach().to(device).requires_grad_()
    out, expected = fast(bipartite(X, device), moved), naive(X, table)
    assert out.dtype == dtype
    assert_near(out.cpu(), expected, TOLERANCE[dtype])
    (grad,) = torch.autograd.grad((out * weight.to(device)).sum(), moved)
    assert_near(grad.cpu(), naive(X.T, weight), TOLERANCE[dtype])


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_graphs_without_edges_and_with_all_of_them(fast, naive, side, share, device):
    X = torch.full((4, 3), share)
    table = random(0, X.shape[side], 5)
    assert_near(fast(bipartite(X, device), table.to(device)).cpu(), naive(X, table), 1e-12)


@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_dropped_edges_add_nothing(fast, naive, side, device):
    X = random_table(5)
    graph = bipartite(X, device).keep_features(torch.arange(6, device=device) % 2 == 0)
    table = random(0, X.shape[side], 3)
    expected = naive(X * (torch.arange(6) % 2 == 0), table)
    assert_near(fast(graph, table.to(device)).cpu(), expected, 1e-12)


@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_gradcheck(fast, naive, side):
    X = random_table(3)
    table = random(0, X.shape[side], 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: fast(bipartite(X), t), table)
    assert torch.autograd.gradgradcheck(lambda t: fast(bipartite(X), t), table)


@given(seeds, st.integers(1, 12))
def test_each_sum_is_the_adjoint_of_the_other(seed, width):
    X = random_table(seed)
    on_features, on_rows = random(seed, X.size(1), width), random(seed + 1, X.size(0), width)
    graph = bipartite(X)
    left = (features_to_rows(graph, on_features) * on_rows).sum()
    right = (on_features * rows_to_features(graph, on_rows)).sum()
    torch.testing.assert_close(left, right)


@given(seeds)
def test_permuting_rows_permutes_the_sums_of_rows_and_leaves_those_of_features(seed):
    X, rng = random_table(seed), torch.Generator().manual_seed(seed)
    order = torch.randperm(X.size(0), generator=rng)
    permuted = Bipartite.from_multihot(multihot(X).select_rows(order.numpy()))
    table, on_rows = random(seed, X.size(1), 4), random(seed, X.size(0), 4)
    there = features_to_rows(permuted, table)
    assert_near(there, features_to_rows(bipartite(X), table)[order], 1e-12)
    back = rows_to_features(permuted, on_rows[order])
    assert_near(back, rows_to_features(bipartite(X), on_rows), 1e-12)


@given(seeds)
def test_permuting_features_permutes_the_sums_of_features_and_leaves_those_of_rows(seed):
    X, rng = random_table(seed), torch.Generator().manual_seed(seed)
    order = torch.randperm(X.size(1), generator=rng)
    permuted = Bipartite.from_multihot(multihot(X).select_features(order.numpy()))
    table, on_rows = random(seed, X.size(1), 4), random(seed, X.size(0), 4)
    there = features_to_rows(permuted, table[order])
    assert_near(there, features_to_rows(bipartite(X), table), 1e-12)
    back = rows_to_features(permuted, on_rows)
    assert_near(back, rows_to_features(bipartite(X), on_rows)[order], 1e-12)


# ---- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("trailing", [(1,), (8,), (3, 8)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_valued_sums_and_gradients_equal_the_double_loop(
    fast, naive, side, shape, trailing, dtype, device
):
    for seed in range(3):
        X, values = random_table(seed, *shape), random_values(seed, *shape)
        table = random(seed, shape[side], *trailing, dtype=dtype)
        weight = random(seed + 1, shape[1 - side], *trailing, dtype=dtype)
        moved = table.to(device).requires_grad_()
        out = fast(bipartite(X, device, values), moved)
        assert out.dtype == dtype
        assert_near(out.cpu(), naive(X, table, values), TOLERANCE[dtype])
        (grad,) = torch.autograd.grad((out * weight.to(device)).sum(), moved)
        assert_near(grad.cpu(), naive(X.T, weight, values.T), TOLERANCE[dtype])


@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_gradcheck_with_values(fast, naive, side):
    X, values = random_table(3), random_values(3)
    graph = bipartite(X, values=values).keep_edges(torch.arange(int(X.sum())) % 3 > 0)
    table = random(0, X.shape[side], 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: fast(graph, t), table)
    assert torch.autograd.gradgradcheck(lambda t: fast(graph, t), table)


@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_dropped_edges_add_nothing_whatever_their_value(fast, naive, side, device):
    X, values = random_table(5), random_values(5) * 2**20
    kept = torch.arange(6) % 2 == 0
    graph = bipartite(X, device, values).keep_features(kept.to(device))
    table = random(0, X.shape[side], 3)
    assert_near(fast(graph, table.to(device)).cpu(), naive(X * kept, table, values), 1e-12)


@pytest.mark.parametrize(("fast", "naive", "side"), PAIRS, ids=["to_rows", "to_features"])
def test_values_of_one_equal_no_values(fast, naive, side, device):
    X = random_table(6)
    table = random(0, X.shape[side], 9).to(device)
    ones = fast(bipartite(X, device, torch.ones_like(X)), table)
    assert_near(ones, fast(bipartite(X, device), table), 1e-12)


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fast", [features_to_rows, rows_to_features])
def test_half_precision_is_summed_in_float32(fast, half, with_values, device):
    X = torch.ones(300, 300)
    values = torch.full_like(X, 0.5) if with_values else None
    table = torch.ones(300, 2, dtype=half, device=device, requires_grad=True)
    out = fast(bipartite(X, device, values), table)
    assert out.dtype == torch.float32
    assert out.unique().tolist() == [150.0 if with_values else 300.0]  # bfloat16 stops at 256
    out.sum().backward()
    assert table.grad.dtype == half
