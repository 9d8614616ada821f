"""Any frame, array or list of Python values -> polars columns: the one entrance.

Everything behind it (schema, fields, encoder) sees polars Series in which a missing cell is null,
whatever the frame's own sign for it was (None, NaN, pd.NA, NaT).
"""

from __future__ import annotations

import gc
import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError

# How polars and pyarrow (which may be absent) refuse values that they cannot take: in many ways,
# polars even by a panic.  None of them is the user's error yet.
_REFUSALS = (Exception, pl.exceptions.PanicException)
_LISTS = (list, tuple, set, frozenset, np.ndarray)
# WHY: below some dozens of rows Python is faster than polars' calls, of which a column takes five.
FEW_ROWS = 64
_PLAIN_TYPES = frozenset({pl.String, pl.Boolean, pl.Int64, pl.Float64})
_ODD_TYPES = frozenset({pl.Array, pl.Struct, pl.Object})  # that narwhals or Python must read
_SIMPLE = {str, int, float, bool, date, datetime, time, timedelta, type(None)}
# Cells of a subclass are of the class: pandas' Timestamp is a datetime.  A datetime is a date, too.
_CLASSES = (str, bool, int, float, datetime, date, time, timedelta, Decimal, dict, bytes)


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a frame as polars Series; keeps the number of rows where no column is left.

    A table can be given wherever a frame can; what was computed of its columns is then not
    computed again: `recall` keeps it.
    """

    n_rows: int
    columns: Mapping[str, pl.Series]
    native: Any = field(default=None, repr=False)  # what it was read from, all columns
    memo: dict[tuple[str, Any], Any] = field(default_factory=dict, init=False, repr=False)

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
        if "few" in vars(self):
            few = {name: self.few[name] for name in kept.columns if name in self.few}
            vars(kept)["few"] = few
        return kept

    def select_rows(self, rows: NDArray[np.integer] | slice) -> Table:
        """Some of the rows, without what they were read from.

        Examples
        --------
        >>> import polars as pl
        >>> read_table(pl.DataFrame({"a": [1, 2, 3]})).select_rows(slice(1, 9)).n_rows
        2
        """
        n_rows = len(range(self.n_rows)[rows]) if isinstance(rows, slice) else len(rows)
        return Table(n_rows, {name: column[rows] for name, column in self.columns.items()})

    @cached_property
    def few(self) -> Mapping[str, tuple[type[pl.DataType], Sequence[Any]]]:
        """The type and the cells of each column of plain texts and numbers, as Python has them.

        Of those that are text, booleans, int64 or float64; of none where rows are not few.

        Examples
        --------
        >>> Table(2, {"age": pl.Series([31.5, None])}).few
        {'age': (Float64, [31.5, None])}
        """
        if self.n_rows > FEW_ROWS:
            return {}
        types = {name: column.dtype.base_type() for name, column in self.columns.items()}
        plain = {name: dtype for name, dtype in types.items() if dtype in _PLAIN_TYPES}
        return {name: (plain[name], self.columns[name].to_list()) for name in plain}

    def recall(self, column: str, what: Any, compute: Callable[[], Any]) -> Any:
        """Give what was computed of a column; compute it the first time."""
        key = column, what
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = compute()
        return found


def read_table(frame: Any) -> Table:
    """Take a pandas, polars or pyarrow frame apart into polars columns.

    Parameters
    ----------
    frame
        Any eager frame that narwhals knows; it is not changed.  Or one row, a dict of its cells, or
        a table, read already.

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
    >>> read_table({"age": 31.5, "job": "cook"}).n_rows
    1
    """
    if isinstance(frame, Table):
        return frame
    if isinstance(frame, Mapping):
        _check_names(frame)
        columns = {name: column_of(name, [cell]) for name, cell in frame.items()}
        return Table(1, columns, pl.DataFrame(columns))
    data = _as_narwhals(frame)
    _check_names(data.columns)
    if isinstance(frame, pl.DataFrame):
        # WHY: narwhals takes 40 µs for a column, and most columns of polars are as they should be.
        columns = dict(zip(data.columns, frame.get_columns(), strict=True))
        few = _read_few(frame) if len(frame) <= FEW_ROWS else {}
        for name, column in columns.items():
            if name in few:
                is_float = few[name][0] is pl.Float64
                if is_float and any([cell != cell for cell in few[name][1]]):  # NaN
                    columns[name] = _nan_to_null(column)
                    few[name] = pl.Float64, columns[name].to_list()
                continue
            is_odd = column.dtype.base_type() in _ODD_TYPES
            columns[name] = _to_polars(data[name], name) if is_odd else _nan_to_null(column)
        table = Table(len(frame), columns, frame)
        vars(table)["few"] = few
        return table
    return Table(len(data), {name: _to_polars(data[name], name) for name in data.columns}, frame)


@contextmanager
def uncollected(rows: Any) -> Iterator[None]:
    """Let Python's collector wait where some objects are made for each of very many columns.

    WHY: none of them is garbage, and it would go through all of them again and again: a third of
    the time of a table of 100,000 columns.
    """
    pauses = len(getattr(rows, "columns", ())) > _MANY_COLUMNS and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


_MANY_COLUMNS = 1000


def _read_few(frame: pl.DataFrame) -> dict[str, tuple[type[pl.DataType], Sequence[Any]]]:
    """What `Table.few` gives, of all columns by one call; NaN is NaN."""
    types = {name: type(dtype) for name, dtype in zip(frame.columns, frame.dtypes, strict=True)}
    plain = {name: dtype for name, dtype in types.items() if dtype in _PLAIN_TYPES}
    rows = (frame if len(plain) == len(types) else frame.select(list(plain))).rows()
    cells: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(plain)
    return dict(zip(plain, zip(plain.values(), cells, strict=True), strict=True))


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"column name {name!r} is not a string; rename it, e.g. with "
                "frame.columns = frame.columns.map(str)."
            )
        if not is_unicode(name):
            raise InputError(f"column name {name!r} is not valid Unicode; rename it.")


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form; half a surrogate pair has none.

    Examples
    --------
    >>> is_unicode("é"), is_unicode(chr(0xD800))
    (True, False)
    """
    return text.isascii() or text.encode(errors="ignore").decode() == text


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
    if dtype.is_nested() or dtype == pl.Object:
        raise InputError(
            f"field {field!r} holds values of type {dtype}; give strings, numbers, dates or "
            "booleans, or declare it multivalued where every cell is a list of those."
        )
    try:
        if dtype in (pl.Datetime, pl.Duration):
            return _time_text(column)
        if dtype.is_decimal():
            return _decimal_text(column)
        return _float_text(column) if dtype.is_float() else column.cast(pl.String)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # a date in the year 3000000
        raise InputError(
            f"field {field!r} holds values of type {dtype} that are not text; "
            "convert them to text first."
        ) from None


def plain_text(cell: int | float | bool) -> str | None:
    """`text_of` for a number or a boolean; None where polars would have to write it.

    Examples
    --------
    >>> plain_text(2.0), plain_text(True), plain_text(0.5), plain_text(1e300)
    ('2', 'true', '0.5', None)
    """
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, int):
        return str(cell)
    if cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    # WHY: both write the fewest digits, but other numbers with exponents of other forms.
    return repr(cell) if 1e-3 <= abs(cell) < 1e15 else None


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
        if not column.dtype.is_nested():  # WHY: polars would cast what is inside
            return _nan_to_null(column.cast(pl.Float64))
        what = f"values of type {column.dtype}"
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        if column.dtype == pl.String:
            failed = column.cast(pl.Float64, strict=False).is_null() & column.is_not_null()
            what = repr(column.filter(failed)[0])
        else:
            what = f"values of type {column.dtype}"
    raise InputError(
        f"numeric field {field!r} holds {what}; give numbers, or declare it categorical."
    )


def time_numbers(column: pl.Series, name: str) -> NDArray[Any]:
    """(N,) numbers that order the cells of a column in time; ISO text is read as times.

    Raises
    ------
    InputError
        Where cells are missing, or have no order in time.

    Examples
    --------
    >>> import polars as pl
    >>> time_numbers(pl.Series(["2024-03-05", "2024-03-05T07:30"]), "seen").argsort().tolist()
    [0, 1]
    """
    found = column
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        found = moments_of(column.cast(pl.String))
        bad = found.is_null() & column.is_not_null()
        if bad.any():
            raise InputError(
                f"time={name!r}: the column holds {column.filter(bad)[0]!r}, which has no order in "
                "time; give dates or times, ISO text or numbers."
            )
    elif not (column.dtype.is_numeric() or column.dtype.is_temporal()):
        raise InputError(
            f"time={name!r}: the column holds values of type {column.dtype}, which have no order "
            "in time; give dates or times, ISO text or numbers."
        )
    if found.dtype.is_float() or found.dtype.is_decimal():
        found = found.cast(pl.Float64).fill_nan(None)
    if found.null_count():
        raise InputError(
            f"time={name!r}: row {found.is_null().arg_true()[0]} has no time; drop such rows, or "
            "fill them."
        )
    return (found if found.dtype.is_float() else found.to_physical()).to_numpy()


def moments_of(text: pl.Series) -> pl.Series:
    """Dates and times in ISO form, null where a text is none.

    Examples
    --------
    >>> moments_of(pl.Series(["2024-03-05T07:30", "soon"])).to_list()
    [datetime.datetime(2024, 3, 5, 7, 30), None]
    """
    spaced = text.str.replace("T", " ", literal=True)
    forms = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")
    return times_of(spaced, pl.Datetime("us"), *forms)


def times_of(text: pl.Series, dtype: pl.Datetime | pl.Date | pl.Time, *formats: str) -> pl.Series:
    """Read each text in the first of the formats that fits it, null where none does.

    Examples
    --------
    >>> import polars as pl
    >>> times_of(pl.Series(["07:30", "7"]), pl.Time(), "%H:%M:%S", "%H:%M").to_list()
    [datetime.time(7, 30), None]
    """
    times = pl.Series(text.name, [None], dtype=dtype).new_from_index(0, len(text))
    for form in formats:
        if times.null_count():
            parsed = text.str.strptime(dtype, form, strict=False)
            times = times.zip_with(times.is_not_null(), parsed)
    return times


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
    inner = column.dtype.inner  # type: ignore[attr-defined]
    if len(column) <= FEW_ROWS and inner.base_type() in _PLAIN_TYPES:
        # WHY: to explode a column takes polars a quarter of a millisecond, however short it is.
        lists = enumerate(column.to_list())
        few = [(row, value) for row, cell in lists for value in cell or () if value is not None]
        rows, values = zip(*few, strict=True) if few else ((), ())
        return np.array(rows, dtype=np.int64), pl.Series("value", values, dtype=inner)
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
    except _REFUSALS:
        column = _from_values(series, name)
    is_text = column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)
    if series.dtype in (nw.Categorical, nw.Enum) and not is_text:
        return text_of(column, name)  # categories of numbers or dates are categories still
    return _nan_to_null(column)


def _from_values(series: nw.Series[Any], name: str) -> pl.Series:
    missing = series.is_null().to_list()
    cells = zip(series.to_list(), missing, strict=True)
    return column_of(name, [None if is_missing else value for value, is_missing in cells])


# ---- Python values -> columns -------------------------------------------------------------------


def column_of(name: str, values: Sequence[Any]) -> pl.Series:
    """Python values of any types as a column; missing ones are null.

    Polars takes the type of the first values for all of them, so that what becomes of a cell would
    depend on the rows before it.  Here it does not: values of one type make a column of that type,
    integers beside floats make floats, and anything else is compared as text.

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


def _nan_to_null(column: pl.Series) -> pl.Series:
    if column.dtype.is_float():
        numbers = column.to_numpy()  # NaN where it is null, too
        if np.count_nonzero(numbers != numbers) > column.null_count():
            # WHY: fill_nan takes 160 µs even of one row.
            return pl.Series(column.name, numbers, nan_to_null=True)
    return column


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    types = set(map(type, values))
    if not types <= _SIMPLE or (float in types and not types <= {float, int, type(None)}):
        values = [None if _is_missing(value) else _plain(value) for value in values]
        types = {_class_of(value) for value in values}
    types.discard(type(None))
    # WHY: a float holds every integer up to 2**53; larger ones keep their digits as text.
    if types == {int, float} and all(not isinstance(v, int) or abs(v) <= 2**53 for v in values):
        return _nan_to_null(pl.Series(name, values, dtype=pl.Float64, strict=False))
    if types == {list}:
        return _lists(name, values)
    if types == {np.datetime64}:
        nothing = np.datetime64("NaT")
        return pl.Series(name, np.array([nothing if v is None else v for v in values]))
    if len(types) <= 1:
        try:
            column = pl.Series(name, values)
            if column.dtype != pl.Object:
                return _nan_to_null(column)
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
    if isinstance(value, np.datetime64):  # WHY: as Python's, nanoseconds would be an integer
        return value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _class_of(value: Any) -> type:
    if isinstance(value, _LISTS):
        return list
    return next((kind for kind in _CLASSES if isinstance(value, kind)), type(value))


def _lists(name: str, values: Sequence[Any]) -> pl.Series:
    """A column of lists, whose elements are a column too."""
    flat = itertools.chain.from_iterable(value for value in values if value is not None)
    elements = _column(name, list(flat))
    rest = iter(elements.to_list())
    lists = [None if v is None else list(itertools.islice(rest, len(v))) for v in values]
    return pl.Series(name, lists, dtype=pl.List(elements.dtype))


def _text(value: Any, name: str) -> str | None:
    """`text_of` for one value of a column whose values have several types."""
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
