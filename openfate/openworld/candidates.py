"""Candidates: ways to use new features before any label, between which a probe chooses.

A candidate is a function from a `View` (a fitted model; rows over the features that it knows and
over those that it does not) to a move: what the new features ask to be added to the logits of each
row's prediction.  At prediction time the chosen one sees a view of the rows to predict; in a probe,
a view of validation rows whose features were hidden from the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.openworld.evidence import (
    Evidence,
    Floats,
    Pooling,
    Task,
    combine,
    pooled_evidence,
    sample_reference,
)
from openfate.table import MultiHot

Predict = Callable[[MultiHot], Floats]  # rows of the features it was fitted with -> P0 (N, C)
ALPHAS = (3.0, 30.0)  # rows of prior that the probe chooses from


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
    rows
        (N,) their places among the rows that a probe has labels of; None: they are all of them.
    """

    model: Predict
    X_old: MultiHot
    X_new: MultiHot
    task: Task = "multiclass"
    rows: NDArray[np.intp] | None = None
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


Candidate = Callable[[View], Floats]  # -> (N, C) what to add to the logits of P0


@dataclass(frozen=True)
class UseEvidence:
    """A candidate: pool evidence among the rows of the view, each row's own vote left out.

    Parameters
    ----------
    alpha
        Rows of mean prediction that a new feature starts with.
    n_sweeps
        See `Pooling`.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0], []], 1)
    >>> view = View(lambda X: np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), X, X)
    >>> UseEvidence(alpha=1.0)(view)[0].round(2)  # at the reference strength
    array([ 0.01, -0.01])
    """

    alpha: float
    n_sweeps: int = 1

    def __call__(self, view: View) -> Floats:
        """(N, C) evidence at the reference strength."""
        P, move = view.P0, np.zeros_like(view.P0)
        for sweep in range(self.n_sweeps):
            make = partial(_pool, view, P, self.alpha)
            move = view.once((self.alpha, sweep), make)
            P = combine(view.P0, move, view.task)
        return move

    def pooling(self, strength: float, slope: float) -> Pooling:
        """The settings that do the same in a bank."""
        return Pooling(strength, self.alpha, relative=True, slope=slope, n_sweeps=self.n_sweeps)


def _pool(view: View, votes: Floats, alpha: float) -> Floats:
    """Evidence (N, C) from the votes of the other rows, times its reference strength."""
    state = Evidence(votes.shape[1], view.task).add(view.X_new, votes)
    e = pooled_evidence(state, view.X_new, votes, alpha)
    return e * sample_reference(e, view.X_new, view.P0, view.task)


def evidence_candidates() -> dict[str, Candidate]:
    """One candidate for each alpha and number of sweeps.

    Examples
    --------
    >>> list(evidence_candidates())[:2]
    ['evidence(alpha=3)', 'evidence(alpha=3, sweeps=2)']
    """
    return {
        f"evidence(alpha={alpha:g}" + (f", sweeps={n})" if n > 1 else ")"): UseEvidence(alpha, n)
        for alpha in ALPHAS
        for n in (1, 2)
    }
