"""Late labels in a probe: how many rows of prior (alpha) a new feature's labels need.

Validation rows have labels, so they can play both parts: one half of them observes with labels, the
other half is predicted, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.openworld.candidates import Candidate, View
from openfate.openworld.evidence import Evidence, Floats
from openfate.openworld.pooling import Pooling, score

__all__ = ["LABEL_ALPHAS", "UseLabels", "best_label_alpha", "label_candidates"]

LABEL_ALPHAS = (5.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, eq=False)
class UseLabels:
    """A candidate: each half of the rows is predicted with the labels of the other.

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
            state = Evidence(P0.shape[1], view.kind)
            state.add_labelled(view.X_new.select_rows(told), P0[told], self.y[told])
            P[asked] = score(state, view.X_new.select_rows(asked), P0[asked], pooling)
        return P


def label_candidates(y: NDArray[Any]) -> dict[str, Candidate]:
    """One candidate for each alpha.

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
