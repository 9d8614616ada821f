"""Fitting: what FATEClassifier and FATERegressor share.

    columns -> kinds -> ids -> train -> running sums -> FeatureBank

What a fitted estimator knows lives in its bank (``bank_``), which predicts, observes and is written
to bundles; what is here is the road to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import Progress
from sklearn.utils.validation import _check_sample_weight

from openfate.bank import EVIDENCE_KIND, FeatureBank, Network
from openfate.errors import InputError
from openfate.estimators.inputs import (
    Parts,
    Rows,
    Target,
    as_predicted,
    seed_of,
    select_rows,
    split,
)
from openfate.estimators.recipes import Job, Recipe, Strategy, model_of
from openfate.estimators.scores import task_scores
from openfate.estimators.using import BankEstimator
from openfate.models import FATE, Linear, Pool, RunningFATE, with_fields
from openfate.openworld import Decision, LiveEvidence, Novelty
from openfate.table import Encoder, Field, MultiHot, Policies, Policy, Schema, Table
from openfate.training import History, Step, check_device

__all__ = ["FATEEstimator"]


class FATEEstimator(BankEstimator):
    """What the classifier and the regressor share: parameters, fitting, the bank."""

    bank_: FeatureBank
    history_: History
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    # Parameters; each subclass documents them and has them in its signature.
    schema: Schema | Sequence[Field] | None
    strategy: Strategy
    numeric: Literal["buckets", "value"]
    exclude: Sequence[str]
    backbone: str
    pool: Pool
    linear: Linear
    width: int | None
    hidden: Sequence[int] | None
    epochs: int | None
    lr: float | None
    batch_size: int | None
    patience: int | None
    validation_share: float
    dropout: float
    n_members: int
    weight_decay: float
    n_folds: int
    drop_edge: float
    lr_extrapolator: float
    mixed_precision: bool
    novelty: Novelty
    n_draws: int
    device: str
    random_state: int | np.random.RandomState | None
    new_columns: Policy
    new_values: Policy
    missing_columns: Policy
    callback: Callable[[Step], None] | None
    tensorboard: str | Path | None
    progress: bool

    def _store(self, values: Mapping[str, Any]) -> None:
        """Keep parameters as they are given, as scikit-learn wants it."""
        for name in self._get_param_names():
            setattr(self, name, values[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def _fit(self, table: Table, target: Target, weight: NDArray[np.float64] | None) -> Self:
        table, target, weight = _counted(table, target, weight)
        policies = Policies(self.new_columns, self.new_values, self.missing_columns)
        overrides = _as_schema(self.schema)
        schema = Schema.from_frame(
            table.select(name for name in table.columns if name not in _names(self.exclude)),
            overrides=overrides,
            numeric=self.numeric,
        )
        seed = self._seed()
        parts = split(target, self.validation_share, seed)
        encoder = Encoder(schema).fit(select_rows(table, parts.training))
        rows = Rows(encoder.encode(table), target, weight)
        base, evidence, decision = self._learn(rows, parts, encoder.field_of, seed)
        encoder.grow(table, schema)  # WHY: what only validation rows have is new: extrapolated
        self.bank_ = FeatureBank(
            encoder,
            base,
            target.classes,
            embeddings=self.strategy == "fate",
            evidence=evidence,
            policies=policies,
            exclude=(*_names(self.exclude), *self._target),
            overrides=overrides,
        )
        self.bank_.observe(table)
        self._remember(rows, parts, decision)
        return self

    def _seed(self) -> int:
        return seed_of(self.random_state)

    def _learn(
        self,
        rows: Rows,
        parts: Parts,
        field_of: NDArray[np.integer],
        seed: int,
        start: Network | None = None,
    ) -> tuple[Network, LiveEvidence | None, Decision | None]:
        """Train, and choose how new features will be used."""
        recipe = self._recipe(rows.target)
        with self._on_step() as on_step:
            job = Job(
                rows.select(parts.training),
                rows.select(parts.validation) if len(parts.validation) else None,
                field_of,
                seed,
                _device(self.device),
                on_step,
                start,
            )
            learned = recipe.learn(job)
            pooling, decision = recipe.choose(job, learned.best_epochs)
        self.history_ = learned.history
        if self.strategy == "none":
            return learned.network, None, decision
        kind = EVIDENCE_KIND[rows.target.task]
        n_outputs = max(rows.target.n_outputs, 2) if kind == "classes" else rows.target.n_outputs
        return learned.network, LiveEvidence(n_outputs, kind, pooling), decision

    def _recipe(self, target: Target) -> Recipe:
        names = {field.name for field in fields(Recipe)} - {"loss", "hidden"}
        same = {name: _plain_value(getattr(self, name)) for name in names}
        return Recipe(loss=self._loss(target), hidden=_sizes(self.hidden), **same)

    def _loss(self, target: Target) -> Any:
        return "multilabel" if target.task == "multilabel" else "log_loss"

    @contextmanager
    def _on_step(self) -> Iterator[Callable[[Step], None]]:
        """What is to be done after each epoch: a bar, TensorBoard, the caller's own."""
        writer = _tensorboard(self.tensorboard) if self.tensorboard is not None else None
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not self.progress) as bar:
            task = bar.add_task("training", total=None)

            def on_step(epoch: Step) -> None:
                loss = f"epoch {epoch.number}: loss {epoch.train_loss:.4f}"
                bar.update(task, advance=1, description=loss)
                if writer is not None:
                    writer.add_scalar("loss/train", epoch.train_loss, epoch.number)
                    writer.add_scalar("loss/validation", epoch.validation_loss, epoch.number)
                if self.callback is not None:
                    self.callback(epoch)

            try:
                yield on_step
            finally:
                if writer is not None:
                    writer.close()

    def _weights(self, sample_weight: ArrayLike | None, table: Table) -> Any:
        if sample_weight is None:
            return None
        # WHY: scikit-learn's own check, whose messages users and its tests know.
        return _check_sample_weight(
            sample_weight,
            np.empty((table.n_rows, 1)),
            dtype=np.float64,
            ensure_non_negative=True,
            allow_all_zero_weights=False,
        )

    def _remember(self, rows: Rows, parts: Parts, decision: Decision | None) -> None:
        """Keep validation rows for `refit`, and what a bundle tells of the fit."""
        self._validation = rows.select(parts.validation)
        digest = hashlib.sha256()
        for array in (rows.X.row_ptr, rows.X.ids, rows.target.y):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.bank_.meta.update(
            kind=type(self).__name__,
            params=self._plain_params(),
            columns=getattr(self, "feature_names_in_", np.array([])).tolist(),
            n_features_in=self.n_features_in_,
            classes_dtype=str(getattr(self, "classes_", np.array([])).dtype),
            numeric=self.numeric,
            n_rows=rows.X.n_rows,
            n_validation=len(parts.validation),
            data_hash=digest.hexdigest(),
            training={
                "epochs": len(self.history_.steps),
                "best_epoch": self.history_.best,
                "seconds": round(self.history_.seconds, 3),
            },
            metrics=self._measure(self._validation),
            decision=None if decision is None else decision.to_json(),
        )

    def _measure(self, rows: Rows) -> dict[str, float]:
        """Loss and score of encoded rows, by the state; empty for no rows."""
        if not rows.X.n_rows:
            return {}
        assert isinstance(self.bank_.base, Network)
        field_of = self.bank_.encoder.field_of
        outputs = self.bank_.base.outputs(None, rows.X, field_of, drop_new=True)
        scores = task_scores(outputs, as_predicted(rows.target), rows.target.task)
        return {name: score for name, score in scores.items() if np.isfinite(score)}

    # ---- absorbing -----------------------------------------------------------------------------

    def _refit(self, table: Table, target: Target, weight: NDArray[np.float64] | None) -> Self:
        table, target, weight = _counted(table, target, weight)
        old, before = self.bank_, self._measure(self._validation)
        assert isinstance(old.base, Network)
        seed = self._seed()
        encoder = old.grown(old.table(table))
        rows = Rows(encoder.encode(table), target, weight)
        parts = split(target, self.validation_share, seed)
        start = _absorbed(old.base, encoder)
        base, evidence, decision = self._learn(rows, parts, encoder.field_of, seed, start)
        self.bank_ = old.replaced(encoder, base, evidence)
        self.bank_.observe(table)
        old_validation, n_old = self._validation, old.n_observed
        self._remember(rows, parts, decision)
        after = self._measure(old_validation.widened(encoder.n_features)) if before else {}
        self.refit_report_ = {
            "rows": table.n_rows,
            "absorbed_features": encoder.n_features - n_old,
            "old_validation_rows": old_validation.X.n_rows,
            "before": before,
            "after": after,
            "forgotten": {name: after[name] - before[name] for name in before if name in after},
        }
        self.bank_.meta["refit"] = self.refit_report_
        return self

    # ---- bundles -------------------------------------------------------------------------------

    def _plain_params(self) -> dict[str, Any]:
        """Parameters for JSON; what is no plain value (a callback) is left out."""
        params: dict[str, Any] = self.get_params(deep=False)
        for name in ("callback", "tensorboard", "progress", "device"):
            params.pop(name)
        params["schema"] = _as_schema(self.schema).to_json()
        if not isinstance(self.random_state, int | np.integer):
            params["random_state"] = None
        params = {name: _plain_value(value) for name, value in params.items()}
        params["exclude"] = list(_names(self.exclude))
        sizes = _sizes(self.hidden)
        params["hidden"] = None if sizes is None else list(sizes)
        for name in ("new_columns", "new_values", "missing_columns"):
            word = params[name]
            params[name] = word if isinstance(word, str) else dict(word)
        by_class = params.get("class_weight")
        if isinstance(by_class, Mapping):  # as pairs: classes need not be text, as JSON's names are
            known = [c for c in self.bank_.classes if c in by_class]
            params["class_weight"] = [[_plain_value(c), _plain_value(by_class[c])] for c in known]
        return params

    def _restore(self, bank: FeatureBank) -> Self:
        """Become the fitted estimator whose bank was read from a bundle."""
        meta = bank.meta
        self.bank_ = bank
        self.n_features_in_ = int(meta["n_features_in"])
        if meta["columns"]:
            self.feature_names_in_ = np.array(meta["columns"], dtype=object)
        empty = MultiHot.from_rows([], bank.n_observed)
        self._validation = Rows(empty, Target(bank.task, np.empty(0)), None)
        return self


def _as_schema(schema: Schema | Sequence[Field] | None) -> Schema:
    return schema if isinstance(schema, Schema) else Schema(schema or ())


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(check_device(name))


def _names(exclude: Sequence[str]) -> tuple[str, ...]:
    if isinstance(exclude, str):
        raise InputError(f"exclude={exclude!r} is one text: give a list of columns, [{exclude!r}].")
    return tuple(exclude)


def _sizes(hidden: Sequence[int] | None) -> tuple[int, ...] | None:
    if hidden is None:
        return None
    try:
        return tuple(_plain_value(size) for size in hidden)
    except TypeError:
        raise InputError(f"hidden={hidden!r}: give a list of widths, such as (64,).") from None


def _plain_value(value: Any) -> Any:
    """Numpy's numbers, as a grid of parameters has them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _counted(
    table: Table, target: Target, weight: NDArray[np.float64] | None
) -> tuple[Table, Target, NDArray[np.float64] | None]:
    """The rows that count: a weight of 0 means that a row is not there."""
    if weight is None or np.all(weight > 0):
        return table, target, weight
    some = np.flatnonzero(weight > 0)
    return select_rows(table, some), target.select(some), weight[some]


def _absorbed(old: Network, encoder: Encoder) -> Network:
    """The same networks over all features known now, new ones at their extrapolation."""
    every, members = np.arange(encoder.n_features, dtype=np.int32), []
    for member in old.members:
        model = model_of(member)
        backbone = with_fields(model.backbone, int(encoder.field_of.max(initial=0)) + 1)
        wider = FATE(len(every), backbone, model.extrapolator, recompose=model.recompose)
        W = member.embeddings(every, encoder.field_of)
        if model.backbone.n_fields is not None:
            # WHY: under the zero weights of a new field zero embeddings would stay so for ever.
            silent = torch.from_numpy(encoder.field_of >= model.backbone.n_fields) & ~W.any(1)
            draw = torch.randn(W.shape, generator=torch.Generator().manual_seed(0))
            W = torch.where(silent[:, None], 0.1 * draw, W)
        with torch.no_grad():
            wider.W.copy_(W)
        members.append(RunningFATE(wider))
    return Network(members, old.task, old.target_scale)


def _tensorboard(folder: str | Path) -> Any:
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(f"tensorboard={str(folder)!r} is a file: name a folder.")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard is not installed: pip install 'openfate[track]', or leave it out."
        ) from None
    return SummaryWriter(str(folder))
