"""Which engine trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused import DEVICE, INTERPRETED, needs_gpu

from openfate.errors import InputError
from openfate.models import DCN, FATE, GCN, MLP, DeepFM, GraphSAGE
from openfate.training import Settings
from openfate.training import engine as engines
from openfate.training.engine import Engine, Seeds, make_engine
from openfate.training.fused.coverage import Parts

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


class OtherSAGE(GraphSAGE):
    pass


def pretend_a_gpu(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)


def normed(width: int = 8, n_outputs: int = 1) -> MLP:
    return MLP(width, n_outputs, batch_norm=True)


class OwnSums(MLP):
    def sums(self, X, W_hat, W=None):
        return super().sums(X, W_hat, W)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: make().double(), "the model is in torch.float64, not in float32"),
        (
            lambda: FATE(4, normed(n_outputs=2), GraphSAGE(8)),
            "the backbone has 2 outputs, and clicks have 1",
        ),
        (
            lambda: FATE(4, OwnSums(8, 1), GraphSAGE(8)),
            "the backbone OwnSums goes over edges itself",
        ),
        (
            lambda: FATE(4, normed(), OtherSAGE(8)),
            "the extrapolator OtherSAGE may go over edges itself",
        ),
    ],
)
def test_what_does_not_fit_is_named(model, reason, monkeypatch):
    pretend_a_gpu(monkeypatch)
    assert engines.fused_obstacle(model(), "cuda") == reason


NOT_DEEP = "without an MLP of two hidden layers with batch_norm=True and pool='sum'"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: FATE(4, MLP(8, 1), GraphSAGE(8), recompose="all"), f"MLP, {NOT_DEEP}"),
        (
            lambda: FATE(4, OtherMLP(8, 1, batch_norm=True), GraphSAGE(8), recompose="all"),
            f"OtherMLP, {NOT_DEEP}",
        ),
        (lambda: FATE(4, normed(40), GraphSAGE(40), recompose="all"), "widths 40 and 8 are not"),
        (lambda: FATE(4, normed(), GCN(8), recompose="all"), "not a GraphSAGE of 2 layers"),
        (
            lambda: FATE(4, normed(), GraphSAGE(8, prior_rows=1.0), recompose="all"),
            "the GraphSAGE has prior_rows",
        ),
        (lambda: FATE(4, DeepFM(8), GraphSAGE(8), recompose="all"), "is DeepFM, not MLP"),
        (lambda: FATE(4, normed(), GraphSAGE(8)), "recompose='masked', not 'all'"),
    ],
)
def test_auto_takes_plain_torch_where_nobody_has_measured(model, reason, monkeypatch):
    pretend_a_gpu(monkeypatch)
    assert reason in engines.why_unmeasured(model())
    assert engines.fused_obstacle(model(), "cuda") is None
    assert not engines.takes_fused("auto", model(), "cuda")
    assert engines.takes_fused("fused", model(), "cuda")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"masking": "n_fold"}, "masking='n_fold' hides features, not fields"),
        ({"adam": "lazy"}, "adam='lazy' is not dense Adam"),
        ({"async_updates": False}, "async_updates=False"),
        ({"reading": "columns"}, "reading='columns' takes edges out"),
        ({"drop_edge_directed": True}, "drop_edge_directed drops edges anew on the way back"),
    ],
)
def test_auto_takes_plain_torch_for_settings_that_nobody_has_measured(change, reason, monkeypatch):
    pretend_a_gpu(monkeypatch)
    settings = replace(BASE, **change)
    assert engines.why_unmeasured(make(), settings) == reason
    assert engines.fused_obstacle(make(), "cuda", settings) is None
    assert not engines.takes_fused("auto", make(), "cuda", settings)
    assert engines.takes_fused("auto", make(), "cuda", BASE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "device=cpu is no GPU"),
        ({"cell_dropout": 0.1}, "cell_dropout gives edges values"),
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


def test_every_part_says_where_it_runs():
    both = Parts.of(make())
    assert both.is_chain(make()) and both == (None, None)
    assert both.told().endswith("network in kernels; extrapolator in kernels")
    model = FATE(4, DCN(8, hidden=(6,)), GCN(8))
    assert Parts.of(model).told() == (
        "sort, sums over edges and Adam on W in kernels; network in plain torch (the backbone is "
        f"DCN, {NOT_DEEP}); extrapolator in plain torch (the extrapolator is not a GraphSAGE of 2 "
        "layers)"
    )
    few, many = (DCN(8, hidden=(6, 5), pool="field_linear", n_fields=n) for n in (3, 4))
    assert Parts.of(FATE(4, few, GraphSAGE(8))).network is None
    assert "widths 32 and 6" in Parts.of(FATE(4, many, GraphSAGE(8))).network
    of_deepfm = FATE(4, DeepFM(8, hidden=(6, 5)), GraphSAGE(8), recompose="all")
    assert Parts.of(of_deepfm) == (None, None) and not Parts.of(of_deepfm).is_chain(of_deepfm)
    wide = FATE(4, DeepFM(28, hidden=(6, 5)), GraphSAGE(28), recompose="all")
    assert Parts.of(wide).extrapolator == "W has 29 columns, not at most 28"


def test_the_seeds_of_a_mini_batch_are_its_own():
    assert Seeds.of(1, 2) == Seeds.of(1, 2) != Seeds.of(1, 3)
    assert len({*Seeds.of(1, 2), *Seeds.of(2, 1)}) == 6
