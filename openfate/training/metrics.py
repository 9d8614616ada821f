"""Losses and scores: log-loss for training and selection, accuracy and ROC-AUC for reports."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["accuracy", "log_loss", "probabilities", "roc_auc", "weighted_mean"]


def log_loss(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean log-loss of logits (N, C) or (N, S, C), of one output (sigmoid) or C classes (softmax).

    Parameters
    ----------
    y
        (N,) class numbers, int64.
    weight
        (N,) of the rows; None for equal ones.
    """
    n_outputs = logits.size(-1)
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
