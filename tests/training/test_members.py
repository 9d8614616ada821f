"""Members over every backbone: dropped cells, and how they are trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import assert_near, random_table
from torch import nn

from openfate.graph import Bipartite
from openfate.models import DCN, FATE, MLP, DeepFM, WideDeep
from openfate.table import MultiHot
from openfate.training import AutoSettings, logits_of, train_members

D, H, FIELDS = 6, 3, np.array([0, 0, 1, 1, 2, 2])
PLAIN = {"hidden": (4,), "batch_norm": False, "dropout": 0.0}
BY_FIELD = {"pool": "field_linear", "n_fields": 3}
BACKBONES = {
    "mlp": lambda: MLP(H, 2, **PLAIN),
    "mlp by field": lambda: MLP(H, 2, **PLAIN, **BY_FIELD),
    "deepfm": lambda: DeepFM(H, 2, **PLAIN),
    "wide and deep": lambda: WideDeep(H, 2, **PLAIN),
    "dcn": lambda: DCN(H, 2, **PLAIN),
    "dcn by field": lambda: DCN(H, 2, **PLAIN, **BY_FIELD),
}


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("name", BACKBONES)
def test_dropped_cells_are_cells_of_value_zero(name, with_values, dropout):
    """The twin: a graph of all cells, each with the value that dropout leaves it, scaled up."""
    torch.manual_seed(0)
    model = FATE(D, BACKBONES[name]()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    row, feature = np.nonzero(random_table(0, share=0.6).numpy())
    rng = np.random.default_rng(0)
    values = rng.normal(size=len(row)).astype(np.float32) if with_values else None
    X = MultiHot.from_entries(row, feature, 7, D, values)
    ours = logits_of(model, X, FIELDS, dropout, torch.Generator().manual_seed(1))
    kept = torch.rand(X.nnz, generator=torch.Generator().manual_seed(1)) >= dropout
    value = kept.double() / (1 - dropout) * torch.from_numpy(np.ones(X.nnz) if values is None
                                                             else values.astype(float))  # fmt: skip
    graph = Bipartite.from_multihot(X).with_fields(torch.from_numpy(FIELDS)).with_values(value)
    assert_near(ours, model.backbone.logits(graph, model.W), 1e-9)


@pytest.mark.parametrize("name", BACKBONES)
def test_members_learn_and_repeat(name):
    rng = np.random.default_rng(0)
    value = rng.integers(0, 2, (120, 3))
    X, y = MultiHot.from_rows((value + np.array([0, 2, 4])).tolist(), D), value[:, 0]
    settings = AutoSettings(n_members=2, epochs=15, lr=0.05, batch_size=60)
    options = {"backbone": BACKBONES[name], "field_of": FIELDS, "validation": (X, y)}
    members, _ = train_members(X, y, 2, settings, **options)
    for model in members:
        assert (logits_of(model, X, FIELDS).argmax(1).numpy() == y).all()
    again, _ = train_members(X, y, 2, settings, **options)
    assert all(torch.equal(a.W, b.W) for a, b in zip(members, again, strict=True))
    assert not torch.equal(members[0].W, members[1].W)


def test_linear_weights_start_at_zero():
    X, y = MultiHot.from_rows([[0, 2], [1, 3]], D), np.array([0, 1])
    settings = AutoSettings(n_members=1, epochs=1, lr=1e-9)
    (model,), _ = train_members(X, y, 2, settings, backbone=BACKBONES["deepfm"])
    W = model.W.detach().abs()
    assert float(W[:, H:].max()) < 1e-6 < float(W[:2, :H].max())
