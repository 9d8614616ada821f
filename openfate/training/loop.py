"""Training: the one loop over epochs and mini-batches, of a table in memory or of a stream.

`train` counts steps, keeps the best weights, stops early and hands out checkpoints; what a step
computes, Algorithm 1 of the paper, is an engine's.  It needs torch and numpy alone and writes no
files: progress goes out through `on_step`, the run itself through `on_checkpoint`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from openfate.errors import InputError, OpenFATEError
from openfate.models import FATE
from openfate.seeds import checked_seed
from openfate.table import MultiHot
from openfate.training import checkpoint as saved
from openfate.training.batches import Batches
from openfate.training.checkpoint import Checkpoint
from openfate.training.history import BestWeights, History, MeanWeights, Step
from openfate.training.settings import Settings, check_device
from openfate.training.sources import Steps, StreamSource, TableSource

LabelledRows = tuple[MultiHot, ArrayLike] | tuple[MultiHot, ArrayLike, ArrayLike | None]


def train(
    model: FATE,
    X: MultiHot | Callable[[int], Batches],
    y: ArrayLike | None = None,
    settings: Settings | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    validation: LabelledRows | Callable[[], Batches] | None = None,
    field_of: NDArray[np.integer] | None = None,
    is_knot: NDArray[np.bool_] | None = None,
    shown: NDArray[np.bool_] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    resume: Checkpoint | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_checkpoint: Callable[[Checkpoint], None] | None = None,
) -> History:
    """Train a model with Algorithm 1 and leave in it the weights of the best step.

    Parameters
    ----------
    model
        Trained in place.  Its features are the columns of a table; a stream needs one output.
    X, y
        A table: rows (N, D) over the observed features, and what `Settings.loss` is of: classes
        (N,) from 0, labels (N, K) of 0 and 1, or numbers (N,).

        Or a stream, without `y`: the mini-batches of an epoch, a function of its number from 1.
        Each is ids (B, d), column f holding the observed feature of field f, and labels (B,) of 0
        and 1; arrays, or tensors that may be on the device already.  The same number must give the
        same batches.  A batch of fewer than two rows is passed over: BatchNorm needs two.
    settings
        `openfate.training.settings.Settings`; its defaults where not given.
    sample_weight
        (N,) the weight of each row of a table in the loss; a row of weight 0 is in the graph alone.
    validation
        The step with the best validation is kept, the last one without.  Of a table: rows, targets
        and, if wanted, weights.  The loss is averaged over masks that are fixed for the run,
        without DropEdge; the extrapolator sees training and validation rows.  Of a stream: a
        function that returns batches in which ids from D on are new features; each is a graph of
        its own, and their ROC-AUC counts, for which they need rows of both classes.
    field_of
        (D,) the field of each feature of a table, needed by a backbone that sums fields apart.  A
        feature without training rows ends with the mean embedding of its field, or zero, and is
        listed in `History.untrained`.
    is_knot
        (D,) whether each feature of a table is a knot between which numbers lie; by default those
        that share a cell.  See `openfate.training.lines.Lines`.
    shown
        (D, M) which features of a table each of M networks side by side may see, see
        `openfate.models.Members`; by default all.  Embeddings of others mean nothing afterwards.
    seed
        Of masks, DropEdge, Dropout and a table's mini-batches; the model's start is drawn when it
        is made.
    device
        Where to train; the model is moved there.
    resume
        A checkpoint of the same run, made with the same seed, rows and settings (but for `epochs`,
        `n_ahead` and `engine`): what follows is what would have followed.
    on_step
        Called after each step: an epoch of a table or a round of it, a mini-batch of a stream.
    on_checkpoint
        Called with the run so far as flat tensors.  They are the live ones: write or copy them
        before returning.

    Returns
    -------
    History
        The losses of every step, and which one was kept.

    Examples
    --------
    >>> from openfate.models import GCN, MLP, GraphSAGE
    >>> ids, y = np.array([[0, 2], [1, 2], [0, 3], [1, 3]] * 8), np.array([0, 1, 0, 1] * 8)
    >>> X = MultiHot.from_rows(ids.tolist(), n_features=4)
    >>> history = train(FATE(4, MLP(8, 2), GCN(8)), X, y, Settings(epochs=3), validation=(X, y))
    >>> len(history.steps)
    3

    The same rows as a stream:

    >>> from openfate.training.batches import array_batches
    >>> model = FATE(4, MLP(8, 1, batch_norm=True), GraphSAGE(8), recompose="all")
    >>> clicks = Settings.clicks(n_kept=1, epochs=2, validate_every=1)
    >>> history = train(
    ...     model, array_batches(ids, y, 16, seed=0), settings=clicks, validation=lambda: [(ids, y)]
    ... )
    >>> len(history.steps)
    4
    """
    of_run = model, settings or Settings(), checked_seed(seed), check_device(device)
    source: TableSource | StreamSource
    if isinstance(X, MultiHot):
        source = TableSource(*of_run, X, y, sample_weight, field_of, validation, is_knot, shown)
    elif any(given is not None for given in (y, sample_weight, field_of, is_knot, shown)):
        raise InputError(
            "y, sample_weight, field_of, is_knot and shown are of a table: batches hold ids and "
            "labels."
        )
    else:
        source = StreamSource(*of_run, X, validation)
    run = _Run(source)
    with run.running(resume) as steps:
        for epoch, batches in steps:
            step = run.end_step(epoch, run.learn(batches))
            if on_step is not None:
                on_step(step)
            if run.out_of_patience():
                break
            if on_checkpoint is not None and step.number % source.settings.checkpoint_every == 0:
                on_checkpoint(run.checkpoint())
    return run.history


class _Run:
    """How far a run is, and the best weights so far."""

    def __init__(self, source: TableSource | StreamSource) -> None:
        self.source, self.engine, self.settings = source, source.engine, source.settings
        self.model, self.best = source.model, BestWeights(source.model)
        self.mean = MeanWeights(source.model)
        self.history = History(untrained=source.untrained.tolist())

    @contextmanager
    def running(self, resume: Checkpoint | None) -> Iterator[Steps]:
        """The steps to come.  In the end, also when interrupted, the caller has the best so far."""
        started, W = time.perf_counter(), self.model.W
        # WHY: fork_rng, because Dropout draws from torch's own generator.
        with torch.random.fork_rng([W.device] if W.is_cuda else []):
            torch.manual_seed(self.source.seed + 2)
            if resume is not None:
                self._load(resume)
            done = self.history.steps
            epoch = done[-1].epoch if done else 1
            n_done = sum(step.epoch == epoch for step in done)
            try:
                with closing(self.source.steps(epoch, n_done)) as steps:
                    yield steps
            finally:
                self._close()
                self.history.seconds += time.perf_counter() - started
        if not self.history.steps:
            raise InputError(
                "batches gave no batch of two rows or more: there was nothing to train on."
            )

    def learn(self, batches: Iterable[Any]) -> list[Tensor | float]:
        """Train on the mini-batches of the next step; their losses."""
        losses: list[Tensor | float] = []
        seeds = self.source.seeds(len(self.history.steps) + 1)
        every = self.source.average_every if self.settings.averaging else 0
        for number, batch in enumerate(batches, 1):
            loss = self.engine.learn(batch, seeds)
            # WHY: small tensors that live for an epoch lie between the arrays of its mini-batches,
            # whose memory could then not be used again.  A GPU would have to wait.
            losses.append(loss if isinstance(loss, Tensor) and loss.is_cuda else float(loss))
            if every and number % every == 0:
                self.engine.settle()
                self.mean.add()
        return losses

    def _close(self) -> None:
        """Put the weights of the best validation, or the last ones, into the model."""
        self.engine.settle()
        if not self.best.state:
            self.history.best = len(self.history.steps)
            self.mean.restore()
        self.best.restore()
        self.model.eval()
        self.source.finish()

    # ---- between steps -------------------------------------------------------------------------

    def end_step(self, epoch: int, losses: list[Tensor | float]) -> Step:
        """Validate where it is due, and note the weights if they are the best so far."""
        number = len(self.history.steps) + 1
        step = Step(number, epoch, sum(map(float, losses)) / len(losses))
        self._check_finite(step.train_loss, number)
        validate = self.source.validate
        if validate is not None and number % self.settings.validate_every == 0:
            self.engine.settle()
            with self.mean.in_place():
                loss, auc = validate()
                self._check_finite(loss, number)
                step = replace(step, validation_loss=loss, auc=auc)
                if step.score > self.best.score:
                    self.history.best = number
                    self.best.keep(step.score)
        self.history.steps.append(step)
        return step

    def _check_finite(self, loss: float, number: int) -> None:
        if not math.isfinite(loss):
            raise OpenFATEError(
                f"training diverged: the loss of {self.source.step_name} {number} is {loss}. "
                f"Lower lr={self.settings.lr} or lr_extrapolator={self.settings.lr_extrapolator}."
            )

    def out_of_patience(self) -> bool:
        """Whether steps are left but none of the last validations was better than the best."""
        patience, n_steps = self.settings.patience, self.source.n_steps
        if patience is None or len(self.history.steps) == n_steps:
            return False
        if self.history.count_waits(self.settings.tolerance) < patience:
            return False
        self.history.stopped_early = True
        return True

    # ---- checkpoints ---------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The run so far; the tensors are the live ones."""
        parts = {
            "model": self.model.state_dict(),
            **self.engine.state(),
            "source": self.source.state(),
            "best": self.best.state,
            "mean": self.mean.state,
        }
        flat = {f"{part}.{key}": v for part, tensors in parts.items() for key, v in tensors.items()}
        steps = [astuple(step) for step in self.history.steps]
        flat["steps"] = torch.tensor(steps, dtype=torch.float64).view(-1, 5)
        about = {"best": self.history.best, "averaged": self.mean.count, "run": self._about()}
        flat["about"] = saved.to_text(about)
        return flat

    def _about(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        for name in ("epochs", "n_ahead", "engine"):  # none changes what a mini-batch does
            del settings[name]
        return {"seed": self.source.seed, **settings}

    def _load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        about = saved.from_text(checkpoint["about"])
        saved.check_same(about["run"], self._about())
        try:
            self.model.load_state_dict(saved.part(checkpoint, "model"))
        except RuntimeError as error:  # names the parameters
            raise InputError(
                f"resume: a checkpoint of another model ({' '.join(str(error).split())}); "
                "go on with the same one, or start anew without resume."
            ) from None
        self.engine.load_state(checkpoint)
        self.source.load_state(checkpoint)
        for weights, name in ((self.best, "best"), (self.mean, "mean")):
            own = saved.part(checkpoint, name)
            weights.state = {k: v.to(self.model.W.device, copy=True) for k, v in own.items()}
        self.mean.count = about["averaged"]
        rows = cast("list[list[float]]", checkpoint["steps"].tolist())
        history = self.history
        history.steps = [Step(int(n), int(epoch), *scores) for n, epoch, *scores in rows]
        history.best = about["best"]
        if history.best:
            self.best.score = history.steps[history.best - 1].score
