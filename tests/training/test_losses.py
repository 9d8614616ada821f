"""Every loss against formulas written out row by row and, where it has them, scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from openfate.training import probabilities
from openfate.training.metrics import mean_loss, weighted_mean

KINDS = [
    ("log_loss", 1),
    ("log_loss", 2),
    ("log_loss", 5),
    ("multilabel", 1),
    ("multilabel", 4),
    ("squared_error", 1),
    ("absolute_error", 1),
]
seeds = st.integers(0, 2**16)


def make(loss: str, n_outputs: int, seed: int = 0, *masks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of nine rows (and so many masks), targets, and weights, some of them zero."""
    rng = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(9, *masks, n_outputs, generator=rng, dtype=torch.float64)
    weight = torch.rand(9, generator=rng, dtype=torch.float64) * (torch.arange(9) % 3 > 0)
    if loss == "log_loss":
        return outputs, torch.randint(max(2, n_outputs), (9,), generator=rng), weight
    shape = (9, n_outputs) if loss == "multilabel" else (9,)
    y = torch.randn(shape, generator=rng, dtype=torch.float64)
    return outputs, (y > 0).double() if loss == "multilabel" else y, weight


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
@given(seed=seeds)
def test_loss_and_gradient_equal_those_written_out(loss, n_outputs, weighted, seed):
    outputs, y, weight = make(loss, n_outputs, seed)
    outputs.requires_grad_()
    weight = weight if weighted else None
    ours, theirs = (
        mean_loss(loss, outputs, y, weight),
        reference.mean_loss(loss, outputs, y, weight),
    )
    torch.testing.assert_close(ours, theirs)
    pair = torch.autograd.grad(ours, outputs)[0], torch.autograd.grad(theirs, outputs)[0]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_the_loss_equals_sklearns(loss, n_outputs, weighted):
    outputs, y, weight = make(loss, n_outputs)
    theirs = {"sample_weight": weight.numpy() if weighted else None}
    y_ = y.numpy()
    if loss == "multilabel":
        columns = zip(y_.T, outputs.sigmoid().numpy().T, strict=True)
        each = [sklearn_metrics.log_loss(a, b, labels=[0, 1], **theirs) for a, b in columns]
        expected = np.mean(each)
    elif loss == "log_loss":
        labels = range(max(2, n_outputs))
        p = probabilities(outputs).numpy()
        expected = sklearn_metrics.log_loss(y_, p, labels=labels, **theirs)
    else:
        score = getattr(sklearn_metrics, f"mean_{loss}")
        expected = score(y_, outputs[:, 0].numpy(), **theirs)
    ours = mean_loss(loss, outputs, y, weight if weighted else None)
    assert float(ours) == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_the_loss_of_many_masks_is_the_mean_over_them(loss, n_outputs, weighted):
    outputs, y, weight = make(loss, n_outputs, 1, 4)
    weight = weight if weighted else None
    single = [float(mean_loss(loss, outputs[:, s], y, weight)) for s in range(4)]
    assert float(mean_loss(loss, outputs, y, weight)) == pytest.approx(np.mean(single))


@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
@given(seed=seeds, times=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_a_weight_is_the_number_of_times_that_a_row_counts(loss, n_outputs, seed, times):
    times = torch.tensor([*times[:-1], 1])
    outputs, y, _ = make(loss, n_outputs, seed)
    outputs.requires_grad_()
    weighted = mean_loss(loss, outputs, y, times.double())
    repeated = mean_loss(loss, outputs.repeat_interleave(times, 0), y.repeat_interleave(times, 0))
    torch.testing.assert_close(weighted, repeated)
    pair = torch.autograd.grad(weighted, outputs)[0], torch.autograd.grad(repeated, outputs)[0]
    torch.testing.assert_close(*pair)
    assert not pair[0][times == 0].any()


@pytest.mark.parametrize("factor", [0.5, 1e-3, 1e6])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_only_ratios_of_weights_matter(loss, n_outputs, factor):
    outputs, y, weight = make(loss, n_outputs)
    scaled = mean_loss(loss, outputs, y, weight * factor)
    torch.testing.assert_close(scaled, mean_loss(loss, outputs, y, weight))


@pytest.mark.parametrize("loss", ["multilabel", "log_loss"])
def test_confident_mistakes_have_a_finite_loss(loss):
    outputs = torch.tensor([[1e4], [-1e4]])
    y = torch.tensor([[0.0], [1.0]]) if loss == "multilabel" else torch.tensor([0, 1])
    assert mean_loss(loss, outputs, y, torch.tensor([1.0, 0.5])).isfinite()


def test_a_mean_without_weights_is_a_plain_one():
    each = torch.arange(6.0).view(3, 2)
    assert float(weighted_mean(each, None)) == 2.5
    assert float(weighted_mean(each, torch.tensor([0.0, 0.0, 7.0]))) == 4.5
