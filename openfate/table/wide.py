"""New columns of few rows: what is new in them and their edges, of all columns at once.

WHY: whoever sends a file can send 100,000 columns, and objects for each of them take most of the
time of three such rows.  Here are plain texts and numbers; other columns go one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.fields import (
    KINDS,
    Field,
    Floats,
    Ids,
    Kind,
    Lookup,
    Number,
    Numeric,
    Text,
    between,
    knots_of_columns,
)
from openfate.table.frame import Table, plain_text
from openfate.table.schema import guess_few

_USUAL: dict[str, type[Kind]] = {"categorical": Text, "numeric": Number}
_WIDE = 32  # WHY: of fewer columns the calls of numpy take longer than what they save


class CellEdges(NamedTuple):
    """What new columns give each row: a cell has one or two features, or none."""

    ids: Ids  # (N, columns, 2) from 0, -1 for none
    values: NDArray[np.float32]  # (N, columns, 2) what the edges carry


@dataclass(frozen=True, eq=False)
class WideColumns:
    """What new columns hold that gets an id; fields are made when somebody asks for them.

    Parameters
    ----------
    names
        (columns,).
    texts, keys
        The places of columns of texts, and the texts of each, in the order of their ids.
    numbers, knots, n_knots
        The places of columns of numbers, (numbers, knots) where their knots lie, ascending, then
        NaN, and (numbers,) how many there are.
    n_keys
        (columns,) how many features each has beside that of a missing cell.
    has_missing
        (columns,) whether a missing cell is a feature, the last one of its column.
    """

    names: Sequence[str]
    texts: NDArray[np.int64]
    keys: Sequence[list[str]]
    numbers: NDArray[np.int64]
    knots: Floats
    n_knots: NDArray[np.int64]
    n_keys: NDArray[np.int64]
    has_missing: NDArray[np.bool_]

    @property
    def n_features(self) -> NDArray[np.int64]:
        """(columns,) how many features each column has."""
        return self.n_keys + self.has_missing

    @property
    def first(self) -> NDArray[np.int64]:
        """(columns,) the id of the first feature of each, from 0."""
        return np.cumsum(self.n_features) - self.n_features

    @property
    def has_values(self) -> bool:
        """Whether edges carry values."""
        return len(self.numbers) > 0

    def fields(self) -> list[Field]:
        """The field of each column, as `Schema.from_frame` and `guess_knots` give it."""
        text, number = Field("_", "categorical"), Field("_", "numeric", numeric="linear")
        found = [text.unchecked(name=name) for name in self.names]
        each = zip(self.numbers.tolist(), self.knots.tolist(), self.n_knots.tolist(), strict=True)
        for at, knots, n in each:
            found[at] = number.unchecked(name=self.names[at], knots=tuple(knots[:n]))
        return found

    def lookups(self, first: int) -> list[tuple[Lookup, int]]:
        """The ids of the keys of each column, from `first` on, and of a missing cell, or -1."""
        texts = dict(zip(self.texts.tolist(), self.keys, strict=True))
        starts, counts = (self.first + first).tolist(), self.n_keys.tolist()
        missing = np.where(self.has_missing, self.first + first + self.n_keys, -1).tolist()
        return [
            (Lookup(texts.get(at, range(n)), range(start, start + n)), missing[at])
            for at, (start, n) in enumerate(zip(starts, counts, strict=True))
        ]


def read_wide(
    table: Table, names: Sequence[str], numeric: Numeric, missing: bool
) -> WideColumns | None:
    """What is new in new columns, each with a cell that is not missing; None to go one by one.

    The table keeps their edges: see `edges_of`.

    Parameters
    ----------
    numeric
        What guessed numeric fields have as `Field.numeric`.
    missing
        Whether a missing cell is a feature.

    Examples
    --------
    >>> table = Table(2, {f"c{at}": pl.Series(["b", None]) for at in range(32)})
    >>> wide = read_wide(table, list(table.columns), "linear", missing=True)
    >>> wide.keys[0], wide.n_features[:3].tolist(), edges_of(table, wide).ids[:, 1, 0].tolist()
    (['b'], [2, 2, 2], [2, 3])
    """
    few = table.few
    if len(names) < _WIDE or "" in names or not all(name in few for name in names):
        return None
    kinds = [guess_few(name, *few[name]) for name in names]
    if not set(kinds) <= _USUAL.keys() or any(KINDS[kind] is not _USUAL[kind] for kind in _USUAL):
        return None  # a kind of somebody else's, or in place of ours
    is_number = np.array([kind == "numeric" for kind in kinds])
    if is_number.any() and numeric != "linear":
        return None
    texts, numbers = np.flatnonzero(~is_number), np.flatnonzero(is_number)
    found = _read_texts([few[names[at]] for at in texts.tolist()])
    cells = np.array([few[names[at]][1] for at in numbers.tolist()], dtype=np.float64)
    cells = cells.reshape(len(numbers), table.n_rows)
    knots, n_knots = knots_of_columns(cells, Field.n_knots)
    if found is None or not n_knots.all():
        return None
    keys, code = found[0], np.array(found[1], dtype=np.int32).reshape(len(texts), table.n_rows)
    n_keys, has_missing = np.empty(len(names), np.int64), np.zeros(len(names), dtype=bool)
    n_keys[texts], n_keys[numbers] = [len(each) for each in keys], n_knots
    if missing:
        has_missing[texts], has_missing[numbers] = (code < 0).any(1), np.isnan(cells).any(1)
    wide = WideColumns(names, texts, keys, numbers, knots, n_knots, n_keys, has_missing)
    table.memo["", wide] = _edges(wide, code, cells)
    return wide


def edges_of(table: Table, wide: WideColumns) -> CellEdges | None:
    """The edges of the columns in the rows that they were read from; None for other rows."""
    found: CellEdges | None = table.memo.get(("", wide))
    return found


def _read_texts(
    columns: Sequence[tuple[type[pl.DataType], Sequence[Any]]],
) -> tuple[list[list[str]], list[list[int]]] | None:
    """The texts of each column, sorted, and (columns, N) which of them a cell holds, -1 for none.

    None where polars would have to write one of them.
    """
    every, code = [], []
    for dtype, cells in columns:
        texts = cells
        if dtype is not pl.String:
            texts = [None if cell is None else plain_text(cell) for cell in cells]
            if texts.count(None) > cells.count(None):
                return None
        keys = sorted(set(texts) - {None})
        place = dict(zip(keys, itertools.count()))
        every.append(keys)
        code.append([place.get(text, -1) for text in texts])
    return every, code


def _edges(wide: WideColumns, code: Ids, cells: Floats) -> CellEdges:
    """Edges of texts (texts, N), -1 where missing, and of numbers (numbers, N), NaN there."""
    n_rows, first = cells.shape[1], wide.first
    missing = np.where(wide.has_missing, first + wide.n_keys, -1)
    ids = np.full((n_rows, len(wide.names), 2), -1, dtype=np.int32)
    values = np.ones(ids.shape, dtype=np.float32)
    at = wide.texts
    ids[:, at, 0] = np.where(code >= 0, code + first[at, None], missing[at, None]).T
    at, every = wide.numbers, np.arange(len(wide.numbers))
    for row, number in enumerate(cells.T):  # WHY: (numbers, knots) at once are enough memory
        left = np.maximum(np.count_nonzero(wide.knots <= number[:, None], axis=1) - 1, 0)
        right = np.minimum(left + 1, wide.n_knots - 1)
        share = between(number, wide.knots[every, left], wide.knots[every, right])
        is_there, has_right = number == number, share > 0
        ids[row, at, 0] = np.where(is_there, first[at] + left, missing[at])
        ids[row, at, 1] = np.where(has_right, first[at] + left + 1, -1)
        # WHY doubles: as `Knots.keys_in` has them, to the last bit.
        values[row, at, 0] = 1 - share.astype(np.float64)
        values[row, at, 1] = share
    return CellEdges(ids, values)
