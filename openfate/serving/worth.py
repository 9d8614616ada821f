"""Worth: is what is new worth using?  Answered by every label that comes.

A labelled row is predicted before it is learned from, with new features used and with them ignored
(or as it was served, where that is known); both are scored over the labels that came last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank import Floats, Task
from openfate.estimators import task_scores

LAST = 2000  # labels that a point is computed of
EVERY = 50  # labels between two points
_POINTS = 500
_MOST_FEATURES = 100_000  # of which is kept what labels said
_BINS = 10


class Worth:
    """Scores of predictions that used what is new, beside those that ignored it, over time.

    Parameters
    ----------
    task
        What the outputs are.

    Examples
    --------
    >>> worth = Worth("binary")
    >>> used = np.array([[0.9, 0.1], [0.2, 0.8]] * 25)
    >>> worth.add(7.0, used, np.full((50, 2), 0.5), np.array([0, 1] * 25))
    >>> worth.points[-1]["used"]["auc"], worth.points[-1]["ignored"]["auc"]
    (1.0, 0.5)
    """

    def __init__(self, task: Task) -> None:
        self.task: Task = task
        self.points: deque[dict[str, Any]] = deque(maxlen=_POINTS)
        self.n_labels = 0
        self._last: deque[tuple[Floats, Floats, Any]] = deque(maxlen=LAST)
        self._due = EVERY
        # By new feature: labels, and the totals of what happened and of what ignoring it predicted.
        self.said: dict[int, list[float]] = {}

    def hear(self, features: Sequence[Sequence[int]], ignored: Floats, y: NDArray[Any]) -> None:
        """Keep what labels say of the new features of their rows: of the last class, or number.

        Parameters
        ----------
        features
            Of each row.
        ignored, y
            As in `add`.
        """
        for row, predicted, label in zip(features, ignored, y, strict=True):
            last = np.atleast_1d(label)[-1]
            is_class = self.task in ("binary", "multiclass")
            happened = float(last == len(predicted) - 1) if is_class else float(last)
            for feature in row:
                if feature in self.said or len(self.said) < _MOST_FEATURES:
                    total = self.said.setdefault(feature, [0, 0.0, 0.0])
                    total[0] += 1
                    total[1] += happened
                    total[2] += float(predicted[-1])

    def add(self, at: float, used: Floats, ignored: Floats, y: NDArray[Any]) -> None:
        """Take in labelled rows.

        Parameters
        ----------
        at
            When the labels came, seconds since 1970.
        used, ignored
            (N, C) predictions.
        y
            Labels as `FeatureBank.read_labels` gives them.
        """
        for row in zip(used, ignored, y, strict=True):
            self._last.append(row)
            self.n_labels += 1
            if self.n_labels >= self._due:
                self._due += EVERY
                self.points.append({"at": at, "labels": self.n_labels, **self.scores()})

    def scores(self) -> dict[str, dict[str, float | None]]:
        """Of the last labels, used and ignored; empty before the first."""
        if not self._last:
            return {}
        used, ignored, y = (np.stack(part) for part in zip(*self._last, strict=True))
        return {
            name: {k: None if np.isnan(v) else v for k, v in self._score(P, y).items()}
            for name, P in (("used", used), ("ignored", ignored))
        }

    def _score(self, P: Floats, y: NDArray[Any]) -> dict[str, float]:
        return task_scores(P, y, self.task)

    def calibration(self) -> list[dict[str, float]]:
        """Of two classes: what was predicted beside what happened, in intervals of a tenth."""
        if self.task != "binary" or not self._last:
            return []
        p = np.array([row[0][1] for row in self._last])
        happened = np.array([row[2] for row in self._last], np.float64)
        bins = np.minimum((p * _BINS).astype(int), _BINS - 1)
        return [
            {
                "from": at / _BINS,
                "predicted": float(p[bins == at].mean()),
                "happened": float(happened[bins == at].mean()),
                "labels": int((bins == at).sum()),
            }
            for at in np.unique(bins).tolist()
        ]

    def to_json(self) -> dict[str, Any]:
        """What a snapshot keeps of it."""
        last = [[u.tolist(), i.tolist(), np.asarray(y).tolist()] for u, i, y in self._last]
        told = {"points": list(self.points), "labels": self.n_labels, "last": last}
        return told | {"said": list(self.said.items())}

    @classmethod
    def from_json(cls, task: Task, told: dict[str, Any]) -> Worth:
        """What `to_json` wrote."""
        worth = cls(task)
        worth.points.extend(told["points"])
        worth.n_labels = int(told["labels"])
        worth.said = {int(feature): total for feature, total in told["said"]}
        worth._due = worth.n_labels - worth.n_labels % EVERY + EVERY
        kind = np.int64 if task in ("binary", "multiclass") else np.float64
        for used, ignored, y in told["last"]:
            worth._last.append((np.array(used), np.array(ignored), np.array(y, kind)[()]))
        return worth
