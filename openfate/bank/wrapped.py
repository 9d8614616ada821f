"""Wrapped: a fitted model of somebody else's, and the file formats that it is written in.

No format is a pickle, and what a file says is checked before it is believed (`docs/security.md`):

    skops                   scikit-learn's own models, of `openfate.bank.sklearn_models`
    lightgbm                a text, checked and written anew by `openfate.bank.lightgbm_text`
    catboost, xgboost       formats of their own, tried in another process by `openfate.bank.trial`

Anything else is refused, unless the caller trusts the file.

N rows, C outputs.  Predictions are probabilities, or numbers.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.bank.lightgbm_text import clean_lightgbm
from openfate.bank.network import Arrays
from openfate.bank.sklearn_models import Unchecked, check_classes, read_sklearn
from openfate.bank.trial import LOADERS, try_out
from openfate.errors import DataFileError, InputError
from openfate.models import Fields
from openfate.openworld import Floats, Task
from openfate.table import MultiHot, Table, moments_of, read_table
from openfate.threads import threads_for

Predict = Callable[[Any], Any]  # rows -> probabilities or numbers
_LARGE = 1e100  # WHY: numbers beyond it would make evidence that is no number


class Wrapped:
    """A fitted model of somebody else's, over the columns that it was trained with.

    Parameters
    ----------
    estimator
        Has `predict_proba` (or `predict` for numbers).
    columns
        Names of the training columns, in order; empty for arrays.
    n_observed
        D: features of the training rows.
    task
        What its outputs are.
    numbers
        Those of the columns that hold numbers.
    texts
        For a model that takes numbers alone: the columns of text, and their fields in the encoder;
        rows are then given to it as `number_columns` makes them.  None: as they came.
    is_read
        Whether it was read from a bundle: what it predicts is then looked at, and its errors are
        those of the bundle.
    """

    def __init__(
        self,
        estimator: Any,
        columns: Sequence[str],
        n_observed: int,
        task: Task,
        numbers: Sequence[str] = (),
        texts: Mapping[str, int] | None = None,
        is_read: bool = False,
    ) -> None:
        self.is_read = is_read
        self.estimator, self.columns, self.numbers = estimator, list(columns), list(numbers)
        self.texts = None if texts is None else dict(texts)
        self.task: Task = task
        self.n_observed = n_observed  # D

    def predict_both(
        self, table: Table, X: MultiHot, field_of: Fields, use_new: bool = False
    ) -> tuple[Floats, Floats]:
        """Predictions (N, C) of the wrapped model, twice: new features are not its business."""
        P0 = self._predict_table(table, X, field_of)
        return P0, P0

    def _predict_table(self, table: Table, X: MultiHot, field_of: Fields) -> Floats:
        if not table.n_rows:
            return np.empty((0, self.n_outputs))
        if self.texts is not None:
            known = field_of[: self.n_observed]
            return self.predict(number_columns(table, self.columns, self.texts, X, known))
        rows = self._known_columns(table.native) if self.columns else native_columns(table)
        missing = [name for name in self.columns if name not in table.columns]
        try:
            return self.predict(rows)
        except Exception as error:
            if not missing:
                raise
            raise InputError(
                f"the wrapped model cannot predict without the column {missing[0]!r} ({error}): "
                "give it, or wrap a model that takes missing values."
            ) from None

    def predict(self, rows: Any) -> Floats:
        """(N, C) of rows with the very columns that the model was trained with."""
        if not self.is_read:
            return self._predict(rows)
        try:
            found = self._predict(rows)
        except Exception as error:
            raise InputError(
                f"the bundle's wrapped model cannot predict these rows ({error!r}): give rows like "
                "those that it was trained with."
            ) from error
        self._check_outputs(found, (len(rows), self.n_outputs))
        return found

    def _check_outputs(self, found: Floats, wanted: tuple[int, int]) -> None:
        low, high = (-_LARGE, _LARGE) if self.task == "regression" else (0.0, 1 + 1e-6)
        what = None
        if found.shape != wanted:
            what = f"an array {found.shape}, not {wanted}"
        elif not ((found >= low) & (found <= high)).all():
            what = "what is no number" if self.task == "regression" else "what is no probability"
        if what is not None:
            raise InputError(
                f"the bundle's wrapped model predicts {what}: it is damaged; fit it again."
            )

    def _predict(self, rows: Any) -> Floats:
        rows = rows_for(self.estimator, rows)
        with threads_for(rows):
            if self.task == "regression":
                numbers = np.asarray(self.estimator.predict(rows), np.float64)
                return numbers.reshape(len(numbers), -1)
            p = self.estimator.predict_proba(rows)
        if isinstance(p, list):  # one (N, 2) array for each label
            p = np.stack([part[:, 1] for part in p], axis=1)
        return np.asarray(p, np.float64)

    @property
    def n_outputs(self) -> int:
        """C."""
        if self.task == "regression":
            return 1
        return len(self.estimator.classes_)

    def _known_columns(self, native: Any) -> Any:
        """The training columns of a frame, in their order; what is missing is empty."""
        frame = nw.from_native(native, eager_only=True)
        empty = [
            nw.lit(float("nan") if name in self.numbers else None).alias(name)
            for name in self.columns
            if name not in frame.columns
        ]
        # WHY: each takes a millisecond of pandas, and mostly nothing is missing and nothing new.
        frame = frame.with_columns(*empty) if empty else frame
        frame = frame if frame.columns == self.columns else frame.select(self.columns)
        if not frame.implementation.is_pandas_like():
            frame = self._with_types(frame)
        return frame.to_native()

    def _with_types(self, frame: nw.DataFrame[Any]) -> nw.DataFrame[Any]:
        """The columns as numbers or text, of a kind of frame that may not be that of `fit`."""
        changed = []
        for name, dtype in frame.schema.items():
            is_number = name in self.numbers
            if dtype == nw.Unknown or (is_number and dtype == nw.String):  # without a value, or "5"
                changed.append(nw.col(name).cast(nw.Float64 if is_number else nw.String))
        frame = frame.with_columns(*changed) if changed else frame
        # LightGBM knows pandas' categories by their places.
        others = [name for name in self.columns if name not in self.numbers]
        booster = getattr(self.estimator, "booster_", None)
        known = getattr(booster, "pandas_categorical", None) or []
        if not known or len(known) != len(others):
            return frame
        places = []
        for name, values in zip(others, known, strict=True):
            text = [str(value) for value in values]
            column = frame[name].cast(nw.String)
            code = column.replace_strict(text, range(len(text)), default=None)
            places.append(code.cast(nw.Float64).alias(name))
        return frame.with_columns(*places)

    def observe(self, X: MultiHot, only: NDArray[np.integer] | None = None) -> None:
        """Nothing to learn: evidence is kept by the bank."""

    def decay(self, factor: float) -> None:
        """Nothing to forget."""

    def hear(self, X: MultiHot) -> tuple[()]:
        """Nothing: there are no sums."""
        return ()

    def merge(self, sums: Sequence[Any], n_features: int) -> None:
        """Nothing to add to."""

    def ahead(self, X: MultiHot, only: NDArray[np.integer]) -> Wrapped:
        """Itself: it learns nothing from rows."""
        return self

    def select(self, kept: NDArray[np.integer]) -> Wrapped:
        """Itself: it knows no new features."""
        return self

    def copy(self) -> Wrapped:
        """Itself: it has no state."""
        return self

    def weights(self) -> Arrays:
        """None: its own file holds them."""
        return {}

    def state(self) -> Arrays:
        """None."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What a bundle's meta keeps to make it again."""
        return {
            "task": self.task,
            "columns": self.columns,
            "numbers": self.numbers,
            "n_observed": self.n_observed,
            "texts": self.texts,
        }


def number_columns(
    table: Table,
    columns: Sequence[str],
    texts: Mapping[str, int],
    X: MultiHot,
    field_of: NDArray[np.integer] | None,
) -> Floats:
    """(N, d) the columns as numbers: text by the places of its values among those of its field.

    Parameters
    ----------
    table, X
        Rows, and the same encoded.
    columns, texts
        Which, and the fields of those that are text.
    field_of
        (D,) the field of each feature that the model knows.

    Returns
    -------
        nan for a cell or column that is missing, and for a value that is not known.

    Examples
    --------
    >>> import polars as pl
    >>> table = Table(2, {"age": pl.Series([31, None]), "job": pl.Series(["cook", "nurse"])})
    >>> X = MultiHot.from_rows([[1], [2]], 3)
    >>> number_columns(table, ["age", "job"], {"job": 1}, X, np.array([0, 1, 1]))
    array([[31.,  0.],
           [nan,  1.]])
    """
    found = np.full((table.n_rows, len(columns)), np.nan)
    fields = np.empty(0, np.int64) if field_of is None else np.asarray(field_of)
    of = np.full(X.nnz, -1)
    known = X.ids < len(fields)
    of[known] = fields[X.ids[known]]
    for at, name in enumerate(columns):
        if name in texts:
            cells = np.flatnonzero(of == texts[name])
            values = np.flatnonzero(fields == texts[name])
            found[X.row_of[cells], at] = np.searchsorted(values, X.ids[cells])
        elif name in table.columns:
            found[:, at] = _numbers(table.columns[name]).fill_null(np.nan).to_numpy()
    return found


def _numbers(column: pl.Series) -> pl.Series:
    """Numbers as they are, and times in microseconds, whatever unit or ISO text they came in."""
    dtype = column.dtype
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise InputError(
            f"column {column.name!r} holds values of type {dtype}, which a model of numbers does "
            "not take: exclude it, or wrap a pipeline that reads it."
        )
    if dtype in (pl.Date, pl.Datetime):
        column = column.cast(pl.Datetime("us", getattr(dtype, "time_zone", None)))
    elif dtype == pl.Duration:
        column = column.cast(pl.Duration("us"))
    numbers = column.to_physical() if dtype.is_temporal() else column
    numbers = numbers.cast(pl.Float64, strict=False)
    if dtype == pl.String and numbers.null_count():
        return numbers.fill_null(moments_of(column).to_physical().cast(pl.Float64))
    return numbers


def native_columns(table: Table) -> Any:
    """The rows as they were given, without the columns that are not used.

    Examples
    --------
    >>> import polars as pl
    >>> table = Table(1, {"x1": pl.Series([5])}, np.array([[4, 5]]))  # x0 is not used
    >>> native_columns(table)
    array([[5]])
    """
    if not isinstance(table.native, np.ndarray):
        frame = nw.from_native(table.native, eager_only=True)
        return frame.select(*table.columns).to_native()
    # Columns of an array are named by their place, x0, x1, ...: an estimator does that in `fit`.
    places = [int(name.removeprefix("x")) for name in table.columns]
    return table.native if len(places) == table.native.shape[1] else table.native.take(places, 1)


def rows_for(estimator: Any, rows: Any) -> Any:
    """The rows as a model can take them.

    WHY: LightGBM and CatBoost fail, or end the process, where a column of polars or Arrow is of a
    type that they do not know, as one without a value is, or decimals, or dates; scikit-learn's
    transformers know no Arrow.

    Raises
    ------
    InputError
        Where a column is of a type that they do not take.
    """
    frame = nw.from_native(rows, pass_through=True)
    package = package_of(estimator)
    if not isinstance(frame, nw.DataFrame):
        return rows
    if frame.implementation.is_pandas_like():
        return _without_objects(frame) if package == "lightgbm" else rows
    if package not in ("lightgbm", "catboost"):
        return pl.from_arrow(rows) if frame.implementation.is_pyarrow() else rows
    table = read_table(rows)
    columns = {name: _plain(cells, package) for name, cells in table.columns.items()}
    if package == "lightgbm":
        is_same = all(columns[name] is table.columns[name] for name in columns)
        return rows if is_same else pl.DataFrame(columns)
    pandas = import_module("pandas")  # which CatBoost needs
    return pandas.DataFrame({name: cells.to_numpy() for name, cells in columns.items()})


def _without_objects(frame: nw.DataFrame[Any]) -> Any:
    """The rows, columns of Python's objects as numbers: booleans of which some are missing."""
    objects = [name for name, dtype in frame.schema.items() if dtype == nw.Object]
    if not objects:
        return frame.to_native()
    read = read_table(frame.select(objects).to_native()).columns
    numbers = {name: _plain(cells, "lightgbm") for name, cells in read.items()}
    native = frame.implementation
    return frame.with_columns(
        nw.new_series(name, cells.cast(pl.Float64).to_numpy(), nw.Float64, backend=native)
        for name, cells in numbers.items()
    ).to_native()


def _plain(column: pl.Series, package: str) -> pl.Series:
    """Numbers or booleans; for CatBoost text too."""
    dtype = column.dtype
    if dtype == pl.Boolean or dtype.is_integer() or dtype.is_float():
        return column
    if package == "catboost" and dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if dtype.is_decimal() or column.null_count() == len(column):
        return column.cast(pl.Float64, strict=False)
    raise InputError(
        f"column {column.name!r} holds values of type {dtype}, which {package} does not take: "
        "exclude it, or turn it into numbers."
    )


def package_of(estimator: Any) -> str:
    """The package that a model is of, also of one that was read back."""
    if isinstance(estimator, _Revived):
        return estimator.format
    return type(estimator).__module__.partition(".")[0]


# ---- file formats ------------------------------------------------------------------------------

# What skops does not trust by itself, and writes all the same.
_PLAIN = [
    "numpy.dtype",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
]
_UNTRUSTED = (
    "the wrapped model is not one that can be checked: {}. If you trust whoever wrote the bundle "
    "with your account, give trusted=True."
)


def dump(estimator: Any) -> tuple[str, bytes]:
    """Write a fitted model: the name of the format, and the bytes.

    Raises
    ------
    InputError
        Where there is no safe format for it.
    """
    if isinstance(estimator, _Revived):
        return estimator.format, estimator.content
    package = package_of(estimator)
    if package in _BOOSTERS:
        return package, _BOOSTERS[package][0](estimator)
    return "skops", _dump_skops(estimator)


def revive(name: str, content: bytes, classes: list[Any], trusted: bool = False) -> Any:
    """Read what `dump` wrote: an object with `predict_proba` and `classes_`, or `predict`.

    Parameters
    ----------
    trusted
        Whether to read it without checks: it may then run code.

    Raises
    ------
    DataFileError
        Where the format is unknown, its package is not there, or it does not stand the checks.
    """
    if name != "skops" and name not in _BOOSTERS:
        raise DataFileError(f"a wrapped model of the format {name!r} is unknown; upgrade OpenFATE.")
    try:
        if name != "skops":
            return _Revived(name, content, classes, trusted)
        model = _trust_skops(content) if trusted else read_sklearn(content)
        check_classes(model, classes)
        return model
    except Unchecked as error:
        raise DataFileError(_UNTRUSTED.format(error)) from None


class _Revived:
    """A booster that was read back: it predicts, and is written as it was read."""

    def __init__(self, name: str, content: bytes, classes: list[Any], trusted: bool) -> None:
        self.format, self.content, self.classes_ = name, content, np.array(classes)
        try:
            self._predict = _BOOSTERS[name][1](content, len(classes), trusted)
        except ImportError:
            raise DataFileError(f"the wrapped model needs {name}: pip install {name}.") from None
        except Unchecked:
            raise
        except Exception as error:
            raise _unreadable(error) from None

    def __reduce__(self) -> Any:
        # WHY trusted: it was read once, and what it was read from is in this process.
        return _Revived, (self.format, self.content, self.classes_.tolist(), True)

    @property
    def booster_(self) -> Any:
        """LightGBM's own, as its models name it; None of others."""
        return getattr(self._predict, "__self__", None)

    def predict(self, X: Any) -> Any:
        """Numbers (N,)."""
        return self._predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (N, C)."""
        p = np.asarray(self._predict(X))
        return np.stack([1 - p, p], axis=1) if p.ndim == 1 else p


def _dump_lightgbm(estimator: Any) -> bytes:
    return str(estimator.booster_.model_to_string(num_iteration=-1)).encode()


def _revive_lightgbm(content: bytes, n_classes: int, trusted: bool) -> Predict:
    import lightgbm

    text = content.decode() if trusted else clean_lightgbm(content, n_classes)
    booster = lightgbm.Booster(model_str=text)
    return booster.predict


def _dump_catboost(estimator: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        estimator.save_model(str(path), format="cbm")
        return path.read_bytes()


def _dump_xgboost(estimator: Any) -> bytes:
    return bytes(estimator.get_booster().save_raw("json"))


def _revive_tried(name: str) -> Callable[[bytes, int, bool], Predict]:
    def revive_one(content: bytes, n_classes: int, trusted: bool) -> Predict:
        import_module(name)  # WHY: before the trial, which could not say what is missing
        if not trusted and (wrong := try_out(name, content, n_classes)) is not None:
            raise Unchecked(wrong)
        model = LOADERS[name](content, n_classes)
        return lambda X: model.predict_proba(X) if n_classes else model.predict(X)

    return revive_one


_BOOSTERS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes, int, bool], Predict]]] = {
    "lightgbm": (_dump_lightgbm, _revive_lightgbm),
    "catboost": (_dump_catboost, _revive_tried("catboost")),
    "xgboost": (_dump_xgboost, _revive_tried("xgboost")),
}


def _dump_skops(estimator: Any) -> bytes:
    name, skops = type(estimator).__name__, _import_skops()
    try:
        content: bytes = skops.dumps(estimator)
        found = skops.get_untrusted_types(data=content)
    except Exception as error:
        raise InputError(f"{name} has no safe file format ({error}); keep it in memory.") from None
    try:
        read_sklearn(content)
    except Unchecked as error:
        untrusted = [name for name in found if name not in _PLAIN]
        if untrusted:
            raise InputError(
                f"{name} holds the types {', '.join(untrusted[:3])}, which are not safe to read "
                "back: write that model yourself, and wrap it again after loading."
            ) from None
        warnings.warn(
            f"{name} is not among the models that can be checked when they are read ({error}): "
            "the bundle can be loaded with trusted=True alone.",
            stacklevel=2,
        )
    return content


def _trust_skops(content: bytes) -> Any:
    """Whatever the file holds, code too."""
    skops = _import_skops()
    try:
        return skops.loads(content, trusted=skops.get_untrusted_types(data=content))
    except Exception as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> DataFileError:
    return DataFileError(
        f"the wrapped model cannot be read ({error}); restore the bundle, or fit again."
    )


def _import_skops() -> Any:
    try:
        return import_module("skops.io")
    except ImportError:
        raise InputError(
            "this wrapped model's file format needs skops: pip install skops."
        ) from None
