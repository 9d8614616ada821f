"""A loaded estimator that is given the rows of fit again is as the one that was never saved."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from openfate import FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor, load
from openfate.errors import InputError
from openfate.openworld import Pooling
from openfate.table import Table

QUICK = {"epochs": 3, "n_members": 1, "n_draws": 1, "width": 8, "hidden": (8,)}
POOLING = Pooling(0.5)


def shop(n, seed):
    """Numbers, text, a mixed column with gaps, and what is bought."""
    rng = np.random.default_rng(seed)
    rows = pl.DataFrame(
        {
            "age": rng.normal(40, 9, n),
            "job": rng.choice(["cook", "nurse", "judge"], n),
            "visits": rng.integers(0, 9, n),
        }
    )
    bought = (rows["job"] == "judge").to_numpy() ^ (rows["visits"] > 6).to_numpy()
    return rows.with_columns(age=pl.when(pl.col("visits") > 0).then("age")), bought.astype(int)


TRAIN, Y = shop(200, 0)
LATER, Y_LATER = shop(150, 1)
LATER = LATER.with_columns(city=pl.Series(np.where(Y_LATER, "Rome", "Oslo")))

MODELS = {
    "boosting": OpenWorldClassifier(
        HistGradientBoostingClassifier(max_iter=5, random_state=3, scoring="loss"), pooling=POOLING
    ),
    "forest": OpenWorldClassifier(RandomForestClassifier(5), pooling=POOLING),
    "lightgbm": OpenWorldClassifier(LGBMClassifier(n_estimators=9, verbose=-1), pooling=POOLING),
    "lightgbm of numbers": OpenWorldRegressor(
        LGBMRegressor(n_estimators=9, verbose=-1, random_state=np.int64(4)), pooling=POOLING
    ),
    "pipeline": OpenWorldClassifier(
        make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()),
        pooling=POOLING,
    ),
    "regressor": OpenWorldRegressor(HistGradientBoostingRegressor(max_iter=5), pooling=POOLING),
    "fate": FATEClassifier(strategy="evidence", **QUICK),
    "auto, weighed": FATEClassifier(class_weight="balanced", min_count=2, **QUICK),
    "numbers": FATERegressor(strategy="evidence", exclude=["visits"], **QUICK),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_trained_again_as_if_it_had_never_been_saved(name, tmp_path):
    model = MODELS[name]
    is_number = name in ("regressor", "numbers", "lightgbm of numbers")
    y, later = (
        (np.log1p(t["visits"].to_numpy()) + 3 * b if is_number else b)
        for t, b in ((TRAIN, Y), (LATER, Y_LATER))
    )
    model.fit(TRAIN, y).save(tmp_path / "model")
    file = tmp_path / "rows.csv"
    TRAIN.with_columns(more=pl.lit("unused")).select("more", *reversed(TRAIN.columns)).write_csv(
        file
    )
    again = load(tmp_path / "model").remind(pl.read_csv(file), y)
    for one in (model, again):
        one.observe(LATER)
        for start in range(0, 150, 40):
            part = slice(start, start + 40)
            one.observe(LATER[part], later[part], seen=True)
    assert again.bank_.retrained is not None
    found, expected = (one._predict(LATER, "state", "use") for one in (again, model))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def saved(model, tmp_path, rows=TRAIN, y=Y, **options):
    model.fit(rows, y, **options).save(tmp_path / "model")
    return load(tmp_path / "model")


BOOSTING = OpenWorldClassifier(HistGradientBoostingClassifier(max_iter=3), pooling=POOLING)
QUIET = FATEClassifier(strategy="evidence", **QUICK)


@pytest.mark.parametrize("model", [BOOSTING, QUIET], ids=["wrapped", "fate"])
def test_other_rows_are_refused(model, tmp_path):
    again = saved(model, tmp_path)
    other = {
        "these are 199 rows": (TRAIN[1:], Y[1:]),
        "labels or their order": (TRAIN.reverse(), Y[::-1]),
        "cells, labels": (TRAIN, np.r_[1 - Y[0], Y[1:]]),
        "cells": (TRAIN.with_columns(job=pl.Series(["cook", *TRAIN["job"][:-1]])), Y),
        "no column 'age'": (TRAIN.drop("age"), Y),
        "which is none of the classes": (TRAIN, np.r_[7, Y[1:]]),
    }
    for message, (rows, y) in other.items():
        with pytest.raises(InputError, match=message):
            again.remind(rows, y)
    assert again.training_hash is None
    again.observe(LATER, Y_LATER)
    assert again.bank_.retrained is None


def test_a_hash_tells_every_bit_of_a_number_and_no_kind_of_frame(tmp_path):
    again = saved(BOOSTING, tmp_path)
    found = again.remind(TRAIN, Y).training_hash
    assert again.remind(TRAIN.to_pandas(), pd.Series(Y)).training_hash == found
    assert again.remind(TRAIN.with_columns(bought=pl.Series(Y)), "bought").training_hash == found
    ages = TRAIN["age"].to_numpy().copy()
    ages[11] *= 1 + 1e-15  # of so little the model sees nothing
    nudged = TRAIN.with_columns(age=pl.Series(ages).fill_nan(None))
    assert again.remind(nudged, Y).training_hash != found


def test_what_cannot_be_trained_again_says_why(tmp_path):
    numbers = TRAIN.select("visits")
    models = {
        "holds its trees and not": (
            OpenWorldClassifier(
                CatBoostClassifier(iterations=2, verbose=0, allow_writing_files=False)
            ),
            TRAIN,
        ),
        "had forcedbins_filename": (
            OpenWorldClassifier(LGBMClassifier(n_estimators=2, forcedbins_filename="x")),
            numbers,
        ),
        "takes no missing cells": (OpenWorldClassifier(LogisticRegression()), numbers),
        "monotonic_cst, which no bundle keeps": (
            OpenWorldClassifier(HistGradientBoostingClassifier(max_iter=2, monotonic_cst=[1])),
            numbers,
        ),
        "learns nothing from labels": (FATEClassifier(strategy="none", **QUICK), TRAIN),
    }
    for number, (message, (model, rows)) in enumerate(models.items()):
        (tmp_path / str(number)).mkdir()
        if isinstance(model, OpenWorldClassifier):
            model.set_params(pooling=POOLING)
        again = saved(model, tmp_path / str(number), rows)
        with pytest.raises(InputError, match=message):
            again.remind(rows, Y)


def test_a_bundle_that_does_not_tell_its_rows_is_refused(tmp_path):
    again = saved(BOOSTING, tmp_path)
    del again.bank_.meta["data_hash"]
    with pytest.raises(InputError, match="earlier version"):
        again.remind(TRAIN, Y)


@pytest.mark.parametrize(
    "settings", [{"input_model": "x"}, {"n_estimators": 10**9}, {"objective": "custom"}]
)
def test_settings_of_lightgbm_that_a_file_may_not_tell_are_refused(settings, tmp_path):
    again = saved(MODELS["lightgbm"], tmp_path)
    again.bank_.meta["settings"] |= settings
    with pytest.raises(InputError, match="none that it keeps"):
        again.remind(TRAIN, Y)


def test_weights_are_those_of_fit(tmp_path):
    weight = np.where(Y, 2.0, 0.5)
    again = saved(BOOSTING, tmp_path, sample_weight=weight)
    hashes = [again.remind(TRAIN, Y, w).training_hash for w in (weight, None, weight)]
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize("weights", [[1.0], [np.nan] * 200, [-1.0] * 200, np.ones((200, 2))])
@pytest.mark.parametrize("model", [BOOSTING, QUIET], ids=["wrapped", "fate"])
def test_weights_that_are_none_are_refused(model, weights, tmp_path):
    """A wrapped model took them, and each training failed."""
    again = saved(model, tmp_path)
    with pytest.raises(ValueError, match=r"sample_weight|Sample weights"):
        again.remind(TRAIN, Y, weights)
    assert again.training_hash is None


@pytest.mark.parametrize("name", ["boosting", "pipeline", "fate"])
def test_numbers_that_come_as_text_are_numbers(name, tmp_path):
    """One row of a client that sends texts made words of a column: of all its rows, for good."""
    rows = {"number": LATER, "text": LATER.with_columns(pl.col("age", "visits").cast(pl.String))}
    found = {}
    for kind, later in rows.items():
        (tmp_path / kind).mkdir()
        again = saved(MODELS[name], tmp_path / kind).remind(TRAIN, Y)
        again.observe(LATER[:70], Y_LATER[:70]).observe(later[70:], Y_LATER[70:])
        found[kind] = again.bank_.run(LATER, "state").retrained
    np.testing.assert_allclose(found["text"], found["number"], atol=1e-12)
    texts = TRAIN.with_columns(pl.col("age").cast(pl.String))
    assert again.remind(texts, Y).training_hash == again.remind(TRAIN, Y).training_hash


def test_arrays_are_known_by_place(tmp_path):
    array = TRAIN.select("age", "visits").fill_null(0.0).to_numpy()
    again = saved(BOOSTING, tmp_path, array).remind(array, Y)
    again.observe(array[:50], Y[:50])
    assert again.bank_.retrained is not None


def test_labels_that_come_one_by_one_are_kept_in_few_parts():
    clf = MODELS["boosting"].fit(TRAIN, Y)
    rng = np.random.default_rng(0)
    for n in range(100):
        row = LATER[n : n + 1]
        clf.observe(row if rng.random() < 0.5 else row.drop("city"), Y_LATER[n : n + 1])
    assert len(clf.bank_.kept) <= 14
    assert sum(len(labels) for _, labels, _ in clf.bank_.kept) == 100
    rows = pl.concat([rows.native for rows, _, _ in clf.bank_.kept], how="diagonal")
    labels = np.concatenate([labels for _, labels, _ in clf.bank_.kept])
    joined = rows.with_columns(y=pl.Series(labels))
    known = LATER[:100].with_columns(y=pl.Series(Y_LATER[:100]))
    assert set(known.drop("city").iter_rows()) == set(joined.drop("city").iter_rows())


def test_a_bundle_keeps_the_settings_of_a_model(tmp_path):
    model = HistGradientBoostingClassifier(max_iter=2, random_state=5, interaction_cst="pairwise")
    again = saved(OpenWorldClassifier(model, pooling=POOLING), tmp_path)
    assert again.estimator.get_params() == model.get_params()
    meta = json.loads((tmp_path / "model" / "meta.json").read_text())
    assert meta["unkept"] == []


@pytest.mark.parametrize("name", ["boosting", "forest", "numbers", "lightgbm"])
def test_odd_rows_do_not_stop_it(name, tmp_path):
    """Lists in a new column, nothing that is known, other kinds of cells, no cell at all."""
    is_number = name == "numbers"
    again = saved(MODELS[name], tmp_path, y=Y + 0.5 if is_number else Y)
    again.remind(TRAIN, Y + 0.5 if is_number else Y)
    odd = [{"tags": ["x", "y"]}, {"city": "Rome"}, {"job": "cook", "tags": []}, {"visits": 3.5}]
    for n in range(24):
        again.observe(pl.DataFrame([odd[n % 4]]), Y_LATER[n : n + 1])
    again.bank_.observe(Table(2, {}, pl.DataFrame()), again.bank_.read_labels(Y_LATER[:2], 2))
    first = again.bank_.retrained
    again.observe(LATER[:120], Y_LATER[:120])
    assert again.bank_.retrained is not first


def test_a_pipeline_of_numbers_that_is_scaled_first(tmp_path):
    """Rows that came later and have other columns do not stop it."""
    model = make_pipeline(StandardScaler(), HistGradientBoostingClassifier(max_iter=2))
    numbers = TRAIN.select("visits")
    again = saved(OpenWorldClassifier(model, pooling=POOLING), tmp_path, numbers)
    again.remind(numbers, Y).observe(LATER, Y_LATER)
    assert again.bank_.retrained is not None
