"""Numbers -> buckets of equal width, or one standardised value.

Both are learned once, from the rows in which a numeric field is first met.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError

__all__ = [
    "Edges",
    "Scale",
    "bucket_of",
    "cut",
    "edges_from",
    "scale_from",
    "standardised",
]

Floats = NDArray[np.float64]
Edges = Floats  # (buckets + 1,)

_FARTHEST = 5.0  # standard deviations


@dataclass(frozen=True)
class Scale:
    """What the feature of a numeric field with ``numeric="value"`` carries: (x - mean) / std."""

    mean: float
    std: float


def edges_from(values: Floats, n_buckets: int, field: str) -> Edges | None:
    """Take the edges from a field's values; None where there is none.

    Examples
    --------
    >>> edges_from(np.array([0.0, 8.0]), 2, "age").tolist()
    [0.0, 4.0, 8.0]
    """
    finite = np.isfinite(values)
    if not finite.all():
        raise InputError(
            f"numeric field {field!r} holds {values[~finite][0]}, which leaves no edges for "
            "its buckets; make it finite or missing."
        )
    return cut(n_buckets, values.min(), values.max()) if len(values) else None


def cut(n_buckets: int, low: float, high: float) -> Edges:
    """(buckets + 1,) equal-width edges; a constant column has one bucket.

    Examples
    --------
    >>> cut(2, 0.0, 8.0).tolist(), cut(2, 3.0, 3.0).tolist()
    ([0.0, 4.0, 8.0], [3.0, 3.0])
    """
    if low == high:
        return np.array([low, high], dtype=np.float64)
    # WHY: the width of [-1e308, 1e308] is no float; that of a sixteenth of it is.
    scale = 16.0 if max(abs(low), abs(high)) > 1e307 else 1.0
    edges = np.linspace(low / scale, high / scale, n_buckets + 1) * scale
    edges[0], edges[-1] = low, high
    return np.asarray(edges, dtype=np.float64)


def bucket_of(values: Floats, edges: Edges) -> NDArray[np.int64]:
    """(N,) the bucket of each value; values beyond the edges fall into the first or the last.

    Examples
    --------
    >>> bucket_of(np.array([-1.0, 4.0, 8.0]), np.array([0.0, 4.0, 8.0])).tolist()
    [0, 1, 1]
    """
    # PAPER: "10 even buckets"; the maximum falls into the last one, not into an eleventh, which
    # gives the paper's feature counts (test_datasets.py).
    return np.searchsorted(edges[1:-1], values, side="right")


def scale_from(values: Floats) -> Scale | None:
    """Take mean and deviation from the finite values; None where there is none.

    Examples
    --------
    >>> scale_from(np.array([1.0, 3.0, np.inf])), scale_from(np.array([0.1, 0.1, 0.1]))
    (Scale(mean=2.0, std=1.0), Scale(mean=0.1, std=1.0))
    """
    # WHY: a sum depends on the order of its terms; the scale must not depend on that of the rows.
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return None
    # WHY: rounding gives three times 0.1 a deviation of 1e-17, of which all else is far away.
    if finite[0] == finite[-1]:
        return Scale(float(finite[0]), 1.0)
    # WHY: the square of 1e200 is no float; dividing by a power of two loses no digit.
    unit = float(np.ldexp(1.0, int(np.frexp(max(-finite[0], finite[-1]))[1]) - 1))
    std = unit * float((finite / unit).std())
    return Scale(unit * float((finite / unit).mean()), std or 1.0)


def standardised(values: Floats, scale: Scale) -> NDArray[np.float32]:
    """(N,) standard deviations from the mean, at most 5, infinite values too.

    Examples
    --------
    >>> standardised(np.array([3.0, -np.inf]), Scale(2.0, 1.0)).tolist()
    [1.0, -5.0]
    """
    with np.errstate(over="ignore"):  # too large is infinite, and is clipped
        steps = (values - scale.mean) / scale.std
    return np.clip(steps, -_FARTHEST, _FARTHEST).astype(np.float32)
