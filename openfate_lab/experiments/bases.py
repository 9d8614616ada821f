"""Models that know nothing of new features: LightGBM, CatBoost and logistic regression.

Each is fitted on 0-1 rows and gives P0 (N, C).  The first fit lets validation rows choose its one
setting (boosting rounds, or C of the logistic regression); a probe's fits take it over, so that
they score validation rows which no training has looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.errors import OpenFATEError
from openfate.openworld import Floats, row_losses
from openfate.table import MultiHot

__all__ = ["BASES", "Base", "fit_base"]

ROUNDS, PATIENCE, LEARNING_RATE = 300, 30, 0.1
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
DENSE = 1000  # features; a wider table stays sparse

Labelled = tuple[MultiHot, NDArray[np.int64]]


@dataclass(frozen=True)
class Base:
    """A fitted model; calling it gives P0 (N, C).

    Parameters
    ----------
    predict
        From a matrix to probabilities (N, C).
    tuned
        What validation chose: rounds, or C.
    """

    predict: Callable[[Any], Floats]
    tuned: float

    def __call__(self, X: MultiHot) -> Floats:
        """Probabilities (N, C) of rows over the features it was fitted with."""
        return self.predict(_matrix(X))


def fit_base(
    name: str,
    train: Labelled,
    n_classes: int,
    *,
    validation: Labelled | None = None,
    tuned: float | None = None,
    seed: int = 0,
) -> Base:
    """Fit a model by its name, one of `BASES`; `validation` or `tuned` says for how long.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [1], [0, 2], [1, 2]] * 5, 3)
    >>> y = np.array([0, 1, 0, 1] * 5)
    >>> fit_base("logistic", (X, y), 2, tuned=1.0)(X).argmax(1)[:4]
    array([0, 1, 0, 1])
    """
    return _FITS[name](train, n_classes, validation, tuned, seed)


def _fit_lightgbm(
    train: Labelled, n_classes: int, validation: Labelled | None, tuned: float | None, seed: int
) -> Base:
    lightgbm = _imported("lightgbm")
    binary = n_classes == 2
    settings = {
        "objective": "binary" if binary else "multiclass",
        "num_class": 1 if binary else n_classes,
        "learning_rate": LEARNING_RATE,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbose": -1,
    }
    rows = lightgbm.Dataset(_matrix(train[0]), train[1], params=settings)
    extra: dict[str, Any] = {}
    if validation is not None:
        extra["valid_sets"] = [rows.create_valid(_matrix(validation[0]), validation[1])]
        extra["callbacks"] = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    rounds = ROUNDS if tuned is None else int(tuned)
    booster = lightgbm.train(settings, rows, rounds, **extra)
    best = booster.best_iteration if validation is not None else rounds

    def predict(X: Any) -> Floats:
        p = np.asarray(booster.predict(X, num_iteration=best, num_threads=1), np.float64)
        return np.stack([1 - p, p], 1) if binary else p

    return Base(predict, best)


def _fit_catboost(
    train: Labelled, n_classes: int, validation: Labelled | None, tuned: float | None, seed: int
) -> Base:
    catboost = _imported("catboost")
    model = catboost.CatBoostClassifier(
        iterations=ROUNDS if tuned is None else int(tuned),
        learning_rate=LEARNING_RATE,
        loss_function="MultiClass",
        thread_count=1,
        random_seed=seed,
        verbose=False,
        allow_writing_files=False,
    )
    watched = {} if validation is None else {
        "eval_set": (_matrix(validation[0]), validation[1]), "early_stopping_rounds": PATIENCE,
    }  # fmt: skip
    model.fit(_matrix(train[0]), train[1], **watched)
    known = np.asarray(model.classes_, np.int64)
    return Base(lambda X: _spread(model.predict_proba(X), known, n_classes), model.tree_count_)


def _fit_logistic(
    train: Labelled, n_classes: int, validation: Labelled | None, tuned: float | None, seed: int
) -> Base:
    if tuned is None:
        assert validation is not None
        fits = [_fit_logistic(train, n_classes, None, C, seed) for C in PENALTIES]
        X, y = validation
        return min(fits, key=lambda fit: row_losses(fit(X), y).mean())
    linear = import_module("sklearn.linear_model")
    model = linear.LogisticRegression(C=tuned, max_iter=1000)
    model.fit(_matrix(train[0]), train[1])
    known = np.asarray(model.classes_, np.int64)
    return Base(lambda X: _spread(model.predict_proba(X), known, n_classes), tuned)


_FITS = {"lightgbm": _fit_lightgbm, "catboost": _fit_catboost, "logistic": _fit_logistic}
BASES = tuple(_FITS)


def _spread(P: Floats, known: NDArray[np.int64], n_classes: int) -> Floats:
    """Columns for all classes; one that no training row has gets 0."""
    wide = np.zeros((len(P), n_classes))
    wide[:, known] = P
    return wide


def _matrix(X: MultiHot) -> Any:
    """A dense array, or scipy's CSR where there are many features."""
    if X.n_features <= DENSE:
        return X.to_dense().astype(np.float32)
    ones = np.ones(X.nnz, np.float32)
    shape = (X.n_rows, X.n_features)
    return import_module("scipy.sparse").csr_matrix((ones, X.ids, X.row_ptr), shape=shape)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise OpenFATEError(
            f"the methods {name}_* need {name}: pip install 'openfate[peers]'."
        ) from None
