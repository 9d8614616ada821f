"""Which engine trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused import DEVICE, INTERPRETED, needs_gpu

from openfate.errors import InputError
from openfate.models import FATE, GCN, MLP, GraphSAGE
from openfate.training import Settings
from openfate.training import engine as engines
from openfate.training.engine import Engine, Seeds, make_engine

BASE = Settings.clicks(n_kept=2, n_draws=2)


def make() -> FATE:
    backbone = MLP(3, 1, (6, 5), batch_norm=True)
    return FATE(24, backbone, GraphSAGE(3), recompose="all").to(DEVICE)


# ---- which engine ----------------------------------------------------------------------------


def test_a_cpu_takes_plain_torch():
    if not INTERPRETED:
        assert type(make_engine(make().cpu(), BASE, "cpu")) is Engine


@needs_gpu
def test_a_gpu_takes_the_fused_engine_where_it_fits():
    from openfate.training.fused.click_engine import FusedEngine

    assert type(make_engine(make(), BASE, "cuda")) is FusedEngine
    assert type(make_engine(make(), replace(BASE, engine="plain"), "cuda")) is Engine
    assert type(make_engine(make().double(), BASE, "cuda")) is Engine
    assert type(make_engine(make(), replace(BASE, masking="n_fold"), "cuda")) is Engine


class OtherMLP(MLP):
    pass


def pretend_a_gpu(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: make().double(), "the model is in torch.float64, not in float32"),
        (
            lambda: FATE(4, MLP(8, 1), GraphSAGE(8), recompose="all"),
            "the backbone is MLP, not an MLP of two hidden layers with batch_norm=True and "
            "pool='sum'",
        ),
        (
            lambda: FATE(4, OtherMLP(8, 1, batch_norm=True), GraphSAGE(8), recompose="all"),
            "the backbone is OtherMLP, not an MLP of two hidden layers with batch_norm=True and "
            "pool='sum'",
        ),
        (
            lambda: FATE(4, MLP(8, 2, batch_norm=True), GraphSAGE(8), recompose="all"),
            "the backbone has 2 outputs, not 1",
        ),
        (
            lambda: FATE(4, MLP(40, 1, batch_norm=True), GraphSAGE(40), recompose="all"),
            "widths 40 and 8 are not at most 28 and 512",
        ),
        (
            lambda: FATE(4, MLP(8, 1, batch_norm=True), GCN(8), recompose="all"),
            "the extrapolator is GCN, not a GraphSAGE of 2 layers",
        ),
        (
            lambda: FATE(4, MLP(8, 1, batch_norm=True), GraphSAGE(8)),
            "recompose='masked', not 'all'",
        ),
    ],
)
def test_what_does_not_fit_is_named(model, reason, monkeypatch):
    pretend_a_gpu(monkeypatch)
    assert engines.fused_obstacle(model(), "cuda") == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "device=cpu is no GPU"),
        ({"masking": "n_fold"}, "masking='n_fold' hides features, not fields"),
        ({"reading": "columns"}, "reading='columns' takes edges out"),
        ({"adam": "lazy"}, "adam='lazy' is not dense Adam"),
        (
            {"cell_dropout": 0.1},
            "it knows no cell_dropout, no drop_edge_directed and no joint updates",
        ),
    ],
)
def test_fused_refuses_what_does_not_fit(change, reason, monkeypatch):
    monkeypatch.undo()
    if change:
        pretend_a_gpu(monkeypatch)
    with pytest.raises(InputError) as error:
        device = "cuda" if change else "cpu"
        make_engine(make().cpu(), replace(BASE, engine="fused", **change), device)
    assert str(error.value) == (
        f"engine='fused' does not fit: {reason}. Choose engine='auto', which takes plain torch "
        "then."
    )


def test_the_seeds_of_a_mini_batch_are_its_own():
    assert Seeds.of(1, 2) == Seeds.of(1, 2) != Seeds.of(1, 3)
    assert len({*Seeds.of(1, 2), *Seeds.of(2, 1)}) == 6
