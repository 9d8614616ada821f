"""Candidates: ways to use new features, between which a probe chooses.

A candidate is a function from a `View` (a fitted model; rows over the features that it knows and
over those that it does not) to predictions.  At prediction time the chosen one sees a view of the
rows to predict; in a probe, a view of validation rows whose features were hidden from the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from openfate.openworld.evidence import Evidence, Floats, Kind
from openfate.openworld.pooling import Pooling, combine, pooled_evidence, reference_strength
from openfate.table import MultiHot

__all__ = ["Candidate", "Predict", "UseEvidence", "View", "evidence_candidates"]

Predict = Callable[[MultiHot], Floats]  # rows of the features it was fitted with -> P0 (N, C)

# Multiples of the reference strength, and rows of prior, that the probe chooses from.
STRENGTHS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 2.5)
ALPHAS = (3.0, 30.0)


@dataclass
class View:
    """What a candidate may look at: rows, their old and new features, and the fitted model.

    Parameters
    ----------
    model
        What `fit` returned: a prediction function, perhaps with more to it.
    X_old, X_new
        The rows over the features that the model knows, and over those that it does not.
    kind
        Of the predictions.
    """

    model: Predict
    X_old: MultiHot
    X_new: MultiHot
    kind: Kind = "classes"
    _memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def P0(self) -> Floats:  # noqa: N802
        """(N, C) the model's predictions, new features ignored."""
        P0: Floats = self.once("P0", lambda: np.asarray(self.model(self.X_old), np.float64))
        return P0

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all candidates that share it."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]


Candidate = Callable[[View], Floats]


@dataclass(frozen=True)
class UseEvidence:
    """A candidate: pool evidence among the rows of the view, each row's own vote left out.

    Parameters
    ----------
    pooling
        How.
    n_sweeps
        A second sweep pools what the first one predicts, and moves P0 again.  In a batch only:
        a running state knows one sweep.
    base
        Another candidate, whose predictions are pooled and moved; the model's own by default.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0], []], 1)
    >>> view = View(lambda X: np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), X, X)
    >>> UseEvidence(Pooling(strength=1.0, alpha=1.0))(view).round(2)
    array([[0.91, 0.09],
           [0.76, 0.24],
           [0.2 , 0.8 ]])
    """

    pooling: Pooling
    n_sweeps: int = 1
    base: Candidate | None = None

    def __call__(self, view: View) -> Floats:
        """Predictions (N, C)."""
        base = self.base
        P0 = view.P0 if base is None else view.once(base, lambda: base(view))
        P = P0
        key: tuple[object, ...] = (base, self.pooling.alpha)
        for sweep in range(self.n_sweeps):
            # The first sweep pools the same votes whatever the strength: candidates share it.
            key = (*key, self.pooling) if sweep else key
            e, reference = view.once(key, partial(_pool, view, P0, P, self.pooling.alpha))
            strength = self.pooling.strength * (reference if self.pooling.relative else 1.0)
            P = combine(P0, strength * e, view.kind)
        return P


def _pool(view: View, P0: Floats, votes: Floats, alpha: float) -> tuple[Floats, float]:
    """Evidence (N, C) from the votes of the other rows, and its reference strength."""
    state = Evidence(votes.shape[1], view.kind).add(view.X_new, votes)
    e = pooled_evidence(state, view.X_new, votes, alpha)
    return e, reference_strength(e, P0, view.kind)


def evidence_candidates(
    strengths: Sequence[float] = STRENGTHS,
    alphas: Sequence[float] = ALPHAS,
    sweeps: Sequence[int] = (1,),
    *,
    base: Candidate | None = None,
    prefix: str = "",
) -> dict[str, Candidate]:
    """One candidate for each strength (a multiple of the reference strength), alpha and sweeps.

    Examples
    --------
    >>> list(evidence_candidates([0.5], [3, 30]))
    ['evidence(strength=0.5, alpha=3)', 'evidence(strength=0.5, alpha=30)']
    """
    return {
        f"{prefix}evidence(strength={strength:g}, alpha={alpha:g}"
        + (f", sweeps={n})" if n > 1 else ")"): UseEvidence(
            Pooling(strength, alpha, relative=True), n, base
        )
        for strength in strengths
        for alpha in alphas
        for n in sweeps
    }
