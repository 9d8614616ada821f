"""What a user says about rows in SQL: which ones (--where), and what to predict (--target).

An expression speaks of one row at a time, so that it means the same for a whole file and for a
piece of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from openfate.errors import InputError

__all__ = ["Expression", "parse"]

_REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
# Functions of SQL that look at other rows.
_OF_MANY_ROWS = re.compile(
    r"\b(avg|count|sum|min|max|median|mode|first|last|stddev\w*|stdev\w*|var\w*|quantile\w*|corr|"
    r"covar\w*|row_number|rank|dense_rank|lag|lead|array_agg|string_agg|first_value|last_value)"
    r"\s*\(|\bover\s*\(",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True)
class Expression:
    """An SQL expression that was checked against a table's columns; `flag` is for errors."""

    text: str
    flag: str
    expr: pl.Expr
    columns: tuple[str, ...]
    dtype: pl.DataType

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """Give its value in every row.

        Examples
        --------
        >>> rows = pl.DataFrame({"delay": [3, 20, None]})
        >>> parse("delay > 15", rows.schema, "--target").of(rows).to_list()
        [False, True, None]
        """
        try:
            return rows.select(self.expr.alias("value"))["value"]
        except _REFUSALS as error:
            raise InputError(f"{self.flag} {self.text}: {_first_line(error)}.") from None


def parse(text: str, types: Mapping[str, Any], flag: str) -> Expression:
    """Read a column's name or an SQL expression over the columns in `types`.

    Raises
    ------
    InputError
        With the flag, the expression and what is wrong with it.

    Examples
    --------
    >>> types = {"month": pl.Int64(), "origin": pl.String()}
    >>> parse("month = 1 AND origin = 'JFK'", types, "--where").columns
    ('month', 'origin')
    """
    if text in types:
        return Expression(text, flag, pl.col(text), (text,), types[text])
    if many := _OF_MANY_ROWS.search(_QUOTED.sub("''", text)):
        raise InputError(
            f"{flag} {text}: {many[0].rstrip('( ')} looks at other rows; "
            "an expression speaks of one row at a time."
        )
    try:
        expr = pl.sql_expr(text)
        columns = tuple(dict.fromkeys(expr.meta.root_names()))
    except _REFUSALS as error:
        raise InputError(
            f"{flag} {text}: not an SQL expression ({_first_line(error)}); "
            "write it like month = 1 AND origin = 'JFK'."
        ) from None
    for name in columns:
        if name not in types:
            raise InputError(f"{flag} {text}: there is no column {unknown_name(name, types)}.")
    try:
        (dtype,) = pl.LazyFrame(schema=dict(types)).select(expr).collect_schema().dtypes()
    except _REFUSALS as error:
        raise InputError(f"{flag} {text}: {_first_line(error)}.") from None
    return Expression(text, flag, expr, columns, dtype)


def condition(text: str, types: Mapping[str, Any], flag: str = "--where") -> Expression:
    """Read an expression that is true or false in every row.

    Examples
    --------
    >>> condition("month = 1", {"month": pl.Int64()}).dtype
    Boolean
    """
    expression = parse(text, types, flag)
    if expression.dtype != pl.Boolean:
        raise InputError(
            f"{flag} {text}: it gives {expression.dtype}, not true or false; "
            "compare it with something, as in month = 1."
        )
    return expression


def unknown_name(name: str, known: Mapping[str, Any]) -> str:
    """Give the name, a close one if there is any, and the known ones.

    Examples
    --------
    >>> unknown_name("mont", {"month": 0, "day": 0})
    "'mont'; did you mean 'month'? (columns: month, day)"
    """
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name!r}{hint} (columns: {', '.join(list(known)[:30])})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
