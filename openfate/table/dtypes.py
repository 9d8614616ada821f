"""What the cells of a text file are: the type of a column, and its cells as values of a type.

A type is that of the whole file, never of a piece of it: each cell has one, and a column's is the
least that holds them all (integer < real, date < time, everything < text).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import polars as pl

from openfate.table.frame import FEW_ROWS, text_of, times_of

# What a cell must look like.  "01" and numbers beyond 64 bits are text: their digits are a name.
_INTEGER = "^-?(0|[1-9][0-9]*)$"
_REAL = r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^(?i:nan|[+-]?inf)$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_ZONE = "(Z|[+-][0-9]{2}:?[0-9]{2})$"
_UTC = pl.Datetime("us", "UTC")
_PATTERNS: dict[pl.DataType, str] = {  # the narrower type first
    pl.Boolean(): "^(?i:true|false)$",
    pl.Int64(): _INTEGER,
    pl.Float64(): _REAL,
    pl.Date(): _DATE,
    pl.Datetime("us"): f"{_DATE}|{_TIME}$",
    _UTC: _TIME + _ZONE,
}
# Of these no reader has another opinion; what looks like any type is left to polars.
_PLAIN_INTEGER = re.compile("-?(0|[1-9][0-9]{0,17})")
_PLAIN_REAL = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}")
_ANY = re.compile("|".join(f"({pattern})" for pattern in _PATTERNS.values()))
_NAMES: dict[str, pl.DataType] = {
    str(dtype): dtype for dtype in (pl.Null(), *_PATTERNS, pl.String())
}
_CAST = frozenset({pl.Int64(), pl.Float64(), pl.String()})
_WIDER = {
    (pl.Int64(), pl.Float64()): pl.Float64(),
    (pl.Date(), pl.Datetime("us")): pl.Datetime("us"),
}


def type_of(text: pl.Series) -> pl.DataType:
    """Give the least type that holds every cell.

    Examples
    --------
    >>> type_of(pl.Series(["1", None, "2.5"])), type_of(pl.Series(["01"]))
    (Float64, String)
    """
    if text.null_count() == len(text):
        return pl.Null()
    if len(text) <= FEW_ROWS and (sure := _type_of_few(text.to_list())) is not None:
        return sure
    values = text.drop_nulls().unique()
    return next((dtype for dtype in _PATTERNS if _fits(values, dtype).all()), pl.String())


def _type_of_few(cells: list[str | None]) -> pl.DataType | None:
    """The same of few cells, without polars' calls; None where one is not plainly what it is."""
    found: set[pl.DataType | None] = {_type_of_cell(cell) for cell in cells if cell is not None}
    if None in found:
        return None
    if pl.String() in found:
        return pl.String()
    return pl.Float64() if pl.Float64() in found else pl.Int64()


@functools.lru_cache(maxsize=1 << 12)
def _type_of_cell(text: str) -> pl.DataType | None:
    if _PLAIN_INTEGER.fullmatch(text):
        return pl.Int64()
    if _PLAIN_REAL.fullmatch(text):
        return pl.Float64()
    return None if not text.isascii() or _ANY.search(text) else pl.String()


def join_types(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """Give the least type that holds the cells of both.

    Examples
    --------
    >>> join_types(pl.Int64(), pl.Float64()), join_types(pl.Int64(), pl.Boolean())
    (Float64, String)
    """
    if one == other or other == pl.Null:
        return one
    if one == pl.Null:
        return other
    return _WIDER.get((one, other)) or _WIDER.get((other, one)) or pl.String()


def widen_type(found: pl.DataType, text: pl.Series) -> pl.DataType:
    """Give the least type that holds the cells of `found` and every further one.

    Examples
    --------
    >>> widen_type(pl.Int64(), pl.Series(["2.5"])), widen_type(pl.Float64(), pl.Series(["1"]))
    (Float64, Float64)
    """
    if found == pl.String:
        return found
    # WHY: a column mostly goes on as it began; narrower types need not be tried then.
    if found != pl.Null and len(text) > FEW_ROWS and _fits(text.unique(), found).all():
        return found
    return join_types(found, type_of(text))


def plain_types(types: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Write the types of columns as a text file would have them, for JSON and for `RowFile`.

    Examples
    --------
    >>> plain_types({"age": pl.Int8(), "job": pl.Categorical()})
    {'age': 'Int64', 'job': 'String'}
    """
    return {name: str(_plain(dtype)) for name, dtype in types.items()}


def named_type(name: str) -> pl.DataType:
    """Give the type of a name that `plain_types` wrote.

    Examples
    --------
    >>> named_type("Int64")
    Int64
    """
    return _NAMES.get(name, pl.String())


def _plain(dtype: pl.DataType) -> pl.DataType:
    if dtype.is_integer():
        return pl.Int64()
    if dtype.is_float() or dtype.is_decimal():
        return pl.Float64()
    if isinstance(dtype, pl.Datetime):
        return pl.Datetime("us", "UTC" if dtype.time_zone else None)
    return dtype if str(dtype) in _NAMES else pl.String()


def as_type(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Read the cells as values of `dtype`, null where one is none.

    Examples
    --------
    >>> as_type(pl.Series(["1.5", "late"]), pl.Float64()).to_list()
    [1.5, None]
    """
    if dtype in _CAST:
        return text.cast(dtype, strict=False)
    if dtype == pl.Boolean:
        return text.str.to_lowercase() == "true"
    if dtype == pl.Date:
        return text.str.to_date("%Y-%m-%d", strict=False)
    if dtype == pl.Datetime:
        return _times(text, dtype == _UTC)
    return text.cast(dtype, strict=False)


def canonical(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Write the cells that are values of `dtype` as its values are written, and leave the others.

    A column of numbers that meets a word becomes text; its 517.0 must still be 517.

    Examples
    --------
    >>> canonical(pl.Series(["517.0", "late", None]), pl.Float64()).to_list()
    ['517', 'late', None]
    """
    return text_of(as_type(text, dtype), text.name).zip_with(_fits(text, dtype), text)


def _fits(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Which cells are values of the type; a missing one is of every type."""
    looks = text.str.contains(_PATTERNS[dtype])
    if not looks.any():
        return looks.fill_null(True)
    is_value = looks & as_type(text, dtype).is_not_null()
    if dtype == pl.Float64:  # an integer beyond 64 bits is a name
        is_value &= ~text.str.contains(_INTEGER) | text.cast(pl.Int64, strict=False).is_not_null()
    return is_value.fill_null(True)


def _times(text: pl.Series, zoned: bool) -> pl.Series:
    """ISO times, with the zone's offset or without; without seconds and alone a date too."""
    plain = text.str.replace("T", " ", literal=True)
    if zoned:
        plain = plain.str.replace("Z$", "+00:00").str.replace("([+-][0-9]{2})([0-9]{2})$", "$1:$2")
    zone = "%:z" if zoned else ""
    formats = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", *([] if zoned else ["%Y-%m-%d"])]
    dtype = _UTC if zoned else pl.Datetime("us")
    return times_of(plain, dtype, *(form + zone for form in formats))
