"""The epochs of a run, and the weights of the best one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = ["BestWeights", "Epoch", "History"]


@dataclass(frozen=True)
class Epoch:
    """What happened in one epoch; `validation_loss` is nan without validation rows."""

    number: int
    train_loss: float
    validation_loss: float


@dataclass
class History:
    """The epochs of a run, the one whose weights were kept, features that had no training row.

    `stopped_early` tells that `Settings.patience` ended the run before its last epoch.
    """

    epochs: list[Epoch] = field(default_factory=list, repr=False)
    best_epoch: int = 0
    seconds: float = 0.0
    untrained: list[int] = field(default_factory=list)
    stopped_early: bool = False


class BestWeights:
    """The weights of the epoch with the least loss so far.

    Examples
    --------
    >>> model = nn.Linear(1, 1)
    >>> best = BestWeights(model)
    >>> best.loss
    inf
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.loss = model, math.inf
        self.state: dict[str, Tensor] | None = None

    def keep(self, loss: float) -> None:
        """Note the weights as they are now."""
        self.loss, state = loss, self.model.state_dict()
        if self.state is None:
            self.state = {name: value.clone() for name, value in state.items()}
        else:  # WHY: one call that copies in place; clones of a small model take longer than a step
            torch._foreach_copy_(list(self.state.values()), list(state.values()))

    def restore(self) -> None:
        """Put them back into the model."""
        if self.state is not None:
            self.model.load_state_dict(self.state)
