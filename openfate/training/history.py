"""The steps of a run, and the weights of the best one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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

    def count_waits(self, tolerance: float = 0.0) -> int:
        """Validations since the last that was better, by more than a share of the score.

        Examples
        --------
        >>> losses = (0.5, 0.4, 0.399, 0.398)
        >>> history = History([Step(n, n, 0.0, loss) for n, loss in enumerate(losses, 1)])
        >>> history.count_waits(), history.count_waits(tolerance=0.01)
        (0, 2)
        """
        reached, count = -math.inf, 0
        for step in self.validations:
            least = tolerance * abs(reached) if math.isfinite(reached) else 0.0
            if step.score > reached + least:
                reached, count = step.score, 0
            else:
                count += 1
        return count


class _Kept:
    """Weights that are kept beside those of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.state: dict[str, Tensor] = {}

    def restore(self) -> None:
        """Put them into the model, if there are any."""
        if self.state:
            self.model.load_state_dict(self.state)


class MeanWeights(_Kept):
    """A mean of weights in which the last quarter or so of what was added counts.

    The k-th addition moves the mean by (eta + 1) / (k + eta): a window that grows with the run.

    Examples
    --------
    >>> model = nn.Linear(1, 1, bias=False)
    >>> mean = MeanWeights(model)
    >>> for weight in (1.0, 2.0, 3.0):
    ...     _ = nn.init.constant_(model.weight, weight)
    ...     mean.add()
    >>> round(float(mean.state["weight"]), 3)
    2.8
    """

    _ETA = 8

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now."""
        now = {name: value.detach() for name, value in self.model.state_dict().items()}
        self.count += 1
        if not self.state:
            self.state = {name: value.clone() for name, value in now.items()}
            return
        share = (self._ETA + 1) / (self.count + self._ETA)
        torch._foreach_lerp_([self.state[name] for name in now], list(now.values()), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the mean weights, where there are any; afterwards as it was."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange what parameters hold, not a number of it."""
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if name in self.state:
                tensor.data, self.state[name] = self.state[name], tensor.data


class BestWeights(_Kept):
    """The weights of the step with the highest score so far.

    Examples
    --------
    >>> model = nn.Linear(1, 1)
    >>> best = BestWeights(model)
    >>> best.score
    -inf
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.score = -math.inf

    def keep(self, score: float) -> None:
        """Note the weights as they are now."""
        self.score, state = score, self.model.state_dict()
        if not self.state:
            self.state = {name: value.clone() for name, value in state.items()}
        else:  # WHY: one call that copies in place; clones of a small model take longer than a step
            torch._foreach_copy_([self.state[name] for name in state], list(state.values()))
