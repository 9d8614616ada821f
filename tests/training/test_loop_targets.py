"""`train` with every loss, weights of rows, values of edges, patience and mixed precision."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from algorithm import (
    BASE,
    FIELDS,
    SEED,
    WEIGHT,
    WIDTH,
    D,
    N,
    algorithm_1,
    distance,
    draw_masks,
    make_model,
    make_rows,
)

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import GraphSAGE
from openfate.table import MultiHot
from openfate.training import train
from openfate.training.metrics import mean_loss

KINDS = [
    ("log_loss", 3),
    ("log_loss", 1),
    ("multilabel", 4),
    ("squared_error", 1),
    ("absolute_error", 1),
]


def make_target(loss: str, n_outputs: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if loss == "log_loss":
        return rng.permutation(np.arange(N) % max(2, n_outputs))
    return rng.integers(0, 2, (N, n_outputs)) if loss == "multilabel" else rng.normal(size=N)


def floating(loss: str, y: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(y) if loss == "log_loss" else torch.from_numpy(y).double()


# ---- losses and weights --------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
@pytest.mark.parametrize("g", ["gcn", None])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_weights_equal_those_of_the_algorithm_box(loss, n_outputs, g, weight):
    settings, X = replace(BASE, loss=loss), make_rows()[0]
    model, y = make_model(g, n_outputs=n_outputs), make_target(loss, n_outputs)
    start = copy.deepcopy(model)
    expected = algorithm_1(model, X, y, settings, weight)
    history = train(model, X, y, settings, sample_weight=weight, field_of=FIELDS, seed=SEED)
    expected.W.data[1] = model.W.data[1]  # without rows: filled at the end
    assert distance(model, expected) < 1e-9 < 1e-3 < distance(model, start)
    assert history.steps[-1].train_loss < history.steps[0].train_loss


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_the_validation_loss_is_weighted_by_its_own_weights(loss, n_outputs, weight):
    settings, (X, X_val) = replace(BASE, epochs=1, loss=loss), (make_rows()[0], make_rows(9)[0])
    model, y = make_model(n_outputs=n_outputs), make_target(loss, n_outputs)
    y_val = make_target(loss, n_outputs, seed=9)
    history = train(model, X, y, settings, validation=(X_val, y_val, weight), seed=SEED)
    rows, graph = (Bipartite.from_multihot(part) for part in (X_val, MultiHot.stack([X, X_val])))
    masks = draw_masks(settings, torch.Generator().manual_seed(SEED))
    outputs = [model(rows, kept, Edges.of(graph)).detach() for kept in masks]
    w = None if weight is None else torch.from_numpy(weight)
    losses = [float(reference.mean_loss(loss, o, floating(loss, y_val), w)) for o in outputs]
    assert history.steps[0].validation_loss == pytest.approx(np.mean(losses), rel=1e-10)


def test_a_weight_of_two_equals_the_row_twice():
    """In a plain network: with a graph a second row would also send messages."""
    (X, y), times = make_rows(), np.array([1, 2, 3] * 4)
    weighted, repeated = make_model(None), make_model(None)
    settings = replace(BASE, masking="none")
    train(weighted, X, y, settings, sample_weight=times)
    again = np.repeat(np.arange(N), times)
    train(repeated, X.select_rows(again), y[again], settings)
    assert distance(weighted, repeated) < 1e-9


def test_a_weight_of_zero_equals_an_absent_row_in_the_loss():
    (X, y), has = make_rows(), np.arange(N) % 4 > 0
    weighted, absent = make_model(None), make_model(None)
    settings = replace(BASE, masking="none", untrained="leave")
    train(weighted, X, y, settings, sample_weight=has)
    train(absent, X.select_rows(has), y[has], settings)
    assert distance(weighted, absent) < 1e-9


@pytest.mark.parametrize("batch_size", [None, 1, 5])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_the_target_of_a_row_without_weight_is_never_read(loss, n_outputs, batch_size):
    settings, X = replace(BASE, loss=loss, batch_size=batch_size), make_rows()[0]
    y, models = make_target(loss, n_outputs), [make_model(n_outputs=n_outputs) for _ in range(2)]
    other = np.where((WEIGHT > 0).reshape(N, *[1] * (y.ndim - 1)), y, 1 - np.clip(y, 0, 1))
    assert (other != y).any()
    for model, target in zip(models, (y, other), strict=True):
        history = train(model, X, target, settings, sample_weight=WEIGHT)
        assert all(math.isfinite(epoch.train_loss) for epoch in history.steps)
    assert distance(*models) == 0


def test_a_row_without_weight_still_sends_messages():
    (X, y), present, absent = make_rows(), make_model(), make_model()
    train(present, X, y, BASE, sample_weight=np.arange(N) > 5)
    train(absent, X.select_rows(np.arange(6, N)), y[6:], BASE)
    assert distance(present, absent) > 1e-4


@pytest.mark.parametrize("weight", [np.ones(N), np.full(N, 0.1)])
def test_equal_weights_give_exactly_the_run_without_weights(weight):
    (X, y), plain, weighted = make_rows(), make_model(), make_model()
    train(plain, X, y, BASE, validation=(X, y))
    train(weighted, X, y, BASE, sample_weight=weight, validation=(X, y, weight))
    assert distance(plain, weighted) == 0


def test_a_number_is_learned(device):
    X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 4, n_features=D)
    y = np.array([0.0, 1.0, 2.0, 3.0] * 4)
    for loss in ("squared_error", "absolute_error"):
        model = make_model(n_outputs=1).float()
        settings = replace(BASE, epochs=200, drop_edge=0.2, loss=loss, masking="none")
        history = train(model, X, y, settings, validation=(X, y), device=device)
        best = history.steps[history.best - 1]
        assert best.validation_loss < 0.1 * history.steps[0].validation_loss


def test_wrong_targets_and_weights_are_named_by_train():
    X, y = make_rows()
    for others, message in [
        ({"sample_weight": np.zeros(N)}, "every training sample_weight is zero: "),
        ({"validation": (X, y, -WEIGHT)}, "the validation sample_weight of row 0 is -2.0: "),
    ]:
        with pytest.raises(InputError) as error:
            train(make_model(), X, y, BASE, **others)
        assert str(error.value).startswith(message)


# ---- edge values ---------------------------------------------------------------------------

VALUED = {
    "default": {},
    "no DropEdge": {"drop_edge": 0.0},
    "directed DropEdge": {"drop_edge_directed": True},
    "k-shot columns": {"masking": "k_shot", "n_kept": 5, "reading": "columns"},
}


@pytest.mark.parametrize("recompose", ["masked", "all"])
@pytest.mark.parametrize("variant", VALUED)
def test_valued_edges_equal_the_algorithm_box(variant, recompose):
    settings, (X, y) = replace(BASE, **VALUED[variant]), make_rows(with_values=True)
    model, plain = make_model(recompose=recompose), make_model(recompose=recompose)
    expected = algorithm_1(model, X, y, settings)
    train(model, X, y, settings, seed=SEED)
    train(plain, make_rows()[0], y, settings, seed=SEED)
    assert distance(model, expected) < 1e-9 < 1e-3 < distance(model, plain)


@pytest.mark.parametrize("batch_size", [N, N + 1])
def test_a_valued_batch_of_all_rows_equals_the_full_batch(batch_size):
    (X, y), settings = make_rows(with_values=True), replace(BASE, drop_edge=0.0)
    full, batched = make_model(), make_model()
    train(full, X, y, settings, seed=SEED)
    train(batched, X, y, replace(settings, batch_size=batch_size), seed=SEED)
    assert distance(full, batched) < 1e-9


def test_validation_rows_may_have_values_where_training_rows_have_none():
    (X, y), (X_val, y_val) = make_rows(), make_rows(9, with_values=True)
    model = make_model()
    history = train(model, X, y, replace(BASE, epochs=1), validation=(X_val, y_val), seed=SEED)
    rows, graph = (Bipartite.from_multihot(part) for part in (X_val, MultiHot.stack([X, X_val])))
    masks = draw_masks(BASE, torch.Generator().manual_seed(SEED))
    logits = torch.stack([model(rows, kept, Edges.of(graph)).detach() for kept in masks], 1)
    expected = float(mean_loss("log_loss", logits, torch.from_numpy(y_val)))
    assert history.steps[0].validation_loss == pytest.approx(expected, rel=1e-10)
    assert graph.value[: X.nnz].eq(1).all() and not rows.value.eq(1).any()


# ---- validation in parts -------------------------------------------------------------------


# ---- patience ------------------------------------------------------------------------------


def run_with_patience(patience: int | None, epochs: int = 40, validate: bool = True):
    """Train against labels that cannot be learned; the weights after every epoch."""
    (X, y), model, snapshots = make_rows(), make_model(), []
    settings = replace(BASE, epochs=epochs, lr=0.05, patience=patience)
    validation = make_rows(seed=9) if validate else None
    on_step = lambda _: snapshots.append(copy.deepcopy(model))  # noqa: E731
    return model, train(model, X, y, settings, validation=validation, on_step=on_step), snapshots


@pytest.mark.parametrize("patience", [1, 2, 5, 10])
def test_a_run_stops_after_so_many_epochs_without_a_better_one(patience):
    model, history, snapshots = run_with_patience(patience)
    every = [epoch.validation_loss for epoch in run_with_patience(None)[1].steps]
    best_so_far = [1 + int(np.argmin(every[:n])) for n in range(1, len(every) + 1)]
    last = next(n for n, best in enumerate(best_so_far, 1) if n - best >= patience)
    assert [epoch.validation_loss for epoch in history.steps] == every[:last]
    assert len(snapshots) == last and history.stopped_early
    assert history.best == last - patience
    assert distance(model, snapshots[history.best - 1]) == 0


@pytest.mark.parametrize("patience", [None, 100])
def test_a_patient_run_ends_with_its_last_epoch(patience):
    _, history, _ = run_with_patience(patience)
    assert len(history.steps) == 40 and not history.stopped_early


def test_a_run_that_ends_anyway_did_not_stop_early():
    last = len(run_with_patience(5)[1].steps)
    _, history, _ = run_with_patience(5, epochs=last)
    assert len(history.steps) == last and not history.stopped_early


def test_patience_needs_validation_rows():
    _, history, _ = run_with_patience(1, validate=False)
    assert len(history.steps) == 40 and not history.stopped_early


# ---- mixed precision -----------------------------------------------------------------------


@pytest.mark.parametrize("g", ["gcn", "sage", None])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_mixed_precision_trains_to_a_close_loss(loss, n_outputs, g, device):
    X, y, runs = make_rows(with_values=True)[0], make_target(loss, n_outputs), []
    settings = replace(BASE, epochs=12, loss=loss)
    for mixed in (False, True):
        model = make_model("gcn" if g == "gcn" else None, n_outputs=n_outputs).float()
        if g == "sage":
            torch.manual_seed(1)
            model.extrapolator = GraphSAGE(WIDTH)
        s = replace(settings, mixed_precision=mixed)
        epochs = train(model, X, y, s, validation=(X, y), device=device).steps
        assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
        runs.append([value for e in epochs for value in (e.train_loss, e.validation_loss)])
    assert runs[0] != runs[1]
    assert runs[1] == pytest.approx(runs[0], abs=0.1 * runs[0][0])


def test_mixed_precision_leaves_double_precision_alone():
    (X, y), plain, mixed = make_rows(), make_model(), make_model()
    train(plain, X, y, BASE)
    train(mixed, X, y, replace(BASE, mixed_precision=True))
    assert distance(plain, mixed) < 1e-14  # the one writes its backward, the other does not


@pytest.mark.parametrize("batch_size", [5, N])
def test_mixed_precision_works_in_mini_batches(batch_size, device):
    (X, y), model = make_rows(), make_model().float()
    settings = replace(BASE, epochs=15, batch_size=batch_size, mixed_precision=True)
    epochs = train(model, X, y, settings, device=device).steps
    assert epochs[-1].train_loss < epochs[0].train_loss
