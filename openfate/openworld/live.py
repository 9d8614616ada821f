"""LiveEvidence: evidence in a stream, and the strength that suits it, without keeping the rows.

The sums are exact (`evidence`).  The reference strength (`pooling`) is a statistic of rows, so a
sample of them is kept: those whose hash is lowest.  Which rows these are depends on nothing but the
rows themselves, so neither their order nor the way they were cut into calls matters.

N rows, J new features, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.openworld.evidence import Evidence, Floats, Kind
from openfate.openworld.pooling import (
    Pooling,
    label_evidence,
    pooled_evidence,
    reference_strength,
)
from openfate.table import MultiHot

__all__ = ["LiveEvidence"]

SAMPLE = 2000  # rows; the strength is one number, and more rows do not change it


class LiveEvidence:
    """What new features have shown, and what that says of a row.

    Parameters
    ----------
    n_outputs, kind
        Of the predictions: see `Evidence`.
    pooling
        How evidence is weighed; a relative strength is a multiple of the sample's reference.

    Examples
    --------
    >>> live = LiveEvidence(2, pooling=Pooling(strength=1.0, alpha=1.0))
    >>> X = MultiHot.from_rows([[0], [0], []], 1)
    >>> live.observe(X, np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]]))
    >>> live.evidence(X)[0].round(2)  # the feature speaks for the first class
    array([ 0.25, -0.54])
    """

    def __init__(self, n_outputs: int, kind: Kind = "classes", pooling: Pooling | None = None):
        self.pooling = pooling or Pooling()
        self.state = Evidence(n_outputs, kind)
        self._sample = _Sample.empty(n_outputs)
        self._reference: float | None = None

    def observe(
        self, X: MultiHot, P0: ArrayLike, y: ArrayLike | None = None, *, seen: bool = False
    ) -> None:
        """Add rows: their new features (N, J), their predictions (N, C), their labels if known.

        Parameters
        ----------
        seen
            Whether the rows were observed before, when they had no labels.
        """
        votes = np.asarray(P0, dtype=np.float64)
        if y is not None:
            self.state.add_labelled(X, votes, y, seen=seen)
        elif not seen:
            self.state.add(X, votes)
        if not seen:
            self._sample = self._sample.merged(_Sample.of(X, votes, self.state.kind))
        self._reference = None

    def copied(self) -> LiveEvidence:
        """An independent copy."""
        other = LiveEvidence(self.state.n_outputs, self.state.kind, self.pooling)
        other.state, other._sample = self.state.copy(), self._sample
        return other

    def evidence(self, X: MultiHot, own: Floats | None = None) -> Floats:
        """(N, C) what the new features of rows say, weighed; zero where they say nothing.

        Parameters
        ----------
        own
            (N, C) the rows' own votes, to be left out where they are in the sums.
        """
        pooling, state = self.pooling, self.state
        e = np.zeros((X.n_rows, state.n_outputs))
        strength = self.strength
        if strength > 0:
            e += strength * pooled_evidence(state, X, own, pooling.alpha)
        if pooling.label_strength > 0 and state.labelled_count.any():
            e += pooling.label_strength * label_evidence(state, X, pooling.label_alpha)
        return e

    @property
    def strength(self) -> float:
        """How much evidence of unlabelled rows counts now."""
        if not self.pooling.relative:
            return self.pooling.strength
        if self._reference is None:
            X, votes = self._sample.rows(self.state.n_features), self._sample.votes
            e = pooled_evidence(self.state, X, votes, self.pooling.alpha)
            self._reference = reference_strength(e, votes, self.state.kind, self.state.mean)
        return self.pooling.strength * self._reference

    # ---- arrays in, arrays out -----------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The state as plain arrays, for a safetensors file."""
        sample = self._sample
        return {
            **self.state.to_arrays(),
            "sample_key": sample.key,
            "sample_row_ptr": sample.row_ptr,
            "sample_ids": sample.ids,
            "sample_votes": sample.votes,
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[np.generic]], kind: Kind, pooling: Pooling
    ) -> LiveEvidence:
        """The state that `to_arrays` gave; raises InputError where it is something else."""
        try:
            sample = _Sample(
                np.asarray(arrays["sample_key"], np.uint64),
                np.asarray(arrays["sample_row_ptr"], np.int64),
                np.asarray(arrays["sample_ids"], np.int32),
                np.asarray(arrays["sample_votes"], np.float64),
            )
        except KeyError as error:
            raise InputError(f"a state of evidence lacks the array {error}.") from None
        state = Evidence.from_arrays(arrays, kind)
        sample.rows(state.n_features)  # refuses ids out of range
        live = cls(state.n_outputs, kind, pooling)
        live.state, live._sample = state, sample
        return live


class _Sample:
    """Rows with the lowest keys, in the order of keys."""

    def __init__(
        self,
        key: NDArray[np.uint64],
        row_ptr: NDArray[np.int64],
        ids: NDArray[np.int32],
        votes: Floats,
    ) -> None:
        self.key, self.row_ptr, self.ids, self.votes = key, row_ptr, ids, votes

    @classmethod
    def empty(cls, n_outputs: int) -> _Sample:
        """No rows."""
        no_ids, no_keys = np.empty(0, np.int32), np.empty(0, np.uint64)
        return cls(no_keys, np.zeros(1, np.int64), no_ids, np.empty((0, n_outputs)))

    @classmethod
    def of(cls, X: MultiHot, votes: Floats, kind: Kind) -> _Sample:
        """The rows of a call that have new features, at most as many as a sample holds."""
        told = np.flatnonzero(X.row_degree > 0)
        key = _keys(X, votes, kind)[told]
        lowest, first = np.unique(key, return_index=True)  # a row that comes twice counts once
        chosen = told[first[:SAMPLE]]
        part = X.select_rows(chosen)
        return cls(lowest[:SAMPLE], part.row_ptr, part.ids, votes[chosen])

    def merged(self, other: _Sample) -> _Sample:
        """The rows with the lowest keys of both."""
        if not len(other.key):
            return self
        n_features = 1 + max(int(part.max(initial=0)) for part in (self.ids, other.ids))
        X = MultiHot.stack([self.rows(n_features), other.rows(n_features)])
        votes = np.concatenate([self.votes, other.votes])
        lowest, first = np.unique(np.concatenate([self.key, other.key]), return_index=True)
        part = X.select_rows(first[:SAMPLE])
        return _Sample(lowest[:SAMPLE], part.row_ptr, part.ids, votes[first[:SAMPLE]])

    def rows(self, n_features: int) -> MultiHot:
        """The new features of the rows, (N, J)."""
        return MultiHot(self.row_ptr, self.ids, n_features)


def _keys(X: MultiHot, votes: Floats, kind: Kind) -> NDArray[np.uint64]:
    """(N,) a hash of each row: of its features, in any order, and of its prediction."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(X.ids.astype(np.uint64)))])
    key: NDArray[np.uint64] = total[X.row_ptr[1:]] - total[X.row_ptr[:-1]]
    for column in _rounded(votes, kind).T:
        key = _mix(key ^ _mix(column))
    return key


def _rounded(votes: Floats, kind: Kind) -> NDArray[np.uint64]:
    """(N, C) predictions to six digits: their last bits may depend on the rows beside them."""
    if kind != "values":
        return np.round(votes * 1e6).astype(np.int64).astype(np.uint64)
    # Numbers may be of any size: six significant digits, 20 bits, and + 0.0 makes one zero of two.
    fraction, exponent = np.frexp(votes)
    digits: Floats = np.ldexp(np.round(np.ldexp(fraction, 20)), exponent - 20) + 0.0
    return digits.view(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of the input moves every bit of the output."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
