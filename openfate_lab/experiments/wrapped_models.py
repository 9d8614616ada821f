"""Models that a user may have already: LightGBM, CatBoost, logistic regression on 0-1 features.

Each is a scikit-learn pipeline, for `OpenWorldClassifier` to wrap.  Its one setting (boosting
rounds, or C of the logistic regression) is chosen on validation rows before that.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline

from openfate.errors import OpenFATEError
from openfate.table import Encoder, Schema, read_table

BASES = ("lightgbm", "catboost", "logistic")
ROUNDS, PATIENCE, LEARNING_RATE = 300, 30, 0.1
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

Rows = tuple[pl.DataFrame, NDArray[np.int64]]


class ZeroOne(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Columns of lists to 0-1 features; a value that is not known has none.

    Examples
    --------
    >>> rows = pl.DataFrame({"job": [["cook"], ["nurse"], []]})
    >>> ZeroOne().fit(rows).transform(rows).toarray()
    array([[1., 0.],
           [0., 1.],
           [0., 0.]], dtype=float32)
    """

    def fit(self, X: pl.DataFrame, y: Any = None) -> Self:
        """Give each value of each column a feature."""
        table = read_table(X)
        self.encoder_ = Encoder(Schema.from_frame(table)).fit(table)
        return self

    def transform(self, X: pl.DataFrame) -> csr_matrix:
        """(N, D) of zeros and ones."""
        rows = self.encoder_.encode(read_table(X))
        ones, shape = np.ones(rows.nnz, np.float32), (rows.n_rows, rows.n_features)
        return csr_matrix((ones, rows.ids, rows.row_ptr), shape=shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags


def make_lightgbm(seed: int = 0, *, zero_one: bool = False, **options: Any) -> Any:
    """LightGBM with its defaults, on one thread and the same every time; or over 0-1 features."""
    fixed = {"n_jobs": 1, "deterministic": True, "force_row_wise": True, "verbose": -1}
    model = _import("lightgbm").LGBMClassifier(random_state=seed, **fixed, **options)
    return make_pipeline(ZeroOne(), model) if zero_one else model


def make_base(name: str, train: Rows, validation: Rows, seed: int = 0) -> Pipeline:
    """Make a pipeline by its name, one of `BASES`, with the setting that validation rows chose.

    Examples
    --------
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 10}), np.array([0, 1] * 10)
    >>> make_base("logistic", rows, rows).fit(*rows).predict(rows[0])[:2]
    array([0, 1])
    """
    if name == "logistic":
        candidates = [
            make_pipeline(ZeroOne(), LogisticRegression(C=C, max_iter=1000)) for C in PENALTIES
        ]
        return min(candidates, key=lambda base: _loss(clone(base).fit(*train), validation))
    encoder = ZeroOne().fit(train[0])
    rows, watched = (encoder.transform(part[0]) for part in (train, validation))
    if name == "lightgbm":
        stop = _import(name).early_stopping(PATIENCE, verbose=False)
        model = make_lightgbm(seed, n_estimators=ROUNDS, learning_rate=LEARNING_RATE)
        model.fit(rows, train[1], eval_X=watched, eval_y=validation[1], callbacks=[stop])
        rounds = model.best_iteration_
        tuned = make_lightgbm(seed, n_estimators=rounds, learning_rate=LEARNING_RATE)
    else:
        make = _import(name).CatBoostClassifier
        options: dict[str, Any] = {
            **{"learning_rate": LEARNING_RATE, "random_seed": seed, "verbose": False},
            **{"thread_count": 1, "loss_function": "MultiClass", "allow_writing_files": False},
        }
        model = make(iterations=ROUNDS, **options)
        model.fit(rows, train[1], eval_set=(watched, validation[1]), early_stopping_rounds=PATIENCE)
        tuned = make(iterations=model.tree_count_, **options)
    return make_pipeline(ZeroOne(), tuned)


def _loss(base: Pipeline, rows: Rows) -> float:
    return float(log_loss(rows[1], base.predict_proba(rows[0]), labels=base.classes_))


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise OpenFATEError(
            f"the methods {name}_* need {name}: pip install 'openfate[peers]'."
        ) from None
