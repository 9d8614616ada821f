"""What a run minimises, and the predictions that each loss makes of a model's outputs.

N rows, C outputs; outputs are (N, C), or (N, S, C) for S masks at once.

    log_loss         y (N,) class numbers; a softmax, or one sigmoid where C = 1
    multilabel       y (N, K) of 0 and 1; K = C independent sigmoids
    squared_error    y (N,) numbers; C = 1
    absolute_error   y (N,) numbers; C = 1

Every loss is a mean over rows, masks and labels; with weights w of the rows, sum w l / sum w.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate.training.metrics import log_loss, weighted_mean

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
