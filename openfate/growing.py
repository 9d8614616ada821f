"""PagedArray: numbers by id that grow, in versions that share what did not change.  And layers.

No version ever changes, so that one can be read while another thread makes the next, be kept to go
back to, and stay what it is where making the next one fails half-way.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BITS = 5
_PAGE = 1 << _BITS  # rows


class PagedArray:
    """(n, ...) numbers; a version in which some rows differ costs as much as the pages of these.

    Parameters
    ----------
    array
        The numbers; they are copied.

    Examples
    --------
    >>> counts = PagedArray(np.zeros(2))
    >>> later, rows, places = counts.open(np.array([1, 4]), n_rows=5)
    >>> rows[places] += 3
    >>> later.take(np.array([4, 0, 9])).tolist(), later.to_array().tolist(), len(counts)
    ([3.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0, 3.0], 2)
    """

    __slots__ = ("_pool", "_start", "n_rows")

    def __init__(self, array: Floats) -> None:
        self.n_rows = len(array)
        # (n_pages,) where in the pool a page starts; 0 for a page that nobody has written to.
        self._start = _PAGE * np.arange(1, 1 + _pages_of(self.n_rows))
        self._pool = _Pool(len(self._start), array.shape[1:])
        self._pool.rows[_PAGE : _PAGE + self.n_rows] = array
        self._pool.rows[_PAGE + self.n_rows : _PAGE * (1 + len(self._start))] = 0

    def __len__(self) -> int:
        return self.n_rows

    @property
    def width(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self._pool.rows.shape[1:]

    def take(self, ids: NDArray[np.integer]) -> Floats:
        """(len(ids), ...) rows; zero for ids from n on."""
        if len(ids) == 1:  # WHY: a request waits for it, and arrays take five times as long
            at = int(ids[0])
            place = int(self._start[at >> _BITS]) + (at & (_PAGE - 1)) if at < self.n_rows else 0
            one: Floats = self._pool.rows[place : place + 1].copy()
            return one
        known = ids < self.n_rows
        if known.all():
            found: Floats = self._pool.rows[self._places(ids)]
            return found
        found = np.zeros((len(ids), *self.width))
        found[known] = self._pool.rows[self._places(ids[known])]
        return found

    def to_array(self) -> Floats:
        """(n, ...) all rows, in an array of its own."""
        every: Floats = self._pool.pages[self._start >> _BITS]
        return every.reshape(-1, *self.width)[: self.n_rows]

    def open(self, ids: NDArray[np.integer], n_rows: int = 0) -> Opened:
        """A version of `n_rows` rows or more in which those of `ids` can be written, once.

        Its rows from n on are zero.
        """
        later = object.__new__(PagedArray)
        later.n_rows, later._pool = max(n_rows, self.n_rows), self._pool
        later._start = np.zeros(_pages_of(later.n_rows), np.int64)
        later._start[: len(self._start)] = self._start
        is_touched = np.zeros(len(later._start), dtype=bool)
        is_touched[ids >> _BITS] = True
        touched = np.flatnonzero(is_touched)
        old, pages = self._pool.pages, self._pool.reserve(len(touched))
        if pages is not None:
            old[pages] = old[later._start[touched] >> _BITS]
            later._start[touched] = _PAGE * pages
        else:
            every = 1 + np.arange(len(later._start))
            later._pool = _Pool(len(every), self.width)
            out = later._pool.pages[1 : 1 + len(every)]
            np.take(old, later._start >> _BITS, axis=0, out=out, mode="clip")
            later._start = _PAGE * every
        return Opened(later, later._pool.rows, later._places(ids))

    def _places(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """(len(ids),) where in the pool rows lie."""
        places: NDArray[np.int64] = self._start[ids >> _BITS] + (ids & (_PAGE - 1))
        return places

    def __reduce__(self) -> tuple[Any, ...]:
        return PagedArray, (self.to_array(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> PagedArray:
        return self


class Opened(NamedTuple):
    """A version that is being made."""

    version: PagedArray
    rows: Floats  # (m, ...) of all versions
    places: NDArray[np.int64]  # (len(ids),) its own among them, the only ones to be written


class Layer(Protocol):
    """A part of something that is only added to: it has a size, and two of them are one."""

    def __len__(self) -> int:
        """How much it holds."""

    def __add__(self, later: Self) -> Self:
        """Both."""


L = TypeVar("L", bound=Layer)


def merge_layers(layers: list[L]) -> tuple[L, ...]:
    """The layers, of which the last ones become one where they are near one another's size.

    Each is then smaller than half of the one before, so that there are few, and what versions share
    is seldom copied.

    Examples
    --------
    >>> merge_layers(["a million texts", "some", "few"])
    ('a million texts', 'somefew')
    """
    while len(layers) > 1 and 2 * len(layers[-1]) > len(layers[-2]):
        last = layers.pop()
        layers[-1] += last
    return tuple(layers)


class _Pool:
    """The pages of all versions of an array; the first is of zeros, the next ones of the array.

    A page is given out once.  Where the pool is full there is another one, with the pages of one
    version, and this one goes with its last version.
    """

    def __init__(self, n_pages: int, width: tuple[int, ...]) -> None:
        n_places = 8 + n_pages + n_pages // 2  # WHY: so that a full pool is ever less often
        self.rows = np.empty((_PAGE * n_places, *width))
        self.rows[:_PAGE] = 0
        self.pages = self.rows.reshape(-1, _PAGE, *width)
        self._free = iter(range(1 + n_pages, n_places))

    def reserve(self, n_pages: int) -> NDArray[np.int64] | None:
        """(n_pages,) pages that nobody else has; None where there are too few."""
        # WHY: threads share pools, and each number of an iterator goes to one of them, without a
        # lock that an interruption could leave behind.
        pages = list(itertools.islice(self._free, n_pages))
        return np.array(pages, dtype=np.int64) if len(pages) == n_pages else None


def _pages_of(n_rows: int) -> int:
    return -(-n_rows // _PAGE)
