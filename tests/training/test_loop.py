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
    WIDTH,
    D,
    N,
    algorithm_1,
    distance,
    draw_masks,
    make_model,
    make_rows,
)
from reference import assert_near, bipartite

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE, GCN, MLP, GraphSAGE, WideDeep
from openfate.table import MultiHot
from openfate.training import Settings, log_loss, train

VARIANTS = {
    "default": {},
    "no DropEdge": {"drop_edge": 0.0},
    "directed DropEdge": {"drop_edge_directed": True},
    "all edges dropped": {"drop_edge": 1.0},
    "joint updates": {"async_updates": False},
    "accumulated backbone": {"accumulate_backbone": True},
    "hidden overwritten": {"overwrite_hidden": True},
    "reference folds": {"reference_folds": True, "n_folds": 5},
    "k-shot": {"masking": "k_shot", "n_kept": 5},
    "k-shot fields": {"masking": "k_shot", "n_kept": 2, "unit": "field"},
    "k-shot columns": {"masking": "k_shot", "n_kept": 5, "reading": "columns"},
    "k-shot columns of fields": {
        "masking": "k_shot",
        "n_kept": 2,
        "unit": "field",
        "reading": "columns",
    },
    "leave out": {"masking": "leave_out", "left_out": 0.4},
    "no masking": {"masking": "none"},
}


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
    assert distance(model, expected) < 1e-4 and math.isnan(single.epochs[0].validation_loss)


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
    assert history.best_epoch == best + 1 and best + 1 < len(losses) == 30
    assert distance(model, snapshots[best]) == 0
    assert [epoch.number for epoch in history.epochs] == list(range(1, 31))
    assert history.seconds > 0


def test_an_interrupted_run_leaves_the_best_epoch_so_far():
    model, _, snapshots, losses = run_with_snapshots(60, stop_at=25)
    assert len(losses) == 25 and np.argmin(losses) < 24
    assert distance(model, snapshots[int(np.argmin(losses))]) == 0


def test_without_validation_the_last_epoch_is_left():
    model, (X, y), last = make_model(), make_rows(), []
    history = train(model, X, y, BASE, on_step=lambda _: last.append(copy.deepcopy(model)))
    assert history.best_epoch == BASE.epochs == len(last)
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


# ---- features without training rows --------------------------------------------------------


def test_untrained_features_end_at_zero_without_fields():
    model, (X, y) = make_model(), make_rows()
    history = train(model, X, y, BASE)
    assert history.untrained == [1]
    assert not model.W[1].any() and model.W.isfinite().all()


def test_untrained_features_end_at_the_mean_of_their_fields_trained_ones():
    model, (X, y) = make_model(), make_rows()
    fields = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    train(model, X, y, BASE, field_of=fields)
    assert_near(model.W[1], model.W[[0, 2, 3]].mean(0), 1e-12)


def test_an_untrained_feature_has_no_weights_of_its_own():
    (X, y), backbone = make_rows(), WideDeep(4, 3, hidden=(5,))
    model = FATE(D, backbone, GraphSAGE(4))
    train(model, X, y, BASE, field_of=np.zeros(D, int))
    assert model.W[1, :4].any() and model.W[0, 4:].any() and not model.W[1, 4:].any()


def test_a_field_without_any_trained_feature_ends_at_zero():
    model, (X, y) = make_model(), make_rows()
    train(model, X, y, BASE, field_of=np.array([0, 7, 0, 0, 1, 1, 1, 1]))
    assert not model.W[1].any() and model.W.isfinite().all()


def test_untrained_features_keep_their_start_where_they_are_left():
    model, (X, y) = make_model(), make_rows()
    start = model.W[1].clone()
    history = train(model, X, y, replace(BASE, untrained="leave"), field_of=FIELDS)
    assert torch.equal(model.W[1], start) and history.untrained == [1]


def test_validation_rows_may_have_features_that_no_training_row_has():
    model, (X, y) = make_model(), make_rows()
    only_untrained = MultiHot.from_rows([[1], [1], []], n_features=D)
    history = train(model, X, y, BASE, validation=(only_untrained, np.array([0, 1, 2])))
    assert all(math.isfinite(epoch.validation_loss) for epoch in history.epochs)


# ---- mini-batches --------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [N, N + 1, 1000])
@pytest.mark.parametrize("recompose", ["masked", "all"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_batch_of_all_rows_equals_the_full_batch(batch_size, recompose, overwrite):
    (X, y), settings = make_rows(), replace(BASE, drop_edge=0.0, overwrite_hidden=overwrite)
    full, batched = make_model(recompose=recompose), make_model(recompose=recompose)
    train(full, X, y, settings, seed=SEED)
    train(batched, X, y, replace(settings, batch_size=batch_size), seed=SEED)
    assert distance(full, batched) < 1e-9


@pytest.mark.parametrize("batch_size", [1, 5, 6])
def test_mini_batches_learn_and_leave_untouched_features_alone(batch_size):
    model, (X, y) = make_model(GraphSAGE(WIDTH)), make_rows()
    settings = replace(BASE, epochs=15, batch_size=batch_size, lr=0.03, untrained="leave")
    start = model.W[1].clone()
    history = train(model, X, y, settings)
    assert history.epochs[-1].train_loss < history.epochs[0].train_loss
    assert torch.equal(model.W[1], start)


# ---- validation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", ["default", "k-shot fields", "k-shot columns", "leave out", "no masking"]
)
@pytest.mark.parametrize("recompose", ["masked", "all"])
def test_the_validation_loss_is_the_mean_over_masks_without_dropedge(variant, recompose):
    settings = replace(BASE, epochs=1, **VARIANTS[variant])
    model, (X, y), (X_val, y_val) = make_model(recompose=recompose), make_rows(), make_rows(9)
    history = train(model, X, y, settings, validation=(X_val, y_val), field_of=FIELDS, seed=SEED)
    model.W.data[1] = 0  # it was zero until the end
    rng = torch.Generator().manual_seed(SEED)
    if settings.masking == "leave_out":
        draw_masks(settings, rng)  # the run's own
    rows = Bipartite.from_multihot(X_val)
    graph = Bipartite.from_multihot(MultiHot.stack([X, X_val]))
    losses = []
    for kept in draw_masks(settings, rng):
        G, E = (
            g.keep_features(kept) if settings.reading == "columns" else g for g in (rows, graph)
        )
        logits = model(G, kept, Edges.of(E)).detach()
        losses.append(float(log_loss(logits, torch.from_numpy(y_val))))
    assert history.epochs[0].validation_loss == pytest.approx(np.mean(losses), rel=1e-10)


@pytest.mark.parametrize("variant", ["default", "k-shot columns", "leave out"])
def test_validation_does_not_change_the_run(variant):
    (X, y), settings, ends = make_rows(), replace(BASE, **VARIANTS[variant]), []
    for validation in (None, make_rows(seed=9)):
        model, last = make_model(), []
        on_step = lambda _, m=model, kept=last: kept.append(copy.deepcopy(m))  # noqa: E731
        train(model, X, y, settings, validation=validation, on_step=on_step)
        ends.append(last[-1])
    assert distance(*ends) == 0


def test_redrawn_validation_is_finite_and_varies():
    model, (X, y) = make_model(), make_rows()
    frozen = replace(BASE, redraw_validation=True, lr=0.0, lr_extrapolator=0.0)
    losses = [e.validation_loss for e in train(model, X, y, frozen, validation=(X, y)).epochs]
    assert all(map(math.isfinite, losses)) and len(set(losses)) > 1


def test_a_plain_network_is_validated_with_all_of_its_features():
    model, (X, y) = make_model(None), make_rows()
    history = train(model, X, y, replace(BASE, epochs=1), validation=(X, y))
    logits = model.predict(bipartite(torch.from_numpy(X.to_dense())), model.W).detach()
    expected = float(log_loss(logits, torch.from_numpy(y)))
    assert history.epochs[0].validation_loss == pytest.approx(expected)


def test_a_model_with_one_output_learns_a_binary_target(device):
    X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 4, n_features=4)
    y = np.array([0, 1, 0, 1] * 4)
    torch.manual_seed(0)
    model = FATE(4, MLP(WIDTH, 1), GCN(WIDTH, 2))
    settings = Settings(epochs=60, n_folds=2, drop_edge=0.2)
    history = train(model, X, y, settings, validation=(X, y), device=device)
    assert history.epochs[-1].train_loss < 0.8 * history.epochs[0].train_loss


def test_a_last_mini_batch_that_is_too_short_is_taken_into_the_one_before():
    """BatchNorm needs two rows; the only row that counts may be the last one."""
    X, y, _ = *make_rows(), torch.manual_seed(0)
    model = FATE(D, MLP(4, 1, batch_norm=True))
    settings = Settings(masking="none", loss="squared_error", batch_size=2, epochs=20)
    rows = X.select_rows(np.arange(3)), y[:3].astype(float), settings
    history = train(model, *rows, sample_weight=np.array([0, 0, 1.0]))
    assert len(history.epochs) == 20


# ---- messages ------------------------------------------------------------------------------

ROWS, LABELS = make_rows()
NO_ROWS = MultiHot.from_rows([], n_features=D)
BAD_CALLS = [
    (
        (ROWS, np.full(N, 2)),
        {},
        "all training labels are 2: a classifier needs two classes or more.",
    ),
    ((ROWS.widen(9), LABELS), {}, "training rows have 9 features, the model 8."),
    ((ROWS, LABELS[:5]), {}, "training: 12 rows but 5 labels."),
    ((NO_ROWS, LABELS[:0]), {}, "there are no training rows."),
    (
        (ROWS, LABELS),
        {"validation": (ROWS.widen(10), LABELS)},
        "validation rows have 10 features, the model 8.",
    ),
    ((ROWS, LABELS), {"validation": (NO_ROWS, LABELS[:0])}, "there are no validation rows."),
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
