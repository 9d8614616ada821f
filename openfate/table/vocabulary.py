"""Vocabulary: the values of one field that have an id; never changed, only grown into another.

It is made of layers, oldest first, that copies share: ten new values on top of a million are a new
layer of ten.  Layers are merged as they come near one another's size, so that there are few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table.words import SMALL

__all__ = ["EMPTY", "Layer", "Vocabulary"]

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Layer:
    """Values that got their ids at about the same time.

    Parameters
    ----------
    values
        (n,) texts, or numbers of buckets; each once.
    ids
        (n,) their ids, ascending.
    """

    values: pl.Series
    ids: Ids

    @cached_property
    def _id_of(self) -> dict[str | int, int]:
        return dict(zip(self.values.to_list(), self.ids.tolist(), strict=True))

    def find(self, values: pl.Series) -> Ids:
        """(n,) the id of each value, -1 where it is not in this layer."""
        if len(values) > SMALL:
            # WHY: a million texts take a second in a dict, which also needs 150 MB, a third here.
            new = pl.Series(self.ids, dtype=pl.Int32)
            found = values.replace_strict(self.values, new, default=-1, return_dtype=pl.Int32)
            return found.to_numpy()
        get = self._id_of.get
        return np.array([get(value, -1) for value in values.to_list()], dtype=np.int32)

    def __add__(self, later: Layer) -> Layer:
        values = pl.concat([self.values, later.values], rechunk=True)
        return Layer(values, np.concatenate([self.ids, later.ids]))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids of one field's values, and that of its missing cells.

    Parameters
    ----------
    layers
        Oldest first, none empty, each smaller than half of the one before.
    missing
        The id of a missing cell, or -1.

    Examples
    --------
    >>> jobs = Vocabulary().grown(pl.Series(["cook", "pilot"]), 0)
    >>> later = jobs.grown(pl.Series(["judge"]), 7, missing=True)
    >>> later.find(pl.Series(["judge", "cook", "clerk"])).tolist(), later.missing
    ([7, 0, -1], 8)
    >>> jobs.find(pl.Series(["judge"])).tolist(), later.value_of(7)
    ([-1], 'judge')
    """

    layers: tuple[Layer, ...] = ()
    missing: int = -1

    def __len__(self) -> int:
        return sum(len(layer.ids) for layer in self.layers) + (self.missing >= 0)

    def find(self, values: pl.Series) -> Ids:
        """(n,) the id of each value, -1 where it has none."""
        found = np.full(len(values), -1, dtype=np.int32)
        for layer in self.layers:
            found = np.maximum(found, layer.find(values))
        return found

    def value_of(self, feature: int) -> str | int | None:
        """Give the value that has an id of this field; None for a missing cell."""
        for layer in self.layers:
            # WHY: for a Python int numpy would copy a million ids to int64.
            at = int(np.searchsorted(layer.ids, np.int32(feature)))
            if at < len(layer.ids) and layer.ids[at] == feature:
                value: str | int = layer.values[at]
                return value
        return None

    def grown(self, values: pl.Series, first: int, missing: bool = False) -> Vocabulary:
        """Give the ids `first`, `first` + 1, ... to new values, and then to a missing cell."""
        ids = np.arange(first, first + len(values), dtype=np.int32)
        layers = [*self.layers, Layer(values, ids)] if len(values) else list(self.layers)
        while len(layers) > 1 and 2 * len(layers[-1].ids) > len(layers[-2].ids):
            last = layers.pop()
            layers[-1] += last
        grown = replace(self, layers=tuple(layers))
        return replace(grown, missing=first + len(values)) if missing else grown


EMPTY = Vocabulary()
