"""Folds, k-shot draws, the fixed share, DropEdge: sizes, partitions, seeds, messages."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import bipartite, dense_by_feature, dense_by_row, random_table
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.training import drop_edges, k_shot, n_fold
from openfate.training.masking import leave_out

seeds = st.integers(0, 2**16)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def times_hidden(kept: Tensor) -> list[int]:
    return (~kept).sum(0).tolist()


@given(st.integers(1, 60), st.integers(2, 12), seeds)
def test_folds_hide_every_feature_exactly_once(n_features, n_folds, seed):
    kept = n_fold(n_features, n_folds, rng(seed))
    assert kept.shape == (n_folds, n_features)
    assert times_hidden(kept) == [1] * n_features
    sizes = (~kept).sum(1)
    assert int(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize(("n_folds", "n_masks"), [(2, 2), (5, 6), (10, 11)])
@given(n_features=st.integers(1, 300), seed=seeds)
def test_reference_folds_round_up_and_still_partition(n_folds, n_masks, n_features, seed):
    kept = n_fold(n_features, n_folds, rng(seed), reference=True)
    assert kept.shape == (n_masks, n_features)
    assert times_hidden(kept) == [1] * n_features


def test_the_stray_reference_fold_hides_one_feature():
    hidden = (~n_fold(237, 5, rng(), reference=True)).sum(1).tolist()
    assert hidden == [47, 47, 48, 47, 47, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data(), seeds)
def test_k_shot_keeps_exactly_k_whole_fields(fields, data, seed):
    unit_of = torch.tensor(fields)
    n_kept = data.draw(st.integers(1, len(set(fields))))
    for kept in k_shot(unit_of, n_kept, 4, rng(seed)):
        kept_fields = set(unit_of[kept].tolist())
        assert len(kept_fields) == n_kept
        assert kept_fields.isdisjoint(unit_of[~kept].tolist())


@given(st.integers(1, 30), st.data(), seeds)
def test_k_shot_over_features_has_exact_size(n_features, data, seed):
    n_kept = data.draw(st.integers(1, n_features))
    kept = k_shot(torch.arange(n_features), n_kept, 5, rng(seed))
    assert kept.shape == (5, n_features)
    assert kept.sum(1).tolist() == [n_kept] * 5


def test_k_shot_draws_anew_for_every_step():
    assert len({tuple(kept.tolist()) for kept in k_shot(torch.arange(40), 20, 5, rng())}) == 5


def test_k_shot_keeps_every_field_equally_often():
    share = k_shot(torch.arange(10), 3, 4000, rng()).double().mean(0)
    assert float((share - 0.3).abs().max()) < 5 * (0.3 * 0.7 / 4000) ** 0.5


@given(st.integers(1, 60), st.sampled_from([0.0, 0.07, 0.1, 0.2, 0.5, 0.7, 0.9, 1.0]), seeds)
def test_leave_out_keeps_the_rest_of_its_share(n_features, share, seed):
    kept = leave_out(n_features, share, rng(seed))
    assert kept.shape == (1, n_features)
    assert int(kept.sum()) == math.floor((1 - Fraction(str(share))) * n_features)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: n_fold(50, 5, g),
        lambda g: n_fold(50, 5, g, reference=True),
        lambda g: k_shot(torch.arange(50), 25, 3, g),
        lambda g: leave_out(50, 0.5, g),
    ],
)
def test_a_seed_repeats_its_masks_and_another_differs(draw):
    assert torch.equal(draw(rng(1)), draw(rng(1)))
    assert not torch.equal(draw(rng(1)), draw(rng(2)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: n_fold(6, 1, rng()),
            "n_folds=1: choose 2 or more, or nothing is kept to learn from.",
        ),
        (
            lambda: k_shot(torch.arange(6), 7, 1, rng()),
            "n_kept=7: there are 6 to sample from, choose 1..6.",
        ),
        (
            lambda: k_shot(torch.tensor([0, 0, 1]), 0, 1, rng()),
            "n_kept=0: there are 2 to sample from, choose 1..2.",
        ),
        (lambda: k_shot(torch.arange(6), 3, 0, rng()), "n_draws=0: choose 1 or more."),
        (
            lambda: leave_out(6, 1.5, rng()),
            "left_out=1.5 is not a share of the features: choose from 0 to 1.",
        ),
    ],
)
def test_bad_values_are_named(draw, message):
    with pytest.raises(InputError) as error:
        draw()
    assert str(error.value) == message


# ---- DropEdge: how many edges are left, in which direction, at which resolution ------------------

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
