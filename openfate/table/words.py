"""Words: the texts of a column's cells, and which distinct ones there are.

Text is looked up and hashed once for each distinct value, not for each row.  A table keeps its
words, so that asking what is new, growing and encoding share them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.dates import parts_of
from openfate.table.frame import Table, elements_of, numbers_of, text_of
from openfate.table.hashing import hashed
from openfate.table.kinds import Kind

__all__ = ["SMALL", "Words", "numbers_in", "words_in"]

# WHY: below some thousand cells Python's dicts are faster than a polars call of half a millisecond.
SMALL = 2000


@dataclass(frozen=True, eq=False)
class Words:
    """The texts of some cells.

    Parameters
    ----------
    text
        (cells,) the texts; null for none.
    row
        (cells,) the row of each cell, or None where there is one cell for each row, in order.
    """

    text: pl.Series
    row: NDArray[np.int64] | None = None
    _hashes: dict[bytes, pl.Series] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def distinct(self) -> pl.Series:
        """(distinct,) each text once, in any order."""
        if len(self.text) > SMALL:
            return self.text.drop_nulls().unique()
        once = dict.fromkeys(self.text.to_list())
        once.pop(None, None)
        return pl.Series(list(once), dtype=pl.String)

    def hashes(self, key: bytes) -> pl.Series:
        """(distinct,) the keyed hash of each distinct text."""
        if key not in self._hashes:
            self._hashes[key] = hashed(self.distinct, key)
        return self._hashes[key]

    def spread(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """(cells,) from one id for each distinct text; -1 where a cell has no text."""
        if not len(ids):
            return np.full(len(self.text), -1, dtype=np.int32)
        if len(self.text) > SMALL:
            new = pl.Series(ids, dtype=pl.Int32)
            cells = self.text.replace_strict(
                self.distinct, new, default=-1, return_dtype=pl.Int32
            ).to_numpy()
            return np.array(cells, dtype=np.int32)  # a copy: polars' own memory is read-only
        id_of = dict(zip(self.distinct.to_list(), ids.tolist(), strict=True))
        return np.array([id_of.get(text, -1) for text in self.text.to_list()], dtype=np.int32)


def words_in(table: Table, name: str, kind: Kind) -> tuple[Words, ...]:
    """Give the words of a column: one `Words`, or for a datetime field one for each part.

    Examples
    --------
    >>> import polars as pl
    >>> table = Table(2, {"tags": pl.Series([["a", "b"], ["a"]])})
    >>> (words,) = words_in(table, "tags", "multivalued")
    >>> words.row.tolist(), words.text.to_list(), words.distinct.to_list()
    ([0, 0, 1], ['a', 'b', 'a'], ['a', 'b'])
    """
    if (name, kind) not in table.memo:
        table.memo[name, kind] = _words(table.columns[name], name, kind)
    words: tuple[Words, ...] = table.memo[name, kind]
    return words


def numbers_in(table: Table, name: str) -> NDArray[np.float64]:
    """(N,) a numeric column's cells, NaN where missing.

    Examples
    --------
    >>> import polars as pl
    >>> numbers_in(Table(2, {"age": pl.Series(["31", None])}), "age").tolist()
    [31.0, nan]
    """
    if (name, "numeric") not in table.memo:
        table.memo[name, "numeric"] = numbers_of(table.columns[name], name).to_numpy()
    numbers: NDArray[np.float64] = table.memo[name, "numeric"]
    return numbers


def _words(column: pl.Series, name: str, kind: Kind) -> tuple[Words, ...]:
    if kind == "multivalued":
        row, values = elements_of(column, name)
        return (Words(text_of(values, name), row),)
    if kind == "datetime":
        return tuple(Words(part) for part in parts_of(column, name))
    return (Words(text_of(column, name)),)
