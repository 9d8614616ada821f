"""Backbones, extrapolators and masks beside the paper's: the fused engine, part by part.

Each against the plain engine for the same masks and dropped edges, in float32 and float64.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from fused import DEVICE, first_gradients, interpret_kernels, needs_gpu, needs_kernels

from openfate.models import DCN, FATE, GCN, MLP, SGC, Backbone, DeepFM, GraphSAGE, WideDeep
from openfate.training import Settings, array_batches, predict_batches, train
from openfate.training.engine import make_engine

N_FIELDS, SIZE, H, N_ROWS = 3, 4, 3, 10
D = N_FIELDS * SIZE
BASE = Settings.clicks(n_kept=2, n_draws=2, lr=0.01, lr_extrapolator=0.01, n_ahead=0, drop_edge=0.5)
SMALL = {"hidden": (5, 4), "dropout": 0.0}
KERNELS = (True, True)


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch):
    interpret_kernels(monkeypatch)


def rows(seed: int, n: int = N_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    value = (rng.random((n, N_FIELDS)) ** 2 * SIZE).astype(int)
    y = (value[:, -1] % 2 ^ (rng.random(n) < 0.2)).astype(np.int64)
    return (value + SIZE * np.arange(N_FIELDS)).astype(np.int32), y


def perturbed(net: Backbone) -> Backbone:
    """No parameter that starts at zero, where a gradient may hide behind it."""
    for p in net.parameters():
        torch.nn.init.normal_(p, p.mean().item(), 0.3)
    return net


def mlp(hidden: tuple[int, ...] = (5, 4), **options) -> MLP:
    return MLP(H, 1, hidden, **{"batch_norm": True, **options})


# Backbone, extrapolator, changes of the settings, recompose; whether the network has kernels, and
# whether the extrapolator has.
CASES = {
    "n-fold": (mlp, GraphSAGE, {"masking": "n_fold", "n_folds": 2}, "all", (True, True)),
    "n-fold, masked": (mlp, GraphSAGE, {"masking": "n_fold", "n_folds": 3}, "masked", KERNELS),
    "k-shot, masked": (mlp, GraphSAGE, {}, "masked", KERNELS),
    "wide and deep": (lambda: WideDeep(H, **SMALL), GraphSAGE, {}, "all", KERNELS),
    "deepfm": (lambda: DeepFM(H, **SMALL), GraphSAGE, {}, "all", KERNELS),
    "deepfm, n-fold, masked": (
        *(lambda: DeepFM(H, **SMALL), GraphSAGE),
        *({"masking": "n_fold", "n_folds": 2}, "masked", KERNELS),
    ),
    "deepfm, extrapolated": (
        lambda: DeepFM(H - 1, linear="extrapolated", fm="paper", fm_scale=0.5, **SMALL),
        *(GraphSAGE, {}, "all", KERNELS),
    ),
    "deepfm, cross": (lambda: DeepFM(H, fm="cross", **SMALL), GraphSAGE, {}, "all", KERNELS),
    "dcn": (lambda: DCN(H, **SMALL), GraphSAGE, {}, "all", KERNELS),
    "dcn of fields": (
        lambda: DCN(H, pool="field_linear", n_fields=N_FIELDS, **SMALL),
        *(GraphSAGE, {"masking": "n_fold", "n_folds": 2}, "all", KERNELS),
    ),
    "dcn of many fields": (
        lambda: DCN(H, pool="field_linear", n_fields=10, n_cross=1, **SMALL),
        *(GraphSAGE, {}, "all", (False, True)),
    ),
    "mlp of more fields": (
        lambda: mlp(pool="field_linear", n_fields=N_FIELDS + 1),
        *(GraphSAGE, {}, "all", (False, True)),
    ),
    "mlp of fewer fields": (
        lambda: mlp(pool="field_linear", n_fields=N_FIELDS - 1),
        *(GraphSAGE, {}, "all", (False, True)),
    ),
    "shallow, no norm": (
        lambda: mlp((6,), batch_norm=False),
        *(GraphSAGE, {}, "all", (False, True)),
    ),
    "deep": (lambda: mlp((5, 4, 3)), GraphSAGE, {}, "all", (False, True)),
    "activated": (lambda: mlp(activate_sum=True), GraphSAGE, {}, "all", (False, True)),
    "gcn": (mlp, lambda h: GCN(h, 3), {}, "all", (True, False)),
    "gcn of one layer": (mlp, lambda h: GCN(h, 1, bias=False), {}, "masked", (True, False)),
    "sgc": (mlp, SGC, {"drop_edge_directed": True}, "all", (True, False)),
    "sage of 3": (mlp, lambda h: GraphSAGE(h, 3), {}, "all", (True, False)),
    "prior": (mlp, lambda h: GraphSAGE(h, prior_rows=2.0), {}, "all", (True, False)),
    "directed": (mlp, GraphSAGE, {"drop_edge_directed": True}, "all", (True, False)),
    "columns": (mlp, GraphSAGE, {"reading": "columns"}, "all", (True, False)),
    "columns, fields apart": (
        lambda: mlp(pool="field_linear", n_fields=N_FIELDS),
        *(lambda h: GCN(h, 3), {"reading": "columns"}, "masked", (False, False)),
    ),
    "no extrapolator": (mlp, None, {"masking": "none"}, "all", (True, False)),
    "nothing fused": (
        *(lambda: DeepFM(H, hidden=(4,), fm="cross", dropout=0.5), lambda h: GCN(h, 4)),
        *({"masking": "n_fold", "n_folds": 2}, "masked", (False, False)),
    ),
}
ALL = pytest.mark.parametrize("name", CASES)


def make(name: str, seed: int = 0) -> FATE:
    torch.manual_seed(seed)
    backbone, extrapolator, _, recompose, _ = CASES[name]
    net = perturbed(backbone())
    g = None if extrapolator is None else extrapolator(net.width)
    model = FATE(D, net, g, recompose=recompose)
    torch.nn.init.normal_(model.W)
    return model.to(DEVICE)


def settings_of(name: str, **change) -> Settings:
    return replace(BASE, **{**CASES[name][2], **change})


@needs_kernels
@pytest.mark.parametrize("seed", range(2))
@ALL
def test_gradients_are_as_near_to_float64_as_those_of_plain_torch(name, seed):
    start, batch = make(name, seed), rows(seed)
    fast, plain, exact = (
        first_gradients(copy.deepcopy(start).to(dtype), settings_of(name, engine=engine), *batch)
        for engine, dtype in (
            *(("fused", torch.float32), ("plain", torch.float32)),
            ("plain", torch.float64),
        )
    )
    assert fast.keys() == exact.keys() and exact["W"].any()
    fast, plain, exact = (
        torch.cat([side[each].flatten() for each in exact]) for side in (fast, plain, exact)
    )
    assert (fast - exact).norm() <= 2 * (plain - exact).norm() + 1e-5 * exact.norm()


@needs_kernels
@ALL
def test_predictions_are_those_of_plain_torch(name):
    model, batches = make(name, 1), [rows(3), rows(4, 5)]
    new = np.random.default_rng(0).random(batches[0][0].shape) < 0.2
    ids = np.where(new, D + np.arange(N_FIELDS), batches[0][0]).astype(np.int32)
    batches = [(ids, batches[0][1]), batches[1]]
    fused, plain = (
        list(predict_batches(model, batches, engine=engine, device=DEVICE, n_ahead=0))
        for engine in ("fused", "plain")
    )
    for one, other in zip(fused, plain, strict=True):
        assert np.allclose(one[0], other[0], atol=1e-4) and one[0].shape == other[0].shape
    assert np.ptp(fused[0][0]) > 1e-3


# ---- runs ------------------------------------------------------------------------------------


def train_on(model: FATE, settings: Settings, source=None, **options) -> list[float]:
    losses: list[float] = []
    train(
        model,
        source or array_batches(*rows(1, 2 * N_ROWS), N_ROWS, seed=1),
        settings=settings,
        device=DEVICE,
        on_step=lambda s: losses.append(s.train_loss),
        **options,
    )
    return losses


def weights(model: FATE) -> torch.Tensor:
    """All that was learned, but for what has no gradient but rounding's."""
    idle = ("layers.0.bias", "layers.1.bias", "running_mean", "num_batches_tracked")
    state = model.state_dict().items()
    return torch.cat([v.double().flatten() for k, v in state if not k.endswith(idle)]).cpu()


def far(one: FATE, other: FATE) -> float:
    """The mean distance of two weights: see `test_click_engine.far`."""
    return float((weights(one) - weights(other)).abs().mean())


@needs_kernels
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("n-fold", {}), ("deepfm", {"adam": "lazy"}), ("dcn of fields", {}), ("deep", {})),
        *(("mlp of more fields", {}), ("directed", {}), ("dcn", {"beta2": 0.5})),
        *(("gcn", {"async_updates": False}), ("nothing fused", {"drop_edge_directed": True})),
    ],
    ids=str,
)
def test_weights_are_as_near_to_float64_as_those_of_plain_torch(name, change):
    """Without dropped edges, which the engines draw on their own; dropped units are the same."""
    if name == "nothing fused" and DEVICE != "cpu":
        pytest.skip("a recording need not draw torch's random numbers as torch does")
    start, settings = make(name), settings_of(name, drop_edge=0.0, **change)
    fast, plain, exact = (copy.deepcopy(start) for _ in range(3))
    losses = [
        train_on(model.to(dtype), replace(settings, engine=engine))
        for model, dtype, engine in (
            *((fast, torch.float32, "fused"), (plain, torch.float32, "plain")),
            (exact, torch.float64, "plain"),
        )
    ]
    moved = far(exact, start)
    assert moved > 0.005
    assert far(fast, exact) <= 2 * far(plain, exact) + 0.01 * moved
    assert np.allclose(losses[0], losses[2], atol=1e-5)
    counts = [[int(b) for k, b in m.named_buffers() if "num" in k] for m in (fast, plain)]
    assert counts[0] == counts[1]


@needs_kernels
def test_folds_of_more_features_than_a_room_has_are_those_of_plain_torch():
    many, few = rows(1, 150), rows(2, 150)
    few = (np.repeat(few[0][:1], 150, 0), few[1])
    many = (many[0] + SIZE * N_FIELDS * (np.arange(150) % 12)[:, None], many[1])
    batches = [few, (many[0].astype(np.int32), many[1]), few]
    torch.manual_seed(0)
    start = FATE(12 * D, mlp(), GraphSAGE(H), recompose="all").to(DEVICE)
    torch.nn.init.normal_(start.W)
    settings = settings_of("n-fold", drop_edge=0.0)
    fast, plain, exact = (copy.deepcopy(start) for _ in range(3))
    for model, dtype, engine in (
        *((fast, torch.float32, "fused"), (plain, torch.float32, "plain")),
        (exact, torch.float64, "plain"),
    ):
        train_on(model.to(dtype), replace(settings, engine=engine), lambda epoch: batches)
    assert far(fast, exact) <= 2 * far(plain, exact) + 0.01 * far(exact, start)


@needs_kernels
@pytest.mark.parametrize("name", ["deepfm", "dcn", "deep", "sage of 3"])
def test_half_precision_is_near(name):
    start, losses = make(name), []
    settings = settings_of(name, drop_edge=0.0, mixed_precision=True)
    for engine in ("fused", "plain"):
        losses.append(train_on(copy.deepcopy(start), replace(settings, engine=engine)))
    assert np.allclose(*losses, atol=0.05) and losses[0] != losses[1]


@needs_gpu
@pytest.mark.parametrize(
    "name", ["deepfm", "dcn", "deep", "mlp of more fields", "gcn", "nothing fused"]
)
def test_a_recorded_step_is_the_same_step(name, monkeypatch):
    """Dropped units and edges too: torch's random numbers are those of the seed."""
    from openfate.training.fused import click_engine

    start, ends = make(name), []
    batches = [rows(seed) for seed in range(6)]
    for is_recorded in (True, False):
        if not is_recorded:
            monkeypatch.setattr(click_engine._Rooms, "leave", lambda self, room: None)
        model = copy.deepcopy(start)
        train_on(model, settings_of(name, engine="fused"), lambda epoch: batches)
        ends.append(model)
    assert far(*ends) <= 0.01 * far(ends[0], start)


@needs_kernels
def test_two_runs_give_the_same_bits_and_go_on_from_a_checkpoint():
    kept, ends = {}, []
    settings = settings_of("nothing fused", engine="fused", epochs=2, checkpoint_every=2)

    def keep(checkpoint) -> None:
        if not kept:  # of the first epoch
            kept.update({name: value.clone() for name, value in checkpoint.items()})

    for options in ({"on_checkpoint": keep}, {}, {"resume": kept}):
        model = make("nothing fused")
        train_on(model, settings, **options)
        ends.append(weights(model))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


# ---- the choice of parts ---------------------------------------------------------------------


@needs_kernels
@ALL
def test_parts_that_have_kernels_are_taken_and_told(name, caplog):
    with caplog.at_level(logging.INFO, logger="openfate"):
        engine = make_engine(make(name), settings_of(name, engine="fused"), DEVICE)
    _, g, _, _, expected = CASES[name]
    assert (engine.parts.network is None, engine.parts.extrapolator is None) == (
        expected if g is not None else (expected[0], False)
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"engine 'fused': {engine.parts.told()}"
    ]
    engine.close()


@needs_kernels
def test_a_foreign_network_is_taken_and_not_recorded():
    class Foreign(MLP):
        pass

    model = FATE(D, Foreign(H, 1), GraphSAGE(H), recompose="all").to(DEVICE)
    engine = make_engine(model, replace(BASE, engine="fused"), DEVICE)
    assert engine.parts.network is not None and not engine.rooms.records
    assert make_engine(make("deep"), replace(BASE, engine="fused"), DEVICE).rooms.records
