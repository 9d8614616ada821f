"""One thread for products, however many callers ask for it at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from threadpoolctl import threadpool_info, threadpool_limits

from openfate import OpenWorldClassifier
from openfate.threads import ONE_THREAD


def n_threads():
    """That numpy's products may start."""
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_products_have_their_threads_back_after_the_last_of_several_callers():
    def limited(_):
        with ONE_THREAD:
            time.sleep(0.001)
            return n_threads()

    with threadpool_limits(2, "blas"):
        pass  # whoever held the limits has let go of them
    before = n_threads()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(limited, range(100))) == [{1}] * 100
    assert n_threads() == before


class Loops(DummyClassifier):
    """Says how many threads its loops may start, in training and in predicting."""

    seen: ClassVar[set[tuple[str, bool, int]]] = set()

    def fit(self, X, y, sample_weight=None):
        self._look("fit", X)
        return super().fit(X, y, sample_weight)

    def predict_proba(self, X):
        self._look("predict", X)
        return super().predict_proba(X)

    def _look(self, what, X):
        self.seen.add((what, len(X) > 1000, _openmp_effective_n_threads()))


def test_small_models_keep_to_one_thread_where_large_ones_take_what_there_is():
    """On busy cores scikit-learn's boosting took eighty times as long on iris."""
    with threadpool_limits(2, "openmp"):
        X = np.random.default_rng(0).normal(size=(2000, 200))
        for rows in (X[:60], X):
            OpenWorldClassifier(Loops(), n_draws=1).fit(rows, rows[:, 0] > 0).predict(rows)
        assert _openmp_effective_n_threads() == 2
    small = {("fit", False, 1), ("predict", False, 1)}
    assert small | {("fit", True, 2), ("predict", True, 2)} == Loops.seen
