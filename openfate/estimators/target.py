"""What is to be predicted: y in all its forms, and encoded rows that carry it.

N rows, C classes, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d

from openfate.bank import FeatureBank, Task
from openfate.errors import InputError
from openfate.table import MultiHot

_LARGEST = 1e100  # of a target: squares of larger ones would leave float64
_LEAST = 40  # rows of a table from which some can be spared for validation


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
        """Outputs of a network: one for two classes, and for numbers."""
        return len(self.classes) if self.task in ("multiclass", "multilabel") else 1

    @property
    def outcomes(self) -> NDArray[Any]:
        """`y` on the scale of predictions: numbers are not standardised."""
        if self.task != "regression":
            return self.y
        mean, deviation = self.scale
        return np.asarray(self.y * deviation + mean)

    @property
    def original(self) -> NDArray[Any]:
        """(N,) what the user gave: classes by their names, or numbers."""
        is_class = self.task in ("binary", "multiclass")
        return np.array(self.classes)[self.y] if is_class else self.outcomes

    def select(self, rows: NDArray[np.intp]) -> Target:
        """The targets of some rows."""
        return replace(self, y=self.y[rows])


def read_classes(y: Any, n_rows: int) -> Target:
    """Classes of any type, or a 0-1 matrix of labels.

    Examples
    --------
    >>> target = read_classes(["no", "yes", "no"], n_rows=3)
    >>> target.task, target.y.tolist(), [str(name) for name in target.classes]
    ('binary', [0, 1, 0], ['no', 'yes'])
    """
    y = _as_array(y, n_rows)
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
    names, codes = np.unique(y, return_inverse=True)
    classes = tuple(names)
    if len(classes) < 2:
        raise InputError(
            f"the target has one class, {names.tolist()[0]!r}: "
            "a classifier needs two classes or more."
        )
    return Target(_class_task(classes), codes.astype(np.int64), classes)


def read_known_classes(y: Any, n_rows: int, classes: Sequence[Any]) -> Target:
    """Classes of a model that is fitted, whichever of them these rows have."""
    codes = _codes(column_or_1d(_as_array(y, n_rows)), classes)
    return Target(_class_task(classes), codes, tuple(classes))


def read_labels(y: Any, n_rows: int, bank: FeatureBank) -> Target:
    """What a bank's fit took, for labels that come later; an unknown class is refused."""
    if bank.task == "regression":
        return read_numbers(y, n_rows, bank.target_scale)
    if bank.task != "multilabel":
        return read_known_classes(y, n_rows, bank.classes)
    labels, n_labels = _as_array(y, n_rows), len(bank.classes)
    good = labels.ndim == 2 and labels.shape[1] == n_labels and labels.dtype.kind in "iubf"
    if not good or not np.isin(labels, (0, 1)).all():
        raise InputError(
            f"y must have {n_labels} columns of 0 and 1; it has the shape {labels.shape}."
        )
    return Target("multilabel", labels.astype(np.int64), tuple(bank.classes))


def read_numbers(y: Any, n_rows: int, scale: tuple[float, float] | None = None) -> Target:
    """Numbers, standardised (by themselves, or by a `scale` that is known already)."""
    y = column_or_1d(_as_array(y, n_rows), warn=True)
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


def _class_task(classes: Sequence[Any]) -> Task:
    return "binary" if len(classes) == 2 else "multiclass"


def _codes(y: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    names = [c.item() if isinstance(c, np.generic) else c for c in classes]
    code_of = {name: code for code, name in enumerate(names)}
    values = [value.item() if isinstance(value, np.generic) else value for value in y]
    unknown = next((value for value in values if value not in code_of), None)
    if unknown is not None:
        raise InputError(
            f"y holds {unknown!r}, which is none of the classes that the model knows "
            f"({', '.join(map(repr, names[:10]))}): fit anew with it."
        )
    return np.array([code_of[value] for value in values], dtype=np.int64)


def _as_array(y: Any, n_rows: int) -> NDArray[Any]:
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
class LabelledRows:
    """Encoded rows with their targets and weights."""

    X: MultiHot
    target: Target
    weight: NDArray[np.float64] | None = None

    def select(self, rows: NDArray[np.intp]) -> LabelledRows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return LabelledRows(self.X.select_rows(rows), self.target.select(rows), weight)

    def sample(self, most: int, rng: np.random.Generator) -> LabelledRows:
        """The rows, or `most` of them drawn at random, in their order."""
        n_rows = self.X.n_rows
        return self if n_rows <= most else self.select(np.sort(rng.permutation(n_rows)[:most]))


def split_rows(
    target: Target, share: float, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of training and of validation rows: a share of the rows, of each class alike.

    A table of fewer than 40 rows, or a share of 0, spares none for validation.
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
    return np.flatnonzero(kept), np.flatnonzero(~kept)
