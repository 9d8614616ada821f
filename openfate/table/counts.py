"""Counts: what the columns of a table hold, counted in pieces of any size.

Memory holds the distinct values of each field and never the rows, and nothing depends on how the
rows are cut: a frame is one piece, a log on disk many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.table.fields import Field, Kind, Knots, Number, start_tally
from openfate.table.frame import Table, read_table
from openfate.table.pieces import work_ahead

Mask = NDArray[np.bool_]
_MERGED = 1 << 16  # distinct values that wait, at least, before they are merged
_WORTH_THREADS = 1 << 14  # rows
T = TypeVar("T")
S = TypeVar("S")


class Learned(NamedTuple):
    """What gets ids in one field: keys in their order, and whether a missing cell does."""

    kind: Kind
    keys: pl.Series
    missing: bool


class Pieces:
    """Frames that can be gone through more than once, each with the numbers of its rows.

    Parameters
    ----------
    frames
        One frame, or something that gives frames whenever it is iterated over, such as a list.

    Examples
    --------
    >>> parts = [pl.DataFrame({"a": [1, 2]}), pl.DataFrame({"a": [3]})]
    >>> [(table.n_rows, first) for table, first in Pieces(parts)]
    [(2, 0), (1, 2)]
    """

    def __init__(self, frames: Any) -> None:
        # WHY: of the type, for a lazy frame would have to be run to tell its columns.
        is_many = isinstance(frames, Iterable) and not hasattr(type(frames), "columns")
        is_many = is_many and not isinstance(frames, Table | Mapping)
        if is_many and iter(frames) is frames:
            raise InputError(
                "frames can be gone through only once: give a list, or an object that begins anew."
            )
        self._frames: Iterable[Any] = frames if is_many else [read_table(frames)]

    def __iter__(self) -> Iterator[tuple[Table, int]]:
        first = 0
        for frame in self._frames:
            table = read_table(frame)
            yield table, first
            first += table.n_rows


@dataclass(eq=False)
class Counts:
    """The values of some fields in rows that are learned from, and in rows that are spared.

    Examples
    --------
    >>> rows = pl.DataFrame({"job": ["cook", "pilot", "cook", "judge"]})
    >>> spared = np.array([False, False, False, True])
    >>> from openfate.table.fields import Text
    >>> (counts,) = count([Text(Field("job", "categorical"))], Pieces(rows), spared)
    >>> counts.first(1).keys.to_list(), counts.second(1).keys.to_list()
    (['cook', 'pilot'], ['judge'])
    """

    kind: Kind

    def __post_init__(self) -> None:
        field = self.kind.field
        self._seen = _Values()
        self._missing = [False, False]  # in rows that are learned from, in spared ones
        self._tallies = [start_tally(field), start_tally(field)]
        if isinstance(self.kind, Number) and self._is_declared:
            self.kind = self.kind.learn_tally(self._tallies[0])

    @property
    def needs_tally(self) -> bool:
        """Whether it must see all numbers, to tell where they lie or whether there are any."""
        return isinstance(self.kind, Number) and not (self.kind.measure and self.counts_cells)

    @property
    def counts_cells(self) -> bool:
        """Whether the keys of its cells tell which features there are."""
        return not isinstance(self.kind, Number) or not self.kind.has_values

    def add_numbers(self, table: Table, first: int, spared: Mask | None) -> None:
        """The first look: where numbers lie, and whether some are missing."""
        assert isinstance(self.kind, Number)
        numbers, rows = self.kind.numbers(table), np.arange(first, first + table.n_rows)
        if spared is None:
            self._tallies[0].add(numbers, rows)
            return
        for tally, chosen in zip(self._tallies, (~spared, spared), strict=True):
            tally.add(numbers[chosen], rows[chosen])

    def end_first_look(self) -> None:
        """Settle where numbers lie: by rows that are learned from, or else by spared ones."""
        if isinstance(self.kind, Number) and self.kind.measure is None:
            for tally in self._tallies:
                if self.kind.measure is None:
                    self.kind = self.kind.learn_tally(tally)

    def add(self, table: Table, spared: Mask | None, exact: bool) -> None:
        """Note which values and missing cells a piece has; `exact`: and how often."""
        rows = self.kind.find_missing(table)
        if len(rows):
            is_spared = np.zeros(len(rows), bool) if spared is None else spared[rows]
            self._missing[0] |= not is_spared.all()
            self._missing[1] |= bool(is_spared.any())
        if not self.counts_cells:
            return
        for cells in self.kind.read(table):
            n = len(cells.distinct)
            if spared is None and not exact:
                self._seen.add(cells.distinct, np.ones(n, np.int64), np.zeros(n, np.int64))
                continue
            code = cells.spread(np.arange(n, dtype=np.int32))
            row = np.arange(table.n_rows) if cells.row is None else cells.row
            of_spared = np.zeros(len(code), bool) if spared is None else spared[row]
            there = code >= 0
            learned = np.bincount(code[there & ~of_spared], minlength=n)
            self._seen.add(cells.distinct, learned, np.bincount(code[there], minlength=n) - learned)

    # ---- what gets ids -----------------------------------------------------------------------

    def first(self, min_count: int) -> Learned:
        """What rows that are learned from hold, often enough."""
        return Learned(self._kind_first(), self._keys(min_count)[0], self._missing[0])

    def second(self, min_count: int) -> Learned:
        """What else all rows together hold."""
        missing = self._missing[1] and not self._missing[0]
        return Learned(self.kind, self._keys(min_count)[1], missing)

    def _kind_first(self) -> Kind:
        """Without what only spared rows told."""
        is_told = not isinstance(self.kind, Number) or self._tallies[0].n or self._is_declared
        return self.kind if is_told else type(self.kind)(self.kind.field, self.kind.hash_key)

    @property
    def _is_declared(self) -> bool:
        field = self.kind.field
        return field.numeric == "log" or any(
            value is not None for value in (field.bounds, field.scale, field.knots)
        )

    def _keys(self, min_count: int) -> tuple[pl.Series, pl.Series]:
        if not self.counts_cells:
            return self._keys_of_measure()
        least = 1 if isinstance(self.kind, Number) or self.kind.name == "datetime" else min_count
        seen = self._seen.merged()
        is_first = seen["learned"] >= least
        is_second = ~is_first & (seen["learned"] + seen["spared"] >= least)
        first, second = (seen["value"].filter(chosen) for chosen in (is_first, is_second))
        return self.kind.order(first), self.kind.order(second)

    def _keys_of_measure(self) -> tuple[pl.Series, pl.Series]:
        """All knots, or the one number: each knot is a number that occurs, or is declared."""
        assert isinstance(self.kind, Number)
        nothing = pl.Series([], dtype=pl.Int32)
        measure = self.kind.measure
        if measure is None:
            return nothing, nothing
        is_knots = isinstance(measure, Knots) and self.kind.field.knots is not None
        keys = pl.Series(range(measure.n_buckets), dtype=pl.Int32)
        if self._tallies[0].n or is_knots:
            return keys, nothing
        return nothing, keys if self._tallies[1].n else nothing


class _Values:
    """Distinct values of a field with two counts each."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._n_waiting = self._n_merged = 0

    def add(self, values: pl.Series, learned: NDArray[np.int64], spared: NDArray[np.int64]) -> None:
        counts = {"value": values, "learned": learned, "spared": spared}
        self._parts.append(pl.DataFrame(counts))
        self._n_waiting += len(values)
        if self._n_waiting > max(_MERGED, self._n_merged):
            self.merged()

    def merged(self) -> pl.DataFrame:
        """Each value once."""
        if not self._parts:
            return pl.DataFrame({"value": [], "learned": [], "spared": []}).cast(pl.Int64)
        if len(self._parts) > 1:
            every = pl.concat(self._parts, rechunk=True)
            self._parts = [every.group_by("value").agg(pl.col("learned", "spared").sum())]
        self._n_waiting, self._n_merged = 0, len(self._parts[0])
        return self._parts[0]


def count(
    kinds: Iterable[Kind], pieces: Pieces, spared: Mask | None = None, *, exact: bool = False
) -> list[Counts]:
    """Count what some fields hold; numbers whose buckets are not known are looked at twice.

    Parameters
    ----------
    spared
        (N,) rows that are not learned from.
    exact
        Whether counts will be asked for, or only what is there.
    """
    found = [Counts(kind) for kind in kinds]
    numbers = [counts for counts in found if counts.needs_tally]
    later = [counts for counts in numbers if counts.counts_cells]  # their buckets are not known yet

    def look(which: list[Counts], tallies: list[Counts]) -> None:
        for table, first in pieces:
            _check_columns(table, [counts.kind.field for counts in found])
            mask = None if spared is None else spared[first : first + table.n_rows]
            of_numbers = [partial(counts.add_numbers, table, first, mask) for counts in tallies]
            of_cells = [partial(counts.add, table, mask, exact) for counts in which]
            for steps in (of_numbers, of_cells):
                work_on_fields(lambda step: step(), steps, table.n_rows)

    look([counts for counts in found if counts not in later], numbers)
    for counts in found:
        counts.end_first_look()
    if later:
        look(later, [])
    return found


def work_on_fields(work: Callable[[T], S], fields: Sequence[T], n_rows: int) -> list[S]:
    """What is done to each field of so many rows, in threads where there are rows enough.

    Examples
    --------
    >>> work_on_fields(len, ["a", "bc"], n_rows=10)
    [1, 2]
    """
    n_threads = min(pl.thread_pool_size(), len(fields))
    if n_threads < 2 or n_rows < _WORTH_THREADS:
        return [work(field) for field in fields]
    return list(work_ahead(work, fields, n_threads, len(fields)))


def _check_columns(table: Table, fields: Iterable[Field]) -> None:
    for field in fields:
        if field.name not in table.columns:
            raise InputError(
                f"field {field.name!r} is not a column of the frame; "
                f"columns: {', '.join(table.columns) or 'none'}."
            )
