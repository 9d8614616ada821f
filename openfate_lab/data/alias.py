"""Alias tables: a draw from a law of any length by one random number and one look-up.

Many laws stand end to end in one table.  Numpy alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def make_alias(
    p: Floats, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Alias tables of many laws at once: `p` holds them end to end, each adding up to 1.

    Column i of a law of n values keeps i with prob[i] and else gives alias[i], so that a draw is
    one number below n.  Light columns (n p < 1) are filled by heavy ones in order; since deficits
    and excesses of each law balance, two running sums over all laws find who fills whom.

    Examples
    --------
    >>> make_alias(np.array([0.75, 0.25, 1.0]), np.array([2, 1]))[0].tolist()
    [1.0, 0.5, 1.0]
    """
    law = np.repeat(np.arange(len(sizes)), sizes)
    height = p * sizes[law]
    height[np.abs(height - 1) < 1e-12] = 1  # else rounding could leave a law without a light one
    heavy = np.flatnonzero(height > 1)
    light = np.flatnonzero(height <= 1)
    prob, alias = np.ones(len(p), np.float32), np.arange(len(p), dtype=np.int32)
    if not len(heavy):
        return prob, alias
    deficit, excess = np.cumsum(1 - height[light]), np.cumsum(height[heavy] - 1)
    n_heavy = np.bincount(law[heavy], minlength=len(sizes))
    last = np.cumsum(n_heavy) - 1  # of each law, as a place in `heavy`
    # WHY: rounding may point to the neighbouring law at the ends, so places are clipped.
    before = np.concatenate([[0.0], deficit[:-1]])  # the same floats: ties must fall alike below
    filler = np.searchsorted(excess, before, side="right")
    filler = np.clip(filler, (last - n_heavy + 1)[law[light]], last[law[light]])
    filled = n_heavy[law[light]] > 0
    prob[light[filled]] = height[light[filled]]
    alias[light[filled]] = heavy[filler[filled]]
    # A heavy column that filled too many is itself filled by the next.
    at = np.searchsorted(deficit, excess, side="left")  # the last that it fills
    inner = np.flatnonzero(np.arange(len(heavy)) < last[law[heavy]])
    over = deficit[np.minimum(at[inner], len(deficit) - 1)]
    prob[heavy[inner]] = np.clip(1 + excess[inner] - over, 0, 1)
    alias[heavy[inner]] = heavy[inner + 1]
    return prob, alias


def draw(
    rng: np.random.Generator,
    n: int,
    start: Any,
    size: Any,
    prob: NDArray[np.float32],
    alias: NDArray[np.int32],
    modulus: int = 0,
) -> NDArray[np.integer]:
    """Draw n times, each from the law of length `size` whose table begins at `start`.

    Returns places in the table; with a modulus, where `alias` holds remainders, remainders.

    Examples
    --------
    >>> prob, alias = make_alias(np.array([0.9, 0.1, 1.0]), np.array([2, 1]))
    >>> drawn = draw(np.random.default_rng(0), 1000, 0, 2, prob, alias)
    >>> bool(850 < (drawn == 0).sum() < 950)
    True
    """
    x = rng.random(n) * size
    place = x.astype(np.int64)
    x -= place
    place += start
    kept = x < prob[place]
    picked: NDArray[np.integer] = np.where(
        kept, place % modulus if modulus else place, alias[place]
    )
    return picked
