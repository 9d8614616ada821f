"""The shape of the public click logs: fields, their numbers of values, and where new ones come.

Numpy alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError

Floats = NDArray[np.float64]

# How many values each field of the public logs has: 13 integers after the log discretisation,
# then 26 hashes (Criteo); `hour`, C1, ... C21 (Avazu).  Only the proportions are used.
CRITEO = (
    *(47, 96, 110, 44, 180, 112, 80, 42, 90, 9, 32, 38, 66),
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
AVAZU = (
    *(240, 7, 7, 4737, 7745, 26, 8552, 559, 36, 2686408, 6729486),
    *(8251, 5, 4, 2626, 8, 9, 435, 4, 68, 172, 60),
)
_SHAPES = {"criteo": CRITEO, "avazu": AVAZU}


def cardinalities(shape: Any) -> Floats:
    """(d,) how many values each field has, of a named log or as given."""
    if isinstance(shape, str):
        if shape not in _SHAPES:
            raise InputError(f'shape must be "criteo", "avazu" or a list, not {shape!r}.')
        return np.array(_SHAPES[shape], float)
    cardinality = np.asarray(shape, float)
    if cardinality.ndim != 1 or not len(cardinality) or cardinality.min() < 1:
        raise InputError(f"shape must list the values of each field, 1 or more, not {shape!r}.")
    return cardinality


def new_shares(cardinality: Floats, mean: float) -> Floats:
    """(d,) the share of new cells of each field: more where there are more values."""
    weight = np.log(np.maximum(cardinality / 50, 1))
    if not weight.any():
        weight = np.ones_like(cardinality)
    share = np.zeros_like(weight)
    for _ in range(20):  # what is above one half goes to the others
        share = np.minimum(0.5, share + weight * (mean - share.mean()) * len(weight) / weight.sum())
    return share


def pool_sizes(
    cardinality: Floats, n_features: int, n_days: int, grows: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(days, d) how many features of each field are born on each day."""
    if n_features < 2 * len(cardinality) * n_days:
        raise InputError(
            f"n_features={n_features} is too few for {len(cardinality)} fields over {n_days} days; "
            f"give {2 * len(cardinality) * n_days} or more."
        )
    # PAPER: about half of all features are in the training part, the others come later.
    sizes = np.zeros((n_days, len(cardinality)), np.int64)
    sizes[0] = _scaled(cardinality, n_features / 2)
    if grows.any():
        later = _scaled(np.where(grows, cardinality, 0), n_features / 2)
        days = np.arange(n_days - 1)[:, None]
        sizes[1:] = np.maximum(later // (n_days - 1) + (days < later % (n_days - 1)), grows)
    return sizes


def _scaled(cardinality: Floats, total: float) -> NDArray[np.int64]:
    """Lower the great numbers, keeping the small, until they add up to about `total`."""
    low, high = 0.0, float(cardinality.max())
    for _ in range(60):
        knee = (low + high) / 2
        # Fields beyond the knee grow as the square root, so that their order remains.
        bent = np.where(cardinality > knee, np.sqrt(cardinality * knee), cardinality)
        low, high = (knee, high) if bent.sum() < total else (low, knee)
    return np.ceil(bent).astype(np.int64)
