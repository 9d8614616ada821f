"""The fused engine against plain torch: weights, predictions, checkpoints."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from fused import DEVICE, first_gradients, interpret_kernels, needs_gpu, needs_kernels
from torch import Tensor

from openfate.errors import InputError
from openfate.models import FATE, MLP, GraphSAGE
from openfate.training import Settings, array_batches, predict_batches, train

N_FIELDS, SIZE, H = 4, 6, 3
D = N_FIELDS * SIZE
BASE = Settings.clicks(n_kept=2, n_draws=2, lr=0.01, lr_extrapolator=0.01, n_ahead=0, drop_edge=0.0)
FUSED, PLAIN = replace(BASE, engine="fused"), replace(BASE, engine="plain")


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch):
    """The fused engine on a CPU, where the kernels are interpreted."""
    interpret_kernels(monkeypatch)


def rows(seed: int, n: int = 24, n_fields: int = N_FIELDS) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, fields), of which those of the last field tell the label, and labels."""
    rng = np.random.default_rng(seed)
    value = rng.integers(0, SIZE, (n, n_fields))
    y = (value[:, -1] % 2 ^ (rng.random(n) < 0.1)).astype(np.int64)
    return (value + SIZE * np.arange(n_fields)).astype(np.int32), y


def later(seed: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which some ids are new: from D on."""
    ids, y = rows(seed)
    new = np.random.default_rng(seed).random(ids.shape) < 0.2
    return np.where(new, D + np.arange(N_FIELDS), ids).astype(np.int32), y


def make(dropout: float = 0.0, **options) -> FATE:
    torch.manual_seed(0)
    backbone = MLP(H, 1, (6, 5), batch_norm=True, dropout=dropout)
    return FATE(D, backbone, GraphSAGE(H, **options), recompose="all").to(DEVICE)


def train_on(model: FATE, settings: Settings, source=None, **options) -> list[float]:
    losses: list[float] = []
    source = source or array_batches(*rows(0), 8, seed=1)
    train(
        model,
        source,
        settings=settings,
        device=DEVICE,
        on_step=lambda s: losses.append(s.train_loss),
        **options,
    )
    return losses


def weights(model: FATE) -> Tensor:
    """All that was learned and counts.

    A bias before BatchNorm has no gradient but rounding's, which Adam scales up; nor has one of the
    extrapolator, where nothing normalizes the sums.
    """
    idle = ("layers.0.bias", "layers.1.bias", "running_mean", "num_batches_tracked")
    if not model.extrapolator.normalize:
        idle += ("neighbour.0.bias", "neighbour.1.bias")
    state = model.state_dict().items()
    return torch.cat([v.double().flatten() for k, v in state if not k.endswith(idle)]).cpu()


def far(one: FATE, other: FATE) -> float:
    """The mean distance of two weights.

    Adam's first steps have the size of lr, whatever the gradient's: one that is next to nothing may
    go either way.  Hence the mean, and a percent of `moved` in what follows.
    """
    return float((weights(one) - weights(other)).abs().mean())


def moved(model: FATE) -> float:
    return far(model, make(normalize=model.extrapolator.normalize))


# ---- the same numbers ------------------------------------------------------------------------


COMBINATIONS = pytest.mark.parametrize(
    ("change", "normalize"),
    [
        *(({}, True), ({}, False), ({"masking": "none"}, True), ({"masking": "none"}, False)),
        ({"adam": "dense"}, True),
    ],
)


@needs_kernels
@pytest.mark.parametrize("seed", range(4))
@COMBINATIONS
def test_gradients_are_as_near_to_float64_as_those_of_plain_torch(change, normalize, seed):
    """Of one step, all of them together: those that vanish are noise on either side."""
    start, batch = make(normalize=normalize), rows(seed, 8)
    fast, plain, exact = (
        first_gradients(copy.deepcopy(start).to(dtype), replace(engine, **change), *batch)
        for engine, dtype in ((FUSED, torch.float32), (PLAIN, torch.float32), (PLAIN, torch.double))
    )
    assert fast.keys() == exact.keys()
    fast, plain, exact = (
        torch.cat([side[name].flatten() for name in exact]) for side in (fast, plain, exact)
    )
    assert (fast - exact).norm() <= 2 * (plain - exact).norm() + 1e-5 * exact.norm()


@needs_kernels
@COMBINATIONS
def test_weights_are_as_near_to_float64_as_those_of_plain_torch(change, normalize):
    """On rows(1): on rows(0) without masks and normalization one gradient is zero by accident.

    It is 3e-6 where others are 1e-2, less than the rounding of the sums that it comes from (7e-6 of
    ours on a GPU); Adam makes a whole step of it, in either direction.
    """
    start = make(normalize=normalize)
    fast, plain, exact = start, copy.deepcopy(start), copy.deepcopy(start).double()
    source = array_batches(*rows(1), 8, seed=1)
    losses = [
        train_on(fast, replace(FUSED, **change), source),
        train_on(plain, replace(PLAIN, **change), source),
        train_on(exact, replace(PLAIN, **change), source),
    ]
    assert far(fast, exact) <= 2 * far(plain, exact) + 0.01 * moved(exact)
    assert moved(exact) > 0.005
    assert np.allclose(losses[0], losses[2], atol=1e-6)
    one, other = (m.backbone.norms.state_dict() for m in (fast, exact))
    for name, value in one.items():
        if name.endswith("num_batches_tracked"):
            assert value == other[name]


@needs_gpu
def test_fifty_steps_stay_as_near_to_float64_as_plain_torch_does():
    settings = replace(BASE, n_kept=24, n_draws=5, lr=1e-4, lr_extrapolator=1e-4)
    batches = [_criteo(20_000, seed) for seed in range(10)]
    start = _click_model()
    ends = {}
    for name, engine, dtype in [
        ("fast", "fused", torch.float32),
        ("plain", "plain", torch.float32),
        ("exact", "plain", torch.float64),
    ]:
        model = copy.deepcopy(start).to(dtype)
        train_on(model, replace(settings, engine=engine), lambda epoch: batches)
        ends[name] = weights(model)
    error, allowed = ((ends[name] - ends["exact"]).norm() for name in ("fast", "plain"))
    assert error <= 2 * allowed


@needs_gpu
@pytest.mark.parametrize("mixed_precision", [False, True])
def test_the_loss_is_that_of_plain_torch_with_drop_edge_and_dropout(mixed_precision):
    """Over 500 steps, on rows whose labels can be learned."""
    settings = replace(BASE, n_kept=24, n_draws=5, drop_edge=0.5, lr=1e-3, lr_extrapolator=1e-3)
    settings = replace(settings, mixed_precision=mixed_precision)
    batches = [_criteo(5_000, seed, learn=True) for seed in range(100)]
    curves = []
    for engine in ("fused", "plain", "plain"):
        seed = len(curves)
        model = _click_model(dropout=0.5)
        curves.append(
            train_on(model, replace(settings, engine=engine), lambda epoch: batches, seed=seed)
        )
    fused, plain, again = (np.array(curve) for curve in curves)
    assert plain[:10].mean() - plain[-20:].mean() > 0.01  # something was learned
    noise = np.abs(plain - again).mean()
    assert np.abs(fused - plain).mean() < 2 * noise + 1e-3
    assert abs(fused[-20:].mean() - plain[-20:].mean()) < 2 * noise + 1e-3


@needs_kernels
def test_two_runs_give_the_same_bits_and_random_numbers_matter():
    settings, ends = replace(FUSED, drop_edge=0.5), []
    for seed in (1, 1, 2):
        model = make(dropout=0.5)
        train_on(model, settings, seed=seed)
        ends.append(weights(model))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@needs_kernels
def test_tensors_on_the_device_are_as_good_as_arrays():
    ids, y = rows(0)
    moved = (torch.from_numpy(ids).long().to(DEVICE), torch.from_numpy(y).to(DEVICE))
    ends = []
    for source in ([(ids, y)], [moved]):
        for n_ahead in (0, 2):
            model = make()
            train_on(model, replace(FUSED, n_ahead=n_ahead), lambda epoch, s=source: s)
            ends.append(weights(model))
    assert all(torch.equal(ends[0], end) for end in ends)


@needs_kernels
def test_batches_of_other_shapes_and_more_features_find_room():
    """Rooms are made anew, recorded and left: the numbers stay those of plain torch."""
    few, many = rows(3, 30), rows(4, 30)
    few = (np.minimum(few[0], SIZE * np.arange(N_FIELDS)[None]).astype(np.int32), few[1])
    sizes = [rows(5, 8), rows(6, 9), rows(7, 10), rows(5, 8)]
    batches = [few, few, many, many, few, *sizes, many]
    start = make()
    fast, plain, exact = start, copy.deepcopy(start), copy.deepcopy(start).double()
    train_on(fast, FUSED, lambda epoch: batches)
    train_on(plain, PLAIN, lambda epoch: batches)
    train_on(exact, PLAIN, lambda epoch: batches)
    assert far(fast, exact) <= 2 * far(plain, exact) + 0.01 * moved(exact)


# ---- predictions -----------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("n_ahead", [0, 1])
@pytest.mark.parametrize("drop_new", [False, True])
def test_predictions_are_those_of_plain_torch(drop_new, n_ahead):
    model = make()
    train_on(model, FUSED)
    batches = [later(8), later(9), (later(3)[0][:5], later(3)[1][:5]), later(10)]
    options = {"drop_new": drop_new, "device": DEVICE, "n_ahead": n_ahead}
    fused = list(predict_batches(model, batches, engine="fused", **options))
    plain = list(predict_batches(model, batches, engine="plain", **options))
    assert len(fused) == len(plain) == 4
    for one, other, (_, y) in zip(fused, plain, batches, strict=True):
        assert np.allclose(one[0], other[0], atol=1e-5) and one[0].dtype == np.float32
        assert one[1].tolist() == other[1].tolist() == y.tolist()
    assert np.abs(fused[0][0] - fused[1][0]).max() > 1e-3


@needs_kernels
def test_a_batch_that_outgrows_its_room_is_predicted_too():
    """Also while the batch after it is under way in the room that was too small."""
    model = make()
    few, many = rows(0, 600), rows(1, 600)
    few = (np.repeat(few[0][:1], 600, 0), few[1])
    for batches in ([few, many, few, many, many], [few, few, few, many, few]):
        fused = predict_batches(model, batches, engine="fused", device=DEVICE, n_ahead=1)
        plain = predict_batches(model, batches, engine="plain", device=DEVICE)
        for one, other in zip(fused, plain, strict=True):
            assert np.allclose(one[0], other[0], atol=1e-5)


@needs_kernels
def test_validation_is_the_fused_engines_and_the_best_weights_are_kept():
    ends = []
    for settings in (FUSED, PLAIN):
        model = make()
        history = train(
            model,
            array_batches(*rows(0), 8, seed=1),
            settings=replace(settings, validate_every=1, epochs=2),
            validation=lambda: [later()],
            device=DEVICE,
        )
        ends.append((model, history))
    (fast, one), (plain, two) = ends
    assert one.best == two.best and far(fast, plain) < 0.01 * moved(plain)
    for a, b in zip(one.validations, two.validations, strict=True):
        assert a.validation_loss == pytest.approx(b.validation_loss, abs=5e-3)


# ---- checkpoints -----------------------------------------------------------------------------


def resumed(first: Settings, then: Settings) -> FATE:
    """Two epochs, the second from a checkpoint of the first, maybe with another engine."""
    kept = {}

    def keep(checkpoint) -> None:
        kept.update({name: value.clone() for name, value in checkpoint.items()})

    train_on(make(0.0), replace(first, checkpoint_every=3), on_checkpoint=keep)
    model = make(0.0)
    train_on(model, replace(then, checkpoint_every=3, epochs=2), resume=kept)
    return model


@needs_kernels
def test_a_resumed_run_ends_as_one_that_never_stopped():
    whole = make()
    train_on(whole, replace(FUSED, checkpoint_every=3, epochs=2))
    assert far(resumed(FUSED, FUSED), whole) == 0


@needs_kernels
@pytest.mark.parametrize(("first", "then"), [(FUSED, PLAIN), (PLAIN, FUSED)])
def test_a_run_may_go_on_with_the_other_engine(first, then):
    exact = make().double()
    train_on(exact, replace(PLAIN, epochs=2))
    plain = make()
    train_on(plain, replace(PLAIN, epochs=2))
    assert far(resumed(first, then), exact) <= 2 * far(plain, exact) + 0.01 * moved(exact)


# ---- bad input -------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda ids, y: (ids, y * 2), "a label is 2: clicks are 0 or 1."),
        (lambda ids, y: (ids - 1, y), "feature id -1: ids are integers from 0."),
        (
            lambda ids, y: (ids + 1, y),
            f"a training row has the feature id {D}, but the model's observed ids end at {D - 1}: "
            "make the model for all features of the training rows.",
        ),
    ],
)
def test_bad_rows_are_named(spoil, message, tensors):
    good, bad = rows(0), spoil(*rows(0))
    if tensors:
        bad = tuple(torch.from_numpy(table).to(DEVICE) for table in bad)
    model = make()
    with pytest.raises(InputError) as error:
        train_on(model, FUSED, lambda epoch: [good, good, bad])
    assert str(error.value) == message
    if "training row" not in message:
        with pytest.raises(InputError) as error:
            list(predict_batches(model, [good, bad], device=DEVICE, engine="fused"))
        assert str(error.value) == message
    assert weights(model).isfinite().all()


# ---- memory ----------------------------------------------------------------------------------

CARDINALITIES = np.geomspace(5, 60_000, 39).astype(np.int64)


def _criteo(n: int, seed: int, learn: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of 39 fields with skewed values, on the device."""
    rng = torch.Generator(DEVICE).manual_seed(seed)
    size = torch.tensor(CARDINALITIES, device=DEVICE)
    draws = torch.rand(n, 39, generator=rng, device=DEVICE, dtype=torch.float64)
    value = (draws**4 * size).long()
    y = torch.rand(n, generator=rng, device=DEVICE) < 0.25
    if learn:
        y = (value[:, 5] + value[:, 9]) % 2 == 0
    return (value + size.cumsum(0) - size).int(), y.float()


def _click_model(dropout: float = 0.0) -> FATE:
    torch.manual_seed(0)
    backbone = MLP(10, 1, (400, 400), batch_norm=True, dropout=dropout)
    model = FATE(int(CARDINALITIES.sum()), backbone, GraphSAGE(10), recompose="all")
    return model.to(DEVICE)


@needs_gpu
def test_memory_is_at_most_seventy_percent_of_the_twins():
    pytest.importorskip("torch_geometric")
    from openfate_lab.bench.pyg_twin import CtrTwin

    batches = [_criteo(50_000, seed) for seed in range(4)]
    field_of = torch.repeat_interleave(
        torch.arange(39, device=DEVICE), torch.tensor(CARDINALITIES, device=DEVICE)
    )
    kept = torch.ones(5, 39, device=DEVICE)

    def ours() -> None:
        settings = replace(BASE, n_kept=24, n_draws=5, drop_edge=0.5, engine="fused")
        train_on(_click_model(0.5), settings, lambda epoch: batches)

    def twins() -> None:
        twin = CtrTwin(field_of)
        for ids, y in batches:
            twin.mini_batch(ids.long(), y, kept)

    peaks = []
    for run in (ours, twins):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] <= 0.7 * peaks[1]
