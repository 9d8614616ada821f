"""How rows to predict come: in one batch, in calls of 100, or one by one; and at best.

`predict_proba(rows)` of an estimator is the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import clone

from openfate import FATEClassifier, OpenWorldClassifier
from openfate.errors import InputError
from openfate.openworld import Pooling

CALL = 100  # rows
POOLINGS = [
    Pooling(strength, alpha, relative=True)
    for strength in (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)
    for alpha in (3.0, 30.0)
]

Estimator = FATEClassifier | OpenWorldClassifier
Predicted = NDArray[np.float64]


def predict_in_calls(estimator: Estimator, rows: pl.DataFrame) -> Predicted:
    """Predictions (N, C) in calls of 100 rows, none of which knows the others."""
    starts = range(0, len(rows), CALL)
    return np.concatenate([estimator.predict_proba(rows[at : at + CALL]) for at in starts])


def predict_one_by_one(estimator: Estimator, rows: pl.DataFrame) -> Predicted:
    """Predictions (N, C) row by row, after a copy of the estimator has observed all of them.

    WHY in one call: rows that were observed add nothing to what the state knows, so that a row is
    predicted alike alone and beside others (a test compares them), in a hundredth of the time.
    """
    return copy.deepcopy(estimator).observe(rows).predict_proba(rows)


def predict_at_best(
    estimator: Estimator, train: pl.DataFrame, y: NDArray[Any], rows: pl.DataFrame
) -> Iterator[Predicted]:
    """Predictions (N, C) in a batch with evidence of every strength: of the best, a ceiling.

    Parameters
    ----------
    train, y
        What the estimator was fitted on.
    """
    if not isinstance(estimator, OpenWorldClassifier):
        raise InputError("a ceiling is of a wrapped model: leave it out for base='fate'.")
    # WHY fitted again where there is text: a model of numbered text cannot be wrapped as it is.
    is_numeric = all(kind.is_numeric() for kind in train.dtypes)
    model = {"estimator": estimator.estimator_, "prefit": True} if is_numeric else {}
    for pooling in POOLINGS:
        same = clone(estimator).set_params(pooling=pooling, **model)
        yield same.fit(train, y).predict_proba(rows, graph="batch")


def best_scores(
    predictions: Iterator[Predicted], score: Callable[[Predicted], dict[str, float]]
) -> dict[str, float]:
    """The best of each score over several predictions: the least loss, the most of the rest."""
    found = [score(P) for P in predictions]
    return {
        name: (min if name == "log_loss" else max)(each[name] for each in found)
        for name in found[0]
    }
