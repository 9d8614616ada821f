"""The graph against a dense table, and its sums, with gradients, against double loops."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import reference_ctr
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    assert_near,
    bipartite,
    dense_by_feature,
    dense_by_row,
    multihot,
    random_table,
    random_values,
)

from openfate.errors import InputError
from openfate.graph import (
    Bipartite,
    Edges,
    features_to_cells,
    features_to_rows,
    rows_to_features,
)
from openfate.graph.bipartite import segment_sums
from openfate.table import MultiHot

SHAPES = [(0, 3), (1, 1), (1, 4), (4, 1), (7, 6), (3, 0), (0, 0)]
seeds = st.integers(0, 2**16)


def assert_is(graph: Bipartite, X: torch.Tensor) -> None:
    """Both lists of edges and both degrees are those of X."""
    X = X.double().cpu()
    assert torch.equal(dense_by_row(graph), X)
    assert torch.equal(dense_by_feature(graph), X)
    assert torch.equal(graph.row_degree.cpu(), X.sum(1).float())
    assert torch.equal(graph.feature_degree.cpu(), X.sum(0).float())


def test_more_edges_than_32_bits_can_count_are_refused():
    ids = torch.zeros(1, 1, dtype=torch.int32).expand(2**16, 2**15)  # takes no memory
    with pytest.raises(InputError) as error:
        Bipartite.from_fixed(ids)
    assert str(error.value) == "2147483648 edges in one graph are too many: give mini-batches."


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_both_directions_hold_the_edges_of_the_table(shape, share, device):
    X = random_table(0, *shape, share)
    graph = bipartite(X, device)
    assert_is(graph, X)
    assert (graph.n_rows, graph.n_features) == shape
    assert graph.n_edges == int(X.sum())


@given(seeds)
def test_both_directions_agree_for_any_table(seed):
    assert_is(bipartite(random_table(seed)), random_table(seed))


@given(seeds)
def test_by_feature_takes_the_row_order_to_the_feature_order(seed):
    graph = bipartite(random_table(seed))
    in_feature_order = graph.feature[graph.by_feature]
    assert torch.equal(in_feature_order, in_feature_order.sort().values)


@given(seeds)
def test_a_dropped_edge_is_gone_in_both_directions(seed):
    X = random_table(seed)
    keep = torch.rand(int(X.sum()), generator=torch.Generator().manual_seed(seed)) < 0.5
    left = X.clone()
    left[X == 1] = keep.double()  # boolean selection goes row by row, as the edges do
    assert_is(bipartite(X).keep_edges(keep), left)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32], ids=str)
def test_edges_are_kept_where_the_mask_is_not_zero(dtype):
    X = torch.ones(3, 2)
    keep = torch.tensor([200, 0, 1, 0, 0, 3]).to(dtype)
    assert_is(bipartite(X).keep_edges(keep), (keep != 0).double().view(3, 2))


@given(seeds)
def test_kept_edges_can_be_dropped_again(seed):
    X, values = random_table(seed), random_values(seed)
    graph, rng = bipartite(X, values=values), torch.Generator().manual_seed(seed)
    first = torch.rand(graph.n_edges, generator=rng) < 0.6
    left = graph.keep_edges(first)
    second = torch.rand(left.n_edges, generator=rng) < 0.6
    both = first.clone()
    both[first] = second
    expected = X.clone()
    expected[X == 1] = both.double()
    assert_is(left.keep_edges(second), expected)
    assert_carries(left.keep_edges(second), expected, values)


def test_many_edges_on_few_features_are_kept_as_few_are(device):
    """Where there are 32 times as many edges as segments, these are looked up, not counted."""
    X = torch.ones(400, 2)
    keep = torch.arange(800, device=device) % 3 == 0
    assert_is(bipartite(X, device).keep_edges(keep), keep.cpu().view(400, 2).double())


@given(seeds, st.lists(st.booleans(), min_size=6, max_size=6))
def test_keeping_features_empties_the_other_columns(seed, kept):
    X, kept = random_table(seed), torch.tensor(kept)
    assert_is(bipartite(X).keep_features(kept), X * kept)


def test_keeping_features_after_dropping_edges_composes(device):
    X = random_table(1)
    graph = bipartite(X, device)
    keep = torch.arange(graph.n_edges, device=device) % 2 == 0
    kept = torch.tensor([True, True, False, True, False, True], device=device)
    dropped = graph.keep_edges(keep)
    assert_is(dropped.keep_features(kept), dense_by_row(dropped) * kept.cpu())


def test_dropping_edges_leaves_the_graph_itself_alone():
    X = random_table(2)
    graph = bipartite(X)
    graph.keep_edges(torch.zeros(graph.n_edges, dtype=torch.bool))
    assert_is(graph, X)


def test_edges_of_a_graph_are_the_same_in_both_directions():
    graph = bipartite(random_table(3))
    assert Edges.of(graph).to_rows is Edges.of(graph).to_features


def test_segments_without_edges_sum_to_zero():
    index, ptr = torch.tensor([1, 0, 1], dtype=torch.int32), torch.tensor([0, 0, 3, 3])
    table = torch.tensor([[1.0], [10.0]])
    assert segment_sums(table, index, ptr.int()).tolist() == [[0.0], [21.0], [0.0]]


@given(seeds)
def test_touched_features_are_the_columns_that_are_not_empty(seed):
    X = random_table(seed)
    local, ids = multihot(X).touched_features()
    assert ids.tolist() == np.flatnonzero(X.sum(0).numpy()).tolist()
    assert np.array_equal(local.to_dense(), X[:, ids].numpy())


def test_rows_without_features_touch_none():
    local, ids = multihot(torch.zeros(3, 4)).touched_features()
    assert (local.n_rows, local.n_features, len(ids)) == (3, 0, 0)


# ---- values --------------------------------------------------------------------------------


def assert_carries(graph: Bipartite, X: torch.Tensor, values: torch.Tensor) -> None:
    """Both lists carry the values of X's edges, and the degrees count them, also those of zero."""
    assert_is(graph, X)
    assert torch.equal(dense_by_row(graph, with_values=True), X.double() * values)
    assert torch.equal(dense_by_feature(graph, with_values=True), X.double() * values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_both_directions_carry_the_values(shape, share, device):
    X, values = random_table(0, *shape, share), random_values(0, *shape)
    assert_carries(bipartite(X, device, values), X, values)


@given(seeds)
def test_values_survive_dropped_edges_and_dropped_features(seed):
    X, values = random_table(seed), random_values(seed)
    rng = torch.Generator().manual_seed(seed)
    keep = torch.rand(int(X.sum()), generator=rng) < 0.5
    kept = torch.rand(6, generator=rng) < 0.5
    left = X.clone()
    left[X == 1] = keep.double()
    graph = bipartite(X, values=values).keep_edges(keep)
    assert_carries(graph, left, values)
    assert_carries(graph.keep_features(kept), left * kept, values)


@given(seeds)
def test_touched_features_keep_their_values(seed):
    X, values = random_table(seed), random_values(seed)
    local, ids = multihot(X, values).touched_features()
    assert np.array_equal(local.to_dense(), (X * values)[:, ids].numpy())
    assert local.nnz == int(X.sum())


def test_a_graph_without_values_has_none():
    X = random_table(4)
    for graph in (bipartite(X), bipartite(X, values=random_values(4)).without_values()):
        assert graph.value is None and graph.value_by_feature is None
        assert_is(graph, X)


def test_tables_in_memory_that_cannot_be_written_are_taken():
    """As a memory-mapped file gives them: torch would warn about tensors that share it."""
    X, values = random_table(5), random_values(5)
    table = multihot(X, values)
    for array in (table.row_ptr, table.ids, table.values):
        array.setflags(write=False)
    assert_carries(Bipartite.from_multihot(table), X, values)


# ---- the two dual sums --------------------------------------------------------------------------


TABLES = [(0, 3), (1, 1), (1, 5), (5, 1), (7, 6), (20, 11), (3, 0)]
TRAILING = [(1,), (8,), (9,), (40,), (3, 8), (2, 1, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
PAIRS = [
    (features_to_rows, reference.features_to_rows, 1),
    (rows_to_features, reference.rows_to_features, 0),
]


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("trailing", TRAILING, ids=str)
@pytest.mark.parametrize("shape", TABLES, ids=str)
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
@pytest.mark.parametrize("shape", TABLES, ids=str)
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


# ---- rows of one id for each field --------------------------------------------------------------


FIELDS = [2, 0, 1, 1, 2, 3]


def random_ids(seed: int, n_rows: int, n_fields: int, size: int = 4) -> np.ndarray:
    """Field f has the ids from 10 f on."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, size, (n_rows, n_fields)) + 10 * np.arange(n_fields)


@given(seed=st.integers(0, 999), n_rows=st.integers(0, 9), n_fields=st.integers(1, 4))
def test_one_sort_gives_the_graph_over_touched_features(seed, n_rows, n_fields):
    table = random_ids(seed, n_rows, n_fields).astype(np.int32)
    ours, ids = Bipartite.from_fixed(torch.from_numpy(table))
    local, expected_ids = MultiHot.from_rows(table, 10 * n_fields).touched_features()
    expected = Bipartite.from_multihot(local)
    assert ids.tolist() == expected_ids.tolist()
    assert ours.field_of.tolist() == [j // 10 for j in ids.tolist()]
    for name, value in vars(expected).items():
        if isinstance(value, torch.Tensor):
            assert getattr(ours, name).dtype == value.dtype, name
            assert getattr(ours, name).tolist() == value.tolist(), name
    assert (ours.n_rows, ours.n_features) == (expected.n_rows, expected.n_features)


def test_edges_can_be_dropped_from_a_graph_of_fields(device):
    graph, _ = Bipartite.from_fixed(torch.from_numpy(random_ids(0, 5, 3)).to(device))
    keep = torch.rand(15, generator=torch.Generator().manual_seed(0)) < 0.5
    dropped = graph.keep_edges(keep.to(device))
    assert torch.equal(dense_by_row(dropped).sum(1), dropped.row_degree.cpu().double())
    assert torch.equal(dropped.field_of, graph.field_of)


@pytest.mark.parametrize("trailing", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("n_fields", [4, 3])
@pytest.mark.parametrize("values", [None, random_values(0)], ids=["ones", "values"])
def test_sums_of_fields_and_their_gradients_equal_double_loops(trailing, n_fields, values):
    X = random_table(0)
    graph = bipartite(X, values=values).with_fields(torch.tensor(FIELDS))
    table = torch.randn(6, *trailing, dtype=torch.float64, requires_grad=True)
    ours = features_to_cells(graph, table, n_fields)
    dense = X if values is None else X * values
    theirs = reference_ctr.features_to_cells(dense, table, FIELDS, n_fields)
    assert_near(ours, theirs, 1e-12)
    weight = torch.randn_like(ours)
    (mine,) = torch.autograd.grad((ours * weight).sum(), table)
    (other,) = torch.autograd.grad((theirs * weight).sum(), table)
    assert_near(mine, other, 1e-12)


@given(seed=st.integers(0, 999))
def test_cells_add_up_to_the_sum_of_the_row(seed):
    graph, ids = Bipartite.from_fixed(torch.from_numpy(random_ids(seed, 5, 3)))
    table = torch.randn(len(ids), 2, dtype=torch.float64)
    cells = features_to_cells(graph, table, 3)
    assert_near(cells.sum(1), features_to_rows(graph, table), 1e-12)


def test_dropped_edges_are_in_no_cell(device):
    X = random_table(1)
    graph = bipartite(X, device).with_fields(torch.tensor(FIELDS, device=device))
    kept = torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    table = torch.randn(6, 2, dtype=torch.float64)
    ours = features_to_cells(graph.keep_features(kept.to(device)), table.to(device), 4).cpu()
    assert_near(ours, reference_ctr.features_to_cells(X * kept, table, FIELDS, 4), 1e-12)
