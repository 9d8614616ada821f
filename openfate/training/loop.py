"""Training: the one loop over epochs and mini-batches, of a table in memory or of a stream.

`train` counts steps, keeps the best weights, stops early and hands out checkpoints; what a step
computes, Algorithm 1 of the paper, is an engine's.  It needs torch and numpy alone and writes no
files: progress goes out through `on_step`, the run itself through `on_checkpoint`.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from openfate.errors import InputError, OpenFATEError
from openfate.executor import Executor, executor
from openfate.models import FATE
from openfate.seeds import checked_seed
from openfate.table import MultiHot
from openfate.training import checkpoint as saved
from openfate.training.batches import Batches
from openfate.training.checkpoint import Checkpoint
from openfate.training.history import BestWeights, History, MeanWeights, Step
from openfate.training.ranks import Ranks
from openfate.training.settings import Settings, check_device
from openfate.training.sharded import cut_checkpoint, join_checkpoints, join_rows
from openfate.training.sources import Steps, StreamSource, TableSource

_SECONDS = 5.0  # from one checkpoint to the next within a step, at least
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
        Called with the run so far as flat tensors, after `Settings.checkpoint_every` steps and
        every few seconds within a step.  They are the live ones: write or copy them before
        returning.

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
    options = _Options(
        *(X, y, settings or Settings(), sample_weight, validation, field_of, is_knot, shown),
        *(checked_seed(seed), str(device)),
    )
    found = executor()
    if found is not None:
        return _train_together(found, model, options, resume, on_step, on_checkpoint)
    return _train(model, options, Ranks(), resume, on_step, on_checkpoint)


class _Options(NamedTuple):
    """What `train` is told, but for the model and whom to tell."""

    X: MultiHot | Callable[[int], Batches]
    y: ArrayLike | None
    settings: Settings
    sample_weight: ArrayLike | None
    validation: LabelledRows | Callable[[], Batches] | None
    field_of: NDArray[np.integer] | None
    is_knot: NDArray[np.bool_] | None
    shown: NDArray[np.bool_] | None
    seed: int
    device: str


def _train(
    model: FATE,
    options: _Options,
    ranks: Ranks,
    resume: Checkpoint | None,
    on_step: Callable[[Step], None] | None,
    on_checkpoint: Callable[[Checkpoint], None] | None,
) -> History:
    """Train in this process, as one of the ranks."""
    X, y, settings, sample_weight, validation, field_of, is_knot, shown, seed, device = options
    of_run = model, settings, seed, check_device(device)
    source: TableSource | StreamSource
    if isinstance(X, MultiHot):
        source = TableSource(
            *of_run, X, y, sample_weight, field_of, validation, is_knot, shown, ranks
        )
    elif any(given is not None for given in (y, sample_weight, field_of, is_knot, shown)):
        raise InputError(
            "y, sample_weight, field_of, is_knot and shown are of a table: batches hold ids and "
            "labels."
        )
    else:
        source = StreamSource(*of_run, X, validation, ranks)
    run = _Run(source)
    # WHY not within steps of shards: their parts of a checkpoint must be of the same moment.
    within = None if ranks.n_sharded is not None else on_checkpoint
    with run.running(resume) as steps:
        for epoch, batches in steps:
            step = run.end_step(epoch, run.learn(epoch, batches, within))
            if on_step is not None:
                on_step(step)
            if run.out_of_patience():
                break
            if on_checkpoint is not None and step.number % source.settings.checkpoint_every == 0:
                run.hand_out(on_checkpoint)
    return run.history


def _train_together(
    processes: Executor,
    model: FATE,
    options: _Options,
    resume: Checkpoint | None,
    on_step: Callable[[Step], None] | None,
    on_checkpoint: Callable[[Checkpoint], None] | None,
) -> History:
    """Train in the processes of an executor; where one dies, go on from the last checkpoint."""
    model.cpu()
    n_ranks, is_sharded = processes.n_workers, processes.embeddings != "replicated"
    n_told, parts = 0, dict[tuple[int, int], Checkpoint]()
    reached = (0, 0)  # steps, and mini-batches of the next one
    shared = Ranks(0, n_ranks, processes.whole_graph, in_group=True)
    if is_sharded:
        by_torchrec = processes.embeddings == "torchrec"
        shared = replace(shared, n_sharded=len(model.W), by_torchrec=by_torchrec)

    def make() -> list[Callable[..., Any]]:
        parts.clear()
        if not is_sharded:
            return [partial(_train_rank, shared, model, options, resume)] * n_ranks
        return [
            partial(_train_rank, shared, _shard(model, rank, n_ranks), options, own)
            for rank in range(n_ranks)
            for own in [None if resume is None else cut_checkpoint(resume, rank, n_ranks)]
        ]

    def hear(told: tuple[int, Step | Checkpoint]) -> bool:
        nonlocal n_told, resume, reached
        rank, content = told
        if isinstance(content, Step):
            if content.number <= n_told:  # taken again after a checkpoint: it is the same
                return False
            n_told = content.number
            if on_step is not None:
                on_step(content)
            return True
        if is_sharded:
            number = len(content["steps"])
            parts[number, rank] = content
            if any((number, one) not in parts for one in range(n_ranks)):
                return False
            content = join_checkpoints([parts.pop((number, one)) for one in range(n_ranks)])
        resume, before = content, reached
        reached = max(before, (len(content["steps"]), len(content["losses"])))
        if on_checkpoint is not None:
            on_checkpoint(content)
        return reached > before

    results = processes.run_together(make, hear)
    weights, history = results[0]
    if is_sharded:
        weights = {**weights, "W": join_rows([own["W"] for own, _ in results])}
    model.load_state_dict(weights)
    model.eval()
    return cast("History", history)


def _shard(model: FATE, rank: int, n_ranks: int) -> FATE:
    """The model with the rows of W that a rank owns."""
    W = model.W
    model.W = nn.Parameter(W.detach()[:0])  # WHY: a copy would copy all of it
    own = copy.deepcopy(model)
    model.W, own.W = W, nn.Parameter(W.detach()[rank::n_ranks].clone())
    return own


def _train_rank(
    shared: Ranks,
    model: FATE,
    options: _Options,
    resume: Checkpoint | None,
    rank: int,
    tell: Callable[[Any], None],
) -> tuple[dict[str, Tensor], History]:
    """Train as one of the ranks; the first one tells of it, and all of their shards."""
    model = copy.deepcopy(model)  # WHY: what is sent may be shared, and cannot be written to
    ranks = replace(shared, rank=rank)
    is_first, is_sharded = rank == 0, ranks.n_sharded is not None

    def on_step(step: Step) -> None:
        if is_first:
            tell((0, step))

    def keep(checkpoint: Checkpoint) -> None:
        own = {name: tensor.detach().cpu().clone() for name, tensor in checkpoint.items()}
        tell((rank, own))

    told = keep if is_first or is_sharded else None
    history = _train(model, options, ranks, resume, on_step, told)
    return (model.cpu().state_dict() if is_first or is_sharded else {}), history


class _Run:
    """How far a run is, and the best weights so far."""

    def __init__(self, source: TableSource | StreamSource) -> None:
        self.source, self.engine, self.settings = source, source.engine, source.settings
        self.model, self.best = source.model, BestWeights(source.model)
        self.mean = MeanWeights(source.model)
        self.history = History(untrained=source.untrained.tolist())
        # Of the step that is going on: its epoch, and the losses of the mini-batches so far.
        self.epoch, self.losses = 1, cast("list[Tensor | float]", [])
        self.handed_out = time.monotonic()

    @contextmanager
    def running(self, resume: Checkpoint | None) -> Iterator[Steps]:
        """The steps to come.  In the end, also when interrupted, the caller has the best so far."""
        started, W = time.perf_counter(), self.model.W
        # WHY: fork_rng, because Dropout draws from torch's own generator.
        with torch.random.fork_rng([W.device] if W.is_cuda else []):
            torch.manual_seed(self.source.seed + 2)
            if resume is not None:
                self._load(resume)
            n_done = sum(step.epoch == self.epoch for step in self.history.steps)
            try:
                with closing(self.source.steps(self.epoch, n_done)) as steps:
                    yield steps
            finally:
                self._close()
                self.history.seconds += time.perf_counter() - started
        if not self.history.steps:
            raise InputError(
                "batches gave no batch of two rows or more: there was nothing to train on."
            )

    def learn(
        self,
        epoch: int,
        batches: Iterable[Any],
        on_checkpoint: Callable[[Checkpoint], None] | None = None,
    ) -> list[Tensor | float]:
        """Train on the mini-batches of the next step, but for those done before; their losses."""
        self.epoch, losses = epoch, self.losses
        seeds = self.source.seeds(len(self.history.steps) + 1)
        every = self.source.average_every if self.settings.averaging else 0
        rest = itertools.islice(batches, len(losses), None)
        for number, batch in enumerate(rest, 1 + len(losses)):
            loss = self.engine.learn(batch, seeds)
            # WHY: small tensors that live for an epoch lie between the arrays of its mini-batches,
            # whose memory could then not be used again.  A GPU would have to wait.
            losses.append(loss if isinstance(loss, Tensor) and loss.is_cuda else float(loss))
            if every and number % every == 0:
                self.engine.settle()
                self.mean.add()
            if on_checkpoint is not None and time.monotonic() - self.handed_out > _SECONDS:
                self.hand_out(on_checkpoint)
        self.losses = []
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
                loss, auc = self.source.ranks.ask_first(validate, self.model.W)
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

    def hand_out(self, on_checkpoint: Callable[[Checkpoint], None]) -> None:
        """Give a checkpoint away."""
        on_checkpoint(self.checkpoint())
        self.handed_out = time.monotonic()

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
        flat["losses"] = torch.tensor([*map(float, self.losses)], dtype=torch.float64)
        about = {"best": self.history.best, "averaged": self.mean.count, "epoch": self.epoch}
        flat["about"] = saved.to_text({**about, "run": self._about()})
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
        history.best, self.epoch = about["best"], about["epoch"]
        self.losses = cast("list[Tensor | float]", checkpoint["losses"].tolist())
        if history.best:
            self.best.score = history.steps[history.best - 1].score
