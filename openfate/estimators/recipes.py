"""Recipes: how an estimator's networks are trained, and how they will use new features.

    "fate"      the paper: one FATE with a 2-layer GraphSAGE, trained by hiding features in turn
    "auto"      a few plain networks trained with feature dropout; a probe on the validation rows
                decides whether evidence of new features helps, and how strong
    "evidence"  the same networks; evidence is used without a probe
    "none"      the same networks; new features are ignored

N rows, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.bank import EVIDENCE_KIND, Floats, Network
from openfate.errors import InputError
from openfate.estimators.inputs import Rows, Target, as_predicted
from openfate.models import (
    BACKBONES,
    FATE,
    Backbone,
    GraphSAGE,
    Linear,
    Pool,
    RunningFATE,
    make_backbone,
)
from openfate.openworld import (
    NONE,
    Decision,
    Novelty,
    Pooling,
    UseEvidence,
    best_label_alpha,
    evidence_candidates,
    hidden_shares,
    label_candidates,
    probe,
)
from openfate.table import MultiHot
from openfate.training import History, Loss, Settings, Step, train, train_ensemble

__all__ = ["Job", "Learned", "Recipe", "Strategy", "model_of", "pooling_of"]

Strategy = Literal["auto", "fate", "evidence", "none"]
OnStep = Callable[[Step], None]

# Of the strategy "evidence", which asks no probe: cautious.
DEFAULT_POOLING = Pooling(strength=0.5, alpha=10.0, relative=True)
_PROBE_ROWS = 20_000  # WHY: a probe fits several times; so many rows tell as much as all
_PROBE_VALIDATION = 5_000
_FATE_BATCH = 8192
# Which of an estimator's parameters each backbone takes.
_TAKES = {"mlp": ("pool",), "dcn": ("pool",), "deepfm": ("linear",), "widedeep": ("linear",)}


@dataclass(frozen=True)
class Job:
    """What networks are trained with: rows over the observed features, where, from what start."""

    training: Rows
    validation: Rows | None
    field_of: NDArray[np.integer]  # (D,)
    seed: int
    device: str = "cpu"
    on_step: OnStep | None = None
    start: Network | None = None  # networks over the same features


@dataclass(frozen=True)
class Learned:
    """Trained networks, and the epochs whose weights each of them holds."""

    network: Network
    history: History
    best_epochs: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """Settings of a fit, None where the strategy's own are wanted.

    Parameters
    ----------
    strategy
        See the head of this file.
    backbone, pool, linear
        Of the networks: `openfate.models.make_backbone`'s name, and what it pools and does with the
        linear weights of new features where it takes that.
    width, hidden, epochs, lr, batch_size, patience
        Of the networks and their training.
    dropout, n_members, weight_decay
        Of the plain networks.
    n_folds, drop_edge, lr_extrapolator, mixed_precision
        Of the paper's.
    novelty, n_draws
        What the probe hides, and how often.
    """

    strategy: Strategy
    loss: Loss
    backbone: str
    pool: Pool
    linear: Linear
    width: int | None
    hidden: tuple[int, ...] | None
    epochs: int | None
    lr: float | None
    batch_size: int | None
    patience: int | None
    dropout: float
    n_members: int
    weight_decay: float
    n_folds: int
    drop_edge: float
    lr_extrapolator: float
    mixed_precision: bool
    novelty: Novelty
    n_draws: int

    def __post_init__(self) -> None:
        if self.strategy not in ("auto", "fate", "evidence", "none"):
            raise InputError(
                f"strategy={self.strategy!r} is unknown: choose 'auto', 'fate', 'evidence' "
                "or 'none'."
            )
        self._check_backbone()
        for name in ("width", "epochs", "batch_size", "patience", "n_members", "n_draws"):
            _check_number(name, getattr(self, name), 1, whole=True)
        for name in ("lr", "lr_extrapolator", "weight_decay"):
            _check_number(name, getattr(self, name), 0)
        if self.lr == 0:
            raise InputError("lr=0: nothing would be learned; choose a number above 0.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: choose a number from 0 to below 1.")
        for size in self.hidden or ():
            _check_number("hidden", size, 1, whole=True)

    def _check_backbone(self) -> None:
        if self.backbone not in BACKBONES:
            names = " or ".join(map(repr, BACKBONES))
            raise InputError(f"backbone={self.backbone!r} is unknown: choose {names}.")
        for name, usual in (("pool", "sum"), ("linear", "zero")):
            takes = [key for key, options in _TAKES.items() if name in options]
            if getattr(self, name) != usual and self.backbone not in takes:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is not for backbone={self.backbone!r}: leave "
                    f"it at {usual!r}, or choose backbone {' or '.join(map(repr, takes))}."
                )
        self._make(1, 1, (1,), 1)  # WHY: whatever else is wrong is told before any work

    def _make(self, width: int, n_outputs: int, hidden: Sequence[int], n_fields: int) -> Backbone:
        """A backbone without BatchNorm and Dropout: tables may be small."""
        options: dict[str, Any] = {"batch_norm": False, "dropout": 0.0, "hidden": hidden}
        options |= {name: getattr(self, name) for name in _TAKES.get(self.backbone, ())}
        if self.pool == "field_linear":
            options["n_fields"] = n_fields
        return make_backbone(self.backbone, width, n_outputs, **options)

    # ---- training ------------------------------------------------------------------------------

    def learn(self, job: Job) -> Learned:
        """Train the networks."""
        if not job.training.X.n_features:
            raise InputError("the table has no column with a value to learn from.")
        learn = self._learn_fate if self.strategy == "fate" else self._learn_plain
        with _few_threads(job.training.X.nnz * (self.width or 32)):
            models, history, best_epochs = learn(job)
        return Learned(_network(models, job.training.target), history, tuple(best_epochs))

    def _learn_fate(self, job: Job) -> tuple[list[FATE], History, list[int]]:
        training, validation = job.training, job.validation
        width, hidden = self.width or 32, (64,) if self.hidden is None else self.hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            backbone = self._make(width, training.target.n_outputs, hidden, _n_fields(job.field_of))
            extrapolator = GraphSAGE(backbone.width, 2)
            model = FATE(training.X.n_features, backbone, extrapolator)
        if job.start is not None:
            model.load_state_dict(model_of(job.start.members[0]).state_dict())
        full = training.X.n_rows <= 2 * _FATE_BATCH
        settings = Settings(
            n_folds=self.n_folds,
            drop_edge=self.drop_edge,
            epochs=self.epochs or 200,
            lr=self.lr or 1e-2,
            lr_extrapolator=self.lr_extrapolator,
            batch_size=self.batch_size or (None if full else _FATE_BATCH),
            patience=self.patience or 20,
            mixed_precision=self.mixed_precision,
            loss=self.loss,
            untrained="field_mean" if job.start is None else "leave",
        )
        history = train(
            model,
            training.X,
            training.target.y,
            settings,
            sample_weight=training.weight,
            validation=None if validation is None else validation.triple,
            field_of=job.field_of,
            seed=job.seed,
            device=job.device,
            on_step=job.on_step,
        )
        return [model.cpu()], history, [history.best]

    def _learn_plain(self, job: Job) -> tuple[list[FATE], History, list[int]]:
        members, histories = self._train_members(
            job.training,
            job.field_of,
            validation=None if job.validation is None else job.validation.triple,
            seed=job.seed,
            device=job.device,
            on_step=job.on_step,
            start=None if job.start is None else [model_of(m) for m in job.start.members],
        )
        steps, best = [step for h in histories for step in h.steps], [h.best for h in histories]
        return members, History(steps, best[0], sum(h.seconds for h in histories)), best

    def _train_members(
        self, rows: Rows, field_of: NDArray[np.integer], **options: Any
    ) -> tuple[list[FATE], list[History]]:
        width, hidden = self.width or 64, (128,) if self.hidden is None else self.hidden
        n_outputs, n_fields = rows.target.n_outputs, _n_fields(field_of)
        return train_ensemble(
            lambda: self._make(width, n_outputs, hidden, n_fields),
            rows.X,
            rows.target.y,
            self._plain(rows.X.n_rows),
            n_members=self.n_members,
            sample_weight=rows.weight,
            field_of=field_of,
            **options,
        )

    def _plain(self, n_rows: int) -> Settings:
        given = {"epochs": self.epochs, "patience": self.patience, "lr": self.lr}
        return Settings.plain(
            cell_dropout=self.dropout,
            weight_decay=self.weight_decay,
            # WHY: 64 steps an epoch are enough; larger batches make each row cheaper.
            batch_size=self.batch_size or min(max(256, n_rows // 64), 4096),
            loss=self.loss,
            **{name: value for name, value in given.items() if value is not None},
        )

    # ---- choosing ------------------------------------------------------------------------------

    def choose(self, job: Job, best_epochs: Sequence[int]) -> tuple[Pooling, Decision | None]:
        """How evidence will be weighed, and the probe's decision where there was one."""
        late_labels_only = Pooling(strength=0.0)
        if self.strategy in ("fate", "none"):
            return late_labels_only, None
        if self.strategy == "evidence":
            return DEFAULT_POOLING, None
        if job.validation is None:
            return late_labels_only, Decision(NONE, "there are too few rows for a probe", {}, [])
        rng = np.random.default_rng([job.seed, 5])
        training = _some(job.training, _PROBE_ROWS, rng)
        validation = _some(job.validation, _PROBE_VALIDATION, rng)
        y = as_predicted(validation.target)
        with _few_threads(training.X.nnz * (self.width or 32)):
            decision = probe(
                lambda X, _, fields: self._fit_again(
                    replace(training, X=X), fields, best_epochs, job.seed
                ),
                (training.X, training.target.y),
                (validation.X, y),
                evidence_candidates(),
                also=label_candidates(y),
                hidden=hidden_shares(None, self.n_draws),
                field_of=job.field_of,
                novelty=self.novelty,
                every_size=True,
                fit_fields=True,
                kind=EVIDENCE_KIND[training.target.task],
                seed=job.seed,
            )
        return pooling_of(decision), decision

    def _fit_again(
        self, rows: Rows, field_of: NDArray[np.integer], best_epochs: Sequence[int], seed: int
    ) -> Callable[[MultiHot], Floats]:
        """A probe's fit: epochs are taken over, validation rows are not looked at."""
        members, _ = self._train_members(rows, field_of, epochs=best_epochs, seed=seed)
        network = _network(members, rows.target)
        return lambda X: network.outputs(None, X, field_of, drop_new=True)


def _n_fields(field_of: NDArray[np.integer]) -> int:
    return int(field_of.max(initial=0)) + 1


def _check_number(name: str, value: Any, least: float, whole: bool = False) -> None:
    """Refuse what is no number or too small; None stands for the strategy's own."""
    if value is None:
        return
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < float("inf"):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name}={value!r}: choose {kind} from {least:g} up.")


def _network(models: Sequence[FATE], target: Target) -> Network:
    return Network([RunningFATE(model) for model in models], target.task, target.scale)


def model_of(member: RunningFATE) -> FATE:
    """The model of a running one, to be trained on."""
    backbone = copy.deepcopy(member.backbone).float().requires_grad_()
    extrapolator = copy.deepcopy(member.extrapolator)
    if extrapolator is not None:
        extrapolator = extrapolator.float().requires_grad_()
    model = FATE(len(member.W), backbone, extrapolator, recompose=member.recompose)
    with torch.no_grad():
        model.W.copy_(member.W)
    return model


def pooling_of(decision: Decision) -> Pooling:
    """The settings that a probe chose, of unlabelled rows and of labels."""
    chosen = evidence_candidates().get(decision.chosen)
    pooling = chosen.pooling if isinstance(chosen, UseEvidence) else Pooling(strength=0.0)
    return replace(pooling, label_alpha=best_label_alpha(decision.gains))


def _some(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    n_rows = rows.X.n_rows
    return rows if n_rows <= most else rows.select(np.sort(rng.permutation(n_rows)[:most]))


@contextmanager
def _few_threads(work: int) -> Iterator[None]:
    """One thread for small tensors: they would only wait for one another."""
    # WHY: on a busy machine two threads took 50 times as long as one for tables of this size.
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1 if work < 1 << 26 else n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
