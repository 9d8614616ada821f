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


def loss_and_slope(
    loss: Loss, outputs: Tensor, y: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What `mean_loss` tells, and its gradient at the outputs; both as numbers, without a graph.

    Examples
    --------
    >>> value, slope = loss_and_slope("log_loss", torch.zeros(2, 1), torch.tensor([0, 1]))
    >>> round(float(value), 3), slope.tolist()
    (0.693, [[0.25], [-0.25]])
    """
    if loss == "log_loss" and outputs.size(-1) == 1:
        return _sigmoid_loss(outputs, y, weight)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = mean_loss(loss, leaf, y, weight)
        (slope,) = torch.autograd.grad(value, leaf)
    return value.detach(), slope


def _sigmoid_loss(logits: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-loss of one output, and its gradient.

    WHY written out: of some hundred rows autograd takes longer to ask than to compute.
    """
    by_row = logits.reshape(-1).view(len(y), -1)  # (N, S)
    target = y.to(by_row.dtype)[:, None].expand_as(by_row)
    off = by_row.sigmoid().sub_(target)
    if weight is None:
        value = F.binary_cross_entropy_with_logits(by_row, target)
        return value, off.div_(off.numel()).view(logits.shape)
    each = F.binary_cross_entropy_with_logits(by_row, target, reduction="none")
    share = (1 / weight.sum()) * weight / by_row.size(1)
    return weighted_mean(each, weight), off.mul_(share[:, None]).view(logits.shape)


def mean_of_members(loss: Loss, outputs: Tensor) -> Tensor:
    """(N, C) the output of members (N, M, C) together: logits of their mean, or mean numbers.

    Examples
    --------
    >>> members = torch.tensor([[[0.0], [20.0]]])
    >>> mean_of_members("log_loss", members).sigmoid().round(decimals=3)
    tensor([[0.7500]])
    """
    if loss in ("squared_error", "absolute_error"):
        return outputs.mean(1)
    if loss == "log_loss" and outputs.size(-1) > 1:
        return outputs.log_softmax(-1).logsumexp(1)
    yes, no = F.logsigmoid(outputs).logsumexp(1), F.logsigmoid(-outputs).logsumexp(1)
    return yes - no


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
    """ROC-AUC and log-loss of scores that come in batches; it keeps every score, 5 bytes a row.

    Examples
    --------
    >>> auc = StreamingAUC()
    >>> auc.add(np.array([-1.0, 0.5]), np.array([0, 0]))
    >>> auc.add(np.array([0.25, 2.0]), np.array([1, 1]))
    >>> auc.value()
    0.75
    """

    def __init__(self) -> None:
        self._scores: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.bool_]] = []
        self._loss, self.n_rows = 0.0, 0

    def add(self, logits: NDArray[np.floating], y: NDArray[np.generic]) -> None:
        """Count rows with the logits (n,) and the labels (n,) of 0 and 1."""
        score, positive = np.asarray(logits, np.float32), np.asarray(y) == 1
        z = np.where(positive, -1.0, 1.0) * score.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a nan is told by `value`
            self._loss += float(np.logaddexp(0, z).sum())
        self.n_rows += len(score)
        self._scores.append(score)
        self._labels.append(positive)

    def value(self) -> float:
        """The area so far; nan for one class alone or scores that are nan."""
        scores = np.concatenate([np.empty(0, np.float32), *self._scores])
        return roc_auc(scores, np.concatenate([np.empty(0, bool), *self._labels]))

    @property
    def log_loss(self) -> float:
        """The mean log-loss so far."""
        return self._loss / self.n_rows if self.n_rows else math.nan
