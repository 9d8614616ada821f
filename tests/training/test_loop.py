"""Algorithm 1: `train` against a slow, dense re-derivation, and its promises one by one."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from algorithm import (
    BASE,
    FIELDS,
    SEED,
    VARIANTS,
    WIDTH,
    D,
    N,
    algorithm_1,
    distance,
    make_model,
    make_rows,
)

from openfate.errors import InputError, OpenFATEError
from openfate.models import FATE, GCN, MLP
from openfate.table import MultiHot
from openfate.training import Settings, train


@pytest.mark.parametrize("recompose", ["masked", "all"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_equal_those_of_the_algorithm_box(variant, recompose):
    settings = replace(BASE, **VARIANTS[variant])
    model, (X, y) = make_model(recompose=recompose), make_rows()
    start = copy.deepcopy(model)
    expected = algorithm_1(model, X, y, settings)
    train(model, X, y, settings, field_of=FIELDS, seed=SEED)
    expected.W.data[1] = model.W.data[1]  # without rows: filled at the end, tested below
    assert distance(model, expected) < 1e-9
    assert distance(model, start) > 1e-3


@pytest.mark.parametrize("masking", ["none", "n_fold"])
def test_a_plain_network_equals_the_algorithm_box(masking):
    settings = replace(BASE, masking=masking)
    model, (X, y) = make_model(None), make_rows()
    expected = algorithm_1(model, X, y, settings)
    train(model, X, y, settings, seed=SEED)
    assert distance(model, expected) < 1e-9


def test_single_precision_stays_near_the_algorithm_box():
    model, (X, y) = make_model(), make_rows()
    expected = algorithm_1(model, X, y, BASE)
    single = train(model.float(), X, y, BASE, seed=SEED)
    assert distance(model, expected) < 1e-4 and math.isnan(single.steps[0].validation_loss)


# ---- seeds, the best epoch, interruption ---------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_seed_repeats_the_run_exactly_and_another_differs(batch_size):
    settings, (X, y) = replace(BASE, batch_size=batch_size), make_rows()
    one, same, other = (make_model() for _ in range(3))
    for model, seed in [(one, 1), (same, 1), (other, 2)]:
        train(model, X, y, settings, validation=(X, y), seed=seed)
    assert distance(one, same) == 0
    assert distance(one, other) > 1e-4


def run_with_snapshots(epochs: int, stop_at: int | None = None):
    """Train against labels that cannot be learned; every epoch's weights and validation loss."""
    (X, y), validation, model = make_rows(), make_rows(seed=9), make_model()
    snapshots, losses = [], []

    def on_step(epoch):
        snapshots.append(copy.deepcopy(model))
        losses.append(epoch.validation_loss)
        if epoch.number == stop_at:
            raise KeyboardInterrupt

    settings, history = replace(BASE, epochs=epochs, lr=0.05), None
    try:
        history = train(model, X, y, settings, validation=validation, on_step=on_step)
    except KeyboardInterrupt:
        assert stop_at is not None
    return model, history, snapshots, losses


def test_the_epoch_of_least_validation_loss_is_what_is_left():
    model, history, snapshots, losses = run_with_snapshots(30)
    best = int(np.argmin(losses))
    assert history.best == best + 1 and best + 1 < len(losses) == 30
    assert distance(model, snapshots[best]) == 0
    assert [epoch.number for epoch in history.steps] == list(range(1, 31))
    assert history.seconds > 0


def test_an_interrupted_run_leaves_the_best_epoch_so_far():
    model, _, snapshots, losses = run_with_snapshots(60, stop_at=25)
    assert len(losses) == 25 and np.argmin(losses) < 24
    assert distance(model, snapshots[int(np.argmin(losses))]) == 0


def test_without_validation_the_last_epoch_is_left():
    model, (X, y), last = make_model(), make_rows(), []
    history = train(model, X, y, BASE, on_step=lambda _: last.append(copy.deepcopy(model)))
    assert history.best == BASE.epochs == len(last)
    assert distance(model, last[-1]) == 0


def test_a_seed_repeats_dropout_and_leaves_the_random_numbers_of_others_alone():
    (X, y), ends = make_rows(), []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = FATE(D, MLP(4, 3, dropout=0.5))
        torch.manual_seed(len(ends))  # whatever was drawn before
        state = torch.get_rng_state()
        train(model, X, y, Settings(masking="none", epochs=3), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(model)
    assert distance(ends[0], ends[1]) == 0
    assert distance(ends[0], ends[2]) > 1e-4


def test_a_model_with_one_output_learns_a_binary_target(device):
    X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 4, n_features=4)
    y = np.array([0, 1, 0, 1] * 4)
    torch.manual_seed(0)
    model = FATE(4, MLP(WIDTH, 1), GCN(WIDTH, 2))
    settings = Settings(epochs=60, n_folds=2, drop_edge=0.2)
    history = train(model, X, y, settings, validation=(X, y), device=device)
    assert history.steps[-1].train_loss < 0.8 * history.steps[0].train_loss


# ---- messages ------------------------------------------------------------------------------

ROWS, LABELS = make_rows()
NO_ROWS = MultiHot.from_rows([], n_features=D)
BAD_CALLS = [
    (
        (ROWS, np.full(N, 2)),
        {},
        "all training labels are 2: a classifier needs two classes or more.",
    ),
    (
        (ROWS.widen(9), LABELS),
        {},
        "training rows have 9 features, the model 8: give rows over the features that the model "
        "was made for.",
    ),
    ((ROWS, LABELS[:5]), {}, "training: 12 rows but 5 labels; give one label for each row."),
    ((NO_ROWS, LABELS[:0]), {}, "there are no training rows; give one or more."),
    (
        (ROWS, LABELS),
        {"validation": (ROWS.widen(10), LABELS)},
        "validation rows have 10 features, the model 8: give rows over the features that the "
        "model was made for.",
    ),
    (
        (ROWS, LABELS),
        {"validation": (NO_ROWS, LABELS[:0])},
        "there are no validation rows; give one or more.",
    ),
    (
        (ROWS, LABELS + 1),
        {},
        "training labels run from 1 to 3, but the model's classes from 0 to 2.",
    ),
    (
        (ROWS, LABELS, Settings(masking="k_shot", n_kept=2, unit="field")),
        {},
        "unit='field' needs field_of, the field of each feature.",
    ),
    (
        (ROWS, LABELS, Settings(masking="k_shot", n_kept=9)),
        {},
        "n_kept=9: there are 8 to sample from, choose 1..8.",
    ),
]


@pytest.mark.parametrize(("rows", "others", "message"), BAD_CALLS, ids=lambda v: str(v)[:40])
def test_bad_input_is_named(rows, others, message):
    with pytest.raises(InputError) as error:
        train(make_model(), *rows, **others)
    assert str(error.value) == message


def test_a_run_that_diverges_says_so_and_leaves_the_best_epoch():
    model = make_model().float()
    with pytest.raises(OpenFATEError) as error:
        train(model, *make_rows(), Settings(lr=1e12))
    assert str(error.value) == (
        "training diverged: the loss of epoch 1 is nan. "
        "Lower lr=1000000000000.0 or lr_extrapolator=0.001."
    )


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (lambda y: y * 0.9, "float64"),
        (lambda y: np.where(y > 0, "a", "b"), "<U1"),
        (lambda y: np.stack([y, y], 1), "int64"),
        (lambda y: y[:, None], "int64"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused(labels, shown):
    X, y = make_rows()
    with pytest.raises(InputError, match="give one class number, from 0, for each row") as error:
        train(make_model(), X, labels(y), BASE)
    assert shown in str(error.value)


def test_labels_may_be_a_list_or_booleans():
    X, y = make_rows()
    y = (y > 0).astype(int)
    runs = [make_model() for _ in range(3)]
    for model, labels in zip(runs, (y, y.tolist(), y.astype(bool)), strict=True):
        train(model, X, labels, replace(BASE, epochs=1))
    assert torch.equal(runs[0].W, runs[1].W)
    assert torch.equal(runs[0].W, runs[2].W)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "a", None, True])
def test_a_seed_that_is_none_is_refused(seed):
    X, y = make_rows()
    with pytest.raises(InputError, match="seed must be an integer"):
        train(make_model(), X, y, BASE, seed=seed)
