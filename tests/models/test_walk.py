"""The walk of a GCN against powers of a dense matrix, and its gradients."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import assert_near, dense_by_feature, dense_by_row, random_values
from test_extrapolator import DROPPED, make_edges

from openfate.models.walk import walk


@pytest.mark.parametrize("n_steps", range(1, 7))
def test_the_constant_of_the_walk_is_a_one_on_every_node(n_steps):
    edges = make_edges(4, "dropped apart")
    A = reference.normalised(dense_by_row(edges.to_rows), dense_by_feature(edges.to_features))
    _, signal = walk(torch.zeros(6, 1).double(), edges, n_steps, constant=True)
    ones = torch.ones(len(A), dtype=torch.float64)
    expected = [torch.linalg.matrix_power(A, k) @ ones for k in reversed(range(n_steps))]
    assert_near(signal, torch.stack(expected, 1)[:6], 1e-12)


@pytest.mark.parametrize("dropped", DROPPED)
def test_gradcheck_of_the_walk(dropped):
    edges = make_edges(5, dropped)
    states = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: walk(s, edges, 3, constant=True)[0], states)


@pytest.mark.parametrize("dropped", DROPPED)
def test_gradcheck_of_the_walk_with_values(dropped):
    edges = make_edges(5, dropped, values=random_values(5))
    states = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: walk(s, edges, 3, constant=True)[0], states)
