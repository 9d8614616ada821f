"""Losses and scores against scikit-learn's, and losses against formulas written out row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from openfate.training import StreamingAUC, accuracy, log_loss, probabilities, roc_auc
from openfate.training.metrics import loss_and_slope, mean_loss, weighted_mean


def make(n_outputs: int, *leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(n_outputs)
    n_classes = max(2, n_outputs)
    logits = 3 * torch.randn(*leading, n_outputs, generator=rng, dtype=torch.float64)
    y = torch.randint(n_classes, leading[:1], generator=rng)
    y[:n_classes] = torch.arange(n_classes)
    return logits, y


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_roc_auc_equals_sklearns_also_with_ties(pairs):
    score = np.array([score for score, _ in pairs]) / 4
    y = np.array([label for _, label in pairs]).astype(int)
    if len(set(y)) < 2:
        assert math.isnan(roc_auc(score, y))
    else:
        assert roc_auc(score, y) == pytest.approx(sklearn_metrics.roc_auc_score(y, score))


@pytest.mark.parametrize("n_outputs", [1, 2, 3, 7])
def test_log_loss_equals_sklearns(n_outputs):
    logits, y = make(n_outputs, 50)
    expected = sklearn_metrics.log_loss(y.numpy(), probabilities(logits).numpy())
    assert float(log_loss(logits, y)) == pytest.approx(expected)


@pytest.mark.parametrize("n_outputs", [1, 2, 5])
def test_log_loss_of_many_masks_is_the_mean_over_them(n_outputs):
    logits, y = make(n_outputs, 20, 4)
    single = [float(log_loss(logits[:, s], y)) for s in range(4)]
    assert float(log_loss(logits, y)) == pytest.approx(np.mean(single))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_log_loss_has_the_gradient_of_probability_minus_target(n_outputs):
    logits, y = make(n_outputs, 10)
    logits.requires_grad_()
    (grad,) = torch.autograd.grad(log_loss(logits, y), logits)
    target = y[:, None].double() if n_outputs == 1 else torch.eye(3).double()[y]
    p = probabilities(logits)[:, 1:] if n_outputs == 1 else probabilities(logits)
    torch.testing.assert_close(grad, ((p - target) / 10).detach())


@pytest.mark.parametrize("n_outputs", [1, 2, 6])
def test_probabilities_are_rows_that_sum_to_one(n_outputs):
    p = probabilities(make(n_outputs, 9)[0])
    assert p.shape == (9, max(2, n_outputs))
    torch.testing.assert_close(p.sum(1), torch.ones(9, dtype=torch.float64))


@pytest.mark.parametrize("n_outputs", [1, 2, 6])
def test_accuracy_equals_sklearns(n_outputs):
    logits, y = make(n_outputs, 40)
    p = probabilities(logits)
    expected = sklearn_metrics.accuracy_score(y.numpy(), p.argmax(1).numpy())
    assert accuracy(p, y) == pytest.approx(expected)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_log_loss_of_confident_mistakes_is_finite(n_outputs):
    logits = torch.full((2, n_outputs), -1e4)
    logits[0, 0] = 1e4
    assert log_loss(logits, torch.tensor([1, 1])).isfinite()


def test_scores_that_are_nan_are_worth_nothing():
    assert np.isnan(roc_auc(np.array([np.nan, 0.1, 0.2]), np.array([1, 0, 0])))
    assert np.isnan(accuracy(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.int64)))


# ---- in batches ----------------------------------------------------------------------------

score_lists = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=60)


def in_batches(auc: StreamingAUC, scores: np.ndarray, y: np.ndarray) -> StreamingAUC:
    for part in np.array_split(np.arange(len(scores)), 3):
        auc.add(scores[part], y[part])
    return auc


@settings(max_examples=25)
@given(scores=score_lists, seed=st.integers(0, 99))
def test_the_area_of_batches_is_that_of_all_rows(scores, seed):
    scores = np.array(scores, np.float32)
    y = np.random.default_rng(seed).integers(0, 2, len(scores))
    exact = roc_auc(scores, y)
    streamed = in_batches(StreamingAUC(), scores, y)
    assert streamed.value() == pytest.approx(exact, abs=1e-12, nan_ok=True)


def test_the_log_loss_of_batches_is_that_of_all_rows():
    scores, y = np.array([-3.0, 0.5, 800.0]), np.array([0, 1, 0])
    streamed = in_batches(StreamingAUC(), scores, y)
    each = [math.log1p(math.exp(-3)), math.log1p(math.exp(-0.5)), 800.0]
    assert streamed.log_loss == pytest.approx(sum(each) / 3)
    assert streamed.n_rows == 3


def test_areas_that_do_not_exist_are_nan():
    empty, alone, broken = (StreamingAUC() for _ in range(3))
    alone.add(np.array([0.1, 0.2]), np.array([1, 1]))
    broken.add(np.array([0.1, np.nan]), np.array([0, 1]))
    assert all(math.isnan(auc.value()) for auc in (empty, alone, broken))
    assert math.isnan(empty.log_loss)


# ---- every loss, with weights --------------------------------------------------------------------

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


def make_targets(
    loss: str, n_outputs: int, seed: int = 0, *masks: int
) -> tuple[Tensor, Tensor, Tensor]:
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
    outputs, y, weight = make_targets(loss, n_outputs, seed)
    outputs.requires_grad_()
    weight = weight if weighted else None
    ours, theirs = (
        mean_loss(loss, outputs, y, weight),
        reference.mean_loss(loss, outputs, y, weight),
    )
    torch.testing.assert_close(ours, theirs)
    pair = torch.autograd.grad(ours, outputs)[0], torch.autograd.grad(theirs, outputs)[0]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("members", [(), (3,)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_a_loss_with_its_slope_equals_autograds_to_the_bit(loss, n_outputs, weighted, members):
    outputs, y, weight = make_targets(loss, n_outputs, 0, *members)
    # As networks side by side give them: (members, rows, outputs), turned.
    outputs = outputs.transpose(0, -2).contiguous().transpose(0, -2).requires_grad_()
    weight = weight if weighted else None
    expected = mean_loss(loss, outputs, y, weight)
    found, slope = loss_and_slope(loss, outputs.detach(), y, weight)
    assert torch.equal(found, expected.detach())
    assert torch.equal(slope, torch.autograd.grad(expected, outputs)[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
def test_the_loss_equals_sklearns(loss, n_outputs, weighted):
    outputs, y, weight = make_targets(loss, n_outputs)
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
    outputs, y, weight = make_targets(loss, n_outputs, 1, 4)
    weight = weight if weighted else None
    single = [float(mean_loss(loss, outputs[:, s], y, weight)) for s in range(4)]
    assert float(mean_loss(loss, outputs, y, weight)) == pytest.approx(np.mean(single))


@pytest.mark.parametrize(("loss", "n_outputs"), KINDS)
@given(seed=seeds, times=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_a_weight_is_the_number_of_times_that_a_row_counts(loss, n_outputs, seed, times):
    times = torch.tensor([*times[:-1], 1])
    outputs, y, _ = make_targets(loss, n_outputs, seed)
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
    outputs, y, weight = make_targets(loss, n_outputs)
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
