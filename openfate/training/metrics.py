"""Losses, which a run minimises, and scores, which reports show: accuracy and ROC-AUC.

N rows, C outputs; outputs are (N, C), or (N, S, C) for S masks at once.

    log_loss         y (N,) class numbers; a softmax, or one sigmoid where C = 1
    multilabel       y (N, K) of 0 and 1; K = C independent sigmoids
    squared_error    y (N,) numbers; C = 1
    absolute_error   y (N,) numbers; C = 1

Every loss is a mean over rows, masks and labels; with weights w of the rows, sum w l / sum w.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

Loss = Literal["log_loss", "multilabel", "squared_error", "absolute_error"]


def mean_loss(loss: Loss, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """The loss of outputs (N, C) or (N, S, C), a mean over everything but weighted over rows.

    Parameters
    ----------
    y
        (N,) int64 for "log_loss", otherwise floating: (N, K) for "multilabel", (N,) for errors.
    weight
        (N,) of the rows; None for equal ones.
    """
    if loss == "log_loss":
        return log_loss(outputs, y, weight)
    y = y if loss == "multilabel" else y[:, None]
    y = y.view(len(y), *[1] * (outputs.dim() - 2), -1).expand_as(outputs)
    if loss == "multilabel":
        each = F.binary_cross_entropy_with_logits(outputs, y, reduction="none")
    else:
        each = (outputs - y).square() if loss == "squared_error" else (outputs - y).abs()
    return weighted_mean(each, weight)


def log_loss(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean log-loss of logits (N, C) or (N, S, C), of one output (sigmoid) or C classes (softmax).

    Parameters
    ----------
    y
        (N,) class numbers, int64.
    weight
        (N,) of the rows; None for equal ones.
    """
    n_outputs, flat = logits.size(-1), logits
    if logits.dim() > 2:
        y = y.view(-1, *[1] * (logits.dim() - 2)).expand(logits.shape[:-1]).reshape(-1)
        flat = logits.reshape(-1, n_outputs)
    reduction = "mean" if weight is None else "none"
    if n_outputs == 1:
        target = y.to(flat.dtype)
        loss = F.binary_cross_entropy_with_logits(flat[:, 0], target, reduction=reduction)
    else:
        # WHY: classes first is more than twice as fast for few classes, and free after `MLP`.
        loss = F.cross_entropy(flat.T[None], y[None], reduction=reduction)
    return loss if weight is None else weighted_mean(loss.view(logits.shape[:-1]), weight)


def weighted_mean(each: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (N, ...), weighted over its first axis by (N,): sum w l / sum w; a plain one without.

    Examples
    --------
    >>> weighted_mean(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0]))
    tensor(2.)
    """
    if weight is None:
        return each.mean()
    of_row = each.reshape(len(weight), -1).mean(1)
    return (of_row * weight).sum() / weight.sum()


def probabilities(logits: Tensor) -> Tensor:
    """(N, C) class probabilities; one output becomes the two columns 1 - p and p."""
    if logits.size(-1) > 1:
        return logits.softmax(-1)
    p = logits.sigmoid()
    return torch.cat([1 - p, p], -1)


def accuracy(scores: Tensor, y: Tensor) -> float:
    """Share of rows whose highest score (N, C) is their class (N,); nan for scores that are nan."""
    if scores.isnan().any():
        return float("nan")
    return float((scores.argmax(-1) == y).double().mean())


def roc_auc(score: NDArray[np.floating], y: NDArray[np.integer]) -> float:
    """Area under the ROC curve, ties counted half; nan for one class alone or scores that are nan.

    Examples
    --------
    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2  # of each distinct score, 1-based
    positive = y == 1
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative or np.isnan(score).any():
        return float("nan")
    rank_sum = mean_rank[place][positive].sum()
    return float((rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


class StreamingAUC:
    """ROC-AUC and log-loss of scores that come in batches.

    Parameters
    ----------
    exact
        Keep every score, 5 bytes a row; otherwise count them in 2^20 bins, whatever the number of
        rows.  A bin holds float32 scores that agree in their sign, exponent and 11 more bits; pairs
        within a bin count half, and `error` bounds what that may have changed.

    Examples
    --------
    >>> auc = StreamingAUC()
    >>> auc.add(np.array([-1.0, 0.5]), np.array([0, 0]))
    >>> auc.add(np.array([0.25, 2.0]), np.array([1, 1]))
    >>> auc.value(), auc.error
    (0.75, 0.0)
    """

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact
        self._scores: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.bool_]] = []
        self._counts = np.zeros((2, 0 if exact else 1 << 20), np.int64)  # of negatives, positives
        self._loss, self.n_rows = 0.0, 0

    def add(self, logits: NDArray[np.floating], y: NDArray[np.generic]) -> None:
        """Count rows with the logits (n,) and the labels (n,) of 0 and 1."""
        score, positive = np.asarray(logits, np.float32), np.asarray(y) == 1
        z = np.where(positive, -1.0, 1.0) * score.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a nan is told by `value`
            self._loss += float(np.logaddexp(0, z).sum())
        self.n_rows += len(score)
        if self.exact:
            self._scores.append(score)
            self._labels.append(positive)
            return
        bins = _ordered_bits(score) >> np.uint32(12)
        for label in (0, 1):
            self._counts[label] += np.bincount(bins[positive == label], minlength=1 << 20)

    def value(self) -> float:
        """The area so far; nan for one class alone or scores that are nan."""
        if math.isnan(self._loss):
            return math.nan
        if self.exact:
            scores = np.concatenate([np.empty(0, np.float32), *self._scores])
            return roc_auc(scores, np.concatenate([np.empty(0, bool), *self._labels]))
        negative, positive = self._counts
        pairs = float(negative.sum()) * float(positive.sum())
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below) / pairs if pairs else math.nan

    @property
    def error(self) -> float:
        """At most how far `value` is from the exact area: half the share of pairs in one bin."""
        negative, positive = self._counts.astype(np.float64)
        return float(negative @ positive / max(negative.sum() * positive.sum(), 1) / 2)

    @property
    def log_loss(self) -> float:
        """The mean log-loss so far."""
        return self._loss / self.n_rows if self.n_rows else math.nan


def _ordered_bits(score: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Whole numbers in the order of the scores."""
    bits = (score + np.float32(0)).view(np.uint32)  # -0 as 0
    negative = bits >> np.uint32(31) == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)
