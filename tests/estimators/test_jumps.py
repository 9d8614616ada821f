"""Where the target jumps: thresholds of single columns, told from slopes and from noise."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss

from openfate import FATEClassifier, FATERegressor, load
from openfate.estimators.jumps import find_jumps
from openfate.estimators.target import join_classes, join_numbers
from openfate.table import Field, Schema, read_table

QUICK = {"epochs": 3, "n_members": 1, "width": 8, "hidden": (8,), "strategy": "none"}
N = 600


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return pl.DataFrame({name: np.exp(rng.normal(size=N)) for name in "abc"})


def found(frame, target, learned=None, fields=()):
    schema = Schema.from_frame(frame, overrides=fields, numeric="linear")
    learned = np.arange(len(frame)) if learned is None else learned
    schema = find_jumps(schema, read_table(frame), target, learned, seed=0)
    return {field.name: field.jumps for field in schema if field.jumps is not None}


def around(numbers, threshold):
    """The two numbers between which a threshold lies."""
    ordered = np.sort(numbers)
    place = np.searchsorted(ordered, threshold)
    return tuple(ordered[place - 1 : place + 1].tolist())


def test_a_threshold_has_a_knot_on_either_side(rows):
    jumps = found(rows, join_classes([np.asarray(rows["b"] > 1.7)]))
    assert jumps == {"b": around(rows["b"].to_numpy(), 1.7)}


def test_thresholds_that_hold_for_part_of_the_rows_are_found(rows):
    a, b = rows["a"].to_numpy(), rows["b"].to_numpy()
    jumps = found(rows, join_classes([np.asarray((a > 1) & (b > 0.8))]))
    assert set(jumps) == {"a", "b"}
    assert set(around(b, 0.8)) <= set(jumps["b"]) and set(around(a, 1)) <= set(jumps["a"])


def test_numbers_and_several_labels_jump_too(rows):
    a, rng = rows["a"].to_numpy(), np.random.default_rng(1)
    numbers = np.where(a > 2, 1.0, 0.0) + 0.1 * rng.normal(size=N)
    assert found(rows, join_numbers([numbers]))["a"] == around(a, 2)
    labels = np.stack([a > 2, rng.random(N) < 0.5], axis=1).astype(int)
    assert found(rows, join_classes([np.asarray(labels)]))["a"] == around(a, 2)


@pytest.mark.parametrize("has_slope", [True, False])
def test_few_thresholds_on_a_slope_or_in_noise_are_jumps(has_slope):
    """Of 126 that trees propose, when all of them are by chance or only follow a slope."""
    n_jumps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        frame = pl.DataFrame({name: rng.normal(size=2000) for name in "abcde"})
        chance = 1 / (1 + np.exp(-2 * frame["a"].to_numpy())) if has_slope else 0.3
        jumps = found(frame, join_classes([np.asarray(rng.random(2000) < chance)]))
        n_jumps.append(sum(map(len, jumps.values())) / 2)
    assert np.mean(n_jumps) < 126 / 30


def test_only_rows_that_are_learned_from_are_looked_at(rows):
    y = np.zeros(N, int)
    y[300:] = rows["a"][300:].to_numpy() > 1
    y[:300] = np.random.default_rng(0).integers(0, 2, 300)
    # What is found in noise is found by chance, and rarely.
    of_noise = found(rows, join_classes([np.asarray(y)]), np.arange(300))
    assert not any(set(around(rows["a"].to_numpy(), 1)) & set(jumps) for jumps in of_noise.values())
    assert sum(map(len, of_noise.values())) <= 2
    assert set(found(rows, join_classes([np.asarray(y)]), np.arange(300, N))) == {"a"}


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e300])
def test_odd_numbers_do_no_harm(rows, odd):
    a = rows["a"].to_numpy().copy()
    a[::7] = odd
    frame = rows.with_columns(a=a, c=pl.lit(None, pl.Float64))
    jumps = found(
        frame, join_classes([np.asarray(rows["b"] > 1.7)]), fields=[_line("a"), _line("c")]
    )
    assert jumps == {"b": around(rows["b"].to_numpy(), 1.7)}
    huge = rows.with_columns(b=pl.col("b") * 1e300)
    jumps = found(huge, join_classes([np.asarray(rows["b"] > 1.7)]))
    assert jumps == {"b": around(huge["b"].to_numpy(), 1.7e300)}


def _line(name, **settings):
    return Field(name, "numeric", numeric="linear", **settings)


def test_what_is_declared_stays(rows):
    y = join_classes([np.asarray(rows["b"] > 1.7)])
    assert found(rows, y, fields=[_line("b", knots=(0.0, 1.0, 9.0))]) == {}
    assert found(rows, y, fields=[_line("b", jumps=(3.0,))]) == {"b": (3.0,)}
    assert found(rows, y, fields=[Field("b", "numeric")]) == {}
    assert found(rows[:30], join_classes([np.asarray(rows["b"][:30] > 1)])) == {}


def test_a_network_is_sharp_at_a_threshold(rows, monkeypatch):
    """Between knots at quantiles alone there is a stretch in which it hardly tells the classes."""
    later = pl.DataFrame({"b": np.linspace(1.6, 1.8, 401)})
    y, is_above = (rows["b"] > 1.7).to_numpy(), (later["b"] > 1.7).to_numpy()
    losses = []
    for find in (find_jumps, lambda schema, *_: schema):
        monkeypatch.setattr("openfate.estimators.fate.find_jumps", find)
        p = FATEClassifier(strategy="none").fit(rows, y).predict_proba(later)
        losses.append(log_loss(is_above, p[:, 1]))
    assert losses[0] < 0.4 * losses[1]


def test_the_paper_and_every_path_to_the_rows(rows, tmp_path):
    y = (rows["b"] > 1.7).to_numpy().astype(int)
    paper = FATEClassifier(**{**QUICK, "strategy": "fate"}, numeric="linear").fit(rows, y)
    assert paper.bank_.encoder.schema["b"].jumps is None
    model = FATEClassifier(**QUICK).fit(rows, y)
    rows.with_columns(y=y).write_parquet(tmp_path / "rows.parquet")
    of_file = FATEClassifier(**QUICK).fit(tmp_path / "rows.parquet", "y")
    model.save(tmp_path / "m")
    for other in (of_file, load(tmp_path / "m")):
        assert other.bank_.encoder.schema["b"] == model.bank_.encoder.schema["b"]
        assert np.array_equal(other.predict_proba(rows), model.predict_proba(rows))
    # Jumps of a fit stay when it is continued.
    again = model.refit(rows, y).bank_.encoder.schema["b"]
    assert again.jumps == around(rows["b"].to_numpy(), 1.7)


def test_a_regressor_has_them_too(rows):
    reg = FATERegressor(**QUICK).fit(rows, np.where(rows["a"] > 1, 3.0, 0.0))
    assert reg.bank_.encoder.schema["a"].jumps == around(rows["a"].to_numpy(), 1)
