"""Training on a stream against a slow, dense twin; validation, checkpoints and resuming."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import bipartite
from streams import BASE, FIELDS, N_FIELDS, ROUNDING, SEED, D, H, distance, later, make, rows
from torch import Tensor

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE, MLP, DeepFM
from openfate.training import (
    RowAdam,
    Settings,
    Step,
    array_batches,
    drop_edges,
    k_shot,
    log_loss,
    n_fold,
    predict_batches,
    roc_auc,
    train,
)

# ---- the algorithm ---------------------------------------------------------------------------


def draw(s: Settings, ids: Tensor, rng: torch.Generator) -> Tensor:
    """(S, D) over all features, from masks over the touched ones."""
    masks = torch.ones(1, D, dtype=torch.bool)
    if s.masking == "k_shot":
        return k_shot(torch.arange(N_FIELDS), s.n_kept, s.n_draws, rng)[:, FIELDS]
    if s.masking == "n_fold":
        masks = torch.ones(s.n_folds, D, dtype=torch.bool)
        masks[:, ids] = n_fold(len(ids), s.n_folds, rng)
    return masks


def slow_stream(model: FATE, batches, s: Settings) -> FATE:
    """Dense W, dense gradients and dense Adam over all features, on a copy of the model."""
    model = copy.deepcopy(model).train()
    theta = torch.optim.Adam([model.W, *model.backbone.parameters()], s.lr)
    g = [] if model.extrapolator is None else list(model.extrapolator.parameters())
    omega = torch.optim.Adam([*g, torch.zeros(1)], s.lr_extrapolator)
    number = 0
    for epoch in range(1, s.epochs + 1):
        for table, y in batches(epoch):
            number += 1
            seeds = np.random.SeedSequence([SEED, number]).generate_state(3).tolist()
            torch.manual_seed(seeds[0])
            mask_rng, edge_rng = (torch.Generator().manual_seed(i) for i in seeds[1:])
            X, ids = Bipartite.from_fixed(torch.from_numpy(table))
            whole = torch.zeros(len(table), D).scatter_(1, torch.from_numpy(table).long(), 1)
            omega.zero_grad()
            for kept in draw(s, ids.long(), mask_rng):
                columns = s.reading == "columns"
                dense = whole * kept if columns else whole
                edges = Edges.of(bipartite(dense))
                if model.extrapolator is not None:
                    X_s = X.keep_features(kept[ids.long()]) if columns else X
                    left = drop_edges(X_s, s.drop_edge, edge_rng).to_rows
                    edges = Edges.of(bipartite(dense_of(left, ids)))
                theta.zero_grad()
                log_loss(model(bipartite(dense), kept, edges), torch.from_numpy(y)).backward()
                theta.step()
            omega.step()
    return model.eval()


def dense_of(graph: Bipartite, ids: Tensor) -> Tensor:
    X = torch.zeros(graph.n_rows, D)
    for i in range(graph.n_rows):
        for edge in range(int(graph.row_ptr[i]), int(graph.row_ptr[i + 1])):
            X[i, int(ids[graph.feature[edge]])] = 1
    return X


VARIANTS = {
    "k-shot": {},
    "k-shot columns": {"reading": "columns"},
    "n-fold": {"masking": "n_fold", "n_folds": 3},
    "no masking": {"masking": "none"},
    "no DropEdge": {"drop_edge": 0.0},
    "dense Adam": {"adam": "dense"},
    "read ahead": {"n_ahead": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_equal_those_of_a_dense_table_and_dense_adam(variant):
    settings = replace(BASE, **VARIANTS[variant])
    batches, model = array_batches(*rows(0), 6, seed=1), make()
    start, expected = copy.deepcopy(model), slow_stream(model, batches, settings)
    train(model, batches, settings=settings, seed=SEED)
    assert distance(model, expected) < ROUNDING
    assert distance(model, start) > 1e-2


@pytest.mark.parametrize("masking", ["none", "k_shot"])
def test_a_plain_network_equals_its_dense_twin(masking):
    settings, model = replace(BASE, masking=masking), make(extrapolator=False)
    batches = array_batches(*rows(0), 6, seed=1)
    expected = slow_stream(model, batches, settings)
    train(model, batches, settings=settings, seed=SEED)
    assert distance(model, expected) < ROUNDING


def test_a_backbone_with_linear_weights_and_dropout_equals_its_dense_twin():
    model = make(lambda: DeepFM(H, hidden=(8,), dropout=0.3))
    batches = array_batches(*rows(0), 6, seed=1)
    expected = slow_stream(model, batches, BASE)
    train(model, batches, settings=BASE, seed=SEED)
    assert distance(model, expected) < ROUNDING
    assert model.W[:, H].any()


def test_mixed_precision_is_near():
    losses = []
    for mixed in (False, True):
        seen, settings = [], replace(BASE, mixed_precision=mixed)
        train(
            make().float(),
            array_batches(*rows(0), 6),
            settings=settings,
            on_step=lambda step, seen=seen: seen.append(step.train_loss),
        )
        losses.append(np.array(seen))
    assert 0 < np.abs(losses[0] - losses[1])[:4].max() < 0.05


def test_lazy_adam_differs_from_dense():
    models = [make(), make()]
    for model, adam in zip(models, ["lazy", "exact"], strict=True):
        train(model, array_batches(*rows(0), 6), settings=replace(BASE, adam=adam))
    assert distance(*models) > 1e-4


def test_a_feature_that_no_row_has_keeps_its_start():
    ids, y = rows(0)
    model = make()
    start = model.W[1].detach().clone()
    train(model, array_batches(np.where(ids == 1, 0, ids), y, 6), settings=BASE)
    assert torch.equal(model.W[1], start)


def test_the_callers_random_numbers_are_left_alone():
    model = make(lambda: MLP(H, 1, (5,), dropout=0.5))
    state = torch.get_rng_state()
    train(model, array_batches(*rows(0), 6), settings=BASE)
    assert torch.equal(torch.get_rng_state(), state)


# ---- validation ------------------------------------------------------------------------------


def run_validated(settings: Settings, **options):
    model, snapshots, steps = make(), {}, []

    def on_step(step: Step) -> None:
        steps.append(step)
        snapshots[step.number] = copy.deepcopy(model.state_dict())

    source = array_batches(*rows(0), 6, seed=1)
    history = train(
        model, source, settings=settings, validation=lambda: [later()], on_step=on_step, **options
    )
    return model, history, steps, snapshots


def test_the_weights_of_the_best_area_are_kept():
    model, history, steps, snapshots = run_validated(replace(BASE, validate_every=3, lr=0.1))
    due = [step for step in steps if step.number % 3 == 0]
    assert history.validations == due and len(steps) == len(history.steps) == 12
    assert all(math.isnan(step.auc) for step in steps if step not in due)
    best = max(due, key=lambda step: step.auc)
    assert history.best == best.number
    for name, value in model.state_dict().items():
        assert torch.equal(value, snapshots[best.number][name])


def test_the_area_is_that_of_the_model_at_that_time():
    model, history, *_ = run_validated(replace(BASE, validate_every=3))
    ((logits, y),) = predict_batches(model, [later()])
    best = next(step for step in history.validations if step.number == history.best)
    assert best.auc == roc_auc(logits, y)
    assert best.validation_loss == pytest.approx(
        float(log_loss(torch.from_numpy(logits)[:, None].double(), torch.from_numpy(y)))
    )


def test_validation_changes_the_run_by_rounding_alone():
    never, bare = run_validated(replace(BASE, validate_every=10**6))[0], make()
    train(bare, array_batches(*rows(0), 6, seed=1), settings=BASE)
    assert distance(never, bare) == 0
    often, seen = make(), []
    train(
        often,
        array_batches(*rows(0), 6, seed=1),
        settings=replace(BASE, validate_every=1),
        validation=lambda: [later()],
        on_step=lambda step: seen.append(copy.deepcopy(often)),
    )
    assert distance(seen[-1].eval(), bare) < ROUNDING


def test_patience_ends_a_run():
    settings = replace(BASE, validate_every=1, patience=2, epochs=50, lr=1.0)
    _, history, steps, _ = run_validated(settings)
    assert history.stopped_early and len(steps) == history.best + 2


def test_an_interrupted_run_leaves_the_best_weights_so_far():
    model = make()

    def stop(step: Step) -> None:
        if step.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, array_batches(*rows(0), 6), settings=BASE, on_step=stop)
    short = make()
    ids, y = rows(0)
    calls = list(array_batches(ids, y, 6)(1)) + list(array_batches(ids, y, 6)(2))[:1]
    train(short, lambda epoch: calls, settings=replace(BASE, epochs=1))
    assert distance(model, short) == 0


source = array_batches(*rows(0), 6)

# ---- bad input -------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run():
    model = make()
    with torch.no_grad():
        model.W[:] = math.nan
    with pytest.raises(OpenFATEError, match="training diverged: the loss of mini-batch 1 is nan"):
        train(model, array_batches(*rows(0), 6), settings=BASE)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda: train(make(), lambda epoch: [later()], settings=BASE),
            f"a training row has the feature id {D + N_FIELDS - 1}, but the model's observed ids "
            f"end at {D - 1}: make the model for all features of the training rows.",
        ),
        (
            lambda: train(make(lambda: MLP(H, 2)), array_batches(*rows(0), 6), settings=BASE),
            "clicks need one output, the model has 2; make one with n_outputs=1.",
        ),
        (
            lambda: Settings.clicks(),
            "masking='k_shot' needs n_kept, the number of features or fields to keep.",
        ),
        (
            lambda: train(make(), source, settings=Settings.clicks(masking="leave_out")),
            "masking='leave_out' is of a table in memory: mini-batches of ids take 'k_shot', "
            "'n_fold' or 'none'.",
        ),
        (
            lambda: train(make(), source, settings=replace(BASE, unit="feature")),
            "unit='feature' is of a table in memory: mini-batches of ids take unit='field'.",
        ),
        (
            lambda: train(make(), source, settings=replace(BASE, optimizer="sgd")),
            "optimizer='sgd' is of a table in memory: mini-batches of ids take optimizer='adam'.",
        ),
        (
            lambda: train(make(), source, [0, 1], BASE),
            "y, sample_weight, field_of, is_knot and shown are of a table: batches hold ids and "
            "labels.",
        ),
        (
            lambda: replace(BASE, adam="sgd"),
            "adam='sgd' is unknown: choose 'exact', 'lazy' or 'dense'.",
        ),
        (
            lambda: replace(BASE, validate_every=0),
            "validate_every=0: choose an integer from 1 up.",
        ),
        (
            lambda: train(make(), array_batches(*rows(0), 6), settings=replace(BASE, n_kept=9)),
            "n_kept=9: there are 4 to sample from, choose 1..4.",
        ),
        (
            lambda: train(make(), lambda epoch: [], settings=BASE),
            "batches gave no batch of two rows or more: there was nothing to train on.",
        ),
        (
            lambda: train(make(), [rows(0)], settings=BASE),
            "batches is a list: give a function that returns it.",
        ),
        (
            lambda: train(make(), lambda epoch: rows(0), settings=BASE),
            "a batch is a ndarray: give a pair of ids (B, d) and labels (B,).",
        ),
        (
            lambda: train(make(), lambda epoch: None, settings=BASE),
            "batches are a NoneType: give pairs of ids and labels.",
        ),
    ],
)
def test_bad_arguments_are_named(run, message):
    with pytest.raises(InputError) as error:
        run()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "device", ["gpu", "", "cuda:99", "meta", None, 3, 1.5, torch.device("meta")]
)
def test_a_device_that_is_not_there_is_refused_before_anything_moves(device):
    for call in (
        lambda: train(make(), array_batches(*rows(0), 6), settings=BASE, device=device),
        lambda: list(predict_batches(make(), [rows(0)], device=device)),
    ):
        with pytest.raises(InputError, match="is not there: choose 'cpu'"):
            call()


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**63, None, "0", math.nan])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(InputError, match=r"seed must be an integer from 0 to 2\*\*63 - 1"):
        train(make(), array_batches(*rows(0), 6), settings=BASE, seed=seed)


def test_a_seed_of_numpy_is_a_seed_and_can_be_saved():
    found = []
    for seed in (3, np.int64(3)):
        model = make()
        train(
            model, array_batches(*rows(0), 6), seed=seed,
            settings=replace(BASE, checkpoint_every=1),
            on_checkpoint=lambda checkpoint: None,
        )  # fmt: skip
        found.append(model.W.detach().clone())
    assert torch.equal(*found)


def test_only_observed_rows_are_allocated():
    """A new feature owns nothing: the table and its moments have D rows before and after."""
    model, history, *_ = run_validated(replace(BASE, validate_every=1))
    assert len(model.W) == D and len(history.steps) == 12
    assert len(RowAdam(model.W.detach(), 0.1).m) == D
