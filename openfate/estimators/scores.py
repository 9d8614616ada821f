"""How good predictions are: what a fit notes of its validation rows and `evaluate` prints.

N rows, C classes, K labels.  Scores that a set of rows does not define (the AUC of one class alone)
are nan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank import Task
from openfate.training import roc_auc

LESS_IS_BETTER = frozenset(
    {"log_loss", "brier", "calibration_error", "mean_absolute_error", "root_mean_squared_error"}
)
_BINS = 10
_LEAST = 1e-15  # of a probability, so that one certain error does not make a loss infinite


def task_scores(outputs: NDArray[Any], y: NDArray[Any], task: Task) -> dict[str, float]:
    """Score a bank's outputs by what suits its task.

    Parameters
    ----------
    outputs
        (N, C) probabilities, (N, K) of labels, or (N, 1) numbers.
    y
        (N,) class numbers, (N, K) labels, or (N,) numbers.

    Examples
    --------
    >>> task_scores(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]), "regression")["r2"]
    0.5
    """
    if task == "regression":
        return regression_scores(outputs[:, 0], y)
    return (label_scores if task == "multilabel" else classification_scores)(outputs, y)


def classification_scores(p: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    """Score class probabilities (N, C), C from 2 up, against class numbers (N,).

    Returns
    -------
    accuracy, auc, log_loss, brier, calibration_error
        The AUC and the Brier score of two classes are those of the second one; of more classes,
        the mean AUC of one against the rest, and the squared error summed over the classes.
        Calibration compares the probability of the second class (of more classes: of the likeliest
        one) with how often it came true, in ten intervals, weighted by their rows.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> scores = classification_scores(p, np.array([0, 1, 1]))
    >>> round(scores["accuracy"], 3), scores["auc"], round(scores["brier"], 3)
    (0.667, 1.0, 0.137)
    """
    rows = np.arange(len(y))
    one_hot = np.zeros(p.shape)
    one_hot[rows, y] = 1
    predicted = p.argmax(axis=1)
    if p.shape[1] == 2:
        return _of_probability(p[:, 1], y == 1)
    aucs = [roc_auc(p[:, c], one_hot[:, c].astype(np.int64)) for c in range(p.shape[1])]
    defined = [auc for auc in aucs if not np.isnan(auc)]
    return {
        "accuracy": float((predicted == y).mean()),
        "auc": float(np.mean(defined)) if defined else float("nan"),
        "log_loss": float(-np.log(np.maximum(p[rows, y], _LEAST)).mean()),
        "brier": float(((p - one_hot) ** 2).sum(axis=1).mean()),
        "calibration_error": _calibration_error(p.max(axis=1), predicted == y),
    }


def label_scores(p: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    """Score probabilities (N, K) of labels against 0-1 labels (N, K): the labels' mean scores.

    Examples
    --------
    >>> label_scores(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[1, 0], [0, 1]]))["accuracy"]
    1.0
    """
    each = [_of_probability(p[:, k], y[:, k] == 1) for k in range(p.shape[1])]
    means = {}
    for name in each[0]:
        values = [scores[name] for scores in each if not np.isnan(scores[name])]
        means[name] = float(np.mean(values)) if values else float("nan")
    return means


def regression_scores(predicted: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    """Score numbers (N,) against the true ones (N,).

    Examples
    --------
    >>> regression_scores(np.array([1.0, 2.0]), np.array([1.0, 3.0]))["mean_absolute_error"]
    0.5
    """
    error = predicted - y
    spread = float(((y - y.mean()) ** 2).sum())
    return {
        "mean_absolute_error": float(np.abs(error).mean()),
        "root_mean_squared_error": float(np.sqrt((error**2).mean())),
        "r2": 1 - float((error**2).sum()) / spread if spread else float("nan"),
    }


def _of_probability(p: NDArray[Any], y: NDArray[np.bool_]) -> dict[str, float]:
    """Scores of the probability (N,) that something is so, against whether it is."""
    likelihood = np.where(y, p, 1 - p)
    return {
        "accuracy": float(((p > 0.5) == y).mean()),
        "auc": roc_auc(p, y.astype(np.int64)),
        "log_loss": float(-np.log(np.maximum(likelihood, _LEAST)).mean()),
        "brier": float(((p - y) ** 2).mean()),
        "calibration_error": _calibration_error(p, y),
    }


def _calibration_error(p: NDArray[Any], came_true: NDArray[np.bool_]) -> float:
    """Mean over ten intervals of |mean probability - share that came true|, weighted by rows."""
    interval = np.minimum((p * _BINS).astype(np.int64), _BINS - 1)
    gap = np.bincount(interval, weights=p - came_true, minlength=_BINS)
    return float(np.abs(gap).sum() / len(p))
