"""Dates and times -> hour, weekday and month: a bounded vocabulary, so no timestamp is ever new.

The clock is the one on the wall of the value's own time zone.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from openfate.errors import InputError

__all__ = ["PARTS", "parts_of"]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# All values that a datetime field can have, in the order of their ids.
PARTS: tuple[str, ...] = (
    *(f"hour {hour}" for hour in range(24)),
    *(f"weekday {day}" for day in _DAYS),
    *(f"month {month}" for month in range(1, 13)),
)
_ZONE = r"^(.*\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_T_BETWEEN = r"^(\d{4}-\d{2}-\d{2})[Tt]"


def parts_of(column: pl.Series, field: str) -> list[pl.Series]:
    """Give the hours, weekdays and months of a column, as texts; null where a cell has none.

    A date has no hour and a time only an hour.  Text must be in ISO form.

    Examples
    --------
    >>> import polars as pl
    >>> [part.to_list() for part in parts_of(pl.Series(["2024-03-05T07:30+02:00"]), "seen")]
    [['hour 7'], ['weekday Tue'], ['month 3']]
    """
    dtype = column.dtype
    if column.null_count() == len(column):
        return []
    if dtype == pl.Time:
        return [_hour(column)]
    if dtype == pl.Date:
        return [_weekday(column), _month(column)]
    if dtype == pl.Datetime:
        return [_hour(column), _weekday(column), _month(column)]
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return _parts_of_text(column.cast(pl.String), field)
    raise InputError(
        f"datetime field {field!r} holds values of type {dtype}; give dates, times or ISO text, "
        "or declare it numeric."
    )


def _hour(column: pl.Series) -> pl.Series:
    return _labelled("hour ", column.dt.hour())


def _weekday(column: pl.Series) -> pl.Series:
    numbers = column.dt.weekday()  # 1 is Monday
    days = numbers.replace_strict(range(1, 8), _DAYS, return_dtype=pl.String)
    return _labelled("weekday ", days)


def _month(column: pl.Series) -> pl.Series:
    return _labelled("month ", column.dt.month())


def _labelled(label: str, values: pl.Series) -> pl.Series:
    return label + values.cast(pl.String)


def _parts_of_text(text: pl.Series, field: str) -> list[pl.Series]:
    # WHY: polars would turn "07:00+02:00" into 05:00 UTC; the wall shows 7.
    bare = text.str.strip_chars().str.replace(_ZONE, "${1}").str.replace(_T_BETWEEN, "${1} ")
    moment = _first_of(
        bare,
        lambda t: t.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False),
        lambda t: t.str.to_datetime("%Y-%m-%d %H:%M", time_unit="us", strict=False),
    )
    date = _first_of(bare, lambda t: t.str.to_date("%Y-%m-%d", strict=False))
    clock = _first_of(
        bare,
        lambda t: t.str.to_time("%H:%M:%S%.f", strict=False),
        lambda t: t.str.to_time("%H:%M", strict=False),
    )
    bad = text.is_not_null() & moment.is_null() & date.is_null() & clock.is_null()
    if bad.any():
        raise InputError(
            f"datetime field {field!r} holds {text.filter(bad)[0]!r}; give dates and times in ISO "
            "form, e.g. 2024-03-05 or 2024-03-05T07:30, or declare it categorical."
        )
    day = moment.cast(pl.Date).zip_with(moment.is_not_null(), date)
    hour = _hour(moment).zip_with(moment.is_not_null(), _hour(clock))
    return [hour, _weekday(day), _month(day)]


def _first_of(text: pl.Series, *parsers: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Parse in the first way that works, cell by cell."""
    parsed = parsers[0](text)
    for parse in parsers[1:]:
        if parsed.null_count():
            parsed = parsed.zip_with(parsed.is_not_null(), parse(text))
    return parsed
