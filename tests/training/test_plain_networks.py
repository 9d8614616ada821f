"""Plain networks over every backbone: dropped cells, AdamW, features without a row."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from reference import random_table
from torch import nn

from openfate.graph import Bipartite
from openfate.models import DCN, FATE, MLP, DeepFM, WideDeep
from openfate.table import MultiHot
from openfate.training import Settings, log_loss, train

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
SETTINGS = Settings.plain(
    **{"epochs": 3, "batch_size": 3, "cell_dropout": 0.4, "lr": 0.05, "weight_decay": 0.1},
    **{"adam": "exact", "schedule": "constant", "averaging": False},
)


def slow(model: FATE, X: MultiHot, y: np.ndarray, s: Settings, seed: int) -> FATE:
    """The twin: a graph of all cells, each with the value that dropout leaves it, scaled up."""
    model = copy.deepcopy(model)
    rates = {"betas": (0.9, s.beta2), "weight_decay": s.weight_decay, "foreach": False}
    adam = torch.optim.AdamW(model.parameters(), s.lr, **rates)
    order, cells = np.random.default_rng([seed, 4]), torch.Generator().manual_seed(seed)
    for _ in range(s.epochs):
        for rows in np.array_split(order.permutation(X.n_rows), X.n_rows // s.batch_size):
            part, labels = X.select_rows(rows), torch.from_numpy(y[rows])
            kept = (torch.rand(part.nnz, generator=cells) >= s.cell_dropout).double()
            value = np.ones(part.nnz) if part.values is None else part.values.astype(float)
            value = torch.from_numpy(value) * kept / (1 - s.cell_dropout)
            graph = Bipartite.from_multihot(part).with_fields(torch.from_numpy(FIELDS))
            adam.zero_grad()
            log_loss(model.backbone.logits(graph.with_values(value), model.W), labels).backward()
            adam.step()
    return model


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("name", BACKBONES)
def test_dropped_cells_are_cells_of_value_zero(name, with_values):
    torch.manual_seed(0)
    model = FATE(D, BACKBONES[name]()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    row, feature = np.nonzero(random_table(0, 9, D, share=0.6).numpy())
    rng = np.random.default_rng(0)
    values = rng.normal(size=len(row)).astype(np.float32) if with_values else None
    X, y = MultiHot.from_entries(row, feature, 9, D, values), np.arange(9) % 2
    settings = Settings(**{**vars(SETTINGS), "untrained": "leave"})
    expected = slow(model, X, y, settings, seed=7)
    train(model, X, y, settings, field_of=FIELDS, seed=7)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert float((one - other).detach().abs().max()) < 1e-7


@pytest.mark.parametrize("name", BACKBONES)
def test_plain_networks_learn_and_repeat(name):
    rng = np.random.default_rng(0)
    value = rng.integers(0, 2, (120, 3))
    X, y = MultiHot.from_rows((value + np.array([0, 2, 4])).tolist(), D), value[:, 0]
    settings = Settings.plain(epochs=15, lr=0.05, batch_size=60)
    torch.manual_seed(0)
    model = FATE(D, BACKBONES[name]())
    again = copy.deepcopy(model)
    for each in (model, again):
        train(each, X, y, settings, field_of=FIELDS, validation=(X, y))
    graph = Bipartite.from_multihot(X).with_fields(torch.from_numpy(FIELDS))
    assert (model.predict(graph, model.W).argmax(1).numpy() == y).all()
    assert torch.equal(model.W, again.W)


@pytest.mark.parametrize("untrained", ["zero", "leave"])
def test_a_feature_without_a_row_is_zero_or_stays(untrained):
    X, y = MultiHot.from_rows([[0, 2], [1, 3]] * 4, D), np.array([0, 1] * 4)
    model = FATE(D, BACKBONES["mlp"]())
    model.W.data[4] = 1.0
    train(model, X, y, Settings.plain(epochs=1, untrained=untrained))
    W = model.W[4].detach()
    assert not W.any() if untrained == "zero" else (W == 1).all()
