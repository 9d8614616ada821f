"""How new features will be used: what a probe is asked, and what its decision means for a bank.

    evidence     what the rows that have a new feature were predicted as moves their predictions
    embeddings   a network sums embeddings of new features with the rest (`ContextMap`)

N rows, D features, D' with new ones, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from openfate.bank import Floats, Network
from openfate.errors import InputError
from openfate.estimators.target import Target
from openfate.models import FATE, ContextMap, RunningFATE
from openfate.openworld import (
    Candidate,
    Decision,
    Pooling,
    View,
    choose_pooling,
    evidence_candidates,
    hidden_shares,
    to_logits,
)
from openfate.table import Encoder, MultiHot, Numeric, Policies, Schema, Table, enforce

_SCALE = 0.25  # of embeddings that are only guessed


# ---- what a probe hides ------------------------------------------------------------------------


def measure_new_share(
    encoder: Encoder, table: Table, policies: Policies, overrides: Schema, numeric: Numeric
) -> float:
    """The share of cells that are new to a fitted encoder, and let in by the policies."""
    allowed = enforce(encoder, table, policies, overrides)
    ids = allowed.grow(encoder, table, overrides, numeric).encode(table).ids
    return float((ids >= encoder.n_features).mean()) if len(ids) else 0.0


def shares_to_hide(expected: float | None, n_draws: int, *, also_half: bool) -> tuple[float, ...]:
    """The share of features that each draw of a probe hides: what is expected to be new.

    Parameters
    ----------
    expected
        None where nobody knows: draws of several sizes.
    also_half
        Whether half of the draws hide half as much.

    Examples
    --------
    >>> shares_to_hide(0.4, 4, also_half=True), shares_to_hide(None, 3, also_half=True)
    ((0.4, 0.4, 0.2, 0.2), (0.4, 0.5, 0.6))
    """
    if expected is not None and not 0 <= expected <= 1:
        raise InputError(f"hidden_share={expected!r}: choose a share from 0 to 1, or None.")
    shares = hidden_shares(expected, n_draws)
    if expected is None or not also_half:
        return shares
    n_half = n_draws // 2
    return (*shares[n_half:], *(share / 2 for share in shares[:n_half]))


# ---- what it chooses from ----------------------------------------------------------------------


class Usage(NamedTuple):
    """How a bank uses new features before any label."""

    state: Pooling  # of evidence that a state holds
    batch: Pooling  # of evidence of rows that are predicted together
    scale: float | None = None  # of embeddings; None where they are not used
    strength: float = 1.0  # of the move that embeddings ask for

    @property
    def trusts_evidence(self) -> bool:
        """Whether unlabelled rows say anything."""
        return self.scale is not None or max(self.state.strength, self.batch.strength) > 0


class EmbeddingNetwork:
    """Networks of a probe's fit: predictions without new features, and with embeddings of them.

    Parameters
    ----------
    models
        Trained without an extrapolator.
    X
        The rows that they were trained on.
    """

    def __init__(
        self, models: Sequence[FATE], X: MultiHot, target: Target, field_of: NDArray[np.integer]
    ) -> None:
        self.models, self.target, self.field_of = models, target, field_of
        self._plain = Network([RunningFATE(m) for m in models], target.task, target.scale)
        self._maps = [ContextMap.solve(m.W[:, : m.backbone.width], X) for m in models]

    def __call__(self, X: MultiHot) -> Floats:
        """Predictions (N, C) of rows over the features of training."""
        return self._plain.predict(X, self.field_of)

    def with_embeddings(self, scale: float) -> Network:
        """A network that embeds new features, `scale` times as long as their contexts tell."""
        for model, contexts in zip(self.models, self._maps, strict=True):
            model.extrapolator = contexts.rescale(scale)
        members = [RunningFATE(model) for model in self.models]
        return Network(members, self.target.task, self.target.scale)


@dataclass(frozen=True)
class UseEmbeddings:
    """A candidate: embeddings of new features, as a bank has them of rows predicted together."""

    scale: float

    def __call__(self, view: View) -> Floats:
        """(N, C) what they ask to be added to the logits."""
        model, n_old = view.model, view.X_old.n_features
        assert isinstance(model, EmbeddingNetwork)
        X = _side_by_side(view.X_old, view.X_new)
        network = model.with_embeddings(self.scale)
        network.observe(X, np.arange(n_old, X.n_features))
        P = network.predict(X, drop_new=False)
        if view.task in ("multilabel", "regression"):
            return to_logits(P, view.task) - to_logits(view.P0, view.task)
        return np.asarray(np.log(np.maximum(P, 1e-12)) - np.log(np.maximum(view.P0, 1e-12)))


def _side_by_side(X: MultiHot, Z: MultiHot) -> MultiHot:
    """The features of two tables of the same rows, those of the second numbered on."""
    row = np.concatenate([X.row_of, Z.row_of])
    feature = np.concatenate([X.ids, Z.ids + X.n_features])
    values = None
    if X.values is not None or Z.values is not None:
        parts = [np.ones(T.nnz) if T.values is None else T.values for T in (X, Z)]
        values = np.concatenate(parts)
    n_features = X.n_features + Z.n_features
    return MultiHot.from_entries(row, feature, X.n_rows, n_features, values)


def candidates(*, embeddings: bool = False) -> dict[str, Candidate]:
    """What a probe chooses from.

    Examples
    --------
    >>> list(candidates(embeddings=True))[-2:]
    ['evidence(alpha=30, sweeps=2)', 'embeddings']
    """
    ways = evidence_candidates()
    return {**ways, "embeddings": UseEmbeddings(_SCALE)} if embeddings else ways


def choose_usage(decision: Decision) -> Usage:
    """What a probe's decision means for a bank."""
    silent = Pooling(strength=0.0)
    if decision.chosen == "embeddings":
        return Usage(silent, silent, _SCALE, decision.strengths["embeddings"])
    return Usage(*choose_pooling(decision, candidates(embeddings=True)))
