"""Sources: what each source of rows has said of each new feature, so that none says too much.

Where rows name their source (a customer, a device, an account), a feature's pool counts sources
and not rows: however many rows one sends, and however much they differ, it counts for a feature as
`MOST` rows with the mean of its votes.

P pairs of a feature and a source, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.growing import merge_layers

Floats = NDArray[np.float64]

MOST = 3.0  # rows that one source counts for, of one feature


@dataclass(frozen=True, eq=False)
class _Layer:
    """Sums of some pairs."""

    key: NDArray[np.uint64]  # (P,) of feature and source, ascending, none twice
    feature: NDArray[np.int32]  # (P,)
    sums: Floats  # (P, 1 + C) rows, and the sum of their votes

    def at(self, key: NDArray[np.uint64]) -> Floats:
        """(len(key), 1 + C), zero for pairs that are not there."""
        place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        there = self.key[place] == key
        return np.asarray(self.sums[place] * there[:, None])

    def __len__(self) -> int:
        return len(self.key)

    def __add__(self, other: _Layer) -> _Layer:
        every = np.concatenate([self.key, other.key])
        key, first, place = np.unique(every, return_index=True, return_inverse=True)
        sums = np.zeros((len(key), self.sums.shape[1]))
        sums[place[: len(self.key)]] = self.sums
        sums[place[len(self.key) :]] += other.sums
        return _Layer(key, np.concatenate([self.feature, other.feature])[first], sums)


@dataclass(frozen=True, eq=False)
class Sources:
    """Sums by feature and source; never changed, only added to.

    They are made of layers that versions share, merged as they come near one another's size: the
    sums of a pair are those of all layers together.

    Examples
    --------
    >>> key, feature = np.array([5], np.uint64), np.array([0], np.int32)
    >>> sources, counted = Sources().add(key, feature, np.array([[2.0, 1.0]]))
    >>> counted
    array([[2., 1.]])
    >>> sources.add(key, feature, np.array([[4.0, 2.0]]))[1]  # six rows count as three
    array([[1. , 0.5]])
    """

    layers: tuple[_Layer, ...] = ()

    def add(
        self, key: NDArray[np.uint64], feature: NDArray[np.int32], sums: Floats
    ) -> tuple[Sources, Floats]:
        """More sums (n, 1 + C) of pairs; by how much what counts of each of them has changed.

        Parameters
        ----------
        key, feature
            (n,) of the pairs, the keys ascending, none twice.
        """
        if not len(key):
            return self, sums
        before = sum((layer.at(key) for layer in self.layers), np.zeros_like(sums))
        layers = merge_layers([*self.layers, _Layer(key, feature, sums)])
        return Sources(layers), cap(before + sums) - cap(before)

    def merge(self, other: Sources) -> Sources:
        """The sums of both, over the same features."""
        merged = self
        for layer in other.layers:
            merged, _ = merged.add(layer.key, layer.feature, layer.sums)
        return merged

    def scale(self, factor: float) -> Sources:
        """All sums times a factor."""
        return Sources(tuple(replace(each, sums=factor * each.sums) for each in self.layers))

    def select(self, number: NDArray[np.int32]) -> Sources:
        """Those of features that have another `number` (J,) from now on; without those with -1."""
        layers = []
        for layer in self.layers:
            feature = number[layer.feature]
            kept = feature >= 0
            if kept.any():
                layers.append(_Layer(layer.key[kept], feature[kept], layer.sums[kept]))
        return Sources(tuple(layers))

    def count(self, n_features: int, n_outputs: int) -> Floats:
        """(J, 1 + C) what counts of all sources, by feature."""
        counted = np.zeros((n_features, 1 + n_outputs))
        whole = self.to_layer(n_outputs)
        np.add.at(counted, whole.feature, cap(whole.sums))
        return counted

    def to_layer(self, n_outputs: int) -> _Layer:
        """Everything in one."""
        whole = _Layer(np.empty(0, np.uint64), np.empty(0, np.int32), np.zeros((0, 1 + n_outputs)))
        for layer in self.layers:
            whole += layer
        return whole

    @classmethod
    def of(
        cls,
        key: NDArray[np.uint64],
        feature: NDArray[np.int32],
        sums: Floats,
        n_features: int,
    ) -> Sources:
        """What `to_layer` gave; refuses what it cannot have given."""
        if (key[1:] <= key[:-1]).any():
            raise InputError("the pairs of features and sources are not in order.")
        if len(feature) and not 0 <= feature.min() <= feature.max() < n_features:
            raise InputError("a source has a feature that is not there.")
        return cls((_Layer(key, feature, sums),) if len(key) else ())


def cap(sums: Floats) -> Floats:
    """Sums (n, 1 + C) of which no more than `MOST` rows count.

    Examples
    --------
    >>> cap(np.array([[1.0, 0.9], [6.0, 3.0]]))
    array([[1. , 0.9],
           [3. , 1.5]])
    """
    return np.asarray(sums * np.minimum(1.0, MOST / np.maximum(sums[:, :1], MOST)))
