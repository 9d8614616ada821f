"""Validation: the loss of a table over fixed masks, the ROC-AUC of a stream."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import streams
import torch
from algorithm import (
    BASE,
    FIELDS,
    SEED,
    VARIANTS,
    WEIGHT,
    WIDTH,
    D,
    N,
    distance,
    draw_masks,
    make_model,
    make_rows,
)
from reference import bipartite
from streams import rows

from openfate.errors import InputError, OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import GraphSAGE
from openfate.table import MultiHot
from openfate.training import array_batches, log_loss, sources, train


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
    assert history.steps[0].validation_loss == pytest.approx(np.mean(losses), rel=1e-10)


@pytest.mark.parametrize("variant", ["default", "k-shot columns", "leave out"])
def test_validation_does_not_change_the_run(variant):
    (X, y), settings, ends = make_rows(), replace(BASE, **VARIANTS[variant]), []
    for later in (None, make_rows(seed=9)):
        model, last = make_model(), []
        on_step = lambda _, m=model, kept=last: kept.append(copy.deepcopy(m))  # noqa: E731
        train(model, X, y, settings, validation=later, on_step=on_step)
        ends.append(last[-1])
    assert distance(*ends) == 0


def test_redrawn_validation_is_finite_and_varies():
    model, (X, y) = make_model(), make_rows()
    frozen = replace(BASE, redraw_validation=True, lr=0.0, lr_extrapolator=0.0)
    losses = [e.validation_loss for e in train(model, X, y, frozen, validation=(X, y)).steps]
    assert all(map(math.isfinite, losses)) and len(set(losses)) > 1


def test_a_plain_network_is_validated_with_all_of_its_features():
    model, (X, y) = make_model(None), make_rows()
    history = train(model, X, y, replace(BASE, epochs=1), validation=(X, y))
    logits = model.predict(bipartite(torch.from_numpy(X.to_dense())), model.W).detach()
    expected = float(log_loss(logits, torch.from_numpy(y)))
    assert history.steps[0].validation_loss == pytest.approx(expected)


@pytest.mark.parametrize("at_once", [1, 2 * (2 * N + D) * WIDTH])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
def test_masks_validated_a_few_at_a_time_give_the_same_loss(at_once, weight, monkeypatch):
    (X, y), whole, parts = make_rows(), make_model(GraphSAGE(WIDTH)), make_model(GraphSAGE(WIDTH))
    parts.load_state_dict(whole.state_dict())
    expected = train(whole, X, y, BASE, validation=(X, y, weight)).steps
    monkeypatch.setattr(sources, "_STATES_AT_ONCE", at_once)
    found = train(parts, X, y, BASE, validation=(X, y, weight)).steps
    losses = [[e.validation_loss for e in run] for run in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


# ---- streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (lambda ids, y: [], "validation holds no rows"),
        (lambda ids, y: [(ids[:0], y[:0])], "validation holds no rows"),
        (lambda ids, y: [(ids, 0 * y), (ids, 0 * y)], r"validation holds \d+ rows of class 0"),
        (lambda ids, y: [(ids, 0 * y + 1)], r"validation holds \d+ rows of class 1"),
    ],
)
def test_validation_needs_rows_of_both_classes(held, message):
    ids, y = rows(1)
    with pytest.raises(InputError, match=f"{message}: a ROC-AUC needs rows of both classes"):
        train(
            streams.make(),
            array_batches(*rows(0), 6),
            settings=replace(streams.BASE, validate_every=1),
            validation=lambda: held(ids, y),
        )


def test_predictions_that_are_no_numbers_are_told():
    ids, y = rows(1)
    model = streams.make()

    def spoil():
        with torch.no_grad():
            model.W[:] = math.nan
        return [(ids, np.arange(len(y)) % 2)]

    with pytest.raises(OpenFATEError, match="the loss of mini-batch 1 is nan"):
        train(
            model,
            array_batches(*rows(0), 6),
            settings=replace(streams.BASE, validate_every=1),
            validation=spoil,
        )
