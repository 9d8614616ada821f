"""Kind: how a column's cells become features, and the guess of it from a column.

The guess follows the column's type; integers alone need a look at their name and their values,
because an integer may be a quantity (age), a label (class 3) or a name (customer 1042).
"""

from __future__ import annotations

import re
from typing import Literal

import polars as pl

__all__ = ["Kind", "guess_kind"]

Kind = Literal["categorical", "numeric", "multivalued", "datetime"]

_FEW_VALUES = 32
_MANY_ROWS = 100
_ID_WORDS = frozenset("id uid uuid guid userid key code zip zipcode postcode number no nr".split())
# Between the words of snake_case, kebab-case, camelCase and ABBRCase names.
_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def guess_kind(name: str, column: pl.Series) -> Kind:
    """Guess the kind of a column.

    Truth values, text and categories are categorical, floats, decimals and durations numeric,
    dates and times datetime, lists multivalued.

    Integers are numeric, but categorical where they have at most 32 distinct values or look like
    ids: the last word of the name says so (id, key, code, zip, number, ...), or at least 100 cells
    are all distinct and fill half of their range or more, as serial numbers do.

    A float column of whole numbers in which a cell is missing follows the rule of integers, for
    that is how pandas keeps integers with missing cells.  Numbers of which none is there are
    categorical.

    Examples
    --------
    >>> import polars as pl
    >>> guess_kind("age", pl.Series(range(18, 90))), guess_kind("shop_id", pl.Series(range(18, 90)))
    ('numeric', 'categorical')
    """
    dtype = column.dtype
    if dtype in (pl.List, pl.Array):
        return "multivalued"
    if dtype in (pl.Date, pl.Datetime, pl.Time):
        return "datetime"
    if dtype.is_integer() or _may_be_integers(column):
        return "categorical" if _is_label(name, column) else "numeric"
    return "numeric" if dtype.is_numeric() or dtype == pl.Duration else "categorical"


def _may_be_integers(column: pl.Series) -> bool:
    """Whether integers with missing cells may have become this column, or nothing is in it."""
    is_number = column.dtype.is_numeric() or column.dtype == pl.Duration
    if not is_number or not column.null_count():
        return False
    if column.null_count() == len(column):
        return True
    if not column.dtype.is_float():
        return False
    cells = column.drop_nulls()
    return bool((cells.is_finite() & (cells == cells.floor())).all())


def _is_label(name: str, numbers: pl.Series) -> bool:
    cells = numbers.drop_nulls()
    n_distinct = cells.n_unique()
    if n_distinct <= _FEW_VALUES or _names_an_id(name):
        return True
    if n_distinct < len(cells) or n_distinct < _MANY_ROWS:
        return False
    return bool(float(cells.max()) - float(cells.min()) < 2 * n_distinct)  # type: ignore[arg-type]


def _names_an_id(name: str) -> bool:
    words = [word.lower() for word in _BETWEEN_WORDS.split(name) if word]
    return bool(words) and words[-1] in _ID_WORDS
