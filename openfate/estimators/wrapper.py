"""OpenWorldClassifier and OpenWorldRegressor: the open world for a model you already have.

The wrapped model predicts from the columns that it was trained with; what is new in a row moves
that prediction by evidence (`openfate.openworld`), as strongly as a probe found to pay.  To probe,
some columns (or values) are overwritten, so that they tell nothing, and a clone is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils.validation import has_fit_parameter

from openfate.bank import FeatureBank, Floats, Wrapped, native_columns
from openfate.errors import InputError
from openfate.estimators.estimator import BankClassifier, BankEstimator, BankRegressor
from openfate.estimators.target import Target, read_known_classes, split_rows
from openfate.estimators.usage import Usage, candidates, choose_usage, shares_to_hide
from openfate.openworld import (
    NONE,
    Decision,
    Novelty,
    Pooling,
    View,
    hide_features,
    judge,
    label_candidates,
)
from openfate.table import Encoder, Field, MultiHot, Policy, Schema, Table


class OpenWorldEstimator(MetaEstimatorMixin, BankEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    estimator_: Any

    def __init__(
        self,
        estimator: Any,
        *,
        pooling: Pooling | None = None,
        prefit: bool = False,
        schema: Schema | Sequence[Field] | None = None,
        exclude: Sequence[str] = (),
        novelty: Novelty = "columns",
        n_draws: int = 3,
        hidden_share: float | None = None,
        validation_share: float = 0.2,
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
    ) -> None:
        self._store(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):  # a booster read back has none
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def _fit(self, table: Table, target: Target, weight: Any, unlabelled: Table | None) -> None:
        if target.task == "multilabel":
            raise InputError(f"{type(self).__name__} takes one target; fit one for each label.")
        y = target.original
        known = table.select(self._trained_on(table))
        seed = self._draw_seed()
        encoder = Encoder(Schema.from_frame(known, overrides=self._overrides)).fit(known)
        rows = native_columns(known)
        _check_text(self.estimator, known)
        check_consistent_length(y, weight)
        decision, usage = None, Usage(self.pooling, self.pooling)
        if self.pooling is None:
            X, share = encoder.encode(known), self._expect_share(encoder, unlabelled)
            shares = shares_to_hide(share, self.n_draws, also_half=False)
            decision = self._probe(rows, target, weight, X, encoder, shares, seed)
            usage = choose_usage(decision)
        fitted = self.estimator
        if not self.prefit:
            fitted = clone(self.estimator).fit(rows, y, **_weights(weight))
        self.estimator_ = fitted
        columns = list(known.columns) if hasattr(self, "feature_names_in_") else []
        numbers = [name for name in columns if known.columns[name].dtype.is_numeric()]
        model = Wrapped(fitted, columns, encoder.n_features, target.task, numbers)
        self._set_bank(known, target, encoder, model, usage)
        self._describe(decision, columns=columns, n_rows=table.n_rows)

    def _trained_on(self, table: Table) -> list[str]:
        """The columns of the wrapped model: its own where it is fitted and names them."""
        names = [name for name in table.columns if name not in self._excluded]
        own = getattr(self.estimator, "feature_names_in_", None) if self.prefit else None
        if own is None or not hasattr(self, "feature_names_in_"):
            return names
        missing = [name for name in own if name not in names]
        if missing:
            raise InputError(f"the fitted model needs the column {missing[0]!r}: give it to fit.")
        return [str(name) for name in own]

    def _probe(
        self,
        rows: Any,
        target: Target,
        sample_weight: ArrayLike | None,
        X: MultiHot,
        encoder: Encoder,
        shares: Sequence[float],
        seed: int,
    ) -> Decision:
        """Hide a share of the features in each draw, fit a clone, and judge ways to use them."""
        training, validation = split_rows(
            target, 0.5 if self.prefit else self.validation_share, seed
        )
        field_of = encoder.field_of
        units = np.unique(field_of) if self.novelty == "columns" else field_of
        if not len(validation) or len(units) < 2:
            return Decision(NONE, "there are too few rows or columns for a probe", {}, [])
        if not hasattr(self.estimator, "get_params"):
            return Decision(NONE, "a model read from a bundle cannot be fitted again", {}, [])
        if self.prefit and not has_fit_parameter(self.estimator, "sample_weight"):
            sample_weight = None
        weight = {} if sample_weight is None else _weights(np.asarray(sample_weight)[training])
        X_validation = X.select_rows(validation)
        missing = self.novelty != "columns" and _takes_missing(self.estimator)

        def views() -> Iterator[tuple[View, float]]:
            rng = np.random.default_rng([seed, 3])
            for share in shares:
                new = hide_features(field_of, share, self.novelty, rng)
                blank = _hide_cells(rows, encoder, X, new, missing)
                y = target.original[training]
                fitted = clone(self.estimator).fit(_take(blank, training), y, **weight)
                P0 = _predict_every_class(fitted, _take(blank, validation), target)
                X_new = X_validation.select_features(new)
                yield View(_always(P0), X_validation, X_new, target.task), share

        outcomes = target.select(validation).outcomes
        also = label_candidates(outcomes)
        return judge(views(), outcomes, candidates(), also=also, every_size=True)

    @classmethod
    def _from_bank(cls, bank: FeatureBank) -> Self:
        """A wrapper around the model that was read back; its own parameters are not kept."""
        assert isinstance(bank.model, Wrapped)
        model, policies = bank.model.estimator, bank.policies.to_dict()
        wrapper = cls(model, prefit=True, schema=bank.overrides, exclude=bank.exclude, **policies)
        wrapper.estimator_ = model
        return wrapper._restore(bank)


class OpenWorldClassifier(BankClassifier, OpenWorldEstimator):
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
    novelty
        What the probe expects to appear: whole "columns", new "values" of known ones, or "both".
        A value is hidden by a missing cell where the model takes one, else by the most frequent
        value of its column.
    n_draws, validation_share
        How often the probe hides some and fits a clone, and on what share of the rows it is judged;
        the wrapped model is then fitted on all rows.
    hidden_share
        The share of cells that will be new, as far as it is known: the probe hides as much.  None:
        what `unlabelled` rows of `fit` tell; without them 0.2, 0.35 and 0.5.

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

    def _read_target(self, y: Any, n_rows: int) -> Target:
        _check_has(self.estimator, "predict_proba")
        target = super()._read_target(y, n_rows)
        if not self.prefit or target.task == "multilabel":
            return target
        if not hasattr(self.estimator, "classes_"):
            raise InputError(
                f"prefit=True, but {type(self.estimator).__name__} is not fitted: fit it first."
            )
        self.classes_ = np.asarray(self.estimator.classes_)
        return read_known_classes(target.original, n_rows, list(self.classes_))


class OpenWorldRegressor(BankRegressor, OpenWorldEstimator):
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
    is_lightgbm = type(estimator).__module__.startswith("lightgbm")
    if is_lightgbm and text and isinstance(table.native, pl.DataFrame):
        raise InputError(
            f"column {text[0]!r} holds text, which LightGBM does not take: give pandas categories, "
            "or wrap a Pipeline that encodes it."
        )


def _weights(sample_weight: ArrayLike | None) -> dict[str, Any]:
    """An argument of `fit`, which not every model has."""
    return {} if sample_weight is None else {"sample_weight": sample_weight}


def _predict_every_class(fitted: Any, rows: Any, target: Target) -> Floats:
    """(N, C) of a clone, which may not have seen every class."""
    P = Wrapped(fitted, [], 0, target.task).predict(rows)
    if target.task == "regression" or len(fitted.classes_) == len(target.classes):
        return P
    every = np.zeros((len(P), len(target.classes)))
    every[:, np.searchsorted(target.classes, fitted.classes_)] = P
    return every


def _takes_missing(estimator: Any) -> bool:
    """Whether a model says that it takes missing cells; a pipeline, its first step."""
    steps = getattr(estimator, "steps", None)
    first = steps[0][1] if steps else estimator
    return hasattr(first, "__sklearn_tags__") and bool(get_tags(first).input_tags.allow_nan)


def _hide_cells(
    rows: Any, encoder: Encoder, X: MultiHot, hidden: NDArray[np.int64], missing: bool = False
) -> Any:
    """The rows (encoded: X) without what some features tell.

    Their cells are missing, where the model takes that, as a value that it does not know will be.
    Else they hold the most frequent value of their column that is not hidden, which tells least, or
    all the same one.  Lists lose their hidden values.
    """
    field_of = encoder.field_of
    left = X.feature_degree.copy()  # (D,) rows of each feature that is not hidden
    left[hidden] = 0
    is_hidden = np.isin(X.ids, hidden)
    frame = nw.from_native(rows, pass_through=True)
    changed: dict[int, Any] = {}
    for field in np.unique(field_of[hidden]).tolist():
        of_field = X.row_of[is_hidden & (field_of[X.ids] == field)]
        usual = int(np.where(field_of == field, left, 0).argmax())
        places = np.arange(X.n_rows)  # (N,) the rows whose cells are taken; -1: missing
        if missing:
            places[of_field] = -1
        elif field_of[usual] == field and left[usual]:
            places[of_field] = X.row_of[np.argmax(X.ids == usual)]
        else:
            places[:] = 0
        if not isinstance(frame, nw.DataFrame):
            changed[field] = np.where(places < 0, np.nan, rows[places, field])
        elif isinstance(frame[frame.columns[field]].dtype, nw.List):
            gone = {encoder.decode(int(j))[1] for j in hidden[field_of[hidden] == field]}
            changed[field] = _without(frame[frame.columns[field]], gone)
        else:
            changed[field] = _cells_at(frame[frame.columns[field]], places)
    if isinstance(frame, nw.DataFrame):
        return frame.with_columns(*changed.values()).to_native()
    array = np.array(rows)
    for field, cells in changed.items():
        array[:, field] = cells
    return array


def _without(lists: nw.Series[Any], gone: Collection[object]) -> nw.Series[Any]:
    """Lists without some values."""
    cells = [None if c is None else [v for v in c if v not in gone] for c in lists.to_list()]
    return nw.new_series(lists.name, cells, lists.dtype, backend=lists.implementation)


def _cells_at(column: nw.Series[Any], places: NDArray[np.int64]) -> nw.Series[Any]:
    """The cells of some rows of a column; missing where the place is -1."""
    taken = column[np.maximum(places, 0)]
    if (places >= 0).all():
        return taken
    there = nw.new_series("there", (places >= 0).tolist(), backend=column.implementation)
    kept = nw.when(nw.col("there")).then(nw.col(column.name)).alias(column.name)
    return taken.to_frame().with_columns(there).select(kept)[column.name]


def _always(P0: Floats) -> Callable[[MultiHot], Floats]:
    return lambda X: P0


def _take(rows: Any, places: NDArray[np.intp]) -> Any:
    frame = nw.from_native(rows, pass_through=True)
    return frame[places].to_native() if isinstance(frame, nw.DataFrame) else rows[places]
