"""OpenWorldClassifier and OpenWorldRegressor: the open world for a model you already have.

The wrapped model predicts from the columns that it was trained with; what is new in a row moves
that prediction by evidence (`openfate.openworld`), as strongly as a probe found to pay.  To probe,
some columns (or values) are overwritten, so that they tell nothing, and a clone is fitted.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils.validation import _check_sample_weight, has_fit_parameter

from openfate.bank import (
    FeatureBank,
    Floats,
    Retrain,
    Wrapped,
    keep_settings,
    make_lightgbm,
    native_columns,
    number_columns,
    package_of,
    rows_for,
)
from openfate.errors import InputError
from openfate.estimators.estimator import (
    BankClassifier,
    BankEstimator,
    BankRegressor,
    is_due,
    kept_rows,
    unchanged_on_error,
)
from openfate.estimators.scores import task_scores
from openfate.estimators.target import (
    LabelledRows,
    Target,
    find_rows,
    hash_rows,
    join_numbers,
    known_target,
    read_known_classes,
    split_rows,
)
from openfate.estimators.usage import Usage, candidates, choose_usage, shares_to_hide
from openfate.openworld import (
    NONE,
    Decision,
    Novelty,
    Pooling,
    View,
    hide_features,
    judge,
)
from openfate.table import Encoder, Field, MultiHot, Policy, Schema, Table, read_table
from openfate.threads import threads_for

_DENSE_COLUMNS = 256  # of zeros and ones, up to which encoded text is no sparse matrix
_LEAST_VALUES = 8  # that a column has; so many are not all in the tenth that is not trained on
_HISTOGRAMS = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
# Of the training rows, above which a model is trained again less often; a class is a tree a round.
_SLOW_CELLS, _MANY_CLASSES = 2_000_000, 32


class OpenWorldEstimator(MetaEstimatorMixin, BankEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    estimator_: Any
    _usual: type  # what is wrapped where no estimator is given

    def __init__(
        self,
        estimator: Any = None,
        *,
        pooling: Pooling | None = None,
        prefit: bool = False,
        schema: Schema | Sequence[Field] | None = None,
        exclude: Sequence[str] = (),
        novelty: Novelty = "columns",
        n_draws: int = 8,
        hidden_share: float | None = None,
        validation_share: float = 0.2,
        random_state: int | np.random.RandomState | None = 0,
        new_columns: Policy = "extrapolate",
        new_values: Policy = "extrapolate",
        missing_columns: Policy = "ignore",
        max_new_features: int | Mapping[str, int] | None = None,
        source: str | None = None,
        half_life: int | None = None,
    ) -> None:
        self._store(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is None:
            tags.input_tags.allow_nan = True
        elif hasattr(self.estimator, "__sklearn_tags__"):  # a booster read back has none
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    # ---- fitting -------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, unlabelled: Any = None
    ) -> Self:
        """Learn from labelled rows, or probe a model that is fitted already.

        Parameters
        ----------
        X, y, sample_weight, unlabelled
            See `FATEClassifier.fit`; a target is one column.
        """
        with unchanged_on_error(self):
            table, target, later = self._read_training(X, y, unlabelled)
            if target.task == "multilabel":
                raise InputError(f"{type(self).__name__} takes one target; fit one for each label.")
            y = target.original
            known = table.select(self._trained_on(table))
            seed = self._draw_seed()
            schema = Schema.from_frame(known, overrides=self._overrides, numeric=self._numeric)
            encoder = Encoder(schema).fit(known)
            encoded = encoder.encode(known)
            check_consistent_length(y, sample_weight)
            base = _encode_text(self._base(), known, encoder, self.prefit)
            texts = _text_fields(base, known, encoder, self.prefit)
            rows = native_columns(known)
            if texts is not None:
                rows = number_columns(known, list(known.columns), texts, encoded, encoder.field_of)
            fit = _Fit(base, [] if texts is None else [list(known.columns).index(t) for t in texts])
            decision, usage = None, Usage(self.pooling, self.pooling)
            if self.pooling is None:
                share = self._expect_share(encoder, later)
                shares = shares_to_hide(share, self.n_draws, also_half=False)
                decision = self._probe(
                    fit, rows, target, sample_weight, encoded, encoder, shares, seed
                )
                usage = choose_usage(decision)
            fitted = self.estimator if self.prefit else fit(rows, y, sample_weight)
            self.estimator_ = fitted
            named = hasattr(self, "feature_names_in_") or texts is not None
            columns = list(known.columns) if named else []
            numbers = [name for name in columns if _is_number(known.columns[name])]
            model = Wrapped(fitted, columns, encoder.n_features, target.task, numbers, texts)
            self._set_bank(encoded, target, encoder, model, usage, known)
            self._training = kept_rows(known), encoded, y, sample_weight
            settings, unkept = keep_settings(base)
            self._describe(
                decision,
                columns=columns,
                n_rows=table.n_rows,
                numeric=self._numeric,
                data_hash=hash_rows(LabelledRows(encoded, target)),
                unkept=unkept,
                settings=settings,
            )
            if columns:
                self._note_leans(known.native)
            return self

    def _base(self) -> Any:
        """The model to wrap: the user's, or scikit-learn's boosting, not fitted."""
        return self._usual() if self.estimator is None else self.estimator

    # ---- training again ------------------------------------------------------------------------

    def refit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Absorb new features: train the wrapped model on labelled rows that have them.

        What was observed is forgotten, as in `fit`; columns and classes are those of `X` and `y`.
        The model is trained from the beginning: boosters that were trained on were far worse.
        ``refit_report_`` tells what that changed on validation rows of `X` that neither model was
        trained on.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`: old rows too, where they should go on to count.
        """
        self._open(X)
        if self.prefit and not hasattr(self.estimator, "get_params"):
            raise InputError(
                f"{type(self.estimator).__name__} was read from a bundle and cannot be trained: "
                "wrap a new model and fit it."
            )
        with unchanged_on_error(self):
            table = self._read(X)
            target = self._read_target(y, table.n_rows)
            training, spared = split_rows(target, self.validation_share, self._draw_seed())
            spared = spared[~self._has_seen(table, target)[spared]]
            before = self._score(X, target, spared)
            judged = clone(self).set_params(prefit=False, pooling=Pooling(strength=0.0))
            weights = None if sample_weight is None else np.asarray(sample_weight)[training]
            labels = target.original
            judged.fit(_take(X, training), labels[training], weights)
            after = judged._score(X, target, spared)
            self.set_params(prefit=False).fit(X, y, sample_weight)
            self.refit_report_ = {
                "rows": len(labels),
                "validation_rows": len(spared),
                "before": before,
                "after": after,
                "gained": {name: after[name] - before[name] for name in before if name in after},
            }
            self.bank_.meta["refit"] = self.refit_report_
            return self

    def _has_seen(self, table: Table, target: Target) -> NDArray[np.bool_]:
        """(N,) the rows that `fit` trained on; a model that was read back knows of none."""
        if self._training is None:
            return np.zeros(table.n_rows, dtype=bool)
        _, encoded, y, _ = self._training
        _, labels = np.unique(np.concatenate([y, target.original]), return_inverse=True)
        before, now = np.split(labels, [len(y)])
        rows = LabelledRows(self.bank_.encoder.encode(table), replace(target, y=now))
        seen = LabelledRows(encoded, replace(target, y=before))
        return find_rows(rows, seen, self.bank_.n_observed, each_once=True)

    def _score(self, X: Any, target: Target, rows: NDArray[np.intp]) -> dict[str, float]:
        """Scores of some rows; empty for none."""
        if not len(rows):
            return {}
        P = self._predict(_take(X, rows), "auto", "use")
        found = task_scores(P, target.select(rows).outcomes, target.task)
        return {name: score for name, score in found.items() if np.isfinite(score)}

    def _to_train(self) -> Any:
        """The model to train again; None where nothing tells its settings."""
        base, settings = self._base(), self.bank_.meta.get("settings")
        if hasattr(base, "get_params"):
            return base
        return None if settings is None else make_lightgbm(self.bank_.task, settings)

    def _training_fault(self) -> str | None:
        base = self._to_train()
        kind = type(base).__name__
        if base is None:
            return (
                "the file of a CatBoost or XGBoost model holds its trees and not its settings; "
                "wrap LightGBM or one of scikit-learn's, or fit anew instead"
            )
        if unkept := self.bank_.meta.get("unkept"):
            return f"{kind} had {unkept[0]}, which no bundle keeps; fit anew instead"
        if not _takes_missing(base):
            return f"{kind} takes no missing cells, which the rows of fit have in new columns"
        return None

    def _fitted_columns(self, table: Table) -> list[str]:
        assert isinstance(self.bank_.model, Wrapped)
        return self.bank_.model.columns or self._trained_on(table)

    def _remember_rows(
        self, table: Table, labels: NDArray[Any], sample_weight: ArrayLike | None
    ) -> tuple[Any, LabelledRows]:
        bank = self.bank_
        target = known_target(labels, bank)
        if bank.task == "regression":  # as `fit` standardised them
            target = join_numbers([labels])
        encoded = bank.encoder.encode(table).below(bank.n_observed)
        weight = sample_weight
        if weight is not None:
            like = np.empty((table.n_rows, 1))
            weight = _check_sample_weight(weight, like, dtype=np.float64, ensure_non_negative=True)
        training = kept_rows(table), encoded, target.original, weight
        return training, LabelledRows(encoded, target, weight)

    def _retrain_with(
        self,
        bank: FeatureBank,
        table: Table,
        labels: NDArray[Any],
        weight: NDArray[np.float64] | None,
    ) -> Retrain | None:
        training, mixture = self._training, bank.mixture
        if training is None or mixture is None:
            return None
        base = self._to_train()
        if base is None or not _takes_missing(base):
            return None
        known, encoded, y, old_weight = training
        names = np.array(bank.classes) if bank.task != "regression" else None
        left_out = {*self._excluded, *self._target_name}

        def retrain(n_rows: int, encoder: Encoder) -> Wrapped | None:
            shown = None if weight is None else weight[:n_rows]
            parts = [*bank.kept, (_first_rows(table, n_rows), labels[:n_rows], shown)]
            n_trees = len(bank.classes) if bank.task != "regression" else 1  # a round
            slow = encoded.nnz > _SLOW_CELLS or n_trees > _MANY_CLASSES
            if not is_due(mixture.n_labels + n_rows, slow=slow):
                return None
            tables = [known, *(part[0] for part in parts)]
            # WHY: a model that reads columns by itself was told of those of `fit`, and no others.
            reads = _is_pipeline(base)
            shown_columns = [known] if reads else tables
            unused = left_out if reads else left_out | _lists(tables)  # which are no numbers
            columns = list(
                dict.fromkeys(n for t in shown_columns for n in t.columns if n not in unused)
            )
            outcome = np.concatenate(
                [y, *(part[1] if names is None else names[part[1]] for part in parts)]
            )
            weights = _join_weights([old_weight, *(part[2] for part in parts)], tables)
            numbers = [
                name
                for name in columns
                if all(_is_number(t.columns[name]) for t in tables if name in t.columns)
            ]
            if reads:
                rows, texts = _stack_frames(tables, columns), None
            else:
                texts = _number_texts(tables, columns, encoder)
                rows = np.concatenate(
                    [
                        number_columns(
                            t,
                            columns,
                            texts,
                            encoder.encode(kept_rows(t)) if at else encoded,
                            encoder.field_of,
                        )
                        for at, t in enumerate(tables)
                    ]
                )
            if rows is None:
                return None
            places = [] if texts is None else [columns.index(name) for name in texts]
            fitted = _Fit(_seeded(base), places)(rows, outcome, weights)
            return Wrapped(fitted, columns, encoder.n_features, bank.task, numbers, texts)

        return retrain

    def _trained_on(self, table: Table) -> list[str]:
        """The columns of the wrapped model: its own where it is fitted and names them."""
        names = [name for name in table.columns if name not in self._excluded]
        own = getattr(self.estimator, "feature_names_in_", None) if self.prefit else None
        if own is None or not hasattr(self, "feature_names_in_"):
            return names
        # LightGBM writes "_" for the spaces of a name.
        spelled = {name.replace(" ", "_"): name for name in names}
        own = [name if name in names else spelled.get(name, name) for name in map(str, own)]
        missing = [name for name in own if name not in names]
        if missing:
            raise InputError(f"the fitted model needs the column {missing[0]!r}: give it to fit.")
        return own

    def _probe(
        self,
        fit: _Fit,
        rows: Any,
        target: Target,
        sample_weight: ArrayLike | None,
        X: MultiHot,
        encoder: Encoder,
        shares: Sequence[float],
        seed: int,
    ) -> Decision:
        """Hide a share of the features in each draw, fit a clone, and judge ways to use them."""
        spared = 0.5 if self.prefit else self.validation_share
        field_of = encoder.field_of
        units = np.unique(field_of) if self.novelty == "columns" else field_of
        if not len(split_rows(target, spared, seed)[1]) or len(units) < 2:
            return Decision(NONE, "there are too few rows or columns for a probe", {}, [])
        if not hasattr(fit.estimator, "get_params"):
            return Decision(NONE, "a model read from a bundle cannot be fitted again", {}, [])
        if self.prefit and not has_fit_parameter(fit.estimator, "sample_weight"):
            sample_weight = None
        missing = self.novelty != "columns" and _takes_missing(fit.estimator)
        rng = np.random.default_rng([seed, 3])

        def view(fold: int, hidden: NDArray[np.int64]) -> View:
            """Validation rows of a fold, and a clone fitted on the others, without some features.

            WHY rows of its own: of a few hundred, what evidence is worth cannot be told from noise.
            """
            training, validation = split_rows(target, spared, seed, fold=fold)
            weight = None if sample_weight is None else np.asarray(sample_weight)[training]
            blank = _hide_cells(rows, encoder, X, hidden, missing) if len(hidden) else rows
            fitted = fit(_take(blank, training), target.original[training], weight)
            P0 = _predict_every_class(fitted, _take(blank, validation), target)
            X_own = X.select_rows(validation)
            X_new = X_own.select_features(hidden)
            return View(lambda _: P0, X_own, X_new, target.task, validation)

        views = (
            (view(fold, hide_features(field_of, share, self.novelty, rng)), share)
            for fold, share in enumerate(shares)
        )
        nothing = np.empty(0, np.int64)
        return judge(views, target.outcomes, candidates(), plain=lambda: view(0, nothing))

    @classmethod
    def _from_bank(cls, bank: FeatureBank) -> Self:
        """A wrapper around the model that was read back; its own parameters are not kept."""
        assert isinstance(bank.model, Wrapped)
        model, policies = bank.model.estimator, bank.policies.to_dict()
        wrapper = cls(model, prefit=True, schema=bank.overrides, exclude=bank.exclude, **policies)
        wrapper.max_new_features = bank.max_new_features
        wrapper.source, wrapper.half_life = bank.source, bank.half_life
        wrapper.estimator_ = model
        return wrapper._restore(bank)


class OpenWorldClassifier(BankClassifier, OpenWorldEstimator):
    """Any classifier with `predict_proba`, and new columns and values on top.

    Rows without anything new are predicted by the wrapped model alone, to the last bit.

    Parameters
    ----------
    estimator
        A scikit-learn classifier: LightGBM, CatBoost, XGBoost, a Pipeline, ...  None takes
        scikit-learn's HistGradientBoosting.  Trees that take no text are given the places of its
        values; other models stand behind an encoder of the columns of text.
    pooling
        How evidence is weighed (`openfate.openworld.Pooling`); by default a probe chooses.
    prefit
        Whether `estimator` is fitted already.  Give `fit` validation rows then, which are probed
        with clones of it; values that only its training rows had count as new.
    schema, exclude, random_state, new_columns, new_values, missing_columns, max_new_features, \
source, half_life
        See `FATEClassifier`.
    novelty
        What the probe expects to appear: whole "columns", new "values" of known ones, or "both".
        A value is hidden by a missing cell where the model takes one, else by the most frequent
        value of its column.
    n_draws, validation_share
        How often the probe hides some and fits a clone, and on what share of the rows each is
        judged, others for each; the wrapped model is then fitted on all rows.
    hidden_share
        The share of cells that will be new, as far as it is known: the probe hides as much.  None:
        what `unlabelled` rows of `fit` tell; without them 0.4, 0.5 and 0.6.

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

    _usual = HistGradientBoostingClassifier

    def _read_target(self, y: Any, n_rows: int) -> Target:
        _check_has(
            *(self._base(), "predict_proba"),
            "a model that predicts probabilities, or calibrate it first (CalibratedClassifierCV)",
        )
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

    _usual = HistGradientBoostingRegressor

    def _read_target(self, y: Any, n_rows: int) -> Target:
        _check_has(self._base(), "predict", "a model that predicts numbers")
        return super()._read_target(y, n_rows)


class _Fit:
    """Fits a clone of a model; columns at some places are categories, where it is told so."""

    def __init__(self, estimator: Any, categories: Sequence[int] = ()) -> None:
        self.estimator, self.categories = estimator, list(categories)

    def __call__(self, rows: Any, y: NDArray[Any], sample_weight: ArrayLike | None = None) -> Any:
        options = _weights(sample_weight, self.estimator)
        if self.categories and package_of(self.estimator) == "lightgbm":
            options["categorical_feature"] = self.categories
        if isinstance(self.estimator, _HISTOGRAMS):
            rows = _fill_empty(rows)
        rows = rows_for(self.estimator, rows)
        with threads_for(rows):
            return _clone(self.estimator).fit(rows, y, **options)


def _fill_empty(rows: Any) -> Any:
    """The rows, with zeros in columns of hardly a value.

    WHY: scikit-learn's boosting fails where rows that it trains on, which may be some of these,
    have no value in a column; its leaves are too large to learn from so few.
    """
    frame = nw.from_native(rows, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        missing = {name: c.null_count() for name, c in read_table(rows).columns.items()}
        empty = [name for name, n in missing.items() if n and len(frame) - n < _LEAST_VALUES]
        return frame.with_columns(*(nw.lit(0.0).alias(name) for name in empty)).to_native()
    array = np.asarray(rows)
    if array.dtype.kind != "f":
        return rows
    n_missing = np.isnan(array).sum(axis=0)
    return np.where((n_missing > 0) & (len(array) - n_missing < _LEAST_VALUES), 0.0, array)


def _clone(estimator: Any) -> Any:
    try:
        return clone(estimator)
    except RuntimeError:
        # WHY: CatBoost copies its lists, such as cat_features, and fails scikit-learn's check.
        return type(estimator)(**copy.deepcopy(estimator.get_params()))


def _seeded(estimator: Any) -> Any:
    """The model, not fitted, with a seed where it has none: the same labels train the same."""
    unset = {
        name: 0
        for name, value in estimator.get_params().items()
        if name.rpartition("__")[2] == "random_state" and value is None
    }
    return _clone(estimator).set_params(**unset) if unset else estimator


def _is_pipeline(estimator: Any) -> bool:
    """Whether a model reads columns by itself: a pipeline, or one that names its categories."""
    params = estimator.get_params() if hasattr(estimator, "get_params") else {}
    return hasattr(estimator, "steps") or params.get("cat_features") is not None


def _reads_columns(estimator: Any) -> bool:
    """The same, or whether that cannot be told of it: a booster that was read from a bundle."""
    return _is_pipeline(estimator) or not hasattr(estimator, "get_params")


def _encode_text(estimator: Any, known: Table, encoder: Encoder, prefit: bool) -> Any:
    """A model that takes no text behind an encoder of its columns of text; else the model."""
    texts = [name for name, column in known.columns.items() if _is_text(column)]
    if prefit or _reads_columns(estimator) or _is_tree(estimator):
        return estimator
    odd = [c for c in known.columns.values() if not _is_plain(c)]
    inner = {"estimator", "estimators"} & set(estimator.get_params(deep=False))
    if odd and (texts or (package_of(estimator) == "sklearn" and not inner)):
        raise InputError(
            f"column {odd[0].name!r} holds values of type {odd[0].dtype}, which "
            f"{type(estimator).__name__} does not take: exclude it, turn it into numbers, or wrap "
            "a pipeline that reads it."
        )
    if not texts:
        return estimator
    if not isinstance(nw.from_native(known.native, pass_through=True), nw.DataFrame):
        raise InputError(
            f"column {texts[0]!r} holds text, which {type(estimator).__name__} does not take: give "
            "a frame, whose columns of text are encoded."
        )
    # WHY not always sparse: naive Bayes takes no sparse rows, and few columns are as fast.
    sparse = encoder.n_features > _DENSE_COLUMNS
    zero_one = OneHotEncoder(handle_unknown="ignore", sparse_output=sparse)
    encoding = ColumnTransformer([("text", zero_one, texts)], remainder="passthrough")
    return make_pipeline(encoding, estimator)


def _is_tree(estimator: Any) -> bool:
    """Whether places of values will do in place of text."""
    trees = ("sklearn.ensemble", "sklearn.tree", "lightgbm", "catboost", "xgboost")
    return type(estimator).__module__.startswith(trees)


def _text_fields(
    estimator: Any, known: Table, encoder: Encoder, prefit: bool
) -> dict[str, int] | None:
    """Columns of text with their fields, of a model that must be given numbers.

    None where it takes the rows as they came: trees take no dates, and LightGBM ends the process.
    """
    if _reads_columns(estimator):
        return None
    columns = known.columns.values()
    is_odd = _is_tree(estimator) and not prefit and not all(map(_is_plain, columns))
    keeps = _takes_categories(estimator, known.native)
    if not is_odd and not any(_is_text(c, or_categories=not keeps) for c in columns):
        return None
    return _number_texts([known], list(known.columns), encoder)


def _takes_categories(estimator: Any, native: Any) -> bool:
    """Whether a model takes pandas' categories as they are."""
    frame = nw.from_native(native, pass_through=True)
    if not isinstance(frame, nw.DataFrame) or not frame.implementation.is_pandas_like():
        return False
    return isinstance(estimator, _HISTOGRAMS) or package_of(estimator) in ("lightgbm", "xgboost")


def _is_plain(column: pl.Series) -> bool:
    return _is_number(column) or _is_text(column)


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Boolean


def _is_text(column: pl.Series, *, or_categories: bool = True) -> bool:
    kinds = (pl.String, pl.Categorical, pl.Enum) if or_categories else (pl.String,)
    return isinstance(column.dtype, kinds)


def _number_texts(
    tables: Sequence[Table], columns: Sequence[str], encoder: Encoder
) -> dict[str, int]:
    """The fields of the columns that are text somewhere."""
    place = {field.name: at for at, field in enumerate(encoder.schema)}
    return {
        name: place[name]
        for name in columns
        if name in place and any(_is_text(t.columns[name]) for t in tables if name in t.columns)
    }


def _stack_frames(tables: Sequence[Table], columns: Sequence[str]) -> Any:
    """Frames one below the other, with all columns; None where that cannot be: arrays, kinds."""
    natives = [_as_first(t.native, tables[0].native) for t in tables]
    frames = [nw.from_native(native, eager_only=True, pass_through=True) for native in natives]
    if not all(isinstance(f, nw.DataFrame) for f in frames):
        return None
    if len({f.implementation for f in frames}) > 1:
        return None
    numbers = []
    for name in columns:
        kinds = {f.schema[name] for f in frames if name in f.columns}
        if len(kinds) > 1 and not all(kind.is_numeric() for kind in kinds):
            return None
        numbers += [name] if len(kinds) > 1 else []
    chosen = []
    for f in frames:
        shown = f.select(*(n for n in columns if n in f.columns))
        mixed = [nw.col(n).cast(nw.Float64) for n in numbers if n in f.columns]
        chosen.append(shown.with_columns(*mixed))
    return nw.concat(chosen, how="diagonal").select(*columns).to_native()


def _as_first(frame: Any, first: Any) -> Any:
    """A frame of polars whose numbers and texts are of the kinds that the first one has.

    WHY: one row with a text for a number would be the last that the model is trained on.
    """
    if not (isinstance(frame, pl.DataFrame) and isinstance(first, pl.DataFrame)):
        return frame
    kinds = {}
    for name, found in frame.schema.items():
        wanted = first.schema.get(name, found)
        if wanted.is_numeric() != found.is_numeric() and not found.is_nested():
            kinds[name] = pl.Float64 if wanted.is_numeric() else wanted
    cast = [pl.col(name).cast(kind, strict=False) for name, kind in kinds.items()]
    return frame.with_columns(cast)


def _lists(tables: Sequence[Table]) -> set[str]:
    """The columns that hold lists somewhere."""
    return {name for t in tables for name, c in t.columns.items() if c.dtype.is_nested()}


def _first_rows(table: Table, n_rows: int) -> Table:
    """The first rows, with what they were read from."""
    first = slice(0, n_rows)
    return replace(table.select_rows(first), native=_take(table.native, first))


def _join_weights(parts: Sequence[Any], tables: Sequence[Table]) -> Floats | None:
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [
            np.ones(t.n_rows) if part is None else np.asarray(part, np.float64)
            for part, t in zip(parts, tables, strict=True)
        ]
    )


def _check_has(estimator: Any, method: str, wanted: str) -> None:
    if isinstance(estimator, type):
        raise InputError(f"{estimator.__name__} is a class: give an instance, with parentheses.")
    if not hasattr(estimator, method):
        raise InputError(f"{type(estimator).__name__} has no {method}: wrap {wanted}.")


def _weights(sample_weight: ArrayLike | None, estimator: Any) -> dict[str, Any]:
    """An argument of `fit`, which not every model has; a pipeline hands it to its last step."""
    if sample_weight is None:
        return {}
    steps = getattr(estimator, "steps", None)
    return {f"{steps[-1][0]}__sample_weight" if steps else "sample_weight": sample_weight}


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
    if package_of(first) in ("lightgbm", "catboost", "xgboost"):
        return True
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


def _take(rows: Any, places: NDArray[np.intp] | slice) -> Any:
    frame = nw.from_native(rows, pass_through=True)
    return frame[places].to_native() if isinstance(frame, nw.DataFrame) else rows[places]
