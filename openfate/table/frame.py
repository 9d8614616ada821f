"""Any frame -> polars columns: the one place where pandas, polars and pyarrow are told apart.

Everything behind it (schema, encoder) sees polars Series in which a missing cell is null, whatever
the frame's own sign for it was (None, NaN, pd.NA, NaT).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.table.values import column_of, without_nan

__all__ = ["Table", "elements_of", "numbers_of", "read_table", "text_of"]


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a frame as polars Series; keeps the number of rows where no column is left.

    A table can be given wherever a frame can; what was computed of its columns is then not
    computed again (`openfate.table.words` keeps it in `memo`).
    """

    n_rows: int
    columns: Mapping[str, pl.Series]
    native: Any = field(default=None, repr=False)  # what it was read from, all columns
    memo: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False)

    def select(self, names: Iterable[str]) -> Table:
        """Keep the named columns only.

        Examples
        --------
        >>> import polars as pl
        >>> list(read_table(pl.DataFrame({"a": [1], "b": [2]})).select(["b"]).columns)
        ['b']
        """
        kept = Table(self.n_rows, {name: self.columns[name] for name in names}, self.native)
        kept.memo.update({key: value for key, value in self.memo.items() if key[0] in kept.columns})
        return kept


def read_table(frame: Any) -> Table:
    """Take a pandas, polars or pyarrow frame apart into polars columns.

    Parameters
    ----------
    frame
        Any eager frame that narwhals knows; it is not changed.  Or a table, read already.

    Returns
    -------
        Its columns, in order, with every missing cell as null; a table as it is.

    Raises
    ------
    InputError
        Where it is no frame, or a column has no usable name or values.

    Examples
    --------
    >>> import polars as pl
    >>> read_table(pl.DataFrame({"age": [31.5, float("nan")]})).columns["age"].to_list()
    [31.5, None]
    """
    if isinstance(frame, Table):
        return frame
    data = _as_narwhals(frame)
    odd = next((name for name in data.columns if not isinstance(name, str)), None)
    if odd is not None:
        raise InputError(
            f"column name {odd!r} is not text; rename it, e.g. with "
            "frame.columns = frame.columns.map(str)."
        )
    odd = next((name for name in data.columns if not _has_utf8(name)), None)
    if odd is not None:
        raise InputError(f"column name {odd!r} is not valid Unicode; rename it.")
    return Table(len(data), {name: _to_polars(data[name], name) for name in data.columns}, frame)


def text_of(column: pl.Series, field: str) -> pl.Series:
    """Give the canonical text of every value, which is what makes two cells the same feature.

    Whole floats lose their point (pandas turns integers into floats where a cell is missing), so 1,
    1.0 and the text "1" are one value.  Text is taken as it is: "1.0", "01" and " 1" are others.
    Decimals and times are exact to the last digit.

    Examples
    --------
    >>> import polars as pl
    >>> text_of(pl.Series([1.0, 2.5, None]), "age").to_list()
    ['1', '2.5', None]
    """
    dtype = column.dtype
    if dtype in (pl.Datetime, pl.Duration):
        return _time_text(column)
    if dtype.is_decimal():
        return _decimal_text(column)
    if dtype.is_float():
        return _float_text(column)
    if dtype.is_nested() or dtype == pl.Object:
        raise InputError(
            f"field {field!r} holds values of type {dtype}; give text, numbers, dates or truth "
            "values, or declare it multivalued where every cell is a list of those."
        )
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:
        raise InputError(
            f"field {field!r} holds values of type {dtype} that are not text; "
            "convert them to text first."
        ) from None


def numbers_of(column: pl.Series, field: str) -> pl.Series:
    """Cast a numeric field's cells to float64, null where missing; times become seconds.

    Examples
    --------
    >>> import polars as pl
    >>> numbers_of(pl.Series(["1", "2.5", None]), "age").to_list()
    [1.0, 2.5, None]
    """
    try:
        if column.dtype.is_temporal():
            return _seconds(column)
        return without_nan(column.cast(pl.Float64))
    except pl.exceptions.PolarsError:
        if column.dtype == pl.String:
            failed = column.cast(pl.Float64, strict=False).is_null() & column.is_not_null()
            what = repr(column.filter(failed)[0])
        else:
            what = f"values of type {column.dtype}"
        raise InputError(
            f"numeric field {field!r} holds {what}; give numbers, or declare it categorical."
        ) from None


def elements_of(column: pl.Series, field: str) -> tuple[NDArray[np.int64], pl.Series]:
    """Give the row and the value of every list element of a multivalued field that is not null.

    Examples
    --------
    >>> import polars as pl
    >>> row, value = elements_of(pl.Series([["a", "b"], None, ["a", None]]), "tags")
    >>> row.tolist(), value.to_list()
    ([0, 0, 2], ['a', 'b', 'a'])
    """
    if column.dtype == pl.Array:
        column = column.arr.to_list()
    if column.dtype != pl.List and column.null_count() == len(column):
        column = pl.Series(column.name, [None] * len(column), dtype=pl.List(pl.String))
    if column.dtype != pl.List:
        raise InputError(
            f"multivalued field {field!r} holds values of type {column.dtype}; "
            "give a list in every cell, or declare it categorical."
        )
    frame = pl.DataFrame({"row": np.arange(len(column)), "value": column})
    frame = frame.explode("value").drop_nulls("value")
    return frame["row"].to_numpy(), frame["value"]


def _seconds(column: pl.Series) -> pl.Series:
    """Seconds, whatever unit the frame's library counts in; dates since 1970."""
    per_second = {"ms": 1e3, "us": 1e6, "ns": 1e9}
    if column.dtype == pl.Date:
        return column.to_physical().cast(pl.Float64) * 86400.0
    unit = getattr(column.dtype, "time_unit", None) or "ns"  # a Time has no unit of its own
    return column.to_physical().cast(pl.Float64) / per_second[unit]


def _float_text(column: pl.Series) -> pl.Series:
    x = pl.col("x")
    # WHY: above 2**53 a float no longer holds every integer, so its digits would be invented.
    whole = (x == x.floor()) & (x.abs() < 2**53)
    text = pl.when(whole).then(x.cast(pl.Int64, strict=False).cast(pl.String))
    frame = pl.DataFrame({"x": column.cast(pl.Float64).fill_nan(None)})
    return frame.select(text.otherwise(x.cast(pl.String)).alias(column.name)).to_series()


def _decimal_text(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String)
    has_point = text.str.contains(".", literal=True)
    short = text.str.strip_chars_end("0").str.strip_chars_end(".")
    return short.zip_with(has_point.fill_null(False), text)


def _time_text(column: pl.Series) -> pl.Series:
    """Microseconds where they are exact, else nanoseconds."""
    # WHY: pandas may count in nanoseconds, polars in microseconds; the digits would differ.
    whole, exact = column.dt.cast_time_unit("us"), column
    if column.dtype == pl.Duration:
        whole, exact = column.dt.total_microseconds(), column.dt.total_nanoseconds()
    if getattr(column.dtype, "time_unit", None) != "ns":
        return whole.cast(pl.String)
    is_whole = (column.to_physical() % 1000 == 0).fill_null(True)
    unit = "ns" if column.dtype == pl.Duration else ""
    return whole.cast(pl.String).zip_with(is_whole, exact.cast(pl.String) + unit)


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_narwhals(frame: Any) -> nw.DataFrame[Any]:
    try:
        return nw.from_native(frame, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        names = " ".join(str(error).split())
        raise InputError(f"column names must be unique: {names}.") from None
    except TypeError:
        hint = "call .collect() first" if isinstance(frame, pl.LazyFrame) else "give a frame"
        raise InputError(
            f"expected a pandas, polars or pyarrow frame, not {type(frame).__name__}; {hint}."
        ) from None


def _to_polars(series: nw.Series[Any], name: str) -> pl.Series:
    """One column; through Python values where there is no direct way (mixed or odd types)."""
    if series.dtype == nw.Unknown:
        return _from_values(series, name)
    try:
        column = series.to_polars().alias(name)
    # WHY: pyarrow may be absent or refuse in many ways; none of them is the user's error yet.
    except (Exception, pl.exceptions.PanicException):
        column = _from_values(series, name)
    if series.dtype in (nw.Categorical, nw.Enum) and not _is_words(column.dtype):
        return text_of(column, name)  # categories of numbers or dates are categories still
    return without_nan(column)


def _is_words(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)


def _from_values(series: nw.Series[Any], name: str) -> pl.Series:
    missing = series.is_null().to_list()
    cells = zip(series.to_list(), missing, strict=True)
    return column_of(name, [None if is_missing else value for value, is_missing in cells])
