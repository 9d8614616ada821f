"""FATEClassifier and FATERegressor: FATE in scikit-learn manners, on data frames.

fit -> training.loop.train -> FATE.forward -> GraphSAGE.forward
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import compute_sample_weight

from openfate.bank import Graph, Use
from openfate.errors import InputError
from openfate.estimators.fitting import FATEEstimator
from openfate.estimators.inputs import (
    Target,
    class_target,
    label_target,
    number_target,
    open_table,
    target_name,
    unchanged_on_error,
)
from openfate.estimators.recipes import Strategy
from openfate.estimators.wrapping import OpenWorldClassifier, OpenWorldRegressor
from openfate.models import Linear, Pool
from openfate.openworld import Novelty
from openfate.table import Field, Policy, Schema
from openfate.training import Step

__all__ = [
    "FATEClassifier",
    "FATERegressor",
    "OpenWorldClassifier",
    "OpenWorldRegressor",
]


class FATEClassifier(ClassifierMixin, FATEEstimator):  # type: ignore[misc]
    """A classifier that uses columns and values it first meets after `fit`.

    A table is a graph between rows and features (a feature is a value of a column).  A small
    network classifies the sum of a row's feature embeddings.  What is known of a feature that was
    not there in training comes from the rows in which it appears: from what they were predicted as
    (``strategy="auto"``), or as an embedding that a 2-layer GraphSAGE computes
    (``strategy="fate"``).

    Parameters
    ----------
    strategy
        "auto": networks trained with feature dropout; new features move a prediction by what the
        rows that have them were predicted as (evidence), as strongly as a probe on validation rows
        found to pay, or not at all.  "fate": the paper's model.  "evidence": without a probe.
        "none": new features are ignored.
    schema
        Kinds of columns where the guess would be wrong; see `openfate.Schema`.
    numeric
        Numbers as "buckets" (the paper's way) or as one feature with a "value".
    exclude
        Columns that are not used, now or later.
    backbone
        The network over the embeddings: "mlp", feed-forward; "deepfm", with products of all pairs
        of features and linear weights; "widedeep", with linear weights; "dcn", with cross layers.
    pool
        Of "mlp" and "dcn".  "sum": a row is the sum of its embeddings; "field_linear": its columns
        stand side by side, each with weights of its own.  There are none for a column that appears
        later: its embeddings add nothing to predictions before a `refit` (evidence does).
    linear
        Of "deepfm" and "widedeep" with the strategy "fate": the linear weight of a new feature,
        "zero", or "extrapolated" with its embedding.
    width, hidden, epochs, lr, batch_size, patience
        Width of an embedding, widths of the hidden layers (() for none), the most passes over the
        rows, learning rate, rows in a mini-batch, epochs without a better validation loss that are
        waited for.  None: what suits the strategy.
    validation_share
        Rows spared to stop early and to probe; none are below 40 rows.
    dropout, n_members, weight_decay
        Of the plain networks: probability that a cell is dropped in training, networks whose
        predictions are averaged, AdamW's decay.
    n_folds, drop_edge, lr_extrapolator
        Of the paper's: parts of the features that are hidden in turn, probability that an edge is
        removed, the extrapolator's learning rate.
    novelty, n_draws
        What the probe expects to appear, new "values", whole "columns" or "both"; how many times
        it hides some and fits again.
    class_weight
        "balanced", or a weight for each class.
    mixed_precision
        Train the paper's model in bfloat16 where it is safe.
    device
        "auto" takes a GPU where there is one; else "cpu", "cuda", ...  Prediction is on the CPU.
    random_state
        A seed; the same seed gives the same model.
    new_columns, new_values
        "extrapolate", "ignore", "warn" (and extrapolate) or "error", for all or by column.
    missing_columns
        "ignore", "warn" or "error", for all or by column.
    callback
        Called with a `Step` after each epoch.
    tensorboard
        A folder for TensorBoard's event files.
    progress
        Show a bar on stderr.

    Attributes
    ----------
    classes_
        The classes; for a 0-1 matrix of labels their numbers.
    feature_names_in_, n_features_in_
        Columns of the training frame.
    bank_
        The fitted `FeatureBank`.
    history_
        Losses of the epochs.
    refit_report_
        After `refit`: what was absorbed, and what was forgotten.

    Notes
    -----
    Prediction never changes the model.  It may be transductive: with ``graph="batch"``, and with
    the default "auto" for features that no earlier row had, the embedding of a new feature is
    computed from the rows of the call, so a row's prediction depends on the company it is in (never
    on the order).  With ``graph="state"`` it depends on training and observed rows alone.

    Examples
    --------
    >>> import polars as pl
    >>> people = pl.DataFrame({"age": [23, 61, 35, 52] * 30, "job": ["cook", "nurse"] * 60})
    >>> clf = FATEClassifier(epochs=20).fit(people, people["job"] == "nurse")
    >>> later = people.with_columns(city=pl.Series(["Rome", "Oslo"] * 60))  # a new column
    >>> clf.predict_proba(later).shape
    (120, 2)
    >>> clf.observe(later).schema_report(later).new
    ()
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        schema: Schema | Sequence[Field] | None = None,
        *,
        strategy: Strategy = "auto",
        numeric: Literal["buckets", "value"] = "buckets",
        exclude: Sequence[str] = (),
        backbone: Literal["mlp", "deepfm", "widedeep", "dcn"] = "mlp",
        pool: Pool = "sum",
        linear: Linear = "zero",
        width: int | None = None,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        patience: int | None = None,
        validation_share: float = 0.15,
        dropout: float = 0.2,
        n_members: int = 2,
        weight_decay: float = 1e-2,
        n_folds: int = 5,
        drop_edge: float = 0.5,
        lr_extrapolator: float = 1e-3,
        novelty: Novelty = "both",
        n_draws: int = 3,
        class_weight: Mapping[Any, float] | str | None = None,
        mixed_precision: bool = False,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
        callback: Callable[[Step], None] | None = None,
        tensorboard: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self._store(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from labelled rows.

        Parameters
        ----------
        X
            A pandas, polars or pyarrow frame, or an array (N, d).
        y
            (N,) classes of any type, or (N, K) labels of 0 and 1.
        sample_weight
            (N,) how much each row counts; a row of weight 0 is not there.
        """
        with unchanged_on_error(self):
            table = open_table(self, X, reset=True)
            target = class_target(y, table.n_rows)
            weight = self._class_weights(y, target, self._weights(sample_weight, table))
            self.classes_ = np.array(target.classes)
            self._target = target_name(y, table)
            return self._fit(table, target, weight)

    def _class_weights(self, y: Any, target: Target, weight: Any) -> Any:
        if self.class_weight is None:
            return weight
        if target.task == "multilabel":
            raise InputError("class_weight is for classes, not for several labels: leave it out.")
        by_class = compute_sample_weight(self.class_weight, y)
        if not np.all(np.isfinite(by_class) & (by_class >= 0)):
            raise InputError(
                f"class_weight={self.class_weight!r}: weights must be finite and not negative."
            )
        if not by_class.any():
            raise InputError(f"class_weight={self.class_weight!r}: every row weighs nothing.")
        return by_class if weight is None else weight * by_class

    def predict_proba(
        self, X: Any, graph: Graph = "auto", new_features: Use = "use"
    ) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes_`; the model is not changed.

        Parameters
        ----------
        X
            Rows; columns may be new, missing or in any order (arrays: as in `fit`).
        graph
            What new features are computed from: "state" (training and observed rows), "batch"
            (those and the rows of `X`), "auto" ("batch" for what the state has never seen).
        new_features
            "drop" ignores new features, to see what they are worth.

        Returns
        -------
        (N, C), or (N, K) for K labels
        """
        return self._outputs(X, graph, new_features)

    def predict(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> NDArray[Any]:
        """The likeliest class of each row, or its labels: (N,) or (N, K)."""
        p = self._outputs(X, graph, new_features)
        if self.bank_.task == "multilabel":
            return (p > 0.5).astype(np.int64)
        return np.asarray(self.classes_[p.argmax(axis=1)])

    def refit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, warm: bool = True
    ) -> Self:
        """Absorb new features: train on labelled rows that have them.

        Old ids and embeddings are the start, new features start at their extrapolated embeddings,
        and become observed ones.  The state is rebuilt from `X`: give old rows too, where they
        should go on to count.  ``refit_report_`` tells what was forgotten on the validation rows of
        the previous fit (which a bundle does not hold).

        Parameters
        ----------
        warm
            False fits from nothing, as `fit` does.
        """
        if not warm:
            return self.fit(X, y, sample_weight)
        with unchanged_on_error(self):
            table = self._open(X)
            target = label_target(y, table.n_rows, self.bank_)
            weight = self._class_weights(y, target, self._weights(sample_weight, table))
            return self._refit(table, target, weight)


class FATERegressor(RegressorMixin, FATEEstimator):  # type: ignore[misc]
    """A regressor that uses columns and values it first meets after `fit`.

    As `FATEClassifier`, whose parameters it shares.

    Parameters
    ----------
    schema, strategy, numeric, exclude, backbone, pool, linear, width, hidden, epochs, lr, \
batch_size, patience, validation_share, dropout, n_members, weight_decay, n_folds, drop_edge, \
lr_extrapolator, novelty, n_draws, mixed_precision, device, random_state, new_columns, \
new_values, missing_columns, callback, tensorboard, progress
        See `FATEClassifier`.
    loss
        "squared_error" (predicts means) or "absolute_error" (medians).

    Examples
    --------
    >>> import polars as pl
    >>> flats = pl.DataFrame({"rooms": ["1", "2", "3"] * 40})
    >>> rent = flats["rooms"].cast(float) * 300
    >>> reg = FATERegressor(epochs=50).fit(flats, rent)
    >>> reg.predict(flats.with_columns(lift=pl.lit("yes"))).shape  # a new column
    (120,)
    """

    def __init__(
        self,
        schema: Schema | Sequence[Field] | None = None,
        *,
        strategy: Strategy = "auto",
        numeric: Literal["buckets", "value"] = "buckets",
        exclude: Sequence[str] = (),
        backbone: Literal["mlp", "deepfm", "widedeep", "dcn"] = "mlp",
        pool: Pool = "sum",
        linear: Linear = "zero",
        width: int | None = None,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        patience: int | None = None,
        validation_share: float = 0.15,
        dropout: float = 0.2,
        n_members: int = 2,
        weight_decay: float = 1e-2,
        n_folds: int = 5,
        drop_edge: float = 0.5,
        lr_extrapolator: float = 1e-3,
        novelty: Novelty = "both",
        n_draws: int = 3,
        loss: Literal["squared_error", "absolute_error"] = "squared_error",
        mixed_precision: bool = False,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
        callback: Callable[[Step], None] | None = None,
        tensorboard: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self._store(locals())

    def _loss(self, target: Target) -> Any:
        return self.loss

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from rows and their numbers `y` (N,); see `FATEClassifier.fit`."""
        with unchanged_on_error(self):
            table = open_table(self, X, reset=True)
            target = number_target(y, table.n_rows)
            self._target = target_name(y, table)
            return self._fit(table, target, self._weights(sample_weight, table))

    def predict(
        self, X: Any, graph: Graph = "auto", new_features: Use = "use"
    ) -> NDArray[np.float64]:
        """Numbers (N,); see `FATEClassifier.predict_proba` for `graph` and `new_features`."""
        return self._outputs(X, graph, new_features)[:, 0]

    def refit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, warm: bool = True
    ) -> Self:
        """Absorb new features: train on rows that have them; see `FATEClassifier.refit`."""
        if not warm:
            return self.fit(X, y, sample_weight)
        with unchanged_on_error(self):
            table = self._open(X)
            target = label_target(y, table.n_rows, self.bank_)
            return self._refit(table, target, self._weights(sample_weight, table))
