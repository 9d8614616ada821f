"""Every method of the open-world experiment on one split of one data set.

Rows are split 6:2:2.  Training and validation rows show the observed features only, test rows show
all, in one batch; every method starts from the same split, and each is a public estimator:

    BASE_drop       OpenWorldClassifier(BASE), new features ignored; BASE is lightgbm, catboost or
                    logistic
    BASE_evidence   the same, with evidence pooled among the test rows as its probe decided
    BASE_calls      the same in calls of 100 rows, each without the others
    BASE_rows       the same row by row, after all of them were observed
    BASE_ceiling    BASE_evidence at the strength that the labels of the test rows like best: what a
                    perfect probe could reach
    BASE_oracle     the same model, fitted with all features
    fate            FATEClassifier(strategy="fate"), the paper's model
    fate_auto       FATEClassifier(): the probe chooses evidence, embeddings, both or none
    fate_auto_drop  the same fitted estimator, new features ignored
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate import FATEClassifier, OpenWorldClassifier
from openfate.estimators import task_scores
from openfate.openworld import Pooling
from openfate_lab.data import Dataset, Split
from openfate_lab.experiments.arrivals import (
    Estimator,
    Predicted,
    best_scores,
    predict_at_best,
    predict_in_calls,
    predict_one_by_one,
)
from openfate_lab.experiments.uci_methods import Novelty
from openfate_lab.experiments.wrapped_models import BASES, make_base

WAYS = ("drop", "evidence", "calls", "rows", "ceiling", "oracle")
METHODS = (
    *(f"{base}_{way}" for base in BASES for way in WAYS),
    "fate",
    "fate_auto",
    "fate_auto_drop",
)
N_DRAWS = 8


class OpenTrial:
    """One split of one data set, and the estimators that its methods share."""

    def __init__(
        self, dataset: Dataset, split: Split, seed: int, novelty: Novelty = "values"
    ) -> None:
        self.dataset, self.split, self.seed, self.novelty = dataset, split, seed, novelty
        self.all, self.known = dataset.to_frame(), dataset.to_frame(hidden=split.new)
        self.test = self.all[split.test]
        # WHY: cached on the trial, so that estimators go when it goes.
        self.fitted = cache(self._fit)

    def make(self, model: str) -> Estimator:
        """The estimator behind some methods, not fitted: a base, BASE_oracle, fate or fate_auto."""
        options: dict[str, Any] = {"random_state": self.seed, "novelty": self.novelty}
        if model == "fate":
            return FATEClassifier(strategy="fate", **options)
        if model == "fate_auto":
            return FATEClassifier(n_draws=N_DRAWS, **options)
        name, _, oracle = model.partition("_")
        frame = self.all if oracle else self.known
        train, spared = (self._rows(frame, p) for p in (self.split.train, self.split.validation))
        base = make_base(name, train, spared, self.seed)
        if oracle:  # nothing will be new to it: there is nothing to probe
            return OpenWorldClassifier(base, pooling=Pooling(strength=0.0), **options)
        return OpenWorldClassifier(base, n_draws=N_DRAWS, **options)

    def _rows(
        self, frame: pl.DataFrame, rows: NDArray[np.int64]
    ) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        return frame[rows], self.dataset.y[rows]

    def _fit(self, model: str) -> tuple[Estimator, float]:
        """The estimator, fitted on training and validation rows, and the seconds that it took."""
        started = time.perf_counter()
        frame = self.all if model.endswith("_oracle") else self.known
        rows = self._rows(frame, np.concatenate([self.split.train, self.split.validation]))
        estimator = self.make(model).fit(*rows, unlabelled=self.test)
        return estimator, time.perf_counter() - started

    def result(self, method: str) -> dict[str, Any]:
        """Run a method and score it on the test rows."""
        model, _, way = method.rpartition("_")
        if way == "oracle" or way not in WAYS:
            model, way = method, "evidence"
        estimator, seconds = self.fitted(model)
        started = time.perf_counter()
        y, task = self.dataset.y[self.split.test], estimator.bank_.task
        scores = best_scores(self._predict(estimator, way), lambda P: task_scores(P, y, task))
        seconds += time.perf_counter() - started
        metric = self.dataset.metric
        decision = estimator.bank_.meta.get("decision")
        extra = {"decision": decision} if decision and way == "evidence" else {}
        return {
            "metric": metric,
            "score": scores[metric],
            "test_log_loss": scores["log_loss"],
            "seconds": round(seconds, 3),
            **extra,
        }

    def _predict(self, estimator: Estimator, way: str) -> Iterator[Predicted]:
        """Predictions (N, C) of the test rows; for a ceiling those of every strength."""
        if way == "ceiling":
            rows = np.concatenate([self.split.train, self.split.validation])
            yield from predict_at_best(estimator, *self._rows(self.known, rows), self.test)
        elif way == "calls":
            yield predict_in_calls(estimator, self.test)
        elif way == "rows":
            yield predict_one_by_one(estimator, self.test)
        else:
            use: Any = "drop" if way == "drop" else "use"
            yield estimator.predict_proba(self.test, graph="batch", new_features=use)
