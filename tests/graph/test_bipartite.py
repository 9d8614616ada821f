"""Both CSR directions of the graph against a dense table, before and after edges are dropped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    bipartite,
    dense_by_feature,
    dense_by_row,
    multihot,
    random_table,
    random_values,
)

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges, touched_features
from openfate.graph.bipartite import segment_sums

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
    local, ids = touched_features(multihot(X))
    assert ids.tolist() == np.flatnonzero(X.sum(0).numpy()).tolist()
    assert np.array_equal(local.to_dense(), X[:, ids].numpy())


def test_rows_without_features_touch_none():
    local, ids = touched_features(multihot(torch.zeros(3, 4)))
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
    local, ids = touched_features(multihot(X, values))
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
