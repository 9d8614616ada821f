"""From counted texts to feature ids: which values are observed, rare or new.

PAPER: appendix, dataset information; values seen fewer than 4 times share one feature of their
field, and Criteo's integers v become floor(ln(v)^2) above 2.  Ids of observed features come first,
by field; then those of new ones, by field.  Inside a field the commonest comes first, equal counts
go by value, and the rare values' shared feature is last: no order of rows or threads matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.clicks.logs import Meaning

__all__ = ["LABELS", "FieldIds", "is_invalid", "number_field", "place", "values_of"]

CountOn = Literal["train", "all"]
Counts = NDArray[np.uint32]  # (3, codes): in training, validation and test rows

LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}
_COUNTS = ("train", "validation", "test")
# WHY: later rows must not order the observed features; they order the new ones alone.
_LATER = pl.when(pl.col("train") == 0).then(pl.col("count"))


def values_of(texts: pl.Series, meaning: Meaning) -> pl.Series:
    """Turn texts into values; an empty text is a missing cell, null.

    Examples
    --------
    >>> values_of(pl.Series(["", "-1", "2", "3", "40"]), "log").to_list()
    [None, '-3', '0', '1', '13']
    >>> values_of(pl.Series(["14102123"]), "hour").to_list()
    ['23']
    """
    text = pl.col("text").replace("", None)
    if meaning == "hour":
        text = text.str.slice(6, 2)
    elif meaning == "log":
        number = text.cast(pl.Float64)
        # PAPER: above 2 the squared logarithm, else the number less 2, so that the two never meet.
        bucket = pl.when(number > 2).then(number.log().pow(2).floor()).otherwise(number.floor() - 2)
        text = bucket.cast(pl.Int64).cast(pl.String)
    return pl.DataFrame({"text": texts}).select(text).to_series()


def is_invalid(texts: pl.Series, meaning: Meaning | Literal["label", "time"]) -> pl.Series:
    """Say which texts cannot be what a column needs.

    Examples
    --------
    >>> is_invalid(pl.Series(["1", "x", ""]), "log").to_list()
    [False, True, False]
    """
    if meaning == "label":
        return ~texts.is_in(list(LABELS))
    if meaning == "hour":
        return ~texts.str.contains(r"^\d{6}([01]\d|2[0-3])$")
    if meaning == "time":
        return texts == ""
    number = texts.cast(pl.Float64, strict=False)
    return ~number.is_finite().fill_null(False) & (texts != "")


@dataclass(frozen=True)
class FieldIds:
    """The features of one field, numbered from 0 among its observed and among its new ones.

    Parameters
    ----------
    values
        Columns value, kind ("observed", "rare", "new"), place, count, train, validation, test;
        `place` is the number among the observed (from 0 up) or new (from -1 down).
    lookup
        (codes,) the place of each text of the column.
    n_observed, n_new
        How many features, the shared one of rare values counted once.
    n_new_in_validation
        How many of the new ones occur in validation rows.
    rare
        The place of the rare values' shared feature, or None.
    """

    values: pl.DataFrame
    lookup: NDArray[np.int32]
    n_observed: int
    n_new: int
    n_new_in_validation: int
    rare: int | None


def number_field(
    texts: pl.Series, counts: Counts, meaning: Meaning, threshold: int, count_on: CountOn
) -> FieldIds:
    """Number the values of one field.

    Parameters
    ----------
    texts
        (codes,) the distinct texts of the column.
    counts
        (3, codes) how often each occurs in training, validation and test rows.
    meaning
        What the texts stand for.
    threshold
        Values counted fewer times than this share the field's rare feature.
    count_on
        "train": counted on training rows; a value that they do not hold is new, from its first
        row.  "all": counted on all rows.

    Examples
    --------
    >>> counts = np.array([[9, 1, 2, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.uint32)
    >>> ids = number_field(pl.Series(["a", "b", "c", "d"]), counts, "text", 4, "train")
    >>> ids.lookup.tolist(), ids.n_observed, ids.n_new, ids.rare
    ([0, 1, 1, -1], 2, 1, 1)
    """
    seen = pl.DataFrame(
        {
            "code": np.arange(len(texts), dtype=np.uint32),
            "value": values_of(texts, meaning),
            **{name: counts[i].astype(np.int64) for i, name in enumerate(_COUNTS)},
        }
    ).filter(pl.sum_horizontal(_COUNTS) > 0)
    values = (
        seen.group_by("value")
        .agg(pl.col(_COUNTS).sum())
        .with_columns(count=pl.sum_horizontal(_COUNTS))
        .with_columns(kind=_kind(threshold, count_on))
        .sort("train", _LATER, "value", descending=[True, True, False], nulls_last=True)
    )
    values, n_observed, n_new, rare = _give_places(values)
    fresh = values.filter((pl.col("place") < 0) & (pl.col("validation") > 0))
    placed = seen.join(values.select("value", "place"), on="value", nulls_equal=True)
    lookup = np.zeros(len(texts), np.int32)
    lookup[placed["code"].to_numpy()] = placed["place"].to_numpy()
    return FieldIds(values, lookup, n_observed, n_new, fresh["place"].n_unique(), rare)


def _kind(threshold: int, count_on: CountOn) -> pl.Expr:
    train, count = pl.col("train"), pl.col("count")
    if count_on == "train":
        kind = pl.when(train == 0).then(pl.lit("new"))
        return kind.when(train < threshold).then(pl.lit("rare")).otherwise(pl.lit("observed"))
    # REFERENCE: the released code counts on the whole file, so that a test row decides whether
    # a value of the training rows is rare; test_prepare.py shows the difference.
    kind = pl.when(count < threshold).then(pl.lit("rare"))
    return kind.when(train == 0).then(pl.lit("new")).otherwise(pl.lit("observed"))


def _give_places(values: pl.DataFrame) -> tuple[pl.DataFrame, int, int, int | None]:
    kind = values["kind"].to_numpy()
    is_observed, is_new, is_rare = (kind == name for name in ("observed", "new", "rare"))
    n_observed, n_new = int(is_observed.sum()), int(is_new.sum())
    place = np.zeros(len(values), np.int32)
    place[is_observed] = np.arange(n_observed)
    place[is_new] = -1 - np.arange(n_new)
    rare = None
    if is_rare.any():
        # Counted on all rows, the rare values of a field may all be later than training.
        in_training = bool((values["train"].to_numpy()[is_rare] > 0).any())
        rare = n_observed if in_training else -1 - n_new
        place[is_rare] = rare
        n_observed, n_new = n_observed + in_training, n_new + (not in_training)
    return values.with_columns(place=pl.Series(place)), n_observed, n_new, rare


def place(fields: Sequence[FieldIds]) -> Iterator[tuple[FieldIds, int, int]]:
    """Give each field with the ids of its first observed and of its first new feature.

    Examples
    --------
    >>> list(place([]))
    []
    """
    observed, new = 0, sum(field.n_observed for field in fields)
    for field in fields:
        yield field, observed, new
        observed, new = observed + field.n_observed, new + field.n_new
