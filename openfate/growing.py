"""Arrays that grow by doubling: one row at a time costs no more than all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def with_room(array: Floats, used: int, length: int) -> Floats:
    """The array where its first axis has the length; else a copy of `used` rows in a larger one.

    Parameters
    ----------
    array
        Its rows from `used` on are zero.
    used
        How many of its rows count.
    length
        How many rows are needed.

    Examples
    --------
    >>> counts = with_room(np.ones(2), 2, 3)
    >>> len(counts), counts[:3].tolist(), with_room(counts, 3, 4) is counts
    (4, [1.0, 1.0, 0.0], True)
    """
    if length <= len(array):
        return array
    wider = np.zeros((max(length, 2 * len(array)), *array.shape[1:]))
    wider[:used] = array[:used]
    return wider
