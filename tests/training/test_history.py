"""What a validation is compared by, and the weights that are kept."""

from __future__ import annotations

import math

import torch
from torch import nn

from openfate.training import History, Step
from openfate.training.history import BestWeights


def test_a_step_is_compared_by_its_area_or_else_by_its_loss():
    assert Step(1, 1, 0.5, 0.4).score == -0.4
    assert Step(1, 1, 0.5, 0.4, 0.7).score == 0.7
    assert math.isnan(Step(1, 1, 0.5).score)
    steps = [Step(1, 1, 0.5), Step(2, 1, 0.5, 0.4)]
    assert History(steps).validations == steps[1:]


def test_the_best_weights_come_back_whatever_the_order_of_their_names():
    model = nn.BatchNorm1d(3)
    best = BestWeights(model)
    best.restore()  # nothing yet
    best.keep(1.0)
    best.state = dict(reversed(best.state.items()))  # as a file may hand them on
    with torch.no_grad():
        model.weight[:] = 2.0
    best.keep(2.0)
    with torch.no_grad():
        model.weight[:] = 3.0
    best.restore()
    assert model.weight.tolist() == [2.0] * 3 and best.score == 2.0
