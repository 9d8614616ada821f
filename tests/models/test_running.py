"""Running sums equal the whole graph, however the rows come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.graph import Bipartite
from openfate.models import FATE, GCN, MLP, GraphSAGE, RunningFATE
from openfate.table import MultiHot


def make(seed: int, n_rows: int = 30, n_observed: int = 6, n_new: int = 4, **options):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = FATE(n_observed, MLP(8, 3), GraphSAGE(8), **options).double()
    n_features = n_observed + n_new
    rows = [np.flatnonzero(rng.random(n_features) < 0.4) for _ in range(n_rows)]
    return model, MultiHot.from_rows(rows, n_features)


@given(
    st.integers(0, 50), st.lists(st.integers(1, 29), max_size=4), st.sampled_from(["masked", "all"])
)
def test_sums_over_any_parts_equal_the_whole_graph(seed, cuts, recompose):
    model, X = make(seed, recompose=recompose)
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
    only = np.zeros(X.n_features, dtype=bool)
    only[7] = True
    running.observe(X, only)
    assert np.flatnonzero(running.sums.counts).tolist() == [7]


def test_a_copy_has_sums_of_its_own():
    model, X = make(4)
    running = RunningFATE(model)
    running.copy().observe(X)
    assert not running.sums.counts.any()


def test_an_extrapolator_without_exact_sums_is_refused():
    with pytest.raises(InputError, match="2-layer GraphSAGE"):
        RunningFATE(FATE(3, MLP(8, 1), GCN(8)))
