"""Any frame -> polars columns: the one place where pandas, polars and pyarrow are told apart.

Everything behind it (schema, encoder) sees polars Series in which a missing cell is null, whatever
the frame's own sign for it was (None, NaN, pd.NA, NaT).
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError

__all__ = ["Table", "column_of", "elements_of", "numbers_of", "read_table", "text_of"]

# How polars refuses Python values; it panics at decimals that are infinite or very long.
_REFUSALS = (
    TypeError,
    ValueError,
    OverflowError,
    RuntimeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
_CONTAINERS = (dict, bytes, list, tuple, set, frozenset)


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a frame as polars Series; keeps the number of rows where no column is left.

    A table can be given wherever a frame can; what was computed of its columns is then not
    computed again (`openfate.data.words` keeps it in `memo`).
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
        return _without_nan(column.cast(pl.Float64))
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
    return _without_nan(column)


def _without_nan(column: pl.Series) -> pl.Series:
    # WHY: fill_nan takes 80 µs even of one row, and most columns need none.
    if column.dtype.is_float() and np.isnan(column.to_numpy()).any():
        return column.fill_nan(None)
    return column


def _is_words(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)


def _from_values(series: nw.Series[Any], name: str) -> pl.Series:
    missing = series.is_null().to_list()
    cells = zip(series.to_list(), missing, strict=True)
    return column_of(name, [None if is_missing else value for value, is_missing in cells])


def column_of(name: str, values: Sequence[Any]) -> pl.Series:
    """Python values of any types as a column, whatever their order; missing ones are null.

    Examples
    --------
    >>> column_of("x", [1, "a", 2.0, float("nan"), True]).to_list()
    ['1', 'a', '2', None, 'true']
    >>> column_of("x", [1, 2.5]).to_list()
    [1.0, 2.5]
    """
    try:
        return _series_of([None if _is_missing(value) else _plain(value) for value in values], name)
    except UnicodeEncodeError as error:
        # Half a surrogate pair, from broken JSON or file names, has no UTF-8.
        what = reprlib.repr(error.object)
        raise InputError(
            f"field {name!r} holds {what}, which is not valid Unicode; replace or drop it."
        ) from None


def _is_missing(value: Any) -> bool:
    """None, nan, pandas' NA or NaT; a cell that holds several values is none of them."""
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return False


def _series_of(values: list[Any], name: str) -> pl.Series:
    types = {_type_of(value) for value in values if value is not None}
    if types == {int, float}:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    # WHY: of several types polars takes the first value's for all, so that order would matter.
    if len(types) <= 1:
        try:
            column = pl.Series(name, values)
            if column.dtype != pl.Object:
                return _without_nan(column)
        except UnicodeEncodeError:
            raise
        except _REFUSALS:
            pass
    # Values of several types, or of one that polars does not know, are compared as text.
    return pl.Series(name, [_python_text(value, name) for value in values], dtype=pl.String)


def _type_of(value: Any) -> type:
    """The type of a cell, where those that make one column are one."""
    alike = (_CONTAINERS, list), (datetime, datetime), (str, str)
    return next((kind for kinds, kind in alike if isinstance(value, kinds)), type(value))


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # WHY: nanoseconds would become a whole number
    if isinstance(value, np.generic):
        return value.item()
    return sorted(value, key=str) if isinstance(value, set | frozenset) else value


def _python_text(value: Any, name: str) -> str | None:
    """`text_of` for one Python value of a column whose values have several types."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, _CONTAINERS):
        raise InputError(
            f"field {name!r} mixes {type(value).__name__} values with others; "
            "give every cell one type."
        )
    return str(value)
