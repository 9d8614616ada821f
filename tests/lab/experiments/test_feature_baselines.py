"""The baselines against double loops."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from reference import assert_near, bipartite, random_table, random_values

from openfate.graph import Bipartite
from openfate.table import MultiHot
from openfate_lab.experiments.feature_baselines import average, cooccurrence, knn, pooling

D, WIDTH = 12, 3


def make(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of 12 observed features and rows with 5 new ones, one of them without rows."""
    X = random_table(seed, n_rows=211, n_features=D + 5)  # so many that similarities do not tie
    X[:, -1] = 0
    return torch.randn(D, WIDTH, generator=torch.Generator().manual_seed(seed)).double(), X


@pytest.mark.parametrize("seed", range(3))
def test_average_is_the_mean_of_observed_embeddings(seed):
    W, X = make(seed)
    W_hat = average(W, bipartite(X))
    assert torch.equal(W_hat[:D], W)
    assert_near(W_hat[D:], W.mean(0).repeat(5, 1), 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_pooling_is_a_mean_of_means(seed):
    W, X = make(seed)
    assert_near(pooling(W, bipartite(X)), reference.pooling(W, X), 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_binary_pooling_counts_every_companion_once(seed):
    W, X = make(seed)
    W_hat = pooling(W, bipartite(X[:9]), binary=True)
    for new in range(D, D + 5):
        companions = [j for j in range(D) if (X[:9, j] * X[:9, new]).any()]
        expected = W[companions].mean(0) if companions else torch.zeros(WIDTH)
        assert_near(W_hat[new], expected, 1e-12)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_knn_is_the_mean_of_the_most_similar_by_jaccard(seed, share):
    W, X = make(seed)
    X = X[:, :-1]  # the feature without rows is as far from one as from another
    assert_near(knn(W, bipartite(X), share), reference.knn(W, X, share), 1e-12)


def test_knn_by_cooccurrence_takes_the_most_frequent_companion():
    X = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 1]] + [[1, 0, 0]] * 3)
    W = torch.tensor([[1.0], [2.0]])  # feature 2 meets 0 thrice, 1 twice; Jaccard 3/8 and 2/3
    assert knn(W, bipartite(X), 0.5, "cooccurrence")[2].tolist() == [1.0]
    assert knn(W, bipartite(X), 0.5)[2].tolist() == [2.0]


@pytest.mark.parametrize("n_observed", [1, 200, 256, 300])
def test_cooccurrence_counts_common_rows_in_chunks(n_observed):
    X = random_table(0, n_rows=10, n_features=n_observed + 3)
    counts = cooccurrence(bipartite(X), n_observed)
    assert torch.equal(counts.double(), X[:, n_observed:].T @ X[:, :n_observed])


@pytest.mark.parametrize("estimate", [average, pooling, knn])
def test_a_new_feature_without_rows_gets_a_finite_embedding(estimate):
    W, X = make(0)
    assert estimate(W, bipartite(X)).isfinite().all()


@pytest.mark.parametrize("estimate", [average, pooling, knn])
def test_without_new_features_the_embeddings_stay(estimate):
    W, X = make(0)
    assert torch.equal(estimate(W, bipartite(X[:, :D])), W)


def test_values_weigh_what_is_pooled_and_leave_similarities_alone():
    W, X = make(1)
    values = random_values(1, *X.shape)
    graph = bipartite(X, values=values)
    assert torch.equal(cooccurrence(graph, D), cooccurrence(bipartite(X), D))
    assert torch.equal(knn(W, graph), knn(W, bipartite(X)))
    row_means = ((X * values)[:, :D] @ W) / X[:, :D].sum(1, keepdim=True).clamp(min=1)
    expected = ((X * values)[:, D:].T @ row_means) / X[:, D:].sum(0)[:, None].clamp(min=1)
    assert_near(pooling(W, graph)[D:], expected, 1e-12)


@pytest.mark.parametrize("estimate", [average, knn, pooling])
def test_a_baseline_estimates_new_features_and_leaves_observed_ones(estimate):
    rng = np.random.default_rng(0)
    X = MultiHot.from_rows([rng.choice(8, 3, replace=False) for _ in range(20)], n_features=9)
    W = torch.randn(5, 4)
    W_hat = estimate(W, Bipartite.from_multihot(X))  # feature 8 has no row
    assert W_hat.shape == (9, 4) and bool(W_hat.isfinite().all())
    assert torch.equal(W_hat[:5], W)
    turned = X.select_rows(np.arange(20)[::-1])
    torch.testing.assert_close(estimate(W, Bipartite.from_multihot(turned)), W_hat)
    empty = MultiHot.from_rows([], n_features=9)
    assert bool(estimate(W, Bipartite.from_multihot(empty)).isfinite().all())
