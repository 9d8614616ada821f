"""Codec: one field's way from cells to ids and back; never changed, only grown into another.

It joins what a field is (`schema`), the values that have an id (`vocabulary`) and, for numbers,
where the buckets lie or how they are standardised (`buckets`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.buckets import (
    Edges,
    Scale,
    bucket_of,
    cut,
    edges_from,
    scale_from,
    standardised,
)
from openfate.table.cells import Cells
from openfate.table.dates import PARTS
from openfate.table.frame import Table, numbers_of, text_of
from openfate.table.hashing import hashed, in_neutral_order
from openfate.table.schema import Field
from openfate.table.vocabulary import EMPTY, Vocabulary
from openfate.table.words import Words, numbers_in, words_in

__all__ = ["Codec", "New", "Unseen", "Value"]

Value = str | tuple[float, float] | Scale | None
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Unseen:
    """What has no id in one column.

    Parameters
    ----------
    share
        Of the cells that are not missing (of the elements of lists, of the parts of dates), how
        much has a value without an id.
    n_values
        The number of distinct such values.
    examples
        Up to three of them, as `Encoder.decode` would give them.
    missing
        Whether a cell is missing and "missing" is a value without an id.
    """

    share: float
    n_values: int
    examples: tuple[Value, ...]
    missing: bool


@dataclass(frozen=True, eq=False)
class New:
    """What a codec would learn from a column."""

    values: pl.Series  # in the order of the ids to come
    missing: bool
    measure: Edges | Scale | None

    @property
    def n_ids(self) -> int:
        """How many ids it takes."""
        return len(self.values) + self.missing


@dataclass(frozen=True, eq=False)
class Codec:
    """One field with the values that have an id.

    Parameters
    ----------
    field
        What the column is.
    missing
        Whether a missing cell is a value of its own.
    key
        The secret of a hashed field.
    vocabulary
        The values that have an id: texts, hashes, or numbers of buckets; a numeric field with
        ``numeric="value"`` has the one bucket 0.
    measure
        The edges of the buckets, or the scale; None until a number is seen.

    Examples
    --------
    >>> table = Table(2, {"job": pl.Series(["pilot", "cook"])})
    >>> codec = Codec(Field("job", "categorical"), missing=True)
    >>> codec = codec.grown(codec.new_in(table), first=5)
    >>> codec.cells(table)[0].ids.tolist(), codec.value_of(5)
    ([6, 5], 'cook')
    """

    field: Field
    missing: bool
    key: bytes | None = None
    vocabulary: Vocabulary = EMPTY
    measure: Edges | Scale | None = None

    # ---- growing -----------------------------------------------------------------------------

    def new_in(self, table: Table) -> New:
        """Find the values of the field's column that have no id."""
        is_missing = self.missing and self.vocabulary.missing < 0
        if self.field.kind != "numeric":
            is_missing = is_missing and table.columns[self.field.name].null_count() > 0
            return New(self._new_words(self._words(table)), is_missing, None)
        is_missing = is_missing and bool(np.isnan(numbers_in(table, self.field.name)).any())
        measured = self._measured(table)
        occurs = np.bincount(measured._buckets_in(table), minlength=len(measured._id_of_bucket))
        new = np.flatnonzero((occurs > 0) & (measured._id_of_bucket < 0))
        return New(pl.Series(new, dtype=pl.Int32), is_missing, measured.measure)

    def grown(self, new: New, first: int) -> Codec:
        """Give ids from `first` on to what is new."""
        vocabulary = self.vocabulary.grown(new.values, first, new.missing)
        return replace(self, vocabulary=vocabulary, measure=new.measure)

    def unseen(self, table: Table) -> Unseen:
        """Describe what `new_in` finds."""
        new = self.new_in(table)
        measured = replace(self, measure=new.measure)
        examples = tuple(measured._shown(key) for key in new.values.head(3))
        share = self._share_without_id(table) if len(new.values) else 0.0
        return Unseen(share, len(new.values), examples, new.missing)

    def _share_without_id(self, table: Table) -> float:
        if self.field.kind == "numeric":
            present = [~np.isnan(numbers_in(table, self.field.name))]
            ids = [self._number_ids(table)]
        else:
            words = self._words(table)
            present = [part.text.is_not_null().to_numpy() for part in words]
            ids = [self._word_ids(part) for part in words]
        unseen = sum(np.count_nonzero(p & (i < 0)) for p, i in zip(present, ids, strict=True))
        return float(unseen / sum(np.count_nonzero(p) for p in present))

    def _new_words(self, words: Iterable[Words]) -> pl.Series:
        """Texts, or their hashes, that have no id, in the order in which they get one."""
        unknown = [(part.distinct, self._distinct_ids(part) < 0) for part in words]
        new = [texts.filter(pl.Series(is_new)) for texts, is_new in unknown if is_new.any()]
        if not new:
            return _NO_TEXTS
        texts = pl.concat(new)
        if self.field.kind == "datetime":
            there = set(texts.to_list())
            return pl.Series([part for part in PARTS if part in there], dtype=pl.String)
        return hashed(in_neutral_order(texts), self.key) if self.key is not None else texts.sort()

    def _measured(self, table: Table) -> Codec:
        """Have edges or a scale: those known, those given, or what the first numbers give."""
        field = self.field
        if self.measure is not None:
            return self
        if field.numeric == "buckets" and field.bounds is not None:
            return replace(self, measure=cut(field.n_buckets, *field.bounds))
        if field.scale is not None:
            return replace(self, measure=Scale(*field.scale))
        numbers = _present(numbers_in(table, field.name))
        if field.numeric == "value":
            return replace(self, measure=scale_from(numbers))
        return replace(self, measure=edges_from(numbers, field.n_buckets, field.name))

    # ---- cells -> ids ------------------------------------------------------------------------

    def cells(self, table: Table) -> list[Cells]:
        """Encode the field's column; a date's hour, weekday and month are columns of their own."""
        if self.field.kind == "numeric":
            return [self._number_cells(table)]
        column, missing = table.columns[self.field.name], self.vocabulary.missing
        absent = np.flatnonzero(column.is_null().to_numpy()) if column.null_count() else _NO_ROWS
        words = self._words(table)
        if self.field.kind == "multivalued":
            (lists,) = words
            ids = np.concatenate([self._word_ids(lists), np.full(len(absent), missing, np.int32)])
            return [Cells(ids, np.append(lists.row, absent))]  # type: ignore[arg-type]
        parts = [self._word_ids(part) for part in words] or [_no_ids(len(column))]
        parts[0][absent] = missing
        return [Cells(ids) for ids in parts]

    def _number_cells(self, table: Table) -> Cells:
        numbers, ids = numbers_in(table, self.field.name), self._number_ids(table)
        absent = np.isnan(numbers)
        ids[absent] = self.vocabulary.missing
        if not isinstance(self.measure, Scale):
            return Cells(ids)
        values = standardised(numbers, self.measure)
        values[absent] = 1.0
        return Cells(ids, values=values)

    def _words(self, table: Table) -> tuple[Words, ...]:
        return words_in(table, self.field.name, self.field.kind)

    def _distinct_ids(self, words: Words) -> Ids:
        texts = words.distinct if self.key is None else words.hashes(self.key)
        return self.vocabulary.find(texts)

    def _word_ids(self, words: Words) -> Ids:
        return words.spread(self._distinct_ids(words))

    def _number_ids(self, table: Table) -> Ids:
        """(N,) the id of each cell, -1 where it has none or is missing."""
        ids = _no_ids(table.n_rows)
        if self.measure is not None:
            present = ~np.isnan(numbers_in(table, self.field.name))
            ids[present] = self._id_of_bucket[self._buckets_in(table)]
        return ids

    def _buckets_in(self, table: Table) -> NDArray[np.int64]:
        """The bucket of each cell that is not missing."""
        numbers = _present(numbers_in(table, self.field.name))
        if self.measure is None:
            return np.empty(0, dtype=np.int64)
        if isinstance(self.measure, Scale):
            return np.zeros(len(numbers), dtype=np.int64)
        return bucket_of(numbers, self.measure)

    @cached_property
    def _id_of_bucket(self) -> Ids:
        """(buckets,) -1 for none."""
        if self.measure is None:
            return _no_ids(0)
        n_buckets = 1 if isinstance(self.measure, Scale) else len(self.measure) - 1
        return self.vocabulary.find(pl.Series(range(n_buckets), dtype=pl.Int32))

    # ---- one feature -------------------------------------------------------------------------

    def value_of(self, feature: int) -> Value:
        """Give the value with an id: text, hash, (low, high) of a bucket, Scale, None (missing)."""
        return self._shown(self.vocabulary.value_of(feature))

    def id_of(self, value: Any) -> int:
        """Find the id of a value as `value_of` gives it or as it stands in a cell; -1 for none."""
        if value is None:
            return self.vocabulary.missing
        if self.field.kind == "numeric":
            return self._id_of_number(value)
        texts = text_of(pl.Series([value]), self.field.name)
        wanted = texts if self.key is None else pl.concat([texts, hashed(texts, self.key)])
        return int(self.vocabulary.find(wanted).max())

    def _id_of_number(self, value: Any) -> int:
        if isinstance(value, tuple):
            value = value[0]
        if isinstance(value, Scale):
            value = value.mean
        column = pl.Series([value], strict=False)
        name = self.field.name
        table = Table(1, {name: numbers_of(column, name)})
        return int(self._number_ids(table)[0])

    def _shown(self, key: str | int | None) -> Value:
        if isinstance(key, int):
            measure = self.measure
            if measure is None or isinstance(measure, Scale):
                return measure
            return float(measure[key]), float(measure[key + 1])
        return key


_NO_TEXTS = pl.Series([], dtype=pl.String)
_NO_ROWS = np.empty(0, dtype=np.int64)


def _present(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return numbers[~np.isnan(numbers)]


def _no_ids(n: int) -> Ids:
    return np.full(n, -1, dtype=np.int32)
