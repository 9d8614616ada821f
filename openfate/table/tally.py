"""Tally: what is known of a column's numbers after any of its rows, in little memory.

Tallies take rows in pieces of any size; what they tell depends on the rows alone, not on how they
were cut: bounds are exact, so are sums (in integers), and the sample from which quantiles come is
chosen by a hash of each row's number in the whole table.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from openfate.table.hashes import STEP, mix_bits

Floats = NDArray[np.float64]

SAMPLED = 100_000  # numbers that are kept, at most, to find quantiles among
_HALF = 27  # bits; a double has 53


class Tally:
    """The numbers of a column so far.

    Parameters
    ----------
    sums
        Whether mean and deviation will be asked for.
    sampled
        How many numbers are kept for quantiles, at most; 0 for none.

    Examples
    --------
    >>> tally = Tally(sums=True, sampled=2)
    >>> tally.add(np.array([1.0, np.nan, 3.0]), np.arange(3))
    >>> tally.n, tally.low, tally.high, tally.mean_and_std(), tally.sample.tolist()
    (2, 1.0, 3.0, (2.0, 1.0), [1.0, 3.0])
    """

    def __init__(self, *, sums: bool = False, sampled: int = 0) -> None:
        self.n, self.low, self.high = 0, math.inf, -math.inf  # of finite numbers
        self.odd: float | None = None  # the first infinite number
        self._sums, self._sampled, self._halvings = sums, sampled, 0
        self._of_x: Counter[int] = Counter()  # by exponent: sums of mantissas
        self._of_squares: Counter[int] = Counter()
        self._parts: list[tuple[Floats, NDArray[np.int64]]] = []
        self._n_kept = 0

    def add(self, numbers: Floats, rows: NDArray[np.int64]) -> None:
        """Take numbers (n,) in, NaN for none, with the numbers of their rows in the whole table."""
        finite = np.isfinite(numbers)
        if not finite.all():
            odd = np.isinf(numbers)
            if self.odd is None and odd.any():
                self.odd = float(numbers[odd][0])
            numbers, rows = numbers[finite], rows[finite]
        if not len(numbers):
            return
        self.n += len(numbers)
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        if self._sums:
            self._add_sums(numbers)
        if self._sampled:
            chosen = _is_chosen(rows, self._halvings)
            self._parts.append((numbers[chosen], rows[chosen]))
            self._n_kept += int(chosen.sum())
            while self._n_kept > self._sampled:
                self._halve()

    # ---- quantiles ---------------------------------------------------------------------------

    def _halve(self) -> None:
        self._halvings += 1
        numbers, rows = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        chosen = _is_chosen(rows, self._halvings)
        self._parts, self._n_kept = [(numbers[chosen], rows[chosen])], int(chosen.sum())

    @property
    def sample(self) -> Floats:
        """All finite numbers where they are few, a part of them where they are many."""
        return np.concatenate([np.empty(0), *(numbers for numbers, _ in self._parts)])

    # ---- moments -----------------------------------------------------------------------------

    def _add_sums(self, numbers: Floats) -> None:
        mantissa, exponent = np.frexp(numbers)
        whole = np.ldexp(mantissa, 53)  # an integer below 2^53 in size
        power = exponent.astype(np.int64) - 53
        high = np.rint(np.ldexp(whole, -_HALF))
        low = whole - np.ldexp(high, _HALF)  # both at most 2^26 in size: products are exact
        _add_exactly(self._of_x, high, power + _HALF)
        _add_exactly(self._of_x, low, power)
        # whole^2 = high^2 2^54 + 2 high low 2^27 + low^2; products are cut in two again.
        for product, shift in ((high * high, 54), (high * low, 28), (low * low, 0)):
            top = np.floor(np.ldexp(product, -_HALF))
            _add_exactly(self._of_squares, top, 2 * power + shift + _HALF)
            rest = product - np.ldexp(top, _HALF)
            _add_exactly(self._of_squares, rest, 2 * power + shift)

    def mean_and_std(self) -> tuple[float, float]:
        """Of one number or more; the deviation is 1 where all are equal."""
        if self.low == self.high:
            return self.low, 1.0
        mean = _total(self._of_x) / self.n
        variance = _total(self._of_squares) / self.n - mean * mean
        # WHY: the square of 1e200 is no float; a power of two loses no digit.
        unit = Fraction(2) ** (math.frexp(max(-self.low, self.high))[1] - 1)
        return float(mean), float(unit) * math.sqrt(variance / unit**2) or 1.0


def _add_exactly(sums: Counter[int], parts: Floats, power: NDArray[np.int64]) -> None:
    """Add integers of at most 27 bits, by their exponents: no digit is lost below 2^26 of them."""
    first = int(power.min())
    totals = np.bincount(power - first, parts)
    for at in np.flatnonzero(totals):
        sums[first + int(at)] += int(totals[at])


def _total(sums: Counter[int]) -> Fraction:
    return sum((Fraction(2) ** power * count for power, count in sums.items()), Fraction(0))


def _is_chosen(rows: NDArray[np.int64], halvings: int) -> NDArray[np.bool_]:
    """(n,) one row in 2^halvings, by a hash of its number."""
    if not halvings:
        return np.ones(len(rows), dtype=bool)
    hashes = mix_bits(rows.astype(np.uint64) * np.uint64(STEP))
    return np.asarray(hashes >> np.uint64(64 - halvings) == 0)
