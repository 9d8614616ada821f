"""Members side by side predict what each predicts alone, in blocks or not."""

import numpy as np
import pytest
import torch

from openfate.graph import Bipartite
from openfate.models import MLP, DeepFM, StackedMLP
from openfate.table import MultiHot


def rows(n, seed, with_values):
    rng = np.random.default_rng(seed)
    row, feature = np.nonzero(rng.random((n, 9)) < 0.4)
    values = rng.normal(size=len(row)).astype(np.float32) if with_values else None
    return MultiHot.from_entries(row, feature, n, 9, values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [0, 1, 5, 700])
@pytest.mark.parametrize(
    "shape", [{}, {"activate_sum": True}, {"batch_norm": True, "hidden": (5,)}]
)
def test_logits_are_those_of_each_member(shape, n, seed):
    torch.manual_seed(seed)
    members = [MLP(6, 1 + seed, **shape).double() for _ in range(1 + seed)]
    for member in members:
        for tensor in (*member.parameters(), *member.buffers()):
            if tensor.is_floating_point():
                tensor.data.uniform_(0.1, 1).mul_(1 if tensor.dim() > 1 else 2)
        member.eval().requires_grad_(False)
    X, tables = rows(n, seed, seed % 2), torch.randn(len(members), 9, 6, dtype=torch.float64)
    side_by_side = np.concatenate(list(tables.numpy()), axis=1)
    found = StackedMLP(members).logits(X, side_by_side)
    graph = Bipartite.from_multihot(X)
    pairs = zip(members, tables, strict=True)
    expected = np.stack([member.logits(graph, table).numpy() for member, table in pairs])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    single = StackedMLP(members, single=True).logits(X, side_by_side)
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4)


def test_networks_of_another_kind_are_not_taken():
    plain = MLP(4, 1).eval()
    assert StackedMLP.takes([plain, MLP(4, 1).eval()])
    others = [MLP(4, 2), MLP(4, 1, hidden=(3,)), DeepFM(4, 1), MLP(4, 1, activate_sum=True)]
    assert not any(StackedMLP.takes([plain, other.eval()]) for other in others)
    by_field = MLP(4, 1, pool="field_linear", n_fields=2).eval()
    assert not StackedMLP.takes([by_field, by_field])
