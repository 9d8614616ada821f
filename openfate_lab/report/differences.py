"""Differences between two methods, tested over pairs: the same seed gives both the same split.

Five pairs are what an experiment has.  A signed-rank test of five pairs can never reach 5 %
(its smallest p is 1/16), so single cells are tested with Student's t; a table as a whole, over its
cells, with Wilcoxon's signed ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05  # two-sided; the paper's "95 % confidence"
ABOVE, BELOW = "▲", "▼"


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs.

    Parameters
    ----------
    mean, standard_error
        Of the differences, in units of the score.
    p
        Two-sided, of Student's t over the pairs; 1 where there are fewer than two.
    n
        Pairs.
    """

    mean: float
    standard_error: float
    p: float
    n: int

    @property
    def sign(self) -> int:
        """1 or -1 where the difference is significant at 95 %, else 0."""
        if self.n < 2 or not self.p < LEVEL:
            return 0
        return 1 if self.mean > 0 else -1

    @property
    def mark(self) -> str:
        """The sign as tables show it."""
        return {1: ABOVE, -1: BELOW, 0: ""}[self.sign]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; everything where there are fewer than two pairs."""
        if self.n < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(1 - LEVEL / 2, self.n - 1)) * self.standard_error
        return self.mean - half, self.mean + half


def compare(one: Mapping[Any, float], other: Mapping[Any, float]) -> Difference | None:
    """`one` minus `other` over the keys (seeds, say) that both have; None where there are none.

    Examples
    --------
    >>> found = compare({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.69, 2: 0.6, 3: 0.1})
    >>> round(found.mean, 3), found.n, found.sign
    (0.103, 3, 1)
    """
    keys = sorted(set(one) & set(other))
    return difference([one[key] - other[key] for key in keys]) if keys else None


def difference(values: Sequence[float]) -> Difference:
    """The mean of some differences, and whether it is zero.

    Examples
    --------
    >>> difference([0.1, 0.1]).p
    0.0
    """
    n, mean = len(values), float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    if n < 2:
        return Difference(mean, error, 1.0, n)
    if error < 1e-12:  # all alike: no spread to compare with
        return Difference(mean, 0.0, 1.0 if abs(mean) < 1e-12 else 0.0, n)
    return Difference(mean, error, float(2 * stats.t.sf(abs(mean) / error, n - 1)), n)


def signed_ranks(differences: Sequence[float]) -> float:
    """The p of Wilcoxon's signed-rank test; 1 where every difference is zero.

    Examples
    --------
    >>> signed_ranks([0.0, 0.0])
    1.0
    """
    if not any(differences):
        return 1.0
    return float(stats.wilcoxon(list(differences)).pvalue)
