"""Losses and scores against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from openfate.training import StreamingAUC, accuracy, log_loss, probabilities, roc_auc


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
    assert streamed.error == 0
    binned = in_batches(StreamingAUC(exact=False), scores, y)
    if not math.isnan(exact):
        assert abs(binned.value() - exact) <= binned.error + 1e-12
    assert math.isnan(binned.value()) == math.isnan(exact)


def test_bins_lose_next_to_nothing_of_real_scores():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 20_000)
    scores = (rng.normal(size=20_000) + y).astype(np.float32)
    binned = in_batches(StreamingAUC(exact=False), scores, y)
    assert binned.error < 2e-4
    assert abs(binned.value() - roc_auc(scores, y)) <= binned.error


def test_the_log_loss_of_batches_is_that_of_all_rows():
    scores, y = np.array([-3.0, 0.5, 800.0]), np.array([0, 1, 0])
    streamed = in_batches(StreamingAUC(), scores, y)
    each = [math.log1p(math.exp(-3)), math.log1p(math.exp(-0.5)), 800.0]
    assert streamed.log_loss == pytest.approx(sum(each) / 3)
    assert streamed.n_rows == 3


@pytest.mark.parametrize("exact", [True, False])
def test_areas_that_do_not_exist_are_nan(exact):
    empty, alone, broken = (StreamingAUC(exact) for _ in range(3))
    alone.add(np.array([0.1, 0.2]), np.array([1, 1]))
    broken.add(np.array([0.1, np.nan]), np.array([0, 1]))
    assert all(math.isnan(auc.value()) for auc in (empty, alone, broken))
    assert math.isnan(empty.log_loss)
