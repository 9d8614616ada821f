"""What a user hands to an estimator -> a table, a target, weights: checked before anything is done.

Named frames are open: columns may be new, missing or in another order.  Arrays have no names, so
their columns are known by place and their number is strict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from openfate.bank import FeatureBank, Task
from openfate.errors import InputError
from openfate.table import MultiHot, Table, column_of, read_table

__all__ = [
    "Parts",
    "Rows",
    "Target",
    "as_predicted",
    "class_target",
    "label_target",
    "number_target",
    "open_table",
    "seed_of",
    "select_rows",
    "split",
    "target_name",
    "unchanged_on_error",
]

_LARGEST = 1e100  # of a target: squares of larger ones would leave float64
_LEAST = 40  # rows of a table from which some can be spared for validation

# ---- X -----------------------------------------------------------------------------------------


def open_table(estimator: BaseEstimator, X: Any, *, reset: bool) -> Table:
    """Read a frame or an array; `reset` in fit, where the estimator learns names and width.

    Raises
    ------
    InputError, ValueError, TypeError
        For duplicate names, no rows, arrays of another width, infinite numbers, sparse matrices.
    """
    if not _has_names(X):
        return _open_array(estimator, X, reset)
    if not reset and not hasattr(estimator, "feature_names_in_"):
        raise InputError(
            "it was fitted with an array, whose columns have no names, and now gets a frame with "
            "names: give an array of the same width, or fit with a frame."
        )
    table = read_table(X)
    if reset:
        if not table.n_rows:
            raise InputError("the frame has 0 sample(s): a minimum of 1 row is required to fit.")
        if not table.columns:
            raise InputError("the frame has 0 feature(s): a minimum of 1 column is required.")
        estimator.feature_names_in_ = np.array(list(table.columns), dtype=object)
        estimator.n_features_in_ = len(table.columns)
    return table


def seed_of(random_state: Any) -> int:
    """A seed drawn from what scikit-learn takes: None, a whole number or a generator.

    Examples
    --------
    >>> seed_of(0) == seed_of(0), seed_of(0) == seed_of(1)
    (True, False)
    """
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise InputError(
            f"random_state={random_state!r}: choose a whole number from 0 to 2**32 - 1, a "
            "numpy.random.RandomState or None."
        ) from None


@contextmanager
def unchanged_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Leave an estimator as it was where a fit fails: no new names around an old model."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _has_names(X: Any) -> bool:
    """Whether it is a frame with names of its own; pandas numbers columns that have none."""
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError:
        return True  # `read_table` says which names they are
    if isinstance(frame, nw.LazyFrame):
        raise InputError("a lazy frame cannot be used: call .collect() first.")
    if not isinstance(frame, nw.DataFrame):
        return False
    return not frame.columns or any(isinstance(name, str) for name in frame.columns)


def _open_array(estimator: BaseEstimator, X: Any, reset: bool) -> Table:
    array = validate_data(
        estimator, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=1
    )
    columns = {}
    for at, cells in enumerate(array.T):
        name = f"x{at}"
        columns[name] = _cells(name, cells)
    return Table(len(array), columns, array)


def _cells(name: str, cells: NDArray[Any]) -> pl.Series:
    if cells.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} holds {cells[0]}.")
    if cells.dtype.kind != "O":
        column = pl.Series(name, np.ascontiguousarray(cells))
        return column.fill_nan(None) if column.dtype.is_float() else column
    return column_of(name, list(cells))


def select_rows(table: Table, rows: NDArray[np.intp]) -> Table:
    """Some rows of a table, in the given order."""
    return Table(len(rows), {name: column[rows] for name, column in table.columns.items()})


# ---- y -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What is to be predicted, as training takes it.

    `y` is (N,) class numbers, (N, K) labels, or (N,) standardised numbers; `scale` is the mean and
    the deviation that did that.
    """

    task: Task
    y: NDArray[Any]
    classes: tuple[Any, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)

    @property
    def n_outputs(self) -> int:
        """C: outputs of the network."""
        return len(self.classes) if self.task in ("multiclass", "multilabel") else 1

    def select(self, rows: NDArray[np.intp]) -> Target:
        """The targets of some rows."""
        return replace(self, y=self.y[rows])


def class_target(y: Any, n_rows: int) -> Target:
    """Classes of any type, or a 0-1 matrix of labels."""
    y = _plain(y, n_rows)
    kinds = sorted({type(value).__name__ for value in y}) if y.dtype.kind == "O" else []
    if len(kinds) > 1:
        raise InputError(
            f"the target mixes values of the types {', '.join(kinds)}: give it one type."
        )
    check_classification_targets(y)
    if type_of_target(y) == "multilabel-indicator":
        labels = check_array(y, accept_sparse=False, dtype=np.int64)
        return Target("multilabel", labels, tuple(range(labels.shape[1])))
    y = column_or_1d(y, warn=True)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InputError(
            f"the target has one class, {classes.tolist()[0]!r}: "
            "a classifier needs two classes or more."
        )
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    return Target(task, codes.astype(np.int64), tuple(classes))


def label_target(y: Any, n_rows: int, bank: FeatureBank) -> Target:
    """What a bank's fit took, for labels that come later; an unknown class is refused."""
    if bank.task == "regression":
        return number_target(y, n_rows, bank.target_scale)
    codes = _codes(_plain(y, n_rows), bank.classes, bank.task)
    return Target(bank.task, codes, tuple(bank.classes))


def _codes(y: NDArray[Any], classes: Sequence[Any], task: Task) -> NDArray[np.int64]:
    if task == "multilabel":
        good = y.ndim == 2 and y.shape[1] == len(classes) and y.dtype.kind in "iubf"
        if not good or not np.isin(y, (0, 1)).all():
            raise InputError(
                f"y must have {len(classes)} columns of 0 and 1; it has the shape {y.shape}."
            )
        return y.astype(np.int64)
    y = column_or_1d(y)
    code_of = {c.item() if isinstance(c, np.generic) else c: at for at, c in enumerate(classes)}
    plain = [value.item() if isinstance(value, np.generic) else value for value in y]
    unknown = next((value for value in plain if value not in code_of), None)
    if unknown is not None:
        named = [c.item() if isinstance(c, np.generic) else c for c in classes]
        names = ", ".join(map(repr, named[:10]))
        raise InputError(
            f"y holds {unknown!r}, which is none of the classes ({names}): fit anew with it."
        )
    return np.array([code_of[value] for value in plain], dtype=np.int64)


def target_name(y: Any, table: Table) -> tuple[str, ...]:
    """The name of a named target, unless a column has it: later it must not come in as a feature.

    Examples
    --------
    >>> target_name(pl.Series("late", [1]), Table(1, {}))
    ('late',)
    """
    name = getattr(y, "name", None)
    is_new = isinstance(name, str) and name and name not in table.columns
    return (str(name),) if is_new else ()


def number_target(y: Any, n_rows: int, scale: tuple[float, float] | None = None) -> Target:
    """Numbers, standardised (by themselves, or by a `scale` that is known already)."""
    y = column_or_1d(_plain(y, n_rows), warn=True)
    try:
        numbers = y.astype(np.float64) if y.dtype.kind in "iubfO" else None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None:
        raise InputError(
            f"the target holds {y.tolist()[0]!r}, which is no number: use a classifier."
        )
    if len(numbers) and not np.abs(numbers).max() <= _LARGEST:  # also true of nan
        worst = numbers[int(np.argmax(~(np.abs(numbers) <= _LARGEST)))]
        raise InputError(f"the target holds {worst:g}: make it finite, and below {_LARGEST:g}.")
    if scale is None:
        deviation = float(numbers.std())
        scale = (float(numbers.mean()), deviation if deviation > 0 else 1.0)
    return Target("regression", (numbers - scale[0]) / scale[1], scale=scale)


def as_predicted(target: Target) -> NDArray[Any]:
    """Targets on the scale of predictions: numbers are not standardised."""
    if target.task != "regression":
        return target.y
    mean, deviation = target.scale
    return np.asarray(target.y * deviation + mean)


def _plain(y: Any, n_rows: int) -> NDArray[Any]:
    """The target as an array without missing values, one for each row."""
    if y is None:
        raise InputError(
            "This estimator requires y to be passed, but the target y is None: give one."
        )
    if isinstance(nw.from_native(y, pass_through=True, allow_series=True), nw.Series):
        series = nw.from_native(y, series_only=True)
        if series.null_count():
            raise InputError(_missing(int(series.is_null().arg_true()[0])))
        y = np.asarray(series.to_numpy())
    array = np.asarray(y)
    if array.dtype.kind == "O":
        missing = [v is None or (isinstance(v, float) and np.isnan(v)) for v in array.ravel()]
        if any(missing):
            raise InputError(_missing(missing.index(True)))
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        if np.isnan(array).any():
            raise InputError(_missing(int(np.argwhere(np.isnan(array))[0][0])))
        raise InputError("Input y contains infinity: make the target finite.")
    if array.ndim == 0 or len(array) != n_rows:
        raise InputError(
            f"X has {n_rows} rows and y {len(array) if array.ndim else 'one value'}: "
            "Found input variables with inconsistent numbers of samples."
        )
    if np.issubdtype(array.dtype, np.complexfloating):
        raise InputError("Complex data not supported: the target is complex.")
    return array


def _missing(row: int) -> str:
    return f"Input y contains NaN: row {row} has no target; drop such rows or fill them."


# ---- rows for training and validation ----------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Encoded rows with their targets and weights."""

    X: MultiHot
    target: Target
    weight: NDArray[np.float64] | None

    def select(self, rows: NDArray[np.intp]) -> Rows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Rows(self.X.select_rows(rows), self.target.select(rows), weight)

    def widened(self, n_features: int) -> Rows:
        """The same rows in a larger feature space."""
        return replace(self, X=self.X.widen(n_features))

    @property
    def triple(self) -> tuple[MultiHot, ArrayLike, NDArray[np.float64] | None]:
        """As `train` takes its validation rows."""
        return self.X, self.target.y, self.weight


@dataclass(frozen=True)
class Parts:
    """Places of training and validation rows."""

    training: NDArray[np.intp]
    validation: NDArray[np.intp]


def split(target: Target, share: float, seed: int) -> Parts:
    """Spare a share of the rows for validation, of each class alike.

    A table of fewer than 40 rows, or a share of 0, spares none.
    """
    if not 0 <= share < 1:
        raise InputError(f"validation_share={share}: choose a share from 0 to below 1.")
    n_rows = len(target.y)
    if n_rows < _LEAST:
        share = 0.0
    rng = np.random.default_rng([seed, 3])
    order = rng.permutation(n_rows)
    groups = [order]
    if target.task in ("binary", "multiclass"):
        groups = [order[target.y[order] == c] for c in range(len(target.classes))]
    spared = np.concatenate([group[: int(len(group) * share)] for group in groups])
    kept = np.ones(n_rows, dtype=bool)
    kept[spared] = False
    return Parts(np.flatnonzero(kept), np.flatnonzero(~kept))
