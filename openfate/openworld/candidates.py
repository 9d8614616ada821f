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
from numpy.typing import NDArray

from openfate.openworld.evidence import Evidence, Floats, Task
from openfate.openworld.pooling import (
    Pooling,
    combine,
    pooled_evidence,
    sample_reference,
    score,
)
from openfate.table import MultiHot

Predict = Callable[[MultiHot], Floats]  # rows of the features it was fitted with -> P0 (N, C)

# Multiples of the reference strength, and rows of prior, that the probe chooses from.
STRENGTHS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 2.5)
ALPHAS = (3.0, 30.0)
LABEL_ALPHAS = (5.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass
class View:
    """What a candidate may look at: rows, their old and new features, and the fitted model.

    Parameters
    ----------
    model
        What `fit` returned: a prediction function, perhaps with more to it.
    X_old, X_new
        The rows over the features that the model knows, and over those that it does not.
    task
        What the model predicts.
    """

    model: Predict
    X_old: MultiHot
    X_new: MultiHot
    task: Task = "multiclass"
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
    base: Candidate | None = None

    def __call__(self, view: View) -> Floats:
        """Predictions (N, C)."""
        base = self.base
        P0 = view.P0 if base is None else view.once(base, lambda: base(view))
        P = P0
        key: tuple[object, ...] = (base, self.pooling.alpha)
        for sweep in range(self.pooling.n_sweeps):
            # The first sweep pools the same votes whatever the strength: candidates share it.
            key = (*key, self.pooling) if sweep else key
            e, reference = view.once(key, partial(_pool, view, P0, P, self.pooling.alpha))
            strength = self.pooling.strength * (reference if self.pooling.relative else 1.0)
            P = combine(P0, strength * e, view.task)
        return P


def _pool(view: View, P0: Floats, votes: Floats, alpha: float) -> tuple[Floats, float]:
    """Evidence (N, C) from the votes of the other rows, and its reference strength."""
    state = Evidence(votes.shape[1], view.task).add(view.X_new, votes)
    e = pooled_evidence(state, view.X_new, votes, alpha)
    return e, sample_reference(e, view.X_new, P0, view.task)


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
            Pooling(strength, alpha, relative=True, n_sweeps=n), base
        )
        for strength in strengths
        for alpha in alphas
        for n in sweeps
    }


@dataclass(frozen=True, eq=False)
class UseLabels:
    """A candidate: each half of the rows is predicted with the labels of the other.

    Validation rows have labels, so that they can play both parts of late labels.

    Parameters
    ----------
    y
        (N,) class numbers, (N, K) labels or (N, 1) numbers of the rows of the view.
    alpha
        Rows of prior.
    """

    y: NDArray[Any]
    alpha: float

    def __call__(self, view: View) -> Floats:
        """Predictions (N, C)."""
        P0 = view.P0
        P = P0.copy()
        pooling = Pooling(strength=0.0, label_alpha=self.alpha)
        for half in (0, 1):
            told, asked = np.arange(1 - half, len(P0), 2), np.arange(half, len(P0), 2)
            state = Evidence(P0.shape[1], view.task)
            state.add_labelled(view.X_new.select_rows(told), P0[told], self.y[told])
            P[asked] = score(state, view.X_new.select_rows(asked), P0[asked], pooling)
        return P


def label_candidates(y: NDArray[Any]) -> dict[str, Candidate]:
    """One candidate for each number of rows of prior (alpha) that late labels may need.

    Examples
    --------
    >>> list(label_candidates(np.array([0, 1])))[:2]
    ['labels(alpha=5)', 'labels(alpha=20)']
    """
    return {f"labels(alpha={alpha:g})": UseLabels(y, alpha) for alpha in LABEL_ALPHAS}


def best_label_alpha(gains: dict[str, tuple[float, float]]) -> float:
    """The alpha whose gain in a probe is largest; a cautious one where nothing was measured.

    Labels are what happened: a probe of columns that tell little may ask for caution (then the
    largest alpha loses least), not for silence.

    Examples
    --------
    >>> best_label_alpha({"labels(alpha=5)": (-0.1, 0.1), "labels(alpha=20)": (0.2, 0.1)})
    20.0
    """
    names = {f"labels(alpha={alpha:g})": alpha for alpha in LABEL_ALPHAS}
    found = {alpha: gains[name][0] for name, alpha in names.items() if name in gains}
    return max(found, key=lambda alpha: found[alpha]) if found else Pooling().label_alpha
