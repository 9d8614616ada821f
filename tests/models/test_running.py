"""Running sums equal the whole graph, however the rows come; so does the closed-form map."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.graph import Bipartite
from openfate.models import FATE, GCN, MLP, ContextMap, GraphSAGE, RunningFATE
from openfate.table import MultiHot


def make(seed: int, n_rows: int = 30, n_observed: int = 6, n_new: int = 4, **options):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = FATE(n_observed, MLP(8, 3), GraphSAGE(8), **options).double()
    n_features = n_observed + n_new
    rows = [np.flatnonzero(rng.random(n_features) < 0.4) for _ in range(n_rows)]
    return model, MultiHot.from_rows(rows, n_features)


@given(
    st.integers(0, 50),
    st.lists(st.integers(1, 29), max_size=4),
    st.sampled_from(["masked", "all"]),
    st.booleans(),
)
def test_sums_over_any_parts_equal_the_whole_graph(seed, cuts, recompose, centred):
    model, X = make(seed, recompose=recompose, centred=centred)
    running = RunningFATE(model)
    edges = [0, *sorted(set(cuts)), X.n_rows]
    for start, end in itertools.pairwise(edges):
        running.observe(X.select_rows(np.arange(start, end)))
    graph = Bipartite.from_multihot(X)
    expected = model.predict(graph, model.extrapolate(graph)).detach().numpy()
    np.testing.assert_allclose(running.logits(X), expected, rtol=1e-9, atol=1e-9)


def test_dropping_new_features_equals_the_plain_network():
    model, X = make(1)
    running = RunningFATE(model)
    running.observe(X)
    known = X.select_features(np.arange(6))
    graph = Bipartite.from_multihot(known)
    expected = model.predict(graph, model.W).detach().numpy()
    np.testing.assert_allclose(running.logits(X, drop_new=True), expected, rtol=1e-9)


def test_a_new_feature_without_rows_takes_its_fields_mean_or_nothing():
    model, _ = make(2)
    running = RunningFATE(model)
    ids = np.array([6, 7], dtype=np.int32)
    assert bool((running.embeddings(ids) == 0).all())
    field_of = np.array([0, 0, 0, 1, 1, 1, 0, 2])
    W_hat = running.embeddings(ids, field_of)
    torch.testing.assert_close(W_hat[0], model.W[:3].mean(0).double())
    assert bool((W_hat[1] == 0).all())  # a field that nobody knew


def test_only_some_features_may_learn_from_rows():
    model, X = make(3)
    running = RunningFATE(model)
    running.observe(X, np.array([7]))
    assert np.flatnonzero(running.sums.counts).tolist() == [7]


def test_a_copy_has_sums_of_its_own():
    model, X = make(4)
    running = RunningFATE(model)
    running.copy().observe(X)
    assert not running.sums.counts.any()


def test_an_extrapolator_without_exact_sums_is_refused():
    with pytest.raises(InputError, match="2-layer GraphSAGE"):
        RunningFATE(FATE(3, MLP(8, 1), GCN(8)))


# ---- the closed-form extrapolator ---------------------------------------------------------------


def make_context(seed: int, *, with_values: bool = False) -> tuple[torch.Tensor, MultiHot]:
    rng = np.random.default_rng(seed)
    dense = rng.random((40, 7)) < 0.4
    row, feature = np.nonzero(dense)
    values = rng.normal(size=len(row)).astype(np.float32) if with_values else None
    X = MultiHot.from_entries(row, feature, 40, 7, values)
    return torch.from_numpy(rng.normal(size=(7, 3))).float(), X


def slow_map(W: np.ndarray, X: np.ndarray) -> np.ndarray:
    """By loops over cells: contexts without a feature itself, then ridge regression."""
    z, n = X @ W, (X != 0).sum(0)
    mean_w = (n[:, None] * W).sum(0) / n.sum()
    contexts = np.zeros_like(W)
    for i, j in zip(*np.nonzero(X), strict=True):
        contexts[j] += X[i, j] * (z[i] - z.mean(0) - X[i, j] * (W[j] - mean_w))
    contexts /= n[:, None] + 3
    centred = contexts - (n[:, None] * contexts).sum(0) / n.sum()
    gram = centred.T @ (n[:, None] * centred)
    penalty = np.trace(gram) / len(gram) * np.eye(len(gram))
    return np.linalg.solve(gram + penalty, centred.T @ (n[:, None] * (W - mean_w)))


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_the_map_is_the_ridge_regression_from_contexts(with_values, chunk, monkeypatch):
    monkeypatch.setattr("openfate.models.running._CHUNK", chunk)
    W, X = make_context(0, with_values=with_values)
    expected = slow_map(W.double().numpy(), X.to_dense().astype(np.float64))
    np.testing.assert_allclose(ContextMap.solve(W, X).M.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_running_sums_are_those_of_the_whole_graph():
    W, X = make_context(1)
    model = FATE(4, MLP(3, 2, hidden=(8,)))
    model.extrapolator = ContextMap.solve(W[:4], X.select_features(np.arange(4)), scale=0.25)
    running = RunningFATE(model)
    for part in (np.arange(15), np.arange(15, 40)):
        running.observe(X.select_rows(part))
    graph, model = Bipartite.from_multihot(X), model.double()
    expected = model.predict(graph, model.extrapolate(graph)).detach().numpy()
    np.testing.assert_allclose(running.logits(X), expected, rtol=1e-9)


def test_a_feature_without_rows_adds_nothing_and_a_scale_is_a_factor():
    W, X = make_context(2)
    model = FATE(4, MLP(3, 2))
    contexts = ContextMap.solve(W[:4], X.select_features(np.arange(4)))
    found = []
    for scale in (0.1, 0.2):
        model.extrapolator = contexts.rescale(scale)
        running = RunningFATE(model)
        running.observe(X)
        field_of = np.zeros(8, int)
        found.append(running.embeddings(np.array([5, 7], np.int32), field_of))
    torch.testing.assert_close(found[1], 2 * found[0])
    assert bool((found[0][1] == 0).all()) and bool((found[0][0] != 0).any())


def test_features_that_say_nothing_give_a_map_that_says_nothing():
    assert not ContextMap.solve(torch.zeros(2, 3), MultiHot.from_rows([[0], [1]], 2)).M.any()
