"""--target: what is to be predicted, as classes, as labels of 0 and 1, or as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.table import Expression, parse, text_of


@dataclass(frozen=True)
class Target:
    """A column or an expression, or several for several labels."""

    expressions: tuple[Expression, ...]

    @property
    def texts(self) -> list[str]:
        """As the user wrote them."""
        return [expression.text for expression in self.expressions]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns they are computed from, which are no features."""
        return tuple(dict.fromkeys(c for e in self.expressions for c in e.columns))

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """(N, K) the labels of rows; null where one is missing."""
        columns = [e.of(rows).alias(e.text) for e in self.expressions]
        return pl.DataFrame([c.fill_nan(None) if c.dtype.is_float() else c for c in columns])


def read_target(target: str | Sequence[str], types: Mapping[str, Any]) -> Target:
    """Read a column's name, an SQL expression, or names with commas between them.

    Examples
    --------
    >>> types = {"rain": pl.Boolean(), "snow": pl.Boolean(), "delay": pl.Int64()}
    >>> read_target("rain,snow", types).texts, read_target("delay > 15", types).columns
    (['rain', 'snow'], ('delay',))
    """
    texts = _split(target, types) if isinstance(target, str) else target
    twice = next((text for at, text in enumerate(texts) if text in texts[:at]), None)
    if twice is not None:
        raise InputError(f"--target {target}: {twice!r} is in it twice; name each label once.")
    return Target(tuple(parse(text, types, "--target") for text in texts))


def _split(target: str, types: Mapping[str, Any]) -> Sequence[str]:
    """The names that commas divide; those of an SQL expression lie in brackets or quotes."""
    names = [name.strip() for name in target.split(",") if name.strip()]
    if target in types or len(names) < 2:
        return [target]
    is_list = all(name in types for name in names) or not set(target) & set("()[]'\"")
    return names if is_list else [target]


def is_complete(labels: pl.DataFrame) -> NDArray[np.bool_]:
    """(N,) which rows have all their labels.

    Examples
    --------
    >>> is_complete(pl.DataFrame({"rain": [True, None]})).tolist()
    [True, False]
    """
    complete = labels.select(pl.all_horizontal(pl.all().is_not_null()).alias("complete"))
    return complete.to_series().to_numpy()


def class_text(value: object) -> str:
    """Write a class as a cell of a table is written.

    Examples
    --------
    >>> class_text(True), class_text(1.0), class_text("cook")
    ('true', '1', 'cook')
    """
    return str(text_of(pl.Series([value]), "class")[0])


# ---- labels as a model takes them ----------------------------------------------------------------


def as_classes(labels: pl.DataFrame) -> NDArray[Any]:
    """(N,) classes as booleans, integers or text.

    Examples
    --------
    >>> as_classes(pl.DataFrame({"y": [1.0, 0.0]})).tolist()
    [1, 0]
    """
    column = labels.to_series()
    if column.dtype == pl.Boolean or column.dtype.is_integer():
        return column.to_numpy()
    text = text_of(column, column.name)
    if not column.dtype.is_float() and not column.dtype.is_decimal():
        return np.array(text.to_list())
    broken = text.filter(~text.str.contains(r"^-?\d{1,18}$"))  # more digits overflow 64 bits
    if len(broken):
        raise InputError(
            f"--target {column.name}: it holds numbers such as {broken[0]}; give --task "
            f'regression, or a condition such as --target "{column.name} > {broken[0]}".'
        )
    return column.cast(pl.Int64).to_numpy()


def as_codes(labels: pl.DataFrame, classes: Sequence[Any]) -> NDArray[np.int64]:
    """(N,) the number of each row's class, -1 where it is none of the classes.

    Examples
    --------
    >>> as_codes(pl.DataFrame({"y": ["true", "maybe"]}), [False, True]).tolist()
    [1, -1]
    """
    known = [class_text(value) for value in classes]
    return _codes(labels.to_series(), known, range(len(known)), -1).to_numpy()


def as_labels(labels: pl.DataFrame) -> NDArray[np.int64]:
    """(N, K) labels of 0 and 1.

    Examples
    --------
    >>> as_labels(pl.DataFrame({"rain": [True, False], "snow": [1, 0]})).tolist()
    [[1, 1], [0, 0]]
    """
    columns = []
    for column in labels:
        codes = _codes(column, ["0", "1", "false", "true"], [0, 1, 0, 1], None)
        if codes.null_count():
            odd = column.filter(codes.is_null())[0]
            raise InputError(
                f"--target {column.name}: it holds {odd!r}; one of several labels must be "
                "0 or 1, or true or false."
            )
        columns.append(codes.to_numpy())
    return np.stack(columns, axis=1)


def _codes(
    column: pl.Series, texts: Sequence[str], codes: Sequence[int], other: int | None
) -> pl.Series:
    text = text_of(column, column.name)
    return text.replace_strict(texts, codes, default=other, return_dtype=pl.Int64)


def as_numbers(labels: pl.DataFrame) -> NDArray[np.float64]:
    """(N,) numbers.

    Examples
    --------
    >>> as_numbers(pl.DataFrame({"y": [1, 2]})).tolist()
    [1.0, 2.0]
    """
    column = labels.to_series()
    if not column.dtype.is_numeric():
        raise InputError(
            f"--target {column.name}: it holds {column[0]!r}, which is no number; "
            "regression needs numbers."
        )
    numbers = column.cast(pl.Float64)
    odd = numbers.filter(~numbers.is_finite())
    if len(odd):
        raise InputError(
            f"--target {column.name}: it holds {odd[0]}; regression needs finite numbers, "
            "leave such rows out by --where."
        )
    return numbers.to_numpy()
