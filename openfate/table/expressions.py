"""What a user says about rows in SQL: which ones, and what to predict.

An expression speaks of one row at a time, so that it means the same for a whole file and for a
piece of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from openfate.errors import InputError, first_line, suggest

_REFUSALS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
# Functions of SQL that look at other rows.
_OF_MANY_ROWS = re.compile(
    r"\b(avg|count|sum|min|max|median|mode|first|last|stddev\w*|stdev\w*|var\w*|quantile\w*|corr|"
    r"covar\w*|row_number|rank|dense_rank|lag|lead|array_agg|string_agg|first_value|last_value)"
    r"\s*\(|\bover\s*\(",
    re.IGNORECASE,
)
_LOOKS_AT_OTHERS = "looks at other rows; an expression speaks of one row at a time"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True)
class Expression:
    """An SQL expression that was checked against a table's columns; errors name its `argument`."""

    text: str
    argument: str
    expr: pl.Expr
    columns: tuple[str, ...]
    dtype: pl.DataType

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """Give its value in every row.

        Examples
        --------
        >>> rows = pl.DataFrame({"delay": [3, 20, None]})
        >>> parse("delay > 15", rows.schema, "target").of(rows).to_list()
        [False, True, None]
        """
        try:
            return rows.select(self.expr.alias("value"))["value"]
        except _REFUSALS as error:
            raise InputError(f"{self.argument} {self.text}: {first_line(error)}.") from None


def parse(text: str, types: Mapping[str, Any], argument: str) -> Expression:
    """Read a column's name or an SQL expression over the columns in `types`.

    Raises
    ------
    InputError
        With the argument, the expression and what is wrong with it.

    Examples
    --------
    >>> types = {"month": pl.Int64(), "origin": pl.String()}
    >>> parse("month = 1 AND origin = 'JFK'", types, "where").columns
    ('month', 'origin')
    """
    if text in types:
        return Expression(text, argument, pl.col(text), (text,), types[text])

    def fault(what: str) -> InputError:
        return InputError(f"{argument} {text}: {what}.")

    if many := _OF_MANY_ROWS.search(_QUOTED.sub("''", text)):
        raise fault(f"{many[0].rstrip('( ')} {_LOOKS_AT_OTHERS}")
    try:
        expr = pl.sql_expr(text)
        columns = tuple(dict.fromkeys(expr.meta.root_names()))
    except _REFUSALS as error:
        example = "write it like month = 1 AND origin = 'JFK'"
        raise fault(f"not an SQL expression ({first_line(error)}); {example}") from None
    for name in columns:
        if name not in types:
            raise fault(f"there is no column {unknown_name(name, types)}")
    if expr.meta.has_multiple_outputs():
        raise fault("it may give several columns; name the one that counts")
    if not columns:
        raise fault(f"it speaks of no column; name one (columns: {_listed(types)})")
    value = pl.LazyFrame(schema=dict(types)).select(expr.alias("value"))
    try:
        (dtype,) = value.collect_schema().dtypes()
        is_of_one_row = _is_of_one_row(value)
    except pl.exceptions.StructFieldNotFoundError as error:
        dotted = 'a name with a dot in it is written in quotes, as in "a.b" > 1'
        what = f"there is no field {first_line(error)!r} in that column; {dotted}"
        raise fault(what) from None
    except _REFUSALS as error:
        raise fault(first_line(error)) from None
    if not is_of_one_row:
        raise fault(f"it {_LOOKS_AT_OTHERS}")
    return Expression(text, argument, expr, columns, dtype)


def _is_of_one_row(value: pl.LazyFrame) -> bool:
    """Whether each row's value comes from that row alone.

    WHY: polars knows, but only its optimizer asks in depth: it cuts rows off before it computes
    values where, and only where, the rows that are left do not need the others.
    """
    flags = pl.QueryOptFlags.none(slice_pushdown=True)
    return not value.slice(1, 1).explain(optimizations=flags).lstrip().startswith("SLICE")


def condition(text: str, types: Mapping[str, Any]) -> Expression:
    """Read an expression that is true or false in every row.

    Examples
    --------
    >>> condition("month = 1", {"month": pl.Int64()}).dtype
    Boolean
    """
    expression = parse(text, types, "where")
    if expression.dtype != pl.Boolean:
        raise InputError(
            f"where {text}: it gives {expression.dtype}, not true or false; "
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
    return f"{name!r}{suggest(name, known)} (columns: {_listed(known)})"


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:30])
