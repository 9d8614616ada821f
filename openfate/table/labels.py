"""What is to be predicted, y in all its forms, as an array: classes, labels of 0 and 1, numbers.

N rows.
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError

_ONE_EACH = "give a text, a number or a boolean for each row"
_LARGEST = 1e100  # of a number to predict: squares of larger ones would leave float64


def read_labels(y: Any, n_rows: int) -> NDArray[Any]:
    """Read a column, an array or a list of labels, none missing, one for each row.

    Examples
    --------
    >>> read_labels(["no", "yes"], n_rows=2).tolist()
    ['no', 'yes']
    """
    if y is None:
        raise InputError(
            "This estimator requires y to be passed, but the target y is None: give one."
        )
    if isinstance(nw.from_native(y, pass_through=True, allow_series=True), nw.Series):
        series = nw.from_native(y, series_only=True)
        if series.null_count():
            raise InputError(_missing(int(series.is_null().arg_true()[0])))
        try:
            y = np.asarray(series.to_numpy())
        except pl.exceptions.PolarsError:  # numpy has no such type
            raise InputError(f"y holds cells of type {series.dtype}: {_ONE_EACH}.") from None
    try:
        array = np.asarray(y)
    except ValueError:  # lists of several lengths
        raise InputError(f"y holds lists, such as {reprlib.repr(y[0])}: {_ONE_EACH}.") from None
    if array.dtype.kind == "O":
        odd = next((value for value in array.ravel() if not isinstance(value, Hashable)), None)
        if odd is not None:
            raise InputError(f"y holds cells of type {type(odd).__name__}: {_ONE_EACH}.")
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
            "Found input variables with inconsistent numbers of samples; give one label for each "
            "row."
        )
    if np.issubdtype(array.dtype, np.complexfloating):
        raise InputError("Complex data not supported: the target is complex.")
    return array


def _missing(row: int) -> str:
    return f"Input y contains NaN: row {row} has no target; drop such rows or fill them."


def class_numbers(y: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    """(N,) the place of each row's class among the classes of a model; an unknown one is refused.

    Examples
    --------
    >>> class_numbers(np.array(["yes", "no"]), ["no", "yes"])
    array([1, 0])
    """
    names = [c.item() if isinstance(c, np.generic) else c for c in classes]
    code_of = {name: code for code, name in enumerate(names)}
    values = [value.item() if isinstance(value, np.generic) else value for value in _one(y)]
    unknown = next((value for value in values if value not in code_of), None)
    if unknown is not None:
        raise InputError(
            f"y holds {unknown!r}, which is none of the classes that the model knows "
            f"({', '.join(map(repr, names[:10]))}): fit anew with it."
        )
    return np.array([code_of[value] for value in values], dtype=np.int64)


def label_matrix(y: NDArray[Any], n_labels: int) -> NDArray[np.int64]:
    """(N, K) zeros and ones of as many labels as a model has.

    Examples
    --------
    >>> label_matrix(np.array([[True, False]]), n_labels=2)
    array([[1, 0]])
    """
    good = y.ndim == 2 and y.shape[1] == n_labels and y.dtype.kind in "iubf"
    if not good or not np.isin(y, (0, 1)).all():
        raise InputError(f"y must have {n_labels} columns of 0 and 1; it has the shape {y.shape}.")
    return y.astype(np.int64)


def target_numbers(y: NDArray[Any]) -> NDArray[np.float64]:
    """(N,) finite numbers.

    Examples
    --------
    >>> target_numbers(np.array([1, 2]))
    array([1., 2.])
    """
    y = _one(y)
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
    return numbers


def _one(y: NDArray[Any]) -> NDArray[Any]:
    """(N,) of one column."""
    if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1):
        raise InputError(f"y has the shape {y.shape}: give one column.")
    return y.ravel()
