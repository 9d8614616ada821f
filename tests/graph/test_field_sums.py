"""Rows of one id for each field: their graph from one sort, and sums that keep fields apart."""

from __future__ import annotations

import numpy as np
import pytest
import reference_ctr
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_near, bipartite, dense_by_row, random_table, random_values

from openfate.graph import Bipartite, features_to_cells, features_to_rows, touched_features
from openfate.table import MultiHot

FIELDS = [2, 0, 1, 1, 2, 3]


def random_ids(seed: int, n_rows: int, n_fields: int, size: int = 4) -> np.ndarray:
    """Field f has the ids from 10 f on."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, size, (n_rows, n_fields)) + 10 * np.arange(n_fields)


@given(seed=st.integers(0, 999), n_rows=st.integers(0, 9), n_fields=st.integers(1, 4))
def test_one_sort_gives_the_graph_over_touched_features(seed, n_rows, n_fields):
    table = random_ids(seed, n_rows, n_fields).astype(np.int32)
    ours, ids = Bipartite.from_fixed(torch.from_numpy(table))
    local, expected_ids = touched_features(MultiHot.from_fixed(table, 10 * n_fields))
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
