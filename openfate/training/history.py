"""The steps of a run, and the weights of the best one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Step:
    """What happened in one epoch of a table, or at one mini-batch of a stream.

    `validation_loss` is nan where no validation was due, `auc` also for a table.
    """

    number: int  # steps so far, over all epochs
    epoch: int
    train_loss: float  # mean over the masks of the step
    validation_loss: float = math.nan
    auc: float = math.nan

    @property
    def score(self) -> float:
        """What a validation is compared by: the higher, the better; nan without one."""
        # PAPER: "the highest ROC-AUC on validation dataset" for clicks.
        return -self.validation_loss if math.isnan(self.auc) else self.auc


@dataclass
class History:
    """The steps of a run, the one whose weights were kept, features that had no training row.

    `stopped_early` tells that `Settings.patience` ended the run before its last step.
    """

    steps: list[Step] = field(default_factory=list, repr=False)
    best: int = 0  # the number of a step; the last one without validation
    seconds: float = 0.0
    untrained: list[int] = field(default_factory=list)
    stopped_early: bool = False

    @property
    def validations(self) -> list[Step]:
        """The steps after which there was a validation."""
        return [step for step in self.steps if not math.isnan(step.score)]


class BestWeights:
    """The weights of the step with the highest score so far.

    Examples
    --------
    >>> model = nn.Linear(1, 1)
    >>> best = BestWeights(model)
    >>> best.score
    -inf
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.score = model, -math.inf
        self.state: dict[str, Tensor] = {}

    def keep(self, score: float) -> None:
        """Note the weights as they are now."""
        self.score, state = score, self.model.state_dict()
        if not self.state:
            self.state = {name: value.clone() for name, value in state.items()}
        else:  # WHY: one call that copies in place; clones of a small model take longer than a step
            torch._foreach_copy_([self.state[name] for name in state], list(state.values()))

    def restore(self) -> None:
        """Put them back into the model, if there are any."""
        if self.state:
            self.model.load_state_dict(self.state)
