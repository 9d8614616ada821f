"""Where mini-batches come from: features without rows, mini-batches of a table, short ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import streams
import torch
from algorithm import BASE, FIELDS, SEED, WIDTH, D, N, distance, make_model, make_rows
from reference import assert_near

from openfate.models import FATE, MLP, GraphSAGE, WideDeep
from openfate.table import MultiHot
from openfate.training import Settings, train


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
    assert all(math.isfinite(epoch.validation_loss) for epoch in history.steps)


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
    assert history.steps[-1].train_loss < history.steps[0].train_loss
    assert torch.equal(model.W[1], start)


def test_a_last_mini_batch_that_is_too_short_is_taken_into_the_one_before():
    """BatchNorm needs two rows; the only row that counts may be the last one."""
    X, y, _ = *make_rows(), torch.manual_seed(0)
    model = FATE(D, MLP(4, 1, batch_norm=True))
    settings = Settings(masking="none", loss="squared_error", batch_size=2, epochs=20)
    rows = X.select_rows(np.arange(3)), y[:3].astype(float), settings
    history = train(model, *rows, sample_weight=np.array([0, 0, 1.0]))
    assert len(history.steps) == 20


# ---- streams ---------------------------------------------------------------------------------


def test_a_row_alone_and_an_empty_batch_are_passed_over():
    ids, y = streams.rows(0)
    parts = [(ids[:6], y[:6]), (ids[:0], y[:0]), (ids[6:7], y[6:7]), (ids[7:12], y[7:12])]
    history = train(streams.make(), lambda epoch: parts, settings=replace(streams.BASE, epochs=2))
    assert len(history.steps) == 4
