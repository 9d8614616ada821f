"""Predictions of mini-batches, each from its own graph."""

from __future__ import annotations

import pytest
import torch
from reference import assert_near, bipartite
from streams import N_FIELDS, D, later, make, rows

from openfate.errors import InputError
from openfate.graph import Edges
from openfate.training import predict_batches


def test_prediction_of_a_batch_is_the_graph_with_new_features(device):
    model, (ids, y) = make().eval(), later()
    ((logits, labels),) = predict_batches(model.to(device), [(ids, y)], device=device)
    dense = torch.zeros(len(ids), D + N_FIELDS).scatter_(1, torch.from_numpy(ids).long(), 1)
    graph = bipartite(dense, device)
    with torch.no_grad():
        expected = model.predict(graph, model.extrapolate(graph))[:, 0].cpu()
    assert_near(torch.from_numpy(logits), expected, 1e-6)
    assert labels.tolist() == y.tolist()


def test_new_features_can_be_dropped():
    model, (ids, y) = make().eval(), later()
    ((logits, _),) = predict_batches(model, [(ids, y)], drop_new=True)
    dense = torch.zeros(len(ids), D + N_FIELDS).scatter_(1, torch.from_numpy(ids).long(), 1)
    graph = bipartite(dense[:, :D])
    with torch.no_grad():
        expected = model(graph, torch.ones(D, dtype=torch.bool), Edges.of(graph))[:, 0]
    assert_near(torch.from_numpy(logits), expected, 1e-6)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"engine": "quick"},
            "engine='quick' is unknown: choose 'auto', 'plain' or 'fused'.",
        ),
        ({"n_ahead": -1}, "n_ahead=-1: choose an integer from 0 up."),
        ({"n_ahead": 1.5}, "n_ahead=1.5: choose an integer from 0 up."),
    ],
)
def test_bad_arguments_of_predictions_are_named(more, message):
    with pytest.raises(InputError) as error:
        list(predict_batches(make(), [rows(0)], **more))
    assert str(error.value) == message
