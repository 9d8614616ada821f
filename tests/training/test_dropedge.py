"""DropEdge: how many edges are left, in which direction, at which resolution."""

from __future__ import annotations

import pytest
import torch
from reference import bipartite, dense_by_feature, dense_by_row, random_table
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.training import drop_edges

N_EDGES = 40_000
FULL = bipartite(torch.ones(N_EDGES // 8, 8))


def dropped(rho: float, graph: Bipartite = FULL, seed: int = 0, directed: bool = False) -> Edges:
    generator = torch.Generator(graph.feature.device).manual_seed(seed)
    return drop_edges(graph, rho, generator, directed)


def left_of(graph: Bipartite) -> Tensor:
    """(N D,) one where an edge of a full table is left, in row order."""
    row = torch.arange(graph.n_rows).repeat_interleave(graph.row_ptr.diff().cpu())
    left = torch.zeros(graph.n_rows, graph.n_features, dtype=torch.float64)
    left[row, graph.feature.cpu().long()] = 1
    return left.flatten()


def kept(edges: Edges) -> Tensor:
    return left_of(edges.to_rows)


def assert_share(kept: Tensor, p: float) -> None:
    """The mean is within five standard deviations of p."""
    assert abs(float(kept.mean()) - p) <= 5 * (p * (1 - p) / kept.numel()) ** 0.5


def test_rho_zero_is_the_identity():
    edges = dropped(0.0)
    assert edges.to_rows is FULL and edges.to_features is FULL


@pytest.mark.parametrize("directed", [False, True])
def test_rho_one_leaves_no_edge(directed, device):
    edges = dropped(1.0, bipartite(random_table(0), device), directed=directed)
    for graph in (edges.to_rows, edges.to_features):
        assert graph.n_edges == 0 and graph.row.numel() == 0
        assert not graph.row_degree.any() and not graph.feature_degree.any()


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_each_edge_is_left_with_probability_one_minus_rho(rho, device):
    graph = bipartite(torch.ones(N_EDGES // 8, 8), device)
    left = kept(dropped(rho, graph))
    assert_share(left, 1 - rho)
    for place in range(4):  # four edges share a draw: none is favoured
        assert_share(left[place::4], 1 - rho)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("gap", [1, 2, 3, 4])
def test_edges_that_share_a_draw_are_independent(rho, gap):
    left = kept(dropped(rho))
    assert_share(left[gap:][left[:-gap] == 1], 1 - rho)


@pytest.mark.parametrize("seed", range(5))
def test_both_directions_see_the_same_edges(seed):
    X = random_table(seed, 12, 9)
    edges = dropped(0.5, bipartite(X), seed)
    assert edges.to_rows is edges.to_features
    left = dense_by_row(edges.to_rows)
    assert torch.equal(left, dense_by_feature(edges.to_features))
    assert 0 < left.sum() < X.sum() and (left <= X).all()


def test_directed_edges_are_dropped_apart():
    edges = dropped(0.5, directed=True)
    to_rows, to_features = left_of(edges.to_rows), left_of(edges.to_features)
    assert_share(to_rows, 0.5)
    assert_share(to_features, 0.5)
    assert_share(to_rows * to_features, 0.25)


def test_a_seed_repeats_its_edges_and_consecutive_draws_differ():
    generator = torch.Generator().manual_seed(3)
    first, second = (kept(drop_edges(FULL, 0.5, generator)) for _ in range(2))
    assert torch.equal(first, kept(dropped(0.5, seed=3)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("rho", "share_left"),
    [(2**-18, 1.0), (2**-12, 1 - 2**-12), (1 - 2**-12, 2**-12), (1 - 2**-18, 0.0)],
)
def test_probabilities_near_zero_and_one_go_in_steps_of_two_to_the_minus_sixteen(rho, share_left):
    draws = [kept(dropped(rho, seed=seed)) for seed in range(15)]
    assert_share(torch.cat(draws), share_left)


@pytest.mark.parametrize("directed", [False, True])
def test_a_graph_without_edges_stays_one(directed):
    edges = dropped(0.5, bipartite(torch.zeros(3, 2)), directed=directed)
    assert edges.to_rows.n_edges == edges.to_features.n_edges == 0


@pytest.mark.parametrize("rho", [-0.1, 1.1, float("nan")])
def test_a_value_that_is_no_probability_is_named(rho):
    with pytest.raises(InputError) as error:
        dropped(rho)
    expected = f"drop_edge={rho} is not a probability: choose a number from 0 to 1."
    assert str(error.value) == expected
