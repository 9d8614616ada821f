"""Rounds of an epoch, the mean of weights, and networks side by side that see other features."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from reference import random_table
from torch import nn

from openfate.errors import InputError
from openfate.models import FATE, MLP, Members
from openfate.table import MultiHot
from openfate.training import Settings, train
from openfate.training.history import MeanWeights

D, N = 8, 23
PLAIN = {"epochs": 3, "batch_size": 4, "lr": 0.05, "schedule": "constant", "averaging": False}


def make_rows(seed: int = 0, n_rows: int = N) -> tuple[MultiHot, np.ndarray]:
    dense = random_table(seed, n_rows, D, 0.4).numpy()
    return MultiHot.from_entries(*np.nonzero(dense), n_rows, D), np.arange(n_rows) % 2


def make_model(seed: int = 0, n_features: int = D) -> FATE:
    torch.manual_seed(seed)
    model = FATE(n_features, MLP(3, 2, (4,), activate_sum=True)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def same(one: FATE, other: FATE) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_rounds_cut_an_epoch_and_change_nothing_else(size):
    X, y = make_rows()
    whole, parts = make_model(), make_model()
    train(whole, X, y, Settings.plain(**PLAIN), seed=3)
    history = train(parts, X, y, Settings.plain(**PLAIN, round_size=size), seed=3)
    same(whole, parts)
    n_batches = -(-N // 4)
    assert len(history.steps) == 3 * max(1, n_batches // size)
    assert [step.epoch for step in history.steps] == sorted(step.epoch for step in history.steps)


@pytest.mark.parametrize("averaging", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_run_goes_on_within_an_epoch(stop, averaging):
    X, y = make_rows()
    later = make_rows(1, 9)
    settings = Settings.plain(
        **{**PLAIN, "averaging": averaging}, round_size=2, checkpoint_every=1, cell_dropout=0.3
    )
    kept = {}

    def keep(checkpoint):
        kept[len(kept) + 1] = {name: value.clone() for name, value in checkpoint.items()}

    straight = make_model()
    whole = train(straight, X, y, settings, seed=3, validation=later, on_checkpoint=keep)
    again = make_model(5)
    resumed = train(again, X, y, settings, seed=3, validation=later, resume=kept[stop])
    same(straight, again)
    assert [step.train_loss for step in whole.steps] == [step.train_loss for step in resumed.steps]
    assert whole.best == resumed.best


def test_the_mean_of_weights_is_what_its_formula_says():
    model, eta = nn.Linear(2, 1), 8
    mean, expected = MeanWeights(model), None
    for k in range(1, 12):
        nn.init.normal_(model.weight)
        now = model.weight.detach().clone()
        share = (eta + 1) / (k + eta)
        expected = now if expected is None else (1 - share) * expected + share * now
        mean.add()
        with mean.in_place():
            torch.testing.assert_close(model.weight.detach(), expected)
        assert torch.equal(model.weight, now)


def test_training_keeps_the_mean_of_weights():
    X, y = make_rows()
    weights, settings = [], Settings.plain(**{**PLAIN, "averaging": True, "epochs": 4})
    for epochs in range(1, 5):  # PLAIN has no schedule: the first epochs are the same
        model = make_model()
        train(model, X, y, Settings.plain(**{**PLAIN, "epochs": epochs}), seed=3)
        weights.append(model.W.detach().clone())
    model = make_model()
    train(model, X, y, settings, seed=3)
    assert not torch.allclose(model.W, weights[-1])
    low, high = torch.stack(weights).amin(0) - 0.2, torch.stack(weights).amax(0) + 0.2
    assert bool(((model.W >= low) & (model.W <= high)).all())


@pytest.mark.parametrize("seed", range(3))
def test_networks_side_by_side_see_what_is_shown_to_each(seed):
    """The twin: each alone, on a table that has no other features."""
    X, y = make_rows(seed, 40)
    shown = np.random.default_rng(seed).random((D, 3)) < 0.6
    shown[0] = True
    models = [make_model(number) for number in range(3)]
    joined = FATE(D, Members([copy.deepcopy(model.backbone) for model in models])).double()
    with torch.no_grad():
        joined.W.copy_(torch.cat([model.W for model in models], 1))
    # The loss of networks side by side is the mean of theirs: Adam's epsilon alone takes note.
    settings = Settings.plain(**PLAIN)
    train(joined, X, y, settings, seed=7, shown=shown)
    for number, (model, net) in enumerate(zip(models, joined.backbone.split(), strict=True)):
        old = np.flatnonzero(shown[:, number])
        alone = FATE(len(old), model.backbone).double()
        with torch.no_grad():
            alone.W.copy_(model.W[torch.from_numpy(old)])
        train(alone, X.select_features(old), y, settings, seed=7)
        W = joined.W[:, 3 * number : 3 * number + 3][torch.from_numpy(old)]
        torch.testing.assert_close(W, alone.W.detach(), atol=1e-3, rtol=1e-3)
        for a, b in zip(net.parameters(), alone.backbone.parameters(), strict=True):
            torch.testing.assert_close(a.double(), b, atol=1e-3, rtol=1e-3)


def test_shown_is_of_networks_side_by_side():
    X, y = make_rows()
    with pytest.raises(InputError, match="shown is of `Members`"):
        train(make_model(), X, y, Settings.plain(**PLAIN), shown=np.ones((D, 1), bool))
    joined = FATE(D, Members([make_model().backbone])).double()
    with pytest.raises(InputError, match=r"shown has the shape \(8, 2\): give 8 features x 1"):
        train(joined, X, y, Settings.plain(**PLAIN), shown=np.ones((D, 2), bool))


@pytest.mark.parametrize("activate_sum", [True, False])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_gradients_that_are_written_out_equal_those_of_autograd(n_outputs, activate_sum):
    nets = [MLP(5, n_outputs, (4, 6), activate_sum=activate_sum).double() for _ in range(2)]
    z, wanted = torch.randn(7, 10).double(), torch.randn(7, 2, n_outputs).double()
    written, twin = Members(nets).double(), [copy.deepcopy(net) for net in nets]

    def loss(outputs):
        off = outputs - wanted
        return off.square().mean(), 2 * off.detach() / off.numel()

    at_sums = z.clone().requires_grad_()
    expected, _ = loss(
        torch.stack([net(at_sums[:, 5 * i : 5 * i + 5]) for i, net in enumerate(twin)], 1)
    )
    expected.backward()
    found, grad = written.learn(z, loss)
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(grad, at_sums.grad)
    for at, weight in enumerate(written.weights):
        own = torch.stack([net.layers[at].weight.grad.T for net in twin])
        torch.testing.assert_close(weight.grad, own)
    if activate_sum:
        own = torch.cat([net.sum_bias.grad for net in twin])
        torch.testing.assert_close(written.sum_bias.grad, own)
