"""Algorithm 1 over a stream of mini-batches: click prediction with millions of features.

A mini-batch of B rows is a graph of its own, which holds only the U features that the rows touch
(PAPER: "instance-level mini-batch partition").  A new feature owns no row of W.  Everything random
is drawn from a seed of the iteration, so that a run goes on from a checkpoint as if it had never
stopped.  The steps themselves are an engine's: plain torch, or fused kernels on a GPU.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.errors import InputError, OpenFATEError
from openfate.models import FATE
from openfate.seeds import checked_seed
from openfate.training import checkpoint as saved
from openfate.training.batches import Batches, pairs, prepared
from openfate.training.checkpoint import Checkpoint
from openfate.training.engine import Seeds, make_engine, make_predictor
from openfate.training.metrics import StreamingAUC
from openfate.training.settings import EngineName, StreamSettings, cuda_devices, usable_device

__all__ = ["Step", "StreamHistory", "predict_stream", "train_stream"]


@dataclass(frozen=True)
class Step:
    """What happened at one mini-batch; `auc` and `validation_loss` are nan where none was due."""

    number: int  # mini-batches so far, over all epochs
    epoch: int
    loss: float  # mean over the steps of the mini-batch
    auc: float = math.nan
    validation_loss: float = math.nan


@dataclass
class StreamHistory:
    """The validated mini-batches of a run, and the one whose weights were kept (0: the last)."""

    validations: list[Step] = field(default_factory=list)
    best: int = 0
    n_steps: int = 0
    seconds: float = 0.0
    stopped_early: bool = False


def train_stream(
    model: FATE,
    batches: Callable[[int], Batches],
    settings: StreamSettings,
    *,
    validation: Callable[[], Batches] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    resume: Checkpoint | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_checkpoint: Callable[[Checkpoint], None] | None = None,
) -> StreamHistory:
    """Train a model with Algorithm 1, mini-batch by mini-batch; keep the weights of the best AUC.

    Parameters
    ----------
    model
        Trained in place, for clicks: one output.
    batches
        The mini-batches of an epoch, a function of its number from 1: each ids (B, d), column f
        holding the observed feature of field f, and labels (B,) of 0 and 1; arrays, or tensors that
        may be on the device already.  The same number must give the same batches.  A batch of fewer
        than two rows is passed over: BatchNorm needs two.
    settings
        `StreamSettings`.
    validation
        Batches in which ids from D on are new features; each batch is a graph of its own.  Together
        they need rows of both classes.
    seed
        Of masks, DropEdge and Dropout.
    device
        Where to train; the model is moved there.
    resume
        A checkpoint of the same run, made with the same seed, batches and settings (but for
        `epochs`, `n_ahead` and `engine`): what follows is what would have followed.
    on_step
        Called after each mini-batch.
    on_checkpoint
        Called with the run so far as flat tensors.  They are the live ones: write or copy them
        before returning.

    Examples
    --------
    >>> from openfate.models import MLP, GraphSAGE
    >>> from openfate.training.batches import array_batches
    >>> ids, y = np.array([[0, 2], [1, 2], [0, 3], [1, 3]] * 4), np.array([0, 1, 0, 1] * 4)
    >>> model = FATE(4, MLP(8, 1, batch_norm=True), GraphSAGE(8), recompose="all")
    >>> settings = StreamSettings(n_kept=1, epochs=2, validate_every=1)
    >>> history = train_stream(
    ...     model, array_batches(ids, y, 8, seed=0), settings, validation=lambda: [(ids, y)]
    ... )
    >>> history.n_steps
    4
    """
    for name, given in (("batches", batches), ("validation", validation)):
        if given is not None and not callable(given):
            raise InputError(
                f"{name} is a {type(given).__name__}: give a function that returns it."
            )
    run = _StreamRun(model, settings, checked_seed(seed), usable_device(device))
    if resume is not None:
        run.load(resume)
    started = time.perf_counter()
    engine = run.engine
    # WHY: fork_rng, because Dropout draws from torch's own generator.
    with torch.random.fork_rng(cuda_devices(run.device)), closing(run.batches(batches)) as stream:
        try:
            for batch in stream:
                for kept in engine.start(batch, run.next_seeds()):
                    engine.step(kept)  # phi and W: at every mask
                loss = engine.end()  # omega: once, with the accumulated gradient
                step = run.end_of_batch(loss, validation)
                if on_step is not None:
                    on_step(step)
                if run.out_of_patience():
                    break
                if on_checkpoint is not None and step.number % settings.checkpoint_every == 0:
                    on_checkpoint(run.checkpoint())
        finally:  # also when interrupted: what was best so far is what the caller has
            run.close()
            run.history.seconds += time.perf_counter() - started
    if not run.history.n_steps:
        raise InputError(
            "batches gave no batch of two rows or more: there was nothing to train on."
        )
    return run.history


class _StreamRun:
    """The state of one run: its engine, how far it is, and the best weights so far."""

    def __init__(
        self, model: FATE, settings: StreamSettings, seed: int, device: torch.device
    ) -> None:
        if model.backbone.n_outputs != 1:
            raise InputError(f"clicks need one output, the model has {model.backbone.n_outputs}.")
        self.model, self.settings, self.seed = model.to(device), settings, seed
        self.device = device
        self.engine = make_engine(model, settings, device)
        self.predictor = make_predictor(model, device, settings.engine)
        self.epoch, self.done_in_epoch = 1, 0
        self.history = StreamHistory()
        self.best_auc, self.best_state = -math.inf, dict[str, Tensor]()

    def batches(self, source: Callable[[int], Batches]) -> Generator[Any]:
        """The mini-batches that are still to come, as the engine wants them."""
        for epoch in range(self.epoch, self.settings.epochs + 1):
            if epoch > self.epoch:
                self.epoch, self.done_in_epoch = epoch, 0
            usable = (batch for batch in pairs(source(epoch)) if len(batch[1]) > 1)
            rest = itertools.islice(usable, self.done_in_epoch, None)
            yield from prepared(rest, self.engine.prepare, self.settings.n_ahead)

    def next_seeds(self) -> Seeds:
        """Count a mini-batch; its seeds."""
        self.done_in_epoch += 1
        self.history.n_steps += 1
        return Seeds.of(self.seed, self.history.n_steps)

    # ---- between mini-batches ------------------------------------------------------------------

    def end_of_batch(self, loss: float, validation: Callable[[], Batches] | None) -> Step:
        """Validate where it is due, and note the weights if they are the best so far."""
        number, settings = self.history.n_steps, self.settings
        if not math.isfinite(loss):
            raise OpenFATEError(
                f"training diverged: the loss of mini-batch {number} is {loss}. "
                f"Lower lr={settings.lr} or lr_extrapolator={settings.lr_extrapolator}."
            )
        step = Step(number, self.epoch, loss)
        if validation is None or number % settings.validate_every:
            return step
        self.engine.settle()
        auc, loss = self._validate(validation())
        step = replace(step, auc=auc, validation_loss=loss)
        self.history.validations.append(step)
        if step.auc > self.best_auc:  # PAPER: "the highest ROC-AUC on validation dataset"
            self.best_auc, self.history.best = step.auc, number
            state = self.model.state_dict()
            self.best_state = {name: value.clone() for name, value in state.items()}
        return step

    def _validate(self, batches: Batches) -> tuple[float, float]:
        """ROC-AUC and log-loss of rows of both classes."""
        score, n_clicks = StreamingAUC(), 0
        for logits, y in self.predictor.logits(batches, self.settings.n_ahead):
            score.add(logits, y)
            n_clicks += int((y == 1).sum())
        if n_clicks in (0, score.n_rows):
            held = (
                f"{score.n_rows} rows of class {int(n_clicks > 0)}" if score.n_rows else "no rows"
            )
            raise InputError(
                f"validation holds {held}: a ROC-AUC needs rows of both classes; give more rows, "
                "or validation=None."
            )
        if math.isnan(auc := score.value()):
            raise OpenFATEError(
                f"training diverged: predictions after mini-batch {self.history.n_steps} are not "
                f"numbers. Lower lr={self.settings.lr} or "
                f"lr_extrapolator={self.settings.lr_extrapolator}."
            )
        return auc, score.log_loss

    def out_of_patience(self) -> bool:
        """Whether none of the last validations was better than the best."""
        patience = self.settings.patience
        if patience is None:
            return False
        since = sum(step.number > self.history.best for step in self.history.validations)
        self.history.stopped_early = since >= patience
        return self.history.stopped_early

    def close(self) -> None:
        """Put the weights of the best validation, or the last ones, into the model."""
        self.engine.settle()
        self.engine.close()
        self.predictor.close()
        if self.best_state:
            self.model.load_state_dict(self.best_state)
        self.model.eval()

    # ---- checkpoints -----------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The run so far; the tensors are the live ones."""
        history = self.history
        parts = {
            "model": self.model.state_dict(),
            **self.engine.state(),
            "best": self.best_state,
        }
        flat = {f"{part}.{key}": v for part, tensors in parts.items() for key, v in tensors.items()}
        validations = [astuple(step) for step in history.validations]
        progress = [self.epoch, self.done_in_epoch, history.n_steps, history.best]
        flat["progress"] = torch.tensor(progress)
        flat["validations"] = torch.tensor(validations, dtype=torch.float64).view(-1, 5)
        flat["about"] = saved.to_text(self._about())
        return flat

    def _about(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        for name in ("epochs", "n_ahead", "engine"):  # none changes what a mini-batch does
            del settings[name]
        return {"seed": self.seed, **settings}

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        saved.check_same(saved.from_text(checkpoint["about"]), self._about())
        try:
            self.model.load_state_dict(saved.part(checkpoint, "model"))
        except RuntimeError as error:  # names the parameters
            raise InputError(
                f"resume: a checkpoint of another model ({' '.join(str(error).split())}); "
                "go on with the same one, or start anew without resume."
            ) from None
        self.engine.load_state(checkpoint)
        best = saved.part(checkpoint, "best")
        self.best_state = {name: v.to(self.device, copy=True) for name, v in best.items()}
        self.epoch, self.done_in_epoch, n_steps, number = checkpoint["progress"].tolist()
        rows = checkpoint["validations"].tolist()
        steps = [Step(int(n), int(epoch), *scores) for n, epoch, *scores in rows]
        self.history = StreamHistory(steps, number, n_steps)
        self.best_auc = max((s.auc for s in steps if s.number == number), default=-math.inf)


def predict_stream(
    model: FATE,
    batches: Batches,
    *,
    drop_new: bool = False,
    device: torch.device | str = "cpu",
    n_ahead: int = 2,
    engine: EngineName = "auto",
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Logits (B,) of each mini-batch from its own graph, beside its labels (B,).

    PAPER: the graph at inference is the mini-batch: a prediction depends on the rows that it comes
    with.  `openfate.models.running` has predictions that do not.

    Parameters
    ----------
    batches
        ids (B, d) and labels (B,), arrays or tensors; ids from D on are new features.  One without
        rows is passed over.
    drop_new
        Leave the new features out, the control that tells what extrapolation adds.
    n_ahead
        Batches that a thread reads in advance; with one or more, a GPU also starts on a batch
        before the predictions of the last one are handed out.
    engine
        As `StreamSettings`.
    """
    if engine not in get_args(EngineName):
        raise InputError(f"engine={engine!r} is unknown: choose one of {get_args(EngineName)}.")
    if type(n_ahead) is not int or n_ahead < 0:
        raise InputError(f"n_ahead={n_ahead!r}: choose a whole number from 0 up.")
    device = usable_device(device)
    with closing(make_predictor(model, device, engine, drop_new)) as predictor:
        yield from predictor.logits(batches, n_ahead)
