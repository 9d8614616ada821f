"""OpenWorldClassifier and OpenWorldRegressor: the open world for a model you already have.

The wrapped model predicts from the columns that it was trained with; what is new in a row moves
that prediction by evidence (`openfate.openworld`), as strongly as a probe found to pay.  To probe,
whole columns are made constant, so that they tell nothing, and a clone is fitted without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils.validation import has_fit_parameter

from openfate.bank import FeatureBank, Floats, Graph, Task, Use, Wrapped, native_columns
from openfate.errors import InputError
from openfate.estimators.inputs import (
    Target,
    as_predicted,
    class_target,
    number_target,
    open_table,
    seed_of,
    split,
    target_name,
    unchanged_on_error,
)
from openfate.estimators.using import BankEstimator
from openfate.openworld import (
    NONE,
    Decision,
    LiveEvidence,
    Pooling,
    View,
    choose_pooling,
    evidence_candidates,
    hidden_shares,
    judge,
    label_candidates,
)
from openfate.table import Encoder, Field, MultiHot, Policies, Policy, Schema, Table

__all__ = ["OpenWorldClassifier", "OpenWorldRegressor"]


class _OpenWorld(MetaEstimatorMixin, BankEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    bank_: FeatureBank
    estimator_: Any

    def __init__(
        self,
        estimator: Any,
        *,
        pooling: Pooling | None = None,
        prefit: bool = False,
        schema: Schema | Sequence[Field] | None = None,
        exclude: Sequence[str] = (),
        n_draws: int = 3,
        validation_share: float = 0.2,
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
    ) -> None:
        self.estimator = estimator
        self.pooling = pooling
        self.prefit = prefit
        self.schema = schema
        self.exclude = exclude
        self.n_draws = n_draws
        self.validation_share = validation_share
        self.random_state = random_state
        self.new_columns = new_columns
        self.new_values = new_values
        self.missing_columns = missing_columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):  # a booster read back has none
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        tags.input_tags.string = True
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def _fit(self, table: Table, target: Target, y: Any, weight: ArrayLike | None) -> Self:
        if isinstance(self.exclude, str):
            raise InputError(f"exclude={self.exclude!r} is one text: give a list of columns.")
        policies = Policies(self.new_columns, self.new_values, self.missing_columns)
        overrides = self.schema if isinstance(self.schema, Schema) else Schema(self.schema or ())
        known = table.select(self._trained_on(table))
        seed = seed_of(self.random_state)
        encoder = Encoder(Schema.from_frame(known, overrides=overrides)).fit(known)
        rows = native_columns(known)
        _check_text(self.estimator, known)
        check_consistent_length(y, weight)
        decision, poolings = None, (self.pooling, self.pooling)
        if self.pooling is None:
            takes_weights = not self.prefit or has_fit_parameter(self.estimator, "sample_weight")
            fit = _fit_of(self.estimator, rows, y, target, weight if takes_weights else None)
            decision = self._probe(fit, target, encoder.encode(known), encoder.field_of, seed)
            poolings = choose_pooling(decision)
        fitted = self.estimator
        if not self.prefit:
            fitted = clone(self.estimator).fit(rows, y, **_weights(weight))
        self.estimator_ = fitted
        columns = list(known.columns) if hasattr(self, "feature_names_in_") else []
        numbers = [name for name in columns if known.columns[name].dtype.is_numeric()]
        base = Wrapped(fitted, columns, encoder.n_features, target.task, numbers)
        evidence = LiveEvidence(base.n_outputs, target.task, *poolings)
        classes = () if target.task == "regression" else tuple(fitted.classes_)
        self.bank_ = FeatureBank(
            encoder,
            base,
            classes,
            embeddings=False,
            evidence=evidence,
            policies=policies,
            exclude=(*self.exclude, *self._target),
            overrides=overrides,
        )
        self.bank_.observe(known)
        self.bank_.meta.update(
            kind=type(self).__name__,
            n_rows=table.n_rows,
            n_features_in=self.n_features_in_,
            columns=columns,
            classes_dtype=str(np.array(classes).dtype),
            decision=None if decision is None else decision.to_json(),
        )
        return self

    def _trained_on(self, table: Table) -> list[str]:
        """The columns of the wrapped model: its own where it is fitted and names them."""
        names = [name for name in table.columns if name not in set(self.exclude)]
        own = getattr(self.estimator, "feature_names_in_", None) if self.prefit else None
        if own is None or not hasattr(self, "feature_names_in_"):
            return names
        missing = [name for name in own if name not in names]
        if missing:
            raise InputError(f"the fitted model needs the column {missing[0]!r}: give it to fit.")
        return [str(name) for name in own]

    def _probe(
        self,
        fit: Callable[[list[int], NDArray[np.intp]], Floats],
        target: Target,
        X: MultiHot,
        field_of: NDArray[np.integer],
        seed: int,
    ) -> Decision:
        share = 0.5 if self.prefit else self.validation_share
        parts = split(target, share, seed)
        if not len(parts.validation) or len(np.unique(field_of)) < 2:
            return Decision(NONE, "there are too few rows or columns for a probe", {}, [])
        if not hasattr(self.estimator, "get_params"):
            return Decision(NONE, "a model read from a bundle cannot be fitted again", {}, [])
        spared = target.select(parts.validation)
        labels = as_predicted(spared)
        X_validation = X.select_rows(parts.validation)

        def views() -> Iterator[tuple[View, float]]:
            rng = np.random.default_rng([seed, 3])
            fields = np.unique(field_of)
            for hidden in hidden_shares(None, self.n_draws):
                n_hidden = min(max(1, round(hidden * len(fields))), len(fields) - 1)
                chosen = rng.choice(fields, n_hidden, replace=False)
                P0 = fit([int(at) for at in chosen], parts.training)[parts.validation]
                new = np.flatnonzero(np.isin(field_of, chosen))
                yield View(_always(P0), X, X_validation.select_features(new), target.task), hidden

        also = label_candidates(labels)
        ways = evidence_candidates(sweeps=(1, 2))
        return judge(views(), labels, ways, also=also, every_size=True)

    def _restore(self, bank: FeatureBank) -> Self:
        """Become the fitted estimator whose bank was read from a bundle."""
        assert isinstance(bank.model, Wrapped)
        self.bank_, self.estimator_ = bank, bank.model.estimator
        self.n_features_in_ = int(bank.meta["n_features_in"])
        if bank.meta["columns"]:
            self.feature_names_in_ = np.array(bank.meta["columns"], dtype=object)
        return self


class OpenWorldClassifier(ClassifierMixin, _OpenWorld):  # type: ignore[misc]
    """Any classifier with `predict_proba`, and new columns and values on top.

    Rows without anything new are predicted by the wrapped model alone, to the last bit.

    Parameters
    ----------
    estimator
        A scikit-learn classifier: LightGBM, CatBoost, XGBoost, a Pipeline, ...
    pooling
        How evidence is weighed (`openfate.openworld.pooling.Pooling`); by default a probe chooses.
    prefit
        Whether `estimator` is fitted already.  Give `fit` validation rows then, which are probed
        with clones of it; values that only its training rows had count as new.
    schema, exclude, random_state, new_columns, new_values, missing_columns
        See `FATEClassifier`.
    n_draws, validation_share
        How often the probe hides columns and fits a clone, and on what share of the rows it is
        judged; the wrapped model is then fitted on all rows.

    Attributes
    ----------
    estimator_
        The wrapped model, fitted.
    classes_, bank_
        See `FATEClassifier`.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> rows = pd.DataFrame({"age": range(20, 70)})
    >>> clf = OpenWorldClassifier(HistGradientBoostingClassifier()).fit(rows, rows["age"] > 45)
    >>> clf.predict_proba(rows.assign(city=["Rome", "Oslo"] * 25)).shape  # a new column
    (50, 2)
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the wrapped model (unless `prefit`) and probe what new columns are worth to it."""
        _check_has(self.estimator, "predict_proba")
        with unchanged_on_error(self):
            table = open_table(self, X, reset=True)
            target = class_target(y, table.n_rows)
            if target.task == "multilabel":
                raise InputError("OpenWorldClassifier takes one target; fit one for each label.")
            self._target = target_name(y, table)
            labels = np.array(target.classes)[target.y]
            if self.prefit:
                target = self._own_classes(labels)
            self.classes_ = np.array(target.classes)
            return self._fit(table, target, labels, sample_weight)

    def _own_classes(self, labels: NDArray[Any]) -> Target:
        """The target with the classes of the fitted model, whichever of them these rows have."""
        if not hasattr(self.estimator, "classes_"):
            raise InputError(
                f"prefit=True, but {type(self.estimator).__name__} is not fitted: fit it first."
            )
        classes = np.asarray(self.estimator.classes_)
        unknown = [name for name in np.unique(labels).tolist() if name not in classes.tolist()]
        if unknown:
            raise InputError(
                f"y holds {unknown[0]!r}, which the fitted model does not know; its classes are "
                f"{', '.join(map(repr, classes.tolist()[:10]))}."
            )
        codes = np.array([classes.tolist().index(name) for name in labels.tolist()])
        task: Task = "binary" if len(classes) == 2 else "multiclass"
        return Target(task, codes, tuple(classes))

    def predict_proba(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> Floats:
        """Probabilities (N, C); see `FATEClassifier.predict_proba`."""
        return self._outputs(X, graph, new_features)

    def predict(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> NDArray[Any]:
        """The likeliest class of each row."""
        p = self._outputs(X, graph, new_features)
        return np.asarray(self.classes_[p.argmax(axis=1)])


class OpenWorldRegressor(RegressorMixin, _OpenWorld):  # type: ignore[misc]
    """Any regressor, and new columns and values on top; see `OpenWorldClassifier`.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.linear_model import LinearRegression
    >>> rows = pd.DataFrame({"age": range(20, 70)})
    >>> reg = OpenWorldRegressor(LinearRegression()).fit(rows, rows["age"] * 2.0)
    >>> reg.predict(rows.assign(city=["Rome", "Oslo"] * 25)).shape
    (50,)
    """

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the wrapped model (unless `prefit`) and probe what new columns are worth to it."""
        with unchanged_on_error(self):
            table = open_table(self, X, reset=True)
            target = number_target(y, table.n_rows)
            self._target = target_name(y, table)
            return self._fit(table, target, as_predicted(target), sample_weight)

    def predict(self, X: Any, graph: Graph = "auto", new_features: Use = "use") -> Floats:
        """Numbers (N,)."""
        return self._outputs(X, graph, new_features)[:, 0]


def _check_has(estimator: Any, method: str) -> None:
    if isinstance(estimator, type):
        raise InputError(f"{estimator.__name__} is a class: give an instance, with parentheses.")
    if not hasattr(estimator, method):
        raise InputError(
            f"{type(estimator).__name__} has no {method}: wrap a model that predicts "
            "probabilities, or calibrate it first (CalibratedClassifierCV)."
        )


def _check_text(estimator: Any, table: Table) -> None:
    # WHY: LightGBM ends the whole process at a text column of a polars frame.
    text = [name for name, c in table.columns.items() if c.dtype == pl.String]
    if type(estimator).__module__.startswith("lightgbm") and text and _is_polars(table):
        raise InputError(
            f"column {text[0]!r} holds text, which LightGBM does not take: give pandas categories, "
            "or wrap a Pipeline that encodes it."
        )


def _is_polars(table: Table) -> bool:
    return isinstance(table.native, pl.DataFrame)


def _weights(sample_weight: ArrayLike | None) -> dict[str, Any]:
    """An argument of `fit`, which not every model has."""
    return {} if sample_weight is None else {"sample_weight": sample_weight}


def _fit_of(
    estimator: Any, rows: Any, y: Any, target: Target, weight: ArrayLike | None
) -> Callable[[list[int], NDArray[np.intp]], Floats]:
    """A function that fits a clone to some rows, columns made constant, and predicts all rows."""

    def fit(hidden: list[int], training: NDArray[np.intp]) -> Floats:
        blank = _constant(rows, hidden)
        some = None if weight is None else np.asarray(weight)[training]
        fitted = clone(estimator).fit(_take(blank, training), y[training], **_weights(some))
        P = Wrapped(fitted, [], 0, target.task).predict(blank)
        if target.task == "regression" or len(fitted.classes_) == len(target.classes):
            return P
        every = np.zeros((len(P), len(target.classes)))  # some classes are not in these rows
        every[:, np.searchsorted(target.classes, fitted.classes_)] = P
        return every

    return fit


def _always(P0: Floats) -> Callable[[MultiHot], Floats]:
    return lambda X: P0


def _constant(rows: Any, hidden: list[int]) -> Any:
    """The rows with the value of the first one in all cells of some columns."""
    frame = nw.from_native(rows, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        array = np.array(rows)
        array[:, hidden] = array[:1, hidden]
        return array
    first = np.zeros(len(frame), dtype=np.int64)
    names = [frame.columns[at] for at in hidden]
    return frame.with_columns(*(frame[name][first].alias(name) for name in names)).to_native()


def _take(rows: Any, places: NDArray[np.intp]) -> Any:
    frame = nw.from_native(rows, pass_through=True)
    return frame[places].to_native() if isinstance(frame, nw.DataFrame) else rows[places]
