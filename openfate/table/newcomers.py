"""Newcomers: values that were met once, in a few bytes each.

Where a bank may know only so many new features, a value gets an id when it is met for the second
time.  Most values of a skewed column are met once: they cost eight bytes here, and no feature.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection

import numpy as np
import polars as pl
from numpy.typing import NDArray

Bits = NDArray[np.bool_]

_A_FEATURE = 8  # marks, of a byte each, in each of two filters
_FULL = 0.25  # of the marks; then one value in 16 is taken for another


class Newcomers:
    """Which values were met once; never changed, a call that meets more makes another.

    Two Bloom filters: where the later one is full the earlier one is forgotten, so that about as
    many values are held as features may be known.

    Parameters
    ----------
    bits
        (2, m) the earlier and the later filter.

    Examples
    --------
    >>> newcomers = Newcomers.of(100)
    >>> meeting = newcomers.meet()
    >>> meeting.admit("city", pl.Series(["Bern", "Oslo"]), np.array([1, 2])).tolist()
    [False, True]
    >>> meeting.later().meet().admit("city", pl.Series(["Bern", "Rome"]), np.array([1, 1])).tolist()
    [True, False]
    """

    def __init__(self, bits: Bits) -> None:
        self.bits = bits

    @classmethod
    def of(cls, most: int) -> Newcomers:
        """Of no values; `most` features may be known."""
        return cls(np.zeros((2, _A_FEATURE * max(most, 1024)), dtype=bool))

    def meet(self, fields: Collection[str] | None = None) -> Meeting:
        """What asks and tells it during one call; of other fields every value gets an id."""
        return Meeting(self.bits.copy(), fields)


class Meeting:
    """The values of one call."""

    def __init__(self, bits: Bits, fields: Collection[str] | None = None) -> None:
        self._bits, self._fields = bits, fields

    def admit(self, field: str, keys: pl.Series, n_cells: NDArray[np.integer]) -> Bits:
        """(n,) which new values get an id: those met before, or in more than one cell now."""
        if self._fields is not None and field not in self._fields:
            return np.ones(len(keys), dtype=bool)
        places = self._places(field, keys)  # (2, n)
        known = self._bits[:, places].all(1).any(0) | (n_cells > 1)
        self._bits[1, places[:, ~known]] = True
        if np.count_nonzero(self._bits[1]) > _FULL * self._bits.shape[1]:
            self._bits = np.stack([self._bits[1], np.zeros_like(self._bits[1])])
        return np.asarray(known)

    def _places(self, field: str, keys: pl.Series) -> NDArray[np.int64]:
        """(2, n) the two bits of each value."""
        codes = keys.cast(pl.String).hash(seed=zlib.crc32(field.encode())).to_numpy()
        halves = np.stack([codes & np.uint64(0xFFFFFFFF), codes >> np.uint64(32)])
        return (halves % np.uint64(self._bits.shape[1])).astype(np.int64)

    def later(self) -> Newcomers:
        """What is known after the call."""
        return Newcomers(self._bits)
