"""Split: which rows train, validate and test, and which features are observed or new.

PAPER: section 4.1; rows 6:2:2 at random, observed features a random share of all.
Row and feature draws of one seed are independent of one another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.files import writing
from openfate.seeds import checked_seed

Ids = NDArray[np.int64]

_ARRAYS = ("train", "validation", "test", "observed", "new")
# WHY: a second word of entropy keeps the draw of rows and that of features independent.
_ROWS, _FEATURES = 0, 1


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, validation and test; features that are observed or new.

    Parameters
    ----------
    train, validation, test
        Row numbers; kept sorted, no row in two of them.
    observed, new
        Feature ids; kept sorted, no feature in both.
    seed
        The seed they were drawn with.
    description
        How, in words; it is kept with the file.

    Examples
    --------
    >>> train, validation, test = split_rows(10, seed=0)
    >>> observed, new = split_features(20, observed=0.3, seed=0)
    >>> split = Split(train, validation, test, observed, new, seed=0)
    >>> len(split.train), len(split.observed), len(split.new)
    (6, 6, 14)
    """

    train: Ids
    validation: Ids
    test: Ids
    observed: Ids
    new: Ids
    seed: int = 0
    description: str = ""

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, np.sort(np.asarray(getattr(self, name), np.int64)))
        object.__setattr__(self, "seed", checked_seed(self.seed))
        _refuse_overlap("row", np.concatenate([self.train, self.validation, self.test]))
        _refuse_overlap("feature", np.concatenate([self.observed, self.new]))

    @property
    def sha256(self) -> str:
        """A hash of the five arrays: equal for equal splits, whatever the machine."""
        digest = hashlib.sha256()
        for name in _ARRAYS:
            array = getattr(self, name)
            digest.update(f"{name} {len(array)}\n".encode())
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> Path:
        """Write a .npz file, whole or not at all; returns its path.

        Examples
        --------
        >>> import tempfile
        >>> split = Split([0], [1], [2], [0], [1], seed=7)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     int(np.load(split.save(f"{folder}/split.npz"))["seed"])
        7
        """
        path = Path(path)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with writing(path) as file:
            np.savez(file, seed=np.int64(self.seed), description=self.description, **arrays)
        return path


def split_rows(n_rows: int, *, seed: int) -> tuple[Ids, Ids, Ids]:
    """Draw training, validation and test rows at random, 6:2:2.

    Parameters
    ----------
    n_rows
        N.
    seed
        The same seed gives the same rows.

    Examples
    --------
    >>> [len(part) for part in split_rows(10, seed=1)]
    [6, 2, 2]
    """
    cuts = [round(n_rows * 0.6), round(n_rows * 0.8)]
    if not 0 < cuts[0] < cuts[1] < n_rows:
        raise InputError(f"{n_rows} rows cannot be split 6:2:2: a part would be empty; give more.")
    train, validation, test = np.split(_generator(seed, _ROWS).permutation(n_rows), cuts)
    return np.sort(train), np.sort(validation), np.sort(test)


def split_features(
    n_features: int,
    observed: float,
    *,
    seed: int,
    rounding: Literal["complement", "reference"] = "complement",
) -> tuple[Ids, Ids]:
    """Draw the observed features at random from all 0-1 features; the others are new.

    Parameters
    ----------
    n_features
        D.
    observed
        The share of observed features, between 0 and 1; at least one feature is on each side.
    seed
        The same seed gives the same features.
    rounding
        "complement": each feature is observed or new.  "reference": as the released code.

    Returns
    -------
        The observed and the new ids, sorted.

    Examples
    --------
    >>> [len(part) for part in split_features(237, observed=0.3, seed=0)]
    [71, 166]
    """
    if rounding not in ("complement", "reference"):
        raise InputError(f'rounding must be "complement" or "reference", not {rounding!r}.')
    n_observed = _n_observed("feature", n_features, observed)
    order = _generator(seed, _FEATURES).permutation(n_features)
    # REFERENCE: the released code rounds both sides down, so that one feature may be in neither
    # (237 -> 71 + 165); test_split.py shows it.
    n_new = n_features - n_observed
    if rounding == "reference":
        n_new = max(1, int(n_features * (1 - observed)))
    return np.sort(order[:n_observed]), np.sort(order[n_features - n_new :])


def split_fields(field_of: ArrayLike, observed: float, *, seed: int) -> tuple[Ids, Ids]:
    """Draw the observed features by whole fields: all features of a field go one way.

    Parameters
    ----------
    field_of
        (D,) the field of each feature.
    observed
        The share of observed fields, between 0 and 1; at least one field is on each side.
    seed
        The same seed gives the same fields.

    Returns
    -------
        The observed and the new feature ids, sorted.

    Examples
    --------
    >>> observed, new = split_fields([0, 0, 1, 1, 2], observed=0.5, seed=3)
    >>> sorted([*observed.tolist(), *new.tolist()])
    [0, 1, 2, 3, 4]
    """
    field = np.asarray(field_of)
    fields = np.unique(field)
    n_observed = _n_observed("field", len(fields), observed)
    chosen = _generator(seed, _FEATURES).permutation(fields)[:n_observed]
    is_observed = np.isin(field, chosen)
    return np.flatnonzero(is_observed), np.flatnonzero(~is_observed)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([checked_seed(seed), stream])


def _n_observed(what: str, n: int, observed: Any) -> int:
    is_share = isinstance(observed, Real) and 0 < float(observed) < 1
    if not is_share:
        raise InputError(
            f"observed must be between 0 and 1, not {observed!r}; "
            f"give the share of {what}s that training may see, e.g. 0.5."
        )
    if n < 2:
        raise InputError(
            f"{n} {what}{'' if n == 1 else 's'} cannot be split into observed and new; "
            "at least 2 are needed."
        )
    # REFERENCE: int(), as the released code rounds, so that the counts are comparable.
    return min(max(1, int(n * observed)), n - 1)


def _refuse_overlap(what: str, ids: Ids) -> None:
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        twice = int(distinct[counts > 1][0])
        raise InputError(f"{what} {twice} is in the split twice; the parts must not overlap.")
    if len(distinct) and distinct[0] < 0:
        raise InputError(f"{what} {int(distinct[0])} is negative; give numbers from 0 up.")
