"""The C library against what torch does where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import bipartite, random_table

from openfate import native
from openfate.errors import InputError
from openfate.graph import Edges, features_to_rows
from openfate.graph.bipartite import segment_sums
from openfate.models import MLP
from openfate.models.walk import walk

seeds = st.integers(0, 2**16)
pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="no C compiler built the library")


def in_torch(work, *arguments, **options):
    """What `work` returns without the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        return work(*arguments, **options)


def random_graph(seed, valued):
    """Up to 40 x 12, rows and features without edges among them."""
    rng = np.random.default_rng(seed)
    X = random_table(seed, *rng.integers(0, (40, 12)), rng.choice([0.0, 0.2, 0.8]))
    graph = bipartite(X)
    rng = torch.Generator().manual_seed(seed)
    return graph.with_values(torch.randn(graph.n_edges, generator=rng)) if valued else graph


def assert_same(ours, theirs, valued):
    """To the bit; multiplication and addition may be one on one processor, two on another."""
    for one, other in zip(ours, theirs, strict=True):
        if valued:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(one, other)


@given(seeds, st.integers(1, 9).map(lambda eights: 8 * eights) | st.integers(1, 40), st.booleans())
def test_sums_are_those_of_torch(seed, width, valued):
    graph = random_graph(seed, valued)
    table = torch.randn(graph.n_features, width, generator=torch.Generator().manual_seed(seed))
    direction = table, graph.feature, graph.row_ptr, graph.value
    assert_same([segment_sums(*direction)], [in_torch(segment_sums, *direction)], valued)


@given(seeds, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_edges_kept_are_those_of_torch(seed, share, valued):
    graph = random_graph(seed, valued)
    keep = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(seed)) < share
    for twice in (False, True):
        if twice:  # a graph whose edges were dropped does not know the order of features
            graph, keep = graph.keep_edges(keep), keep[keep]
        ours, theirs = graph.keep_edges(keep), in_torch(graph.keep_edges, keep)
        for name in ("row_ptr", "feature", "feature_ptr", "row", "value", "value_by_feature"):
            one, other = getattr(ours, name), getattr(theirs, name)
            assert (one is None and other is None) or torch.equal(one, other), name


@given(seeds, st.integers(1, 40), st.integers(1, 6), st.booleans(), st.booleans(), st.booleans())
def test_walks_are_those_of_torch(seed, width, n_steps, constant, valued, directed):
    """Through any wanted features and all of them, there and back, along one graph or two."""
    graph, rng = random_graph(seed, valued), torch.Generator().manual_seed(seed)
    one, other = (graph.keep_edges(torch.rand(graph.n_edges, generator=rng) < 0.5) for _ in "ab")
    edges = Edges(one, other) if directed else Edges.of(one)
    states = torch.randn(graph.n_features, width, generator=rng)
    some = (torch.rand(graph.n_features, generator=rng) < 0.3).nonzero()[:, 0]

    def go(wanted):
        start = states.clone().requires_grad_()
        walked, signal = walk(start, edges, n_steps, constant, wanted)
        walked.square().sum().backward()
        return walked.detach(), signal, start.grad

    for wanted in (None, some):
        for ours, theirs in zip(go(wanted), in_torch(go, wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_walk_without_values_is_the_same_to_the_bit():
    graph = random_graph(3, valued=False)
    states, edges = torch.randn(graph.n_features, 8), Edges.of(graph)
    ours, theirs = (each(walk, states, edges, 4, False) for each in (lambda f, *a: f(*a), in_torch))
    assert_same(ours, theirs, valued=False)


@given(seeds, st.integers(0, 80), st.integers(1, 4), st.lists(st.integers(1, 32), max_size=3))
def test_layers_are_those_of_torch(seed, n_rows, eights, hidden):
    torch.manual_seed(seed)
    net = MLP(8 * eights, int(torch.randint(1, 32, ())), hidden).train()
    z, weight = torch.randn(n_rows, 8 * eights), torch.randn(n_rows, net.n_outputs)

    def learn():
        rows = z.clone().requires_grad_()
        out = net(rows)
        wrt = [rows, *net.parameters()]
        return out.detach(), *torch.autograd.grad((out * weight).sum(), wrt)

    for ours, theirs in zip(learn(), in_torch(learn), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_edge_that_leads_astray_is_refused(wrong):
    table, ptr = torch.zeros(5, 8), torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(InputError, match="an edge of the graph leads to a row or feature"):
        segment_sums(table, torch.tensor([wrong], dtype=torch.int32), ptr)


def test_a_walk_of_states_of_other_features_is_refused():
    graph = random_graph(3, valued=False)
    with pytest.raises(InputError, match="leads to a row or feature that is not there"):
        walk(torch.zeros(graph.n_features + 1, 8), Edges.of(graph), 2, constant=True)


@pytest.mark.parametrize("hidden", [[16], [], [40]])
def test_rows_of_another_width_are_refused_as_torch_does(hidden):
    net, rows = MLP(16, 1, hidden).train(), torch.randn(50, 32, requires_grad=True)
    for predict in (net, lambda z: in_torch(net, z)):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            predict(rows)


def test_a_network_that_changed_before_its_gradient_is_refused():
    net = MLP(8, 1, [16]).train()
    loss = net(torch.randn(50, 8, requires_grad=True)).sum()
    net.double()
    with pytest.raises(InputError, match="changed its type or shape between"):
        loss.backward()


def test_second_derivatives_are_those_of_torch():
    graph = random_graph(3, valued=False)
    states, edges = torch.randn(graph.n_features, 8), Edges.of(graph)

    def second(work):
        start = states.clone().requires_grad_()
        (slope,) = torch.autograd.grad(work(start).pow(3).sum(), start, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), start)[0]

    for work in (lambda F: walk(F, edges, 3, False)[0], lambda F: features_to_rows(graph, F)):
        torch.testing.assert_close(second(work), in_torch(second, work), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of torch, about tracing
def test_what_is_traced_is_done_by_torch():
    graph, net = random_graph(3, valued=False), MLP(8, 2, [16]).train()
    states, rows, edges = torch.randn(graph.n_features, 8), torch.randn(5, 8), Edges.of(graph)
    walked = torch.compile(lambda F: walk(F, edges, 3, False)[0], backend="eager")
    torch.testing.assert_close(walked(states), walk(states, edges, 3, False)[0])
    traced = torch.jit.trace(lambda F: features_to_rows(graph, F), states)
    torch.testing.assert_close(traced(states), features_to_rows(graph, states))
    torch.testing.assert_close(torch.jit.trace(net, rows, check_trace=False)(rows), net(rows))


def test_edges_are_kept_one_by_one():
    graph = random_graph(3, valued=False)
    with pytest.raises(InputError, match="give one for each edge"):
        graph.keep_edges(torch.ones(graph.n_edges + 1, dtype=torch.bool))


def test_a_library_of_another_source_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "_VERSION", -1)
    assert native._load() is None


def test_without_a_library_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "__file__", str(Path(tmp_path, "native.py")))
    assert native._load() is None
