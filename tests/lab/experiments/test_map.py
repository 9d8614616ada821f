import json

import numpy as np
import pytest

from openfate.errors import InputError
from openfate_lab.experiments import Map, run
from openfate_lab.experiments.map import MEASURES, METHODS, measure
from openfate_lab.experiments.runner import make_plans


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def digits(**changes):
    return Map(**{"datasets": ("digits",), "trials": 1, "epochs": 1} | changes)


def test_energy_and_agreement_are_their_double_loops(rng):
    Z, other, is_new = rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), np.arange(12) > 6
    x, y = Z[is_new], Z[~is_new]

    def mean_distance(a, b):
        return np.mean([np.linalg.norm(p - q) for p in a for q in b])

    xy, xx, yy = mean_distance(x, y), mean_distance(x, x), mean_distance(y, y)
    found = measure(Z, is_new, other, np.ones(12))
    assert found["energy"] == pytest.approx((2 * xy - xx - yy) / (2 * xy))

    def nearest(table, i):
        order = sorted((np.linalg.norm(table[i] - table[j]), j) for j in range(12) if j != i)
        return {j for _, j in order[:10]}

    shares = [len(nearest(Z, i) & nearest(other, i)) / 10 for i in np.flatnonzero(is_new)]
    assert found["agreement"] == pytest.approx(np.mean(shares))
    assert found["agreement_by_chance"] == pytest.approx(10 / 11)


def test_clouds_far_apart_are_told_apart_and_one_cloud_is_not(rng):
    is_new = np.arange(200) % 2 == 0
    one = rng.normal(size=(200, 4))
    far = one + 50.0 * is_new[:, None]
    together, apart = (measure(Z, is_new, one, np.ones(200)) for Z in (one, far))
    assert apart["told_apart"] == 1
    assert apart["energy"] > 0.9
    assert apart["centroid_distance"] > 40
    assert together["energy"] < 0.05
    assert together["centroid_distance"] < 0.5


def test_measures_do_not_change_when_an_embedding_is_turned(rng):
    Z, is_new, n_rows = rng.normal(size=(60, 4)), np.arange(60) > 29, rng.integers(1, 9, 60)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    plain, turned = (measure(A, is_new, Z, n_rows) for A in (Z, Z @ turn))
    for name in ("centroid_distance", "energy", "agreement", "correlation", "dimensions"):
        assert turned[name] == pytest.approx(plain[name])


def test_a_line_in_the_root_of_the_frequency_has_one_dimension_and_nothing_else(rng):
    n_rows = rng.integers(1, 500, 80)
    Z = np.sqrt(n_rows)[:, None] * np.array([1.0, -2.0, 0.5]) + 3
    found = measure(Z, np.arange(80) > 30, Z, n_rows)
    assert found["frequency"] == pytest.approx(1)
    assert found["dimensions"] == pytest.approx(1)
    point = measure(np.ones((80, 3)) + rng.normal(size=(80, 3)) * (np.arange(80) < 31)[:, None],
                    np.arange(80) > 30, Z, n_rows)  # fmt: skip
    assert (point["dimensions"], point["frequency"]) == (0, 0)


def test_a_trial_measures_every_method_and_keeps_the_picture_of_the_first_seed(tmp_path):
    found = run(digits(trials=2, perplexity=10.0), tmp_path, jobs=2)
    assert [path.name for path in found.files] == ["summary.json", "map.png", "map.svg"]
    assert len(found.content["rows"]) == len(METHODS) * len(MEASURES)
    first, second = make_plans(digits(trials=2, perplexity=10.0), tmp_path)
    record = json.loads(first.path.read_text())
    assert list(record["results"]) == list(METHODS)
    oracle = record["results"]["oracle"]["measures"]
    assert oracle["agreement"] == pytest.approx(1)
    assert oracle["correlation"] == pytest.approx(1)
    assert record["results"]["average"]["measures"]["dimensions"] == 0
    points = record["picture"]["points"]["fate"]
    assert len(points["x"]) == sum(record["features"].values())
    assert "picture" not in json.loads(second.path.read_text())
    assert first.finished() is not None
    (other,) = make_plans(digits(perplexity=20.0), tmp_path)
    assert other.finished() is None  # its picture is another one
    again = other.experiment.run_trial(other)
    assert again["picture"]["perplexity"] == 20.0
    assert again["results"]["knn"] == record["results"]["knn"]  # not measured again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"perplexity": 0.5}, "perplexity=0.5: choose a number from 1 up."),
        ({"seed": -1}, "seed=-1: choose an integer from 0 to 2^31."),
    ],
)
def test_senseless_pictures_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        make_plans(digits(**changes), tmp_path)
    assert str(caught.value) == message
