"""The extrapolator on a table of six rows and five features, with numbers computed by hand.

      f1 f2 f3 f4 f5
o1     1  1  1  .  .        Every row that has features has three of them, and every feature that
o2     1  1  .  1  .        has rows has three: with the self-loop all degrees are 4, so that
o3     1  .  1  1  .        a = b = 1/2, A = B = 1/4 and S = X / 4; but for o5, o6 and f5, which
o4     .  1  1  1  .        have no edges: degree 1, A = B = 1.
o5     .  .  .  .  .
o6     .  .  .  .  .
"""

from __future__ import annotations

import pytest
import reference
import torch
from reference import assert_near, bipartite, random_table

from openfate.graph import Edges
from openfate.models import GCN, GraphSAGE
from openfate.models.walk import walk

X = torch.tensor(
    [
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ],
    dtype=torch.float64,
)
EDGES = Edges.of(bipartite(X))


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def gcn(n_layers: int, bias: float = 0.0) -> GCN:
    """Identity weights, and the same bias everywhere."""
    model = GCN(1, n_layers).double()
    for P in model.P:
        torch.nn.init.ones_(P)
    torch.nn.init.constant_(model.bias, bias)
    return model


def sage(width: int, n_layers: int, normalize: bool = False) -> GraphSAGE:
    """Identity weights, no bias."""
    model = GraphSAGE(width, n_layers, normalize).double()
    for neighbour, root in zip(model.neighbour, model.root, strict=True):
        torch.nn.init.eye_(neighbour.weight)
        torch.nn.init.zeros_(neighbour.bias)
        torch.nn.init.eye_(root.weight)
    return model


def test_one_gcn_layer_scales_a_feature_by_its_degree():
    # F1 = A F + S^T G with G = 0: a quarter of each, and f5 as it was.
    assert_near(gcn(1)(column(16, 32, 48, 64, 80), EDGES), column(4, 8, 12, 16, 80), 1e-12)


def test_two_gcn_layers_bring_in_the_neighbours():
    # G1 = S F: o1 (16+32+48)/4 = 24, o2 (16+32+64)/4 = 28, o3 (16+48+64)/4 = 32,
    #           o4 (32+48+64)/4 = 36, o5 = o6 = 0.         F1 = 4, 8, 12, 16, 80.
    # F2 = F1/4 + X^T G1/4: f1 1 + (24+28+32)/4 = 22, f2 2 + (24+28+36)/4 = 24,
    #           f3 3 + (24+32+36)/4 = 26, f4 4 + (28+32+36)/4 = 28, f5 80.
    assert_near(gcn(2)(column(16, 32, 48, 64, 80), EDGES), column(22, 24, 26, 28, 80), 1e-12)


def test_a_hidden_feature_is_told_by_its_neighbours():
    # f4 hidden: G1 = 24, (16+32)/4 = 12, (16+48)/4 = 16, (32+48)/4 = 20.
    # F2: f4 0 + (12+16+20)/4 = 12.
    assert gcn(2)(column(16, 32, 48, 0, 80), EDGES)[3].item() == pytest.approx(12)


def test_a_bias_walks_the_steps_that_are_left():
    # A one on every node stays a one: 1/4 + 3 * 1/4 = 1, and 1 at f5.  So each layer adds its bias,
    # here 10, once: F2 + 20.
    out = gcn(2, bias=10.0)(column(16, 32, 48, 64, 80), EDGES)
    assert_near(out, column(42, 44, 46, 48, 100), 1e-12)


def test_one_sage_layer_keeps_the_root_or_its_direction():
    # Rows are zero at first, so F1 = norm(0 + F): (3, 4) has length 5.
    states = torch.tensor([[3.0, 4.0]] * 5, dtype=torch.float64)
    assert_near(sage(2, 1)(states, EDGES), states, 1e-12)
    unit = torch.tensor([[0.6, 0.8]] * 5, dtype=torch.float64)
    assert_near(sage(2, 1, normalize=True)(states, EDGES), unit, 1e-12)


def test_two_sage_layers_add_a_mean_of_means():
    # F = 3, 6, 9, 0, 5 (f4 hidden): G1 = o1 18/3 = 6, o2 9/3 = 3, o3 12/3 = 4, o4 15/3 = 5; F1 = F.
    # F2 = F1 + mean of G1: f1 3 + 13/3, f2 6 + 14/3, f3 9 + 15/3, f4 0 + 12/3 = 4, f5 5.
    expected = column(3 + 13 / 3, 6 + 14 / 3, 14, 4, 5)
    assert_near(sage(1, 2)(column(3, 6, 9, 0, 5), EDGES), expected, 1e-12)


@pytest.mark.parametrize("n_layers", range(1, 7))
@pytest.mark.parametrize("seed", range(3))
def test_the_collapsed_gcn_equals_its_layers_one_by_one(n_layers, seed):
    torch.manual_seed(seed)
    table, model = random_table(seed, 6, 5), GCN(3, n_layers).double()
    torch.nn.init.normal_(model.bias)
    states = torch.randn(5, 3, dtype=torch.float64)
    expected = reference.gcn(states, table, table, list(model.P), list(model.bias))
    assert_near(model(states, Edges.of(bipartite(table))), expected, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_four_steps_are_a_polynomial_in_the_cooccurrences(seed):
    # K = A^4 + A^2 C1 + A C1 A + C1 A^2 + C1^2 + A C2 + C2 A + C3, with
    # C_p = diag(a) [sum_i (r_i + 1)^-p x_i x_i^T] diag(a).
    table = random_table(seed, 6, 5)
    a, r = (table.sum(0) + 1) ** -0.5, table.sum(1) + 1
    A = torch.diag(a**2)
    C1, C2, C3 = (a[:, None] * (table.T @ (table / r[:, None] ** p)) * a for p in (1, 2, 3))
    K = A @ A @ A @ A + A @ A @ C1 + A @ C1 @ A + C1 @ A @ A + C1 @ C1 + A @ C2 + C2 @ A + C3
    walked, _ = walk(torch.eye(5).double(), Edges.of(bipartite(table)), 4, constant=False)
    assert_near(walked, K, 1e-12)
