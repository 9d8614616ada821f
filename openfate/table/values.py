"""Python values of any types as a column: what a table of objects holds.

Polars takes the type of the first values for all of them, so that what becomes of a cell would
depend on the rows before it.  Here it does not: values of one type make a column of that type,
whole numbers beside others make numbers, and anything else is compared as text.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl

from openfate.errors import InputError

__all__ = ["column_of", "without_nan"]

# How polars refuses Python values; it panics at decimals that are infinite or very long.
_REFUSALS = (
    TypeError,
    ValueError,
    OverflowError,
    RuntimeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
_LISTS = (list, tuple, set, frozenset, np.ndarray)
_SIMPLE = {str, int, float, bool, date, datetime, time, timedelta, type(None)}
# Cells of a subclass are of the class: pandas' Timestamp is a datetime.  A datetime is a date, too.
_CLASSES = (str, bool, int, float, datetime, date, time, timedelta, Decimal, dict, bytes)


def column_of(name: str, values: Sequence[Any]) -> pl.Series:
    """Python values as a column, whatever their order; missing ones are null.

    Raises
    ------
    InputError
        Where lists stand beside other values, or text has no UTF-8.

    Examples
    --------
    >>> column_of("x", [1, "a", 2.0, float("nan"), True]).to_list()
    ['1', 'a', '2', None, 'true']
    >>> column_of("x", [[1], None, [2.5, 3]]).to_list()
    [[1.0], None, [2.5, 3.0]]
    """
    try:
        return _column(name, values)
    except UnicodeEncodeError as error:
        # Half a surrogate pair, from broken JSON or file names, has no UTF-8.
        what = reprlib.repr(error.object)
        raise InputError(
            f"field {name!r} holds {what}, which is not valid Unicode; replace or drop it."
        ) from None


def without_nan(column: pl.Series) -> pl.Series:
    """The column with null for nan.

    Examples
    --------
    >>> without_nan(pl.Series([1.0, float("nan")])).to_list()
    [1.0, None]
    """
    # WHY: fill_nan takes 80 µs even of one row, and most columns need none.
    if column.dtype.is_float() and np.isnan(column.to_numpy()).any():
        return column.fill_nan(None)
    return column


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    types = set(map(type, values))
    if not types <= _SIMPLE or (float in types and not types <= {float, int, type(None)}):
        values = [None if _is_missing(value) else _plain(value) for value in values]
        types = {_class_of(value) for value in values}
    types.discard(type(None))
    if types == {int, float} and all(_is_exact(value) for value in values):
        return without_nan(pl.Series(name, values, dtype=pl.Float64, strict=False))
    if types == {list}:
        return _lists(name, values)
    if types == {np.datetime64}:
        nothing = np.datetime64("NaT")
        return pl.Series(name, np.array([nothing if v is None else v for v in values]))
    if len(types) <= 1:
        try:
            column = pl.Series(name, values)
            if column.dtype != pl.Object:
                return without_nan(column)
        except UnicodeEncodeError:
            raise
        except _REFUSALS:
            pass  # a type that polars does not know
    return pl.Series(name, [_text(value, name) for value in values], dtype=pl.String)


def _is_missing(value: Any) -> bool:
    """None, nan, pandas' NA or NaT; a cell that holds several values is none of them."""
    if value is None or type(value).__name__ == "NAType":
        return True
    if isinstance(value, (*_LISTS, dict)):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return False


def _plain(value: Any) -> Any:
    """A set or an array as a list, a number of numpy as Python's."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, np.datetime64):  # WHY: as Python's, nanoseconds would be a whole number
        return value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _class_of(value: Any) -> type:
    if isinstance(value, _LISTS):
        return list
    return next((kind for kind in _CLASSES if isinstance(value, kind)), type(value))


def _is_exact(value: Any) -> bool:
    """Whether a number is itself as a float."""
    return not isinstance(value, int) or abs(value) <= 2**53


def _lists(name: str, values: Sequence[Any]) -> pl.Series:
    """A column of lists, whose elements are a column too."""
    flat = itertools.chain.from_iterable(value for value in values if value is not None)
    elements = _column(name, list(flat))
    rest = iter(elements.to_list())
    lists = [None if v is None else list(itertools.islice(rest, len(v))) for v in values]
    return pl.Series(name, lists, dtype=pl.List(elements.dtype))


def _text(value: Any, name: str) -> str | None:
    """`openfate.table.frame.text_of` for one value of a column whose values have several types."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, (*_LISTS, dict, bytes)):
        raise InputError(
            f"field {name!r} mixes {type(value).__name__} values with others; "
            "give every cell one type."
        )
    return str(value)
