"""Fitting: what FATEClassifier and FATERegressor share.

    columns -> kinds -> ids -> train -> running sums -> FeatureBank

What a fitted estimator knows lives in its bank (``bank_``), which predicts, observes and is written
to bundles; what is here is the road to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import narwhals as nw
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import Progress
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from openfate.bank import FeatureBank, Graph, Use
from openfate.bases import Network
from openfate.data.changes import SchemaReport
from openfate.data.encode import Encoder
from openfate.data.frame import Table
from openfate.data.multihot import MultiHot
from openfate.data.policies import Policies
from openfate.data.schema import Field, Schema
from openfate.errors import InputError
from openfate.inputs import (
    Parts,
    Rows,
    Target,
    open_table,
    select_rows,
    split,
)
from openfate.insight import contributions
from openfate.models.backbone import MLP
from openfate.models.extrapolator import GraphSAGE
from openfate.models.fate import FATE
from openfate.models.running import RunningFATE
from openfate.training.loop import Epoch, History, train
from openfate.training.settings import Settings

__all__ = ["FATEEstimator", "Policy"]

Policy = str | Mapping[str, str]
_BATCH = 8192  # rows of a mini-batch, where a table is larger than two of them


class FATEEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share: parameters, fitting, the bank."""

    bank_: FeatureBank
    history_: History
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    # Parameters; each subclass documents them and has them in its signature.
    schema: Schema | Sequence[Field] | None
    numeric: Literal["buckets", "value"]
    exclude: Sequence[str]
    width: int
    hidden: Sequence[int]
    n_folds: int
    drop_edge: float
    epochs: int
    lr: float
    lr_extrapolator: float
    batch_size: int | Literal["auto"] | None
    validation_share: float
    patience: int | None
    mixed_precision: bool
    device: str
    random_state: int | np.random.RandomState | None
    new_columns: Policy
    new_values: Policy
    missing_columns: Policy
    callback: Callable[[Epoch], None] | None
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
        if weight is not None and not np.all(weight > 0):  # a weight of 0 means: not there
            rows = np.flatnonzero(weight > 0)
            table, target, weight = select_rows(table, rows), target.select(rows), weight[rows]
        policies = Policies(self.new_columns, self.new_values, self.missing_columns)
        overrides = _as_schema(self.schema)
        schema = Schema.from_frame(
            table.select(name for name in table.columns if name not in set(self.exclude)),
            overrides=overrides,
            numeric=self.numeric,
        )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        parts = split(target, self.validation_share, seed)
        encoder = Encoder(schema).fit(select_rows(table, parts.training))
        rows_ = Rows(encoder.encode(table), target, weight)
        model = self._model(rows_.X.n_features, target.n_outputs, seed)
        self._train(model, rows_, parts, encoder, seed)
        encoder.grow(table, schema)  # WHY: what only validation rows have is new: extrapolated
        self.bank_ = FeatureBank(
            encoder,
            Network([RunningFATE(model)], target.task, target.scale),
            target.classes,
            policies=policies,
            exclude=self.exclude,
            overrides=overrides,
        )
        self.bank_.observe(table)
        self._remember(rows_, parts)
        return self

    def _model(self, n_features: int, n_outputs: int, seed: int) -> FATE:
        if not n_features:
            raise InputError("the table has no column with a value to learn from.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = MLP(self.width, n_outputs, tuple(self.hidden))
            return FATE(n_features, backbone, GraphSAGE(self.width, 2))

    def _train(
        self,
        model: FATE,
        rows: Rows,
        parts: Parts,
        encoder: Encoder,
        seed: int,
        untrained: Literal["field_mean", "leave"] = "field_mean",
    ) -> None:
        training, validation = rows.select(parts.training), rows.select(parts.validation)
        settings = self._settings(len(parts.training), rows.target, untrained)
        work = training.X.nnz * self.width
        with self._on_step(settings.epochs) as on_step, _few_threads(work):
            self.history_ = train(
                model,
                training.X,
                training.target.y,
                settings,
                sample_weight=training.weight,
                validation=validation.triple if len(parts.validation) else None,
                field_of=encoder.field_of,
                seed=seed,
                device=_device(self.device),
                on_step=on_step,
            )
        model.cpu()

    def _settings(
        self, n_rows: int, target: Target, untrained: Literal["field_mean", "leave"]
    ) -> Settings:
        batch_size = self.batch_size
        if batch_size == "auto":
            batch_size = None if n_rows <= 2 * _BATCH else _BATCH
        return Settings(
            n_folds=self.n_folds,
            drop_edge=self.drop_edge,
            epochs=self.epochs,
            lr=self.lr,
            lr_extrapolator=self.lr_extrapolator,
            batch_size=batch_size,
            patience=self.patience,
            mixed_precision=self.mixed_precision,
            loss=self._loss(target),
            untrained=untrained,
        )

    def _loss(self, target: Target) -> Any:
        return "multilabel" if target.task == "multilabel" else "log_loss"

    @contextmanager
    def _on_step(self, epochs: int) -> Iterator[Callable[[Epoch], None]]:
        """What is to be done after each epoch: a bar, TensorBoard, the caller's own."""
        writer = _tensorboard(self.tensorboard) if self.tensorboard is not None else None
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not self.progress) as bar:
            task = bar.add_task("training", total=epochs)

            def on_step(epoch: Epoch) -> None:
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

    def _remember(self, rows: Rows, parts: Parts) -> None:
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
                "epochs": len(self.history_.epochs),
                "best_epoch": self.history_.best_epoch,
                "seconds": round(self.history_.seconds, 3),
            },
            metrics=self._measure(self._validation),
        )

    def _measure(self, rows: Rows) -> dict[str, float]:
        """Loss and score of encoded rows, by the state; empty for no rows."""
        if not rows.X.n_rows:
            return {}
        assert isinstance(self.bank_.base, Network)
        outputs = self.bank_.base.outputs(None, rows.X, None, drop_new=True)
        y, task = rows.target.y, rows.target.task
        if task == "regression":
            mean, deviation = rows.target.scale
            error = outputs[:, 0] - (y * deviation + mean)
            return {
                "mean_absolute_error": float(np.abs(error).mean()),
                "root_mean_squared_error": float(np.sqrt((error**2).mean())),
            }
        clipped = np.clip(outputs, 1e-15, 1 - 1e-15)
        if task == "multilabel":
            loss = -np.where(y == 1, np.log(clipped), np.log(1 - clipped)).mean()
            return {"log_loss": float(loss), "accuracy": float(((outputs > 0.5) == y).mean())}
        loss = -np.log(clipped[np.arange(len(y)), y]).mean()
        return {"log_loss": float(loss), "accuracy": float((outputs.argmax(1) == y).mean())}

    # ---- predicting and observing --------------------------------------------------------------

    def _outputs(self, X: Any, graph: Graph, new_features: Use) -> NDArray[np.float64]:
        table = self._open(X)
        return self.bank_.outputs(table, graph, new_features)

    def _open(self, X: Any) -> Table:
        check_is_fitted(self)
        return open_table(self, X, reset=False)

    def observe(self, X: Any, y: ArrayLike | None = None) -> Self:
        """Let rows teach the model what is new in them; nothing is trained.

        New columns and values get an id, and from then on an embedding computed from all the rows
        that had them.  This changes the model (prediction never does); a frame that raises an error
        leaves it as it was.

        Parameters
        ----------
        X
            Rows, with or without new columns.
        """
        table = self._open(X)
        self.bank_.observe(table)
        return self

    def schema_report(self, X: Any) -> SchemaReport:
        """Which columns and values of `X` are new, missing or known, and what is done with each.

        Printable, a small table in a notebook, and ``.to_dict()`` for programs.
        """
        table = self._open(X)
        return self.bank_.schema_report(table)

    def explain(self, X: Any, graph: Graph = "auto") -> Any:
        """Which features pushed each row's prediction; new ones are marked.

        The effect of a feature is that of leaving it out: the log-odds of the predicted class
        (binary: of the second class; regression: the number) with it minus without it.

        Returns
        -------
            A frame of the kind of `X` (polars for arrays) with the columns row, output, field,
            value, new and effect, one line for each feature of each row.
        """
        table = self._open(X)
        columns = contributions(self.bank_, table, graph)
        native = nw.from_native(X, pass_through=True)
        backend = native.implementation if isinstance(native, nw.DataFrame) else "polars"
        return nw.from_dict(columns, backend=backend).to_native()

    # ---- absorbing -----------------------------------------------------------------------------

    def _refit(self, table: Table, target: Target, weight: NDArray[np.float64] | None) -> Self:
        old, before = self.bank_, self._measure(self._validation)
        assert isinstance(old.base, Network)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        encoder = old.grown(old.table(table))
        rows = Rows(encoder.encode(table), target, weight)
        parts = split(target, self.validation_share, seed)
        model = self._warm(old.base.members[0], encoder, target.n_outputs, seed)
        self._train(model, rows, parts, encoder, seed, untrained="leave")
        base = Network([RunningFATE(model)], target.task, target.scale)
        self.bank_ = old.replaced(encoder, base, None)
        self.bank_.observe(table)
        old_validation, n_old = self._validation, old.n_observed
        self._remember(rows, parts)
        after = self._measure(old_validation.widened(encoder.n_features)) if before else {}
        self.refit_report_ = {
            "rows": table.n_rows,
            "absorbed_features": encoder.n_features - n_old,
            "old_validation_rows": old_validation.X.n_rows,
            "before": before,
            "after": after,
            "forgotten": {name: after[name] - before[name] for name in before},
        }
        self.bank_.meta["refit"] = self.refit_report_
        return self

    def _warm(self, old: RunningFATE, encoder: Encoder, n_outputs: int, seed: int) -> FATE:
        """A model that starts where an old one stands, new features at their extrapolation."""
        model = self._model(encoder.n_features, n_outputs, seed)
        every = np.arange(encoder.n_features, dtype=np.int32)
        with torch.no_grad():
            model.W.copy_(old.embeddings(every, encoder.field_of))
        model.backbone.load_state_dict(old.backbone.state_dict())
        if model.extrapolator is not None and old.extrapolator is not None:
            model.extrapolator.load_state_dict(old.extrapolator.state_dict())
        return model

    # ---- bundles -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a bundle: a folder of plain files that `load` reads without the training data.

        Parameters
        ----------
        path
            The folder; one that is there needs `overwrite`.
        """
        check_is_fitted(self)
        self.bank_.save(path, overwrite=overwrite)

    def _plain_params(self) -> dict[str, Any]:
        """Parameters for JSON; what is no plain value (a callback) is left out."""
        params: dict[str, Any] = self.get_params(deep=False)
        for name in ("callback", "tensorboard", "progress", "device"):
            params.pop(name)
        params["schema"] = _as_schema(self.schema).to_json()
        if not isinstance(self.random_state, int):
            params["random_state"] = None
        for name in ("hidden", "exclude"):
            params[name] = list(params[name])
        for name in ("new_columns", "new_values", "missing_columns"):
            word = params[name]
            params[name] = word if isinstance(word, str) else dict(word)
        if params.get("class_weight") is not None and not isinstance(params["class_weight"], str):
            params["class_weight"] = None  # its keys are classes, which need not be text
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
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


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


def _tensorboard(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard is not installed: pip install 'openfate[track]', or leave it out."
        ) from None
    return SummaryWriter(str(folder))
