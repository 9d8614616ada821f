"""Which prior the labels of new features need is found on validation rows alone."""

from __future__ import annotations

import numpy as np

from openfate.openworld import View, label_candidates
from openfate.openworld.candidates import UseLabels, best_label_alpha
from openfate.table import MultiHot


def view(informative: bool):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    told = np.where(y == 1, rng.random(400) < 0.8, rng.random(400) < 0.2)
    feature = told if informative else rng.random(400) < 0.5
    X = MultiHot.from_rows([[int(f)] for f in feature], 2)
    return View(lambda X: np.full((400, 2), 0.5), X, X), y


def loss(P, y):
    return -np.log(P[np.arange(len(y)), y]).mean()


def test_labels_of_the_other_half_help_where_a_feature_tells_something():
    seen, y = view(informative=True)
    assert loss(UseLabels(y, 20.0)(seen), y) < loss(seen.P0, y) - 0.1


def test_no_row_is_predicted_with_its_own_label():
    seen, y = view(informative=True)
    before = UseLabels(y, 20.0)(seen)
    changed = y.copy()
    changed[0] = 1 - y[0]
    after = UseLabels(changed, 20.0)(seen)
    assert np.array_equal(before[::2], after[::2])  # row 0 tells the odd rows alone


def test_the_best_alpha_is_the_one_that_gains_most_or_loses_least():
    seen, y = view(informative=True)
    gains = {
        n: (loss(seen.P0, y) - loss(use(seen), y), 0.0) for n, use in label_candidates(y).items()
    }
    assert best_label_alpha(gains) == 5.0
    losing = {name: (-1 / at, 0.0) for at, name in enumerate(gains, start=1)}
    assert best_label_alpha(losing) == 1000.0  # the most cautious loses least
    assert best_label_alpha({}) == 100.0
