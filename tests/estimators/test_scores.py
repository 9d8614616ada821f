"""Scores are those of scikit-learn, and calibration that of a slow definition."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as reference

from openfate.estimators.scores import classification_scores, label_scores, regression_scores


def random_case(seed, n_classes, n_rows=200):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(n_classes), n_rows)
    return p, np.array([rng.choice(n_classes, p=row) for row in p])


def slow_calibration_error(p, came_true):
    error = 0.0
    for low in range(10):
        inside = [i for i, value in enumerate(p) if min(int(value * 10), 9) == low]
        if inside:
            gap = np.mean([p[i] for i in inside]) - np.mean([came_true[i] for i in inside])
            error += abs(gap) * len(inside) / len(p)
    return error


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_two_classes_are_those_of_the_second(seed):
    p, y = random_case(seed, 2)
    scores = classification_scores(p, y)
    assert scores["accuracy"] == pytest.approx(reference.accuracy_score(y, p.argmax(1)))
    assert scores["auc"] == pytest.approx(reference.roc_auc_score(y, p[:, 1]))
    assert scores["log_loss"] == pytest.approx(reference.log_loss(y, p))
    assert scores["brier"] == pytest.approx(reference.brier_score_loss(y, p[:, 1]))
    assert scores["calibration_error"] == pytest.approx(slow_calibration_error(p[:, 1], y == 1))


@pytest.mark.parametrize("n_classes", [3, 5])
def test_scores_of_more_classes(n_classes):
    p, y = random_case(0, n_classes)
    scores = classification_scores(p, y)
    assert scores["auc"] == pytest.approx(reference.roc_auc_score(y, p, multi_class="ovr"))
    assert scores["log_loss"] == pytest.approx(reference.log_loss(y, p))
    assert scores["brier"] == pytest.approx(((p - np.eye(n_classes)[y]) ** 2).sum(1).mean())
    slow = slow_calibration_error(p.max(1), p.argmax(1) == y)
    assert scores["calibration_error"] == pytest.approx(slow)


def test_scores_of_labels_are_the_mean_over_labels():
    (p, y), (q, z) = random_case(1, 2), random_case(2, 2)
    both = label_scores(np.stack([p[:, 1], q[:, 1]], 1), np.stack([y, z], 1))
    one, other = classification_scores(p, y), classification_scores(q, z)
    for name, value in both.items():
        assert value == pytest.approx((one[name] + other[name]) / 2)


def test_scores_of_numbers():
    rng = np.random.default_rng(0)
    y, predicted = rng.normal(size=50), rng.normal(size=50)
    scores = regression_scores(predicted, y)
    assert scores["mean_absolute_error"] == pytest.approx(
        reference.mean_absolute_error(y, predicted)
    )
    assert scores["root_mean_squared_error"] == pytest.approx(
        reference.root_mean_squared_error(y, predicted)
    )
    assert scores["r2"] == pytest.approx(reference.r2_score(y, predicted))


def test_a_certain_error_costs_much_but_not_infinitely():
    assert classification_scores(np.array([[1.0, 0.0]]), np.array([1]))["log_loss"] < 40


def test_what_the_rows_do_not_define_is_nan():
    assert np.isnan(classification_scores(np.array([[0.5, 0.5]]), np.array([1]))["auc"])
    assert np.isnan(regression_scores(np.array([1.0, 2.0]), np.array([3.0, 3.0]))["r2"])
