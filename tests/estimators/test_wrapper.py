"""The open world around somebody else's model."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from openfate.bank import read_bundle
from openfate.bank.wrapped import revive
from openfate.errors import DataFileError, InputError
from openfate.estimators import FATEClassifier, OpenWorldClassifier, OpenWorldRegressor, load
from openfate.estimators.wrapper import _hide_cells
from openfate.openworld import Pooling
from openfate.table import Encoder, Schema

POOLING = Pooling(strength=0.5, relative=True)
LGBM = {"n_estimators": 20, "verbose": -1, "min_child_samples": 5, "n_jobs": 1}
CATBOOST = {"iterations": 20, "verbose": False, "allow_writing_files": False, "thread_count": 1}
CLASSIFIERS = {
    "lightgbm": LGBMClassifier(**LGBM),
    "catboost": CatBoostClassifier(**CATBOOST),
    "boosting": HistGradientBoostingClassifier(max_iter=20),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
}
REGRESSORS = {
    "lightgbm": LGBMRegressor(**LGBM),
    "catboost": CatBoostRegressor(**CATBOOST),
    "linear": LinearRegression(),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200)})


@pytest.fixture(scope="module")
def later(rows):
    return rows.assign(c=np.where(rows["a"] + rows["b"] > 0, "up", "down"))


def classes(rows, n=2):
    return np.digitize(rows["a"] + rows["b"], [0.0] if n == 2 else [-0.7, 0.7])


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_bundle_of_a_wrapped_classifier_predicts_the_same(rows, later, tmp_path, name, n_classes):
    names = np.array(["x", "y", "z"])[classes(rows, n_classes)]
    model = OpenWorldClassifier(CLASSIFIERS[name], pooling=POOLING).fit(rows, names)
    model.observe(later[:100]).observe(later[100:150], names[100:150])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(later), model.predict_proba(later))
    assert list(again.predict(later)) == list(model.predict(later))
    again.observe(later)


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_bundle_of_a_wrapped_regressor_predicts_the_same(rows, later, tmp_path, name):
    model = OpenWorldRegressor(REGRESSORS[name], pooling=POOLING).fit(rows, rows["a"] + rows["b"])
    model.observe(later).save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict(later), model.predict(later))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_without_anything_new_the_wrapped_model_speaks_alone(rows, name):
    model = OpenWorldClassifier(CLASSIFIERS[name], pooling=POOLING).fit(rows, classes(rows))
    assert np.array_equal(model.predict_proba(rows), model.estimator_.predict_proba(rows))


def test_a_new_column_helps_a_model_that_knows_half(rows, later):
    y = classes(rows)
    model = OpenWorldClassifier(LogisticRegression(), n_draws=3).fit(rows[["a"]], y)
    wide = later[["a", "c"]]
    ignored = model.score(wide[["a"]], y)
    assert model.bank_.meta["decision"]["chosen"] == "none"  # one column alone: nothing to hide
    model = OpenWorldClassifier(LogisticRegression(), pooling=POOLING).fit(rows[["a"]], y)
    assert (model.predict(wide) == y).mean() > ignored


def test_a_probe_says_what_it_chose_and_why(rows, later):
    wide = later.assign(d=rows["a"] + 0.1, c=(later["c"] == "up").astype(float))
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=2).fit(wide, classes(rows))
    decision = model.bank_.meta["decision"]
    assert len(decision["draws"]) == 2 and decision["best"]
    json.dumps(decision)


def test_a_fitted_model_is_taken_as_it_is(rows, later):
    y = classes(rows)
    fitted = LGBMClassifier(**LGBM).fit(rows, y)
    before = fitted.booster_.model_to_string()
    model = OpenWorldClassifier(fitted, prefit=True).fit(rows, y)
    assert model.estimator_ is fitted and fitted.booster_.model_to_string() == before
    assert model.predict_proba(later).shape == (200, 2)


def test_our_own_classifier_can_be_wrapped_too(rows, later):
    inner = FATEClassifier(strategy="none", epochs=5, n_members=1)
    model = OpenWorldClassifier(inner, pooling=POOLING).fit(rows, classes(rows))
    assert np.all(np.isfinite(model.predict_proba(later)))


def test_a_missing_column_is_empty_for_the_wrapped_model(rows):
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), pooling=POOLING).fit(rows, classes(rows))
    assert np.all(np.isfinite(model.predict_proba(rows[["b"]])))


def test_categories_and_weights_reach_the_wrapped_model(rows):
    frame = rows.assign(b=pd.Categorical(np.where(rows["b"] > 0, "p", "n")))
    weight = np.where(rows["a"] > 0, 5.0, 1.0)
    y = classes(rows)
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(frame, y, weight)
    alone = LGBMClassifier(**LGBM).fit(frame, y, weight)
    assert np.array_equal(model.predict_proba(frame), alone.predict_proba(frame))


def test_the_probe_weighs_rows_as_the_model_does(rows):
    fits = []

    class Noted(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            fits.append((X, sample_weight))
            return super().fit(X, y, sample_weight)

    weight = np.arange(200.0) + 1  # of row 0, 1, ...
    OpenWorldClassifier(Noted(), n_draws=2).fit(rows, classes(rows), weight.tolist())
    *probed, (_, last) = fits
    assert np.array_equal(last, weight) and len(probed) == 2
    for X, part in probed:
        shown = "a" if X["a"].nunique() > 1 else "b"  # the other one is hidden
        assert np.array_equal(rows[shown].to_numpy()[np.asarray(part, int) - 1], X[shown])
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[200, 3\]"):
        OpenWorldClassifier(Noted(), n_draws=2).fit(rows, classes(rows), [1.0, 2.0, 3.0])


def test_a_model_without_probabilities_is_refused(rows):
    with pytest.raises(InputError, match="LinearSVC has no predict_proba"):
        OpenWorldClassifier(LinearSVC()).fit(rows, classes(rows))


def test_a_model_without_a_safe_format_is_refused_and_nothing_is_written(rows, tmp_path):
    model = OpenWorldClassifier(
        make_pipeline(FunctionTransformer(_identity), LogisticRegression()), pooling=POOLING
    ).fit(rows, classes(rows))
    with pytest.raises(InputError, match=r"not safe to read back|no safe file format"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def _identity(X):
    return X


def test_a_foreign_format_in_a_bundle_is_refused(rows, tmp_path):
    with pytest.raises(DataFileError, match="not known"):
        revive("pickle", b"", [])
    with pytest.raises(DataFileError, match="cannot be read"):
        revive("skops", b"not a zip", [])
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), pooling=POOLING).fit(rows, classes(rows))
    model.save(tmp_path / "model")
    assert read_bundle(tmp_path / "model").meta["estimator_format"] == "lightgbm"


class Certain(LogisticRegression):
    """A model that is always sure, and never predicts its last class."""

    def predict_proba(self, X):
        p = np.zeros((len(X), len(self.classes_)))
        p[np.arange(len(X)), (np.asarray(X)[:, 0] > 0).astype(int)] = 1
        return p


def test_certain_probabilities_and_a_class_that_is_never_predicted_stay_finite(rows, later):
    model = OpenWorldClassifier(Certain(), pooling=Pooling(strength=1.0)).fit(
        rows, classes(rows, 3)
    )
    for frame in (later, later.assign(d=np.arange(200).astype(str))):
        p = model.predict_proba(frame)
        assert np.all(np.isfinite(p)) and np.allclose(p.sum(axis=1), 1)
    p = model.observe(later, classes(rows, 3)).predict_proba(later, graph="state")
    assert np.all(np.isfinite(p)) and np.allclose(p.sum(axis=1), 1)


def test_more_new_than_old_columns_are_fine(rows, later):
    model = OpenWorldClassifier(LogisticRegression(), pooling=POOLING).fit(rows, classes(rows))
    wide = later.assign(**{f"n{i}": later["c"] + str(i) for i in range(30)})
    assert np.all(np.isfinite(model.predict_proba(wide)))


def test_explain_tells_of_new_features_alone(rows, later):
    model = OpenWorldClassifier(LogisticRegression(), pooling=POOLING).fit(rows, classes(rows))
    table = model.explain(later)
    assert isinstance(table, pd.DataFrame) and set(table["field"]) == {"c"}
    up = table[table["value"] == "up"]["effect"].mean()
    assert up > 0 > table[table["value"] == "down"]["effect"].mean()


@pytest.mark.parametrize("name", ["lightgbm", "catboost", "boosting"])
def test_a_loaded_wrapper_observes_and_is_written_again(rows, later, tmp_path, name):
    model = OpenWorldClassifier(CLASSIFIERS[name], pooling=POOLING).fit(rows, classes(rows))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").observe(later)
    again.save(tmp_path / "model", overwrite=True)
    expected = model.observe(later).predict_proba(later)
    np.testing.assert_allclose(load(tmp_path / "model").predict_proba(later), expected, atol=1e-12)
    again.fit(rows, classes(rows))  # prefit: nothing is trained
    assert again.bank_.meta["decision"] is not None


def test_a_fitted_model_keeps_its_own_classes_and_columns(rows, later):
    y = classes(rows, 3)
    fitted = LogisticRegression(max_iter=500).fit(rows, y)
    some = y > 0  # validation rows without the first class, and with a column more
    model = OpenWorldClassifier(fitted, prefit=True).fit(later[some], y[some])
    assert list(model.classes_) == [0, 1, 2]
    assert np.array_equal(model.predict_proba(rows), fitted.predict_proba(rows))
    with pytest.raises(InputError, match="none of the classes that the model knows"):
        OpenWorldClassifier(fitted, prefit=True).fit(rows, y + 1)
    with pytest.raises(InputError, match="needs the column 'b'"):
        OpenWorldClassifier(fitted, prefit=True).fit(later[["a", "c"]], y)


def test_a_class_instead_of_an_instance_is_refused(rows):
    with pytest.raises(InputError, match="with parentheses"):
        OpenWorldClassifier(LogisticRegression).fit(rows, classes(rows))


@pytest.mark.parametrize("n_draws", [0, 2])
def test_an_excluded_column_of_an_array_reaches_neither_the_model_nor_the_probe(
    rows, tmp_path, n_draws
):
    """As if it were not there, which the same array without it shows."""
    y = classes(rows)
    less = np.ascontiguousarray(np.column_stack([rows, np.cos(np.arange(200))]))
    more = np.column_stack([y.astype(float), less])
    options = {"n_draws": n_draws} if n_draws else {"pooling": POOLING}
    model = OpenWorldClassifier(LogisticRegression(), exclude=["x0"], **options).fit(more, y)
    alone = OpenWorldClassifier(LogisticRegression(), **options).fit(less, y)
    assert model.estimator_.n_features_in_ == 3 and model.n_features_in_ == 4
    assert model.bank_.meta["decision"] == alone.bank_.meta["decision"]
    assert np.array_equal(model.predict_proba(more), alone.predict_proba(less))
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict_proba(more), alone.predict_proba(less))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool, str])
def test_classes_keep_their_type_through_a_bundle(dtype, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), rng.integers(0, 2, 80).astype(dtype)
    clf = OpenWorldClassifier(LogisticRegression(), pooling=Pooling()).fit(X, y)
    clf.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.classes_.dtype == clf.classes_.dtype
    assert again.predict(X).dtype == clf.predict(X).dtype


@pytest.mark.parametrize("seed", [2**40, -1, "one"])
@pytest.mark.parametrize("model", [FATEClassifier(), OpenWorldClassifier(LogisticRegression())])
def test_a_random_state_that_is_none_is_named(seed, model):
    model.set_params(random_state=seed)
    with pytest.raises(InputError, match=f"random_state={seed!r}: choose an integer from 0"):
        model.fit(np.eye(4), [0, 1, 0, 1])


def test_a_fitted_model_that_takes_no_weights_is_probed_without():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), rng.integers(0, 2, 80)
    clf = OpenWorldClassifier(KNeighborsClassifier().fit(X, y), prefit=True)
    assert clf.fit(X, y, sample_weight=np.ones(80)).predict(X).shape == (80,)
    with pytest.raises(TypeError, match="sample_weight"):
        OpenWorldClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(80))


def test_hidden_values_become_the_usual_one_and_hidden_columns_constant():
    frame = pd.DataFrame({"c": list("aabbc"), "n": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0, 1, 0, 1, 1]})
    encoder = Encoder(Schema.from_frame(frame)).fit(frame)
    X, field_of = encoder.encode(frame), encoder.field_of
    hidden = [encoder.find("c", "a"), encoder.find("b", 1), *np.flatnonzero(field_of == 1)]
    found = _hide_cells(frame, encoder, X, np.array(hidden))
    assert found["c"].tolist() == list("bbbbc")
    assert found["b"].tolist() == [0] * 5 and found["n"].tolist() == [1.0] * 5
    assert frame["c"].tolist() == list("aabbc")
    array = _hide_cells(frame[["n", "b"]].to_numpy(), *_encoded(frame[["n", "b"]]), np.array([0]))
    assert array[0, 0] != 1.0 and np.array_equal(array[1:], frame[["n", "b"]].to_numpy()[1:])
    missing = _hide_cells(frame, encoder, X, np.array(hidden[:1]), missing=True)
    assert missing["c"].isna().tolist() == [True, True, False, False, False]
    lists = pl.DataFrame({"l": [["a", "b"], ["b"], []]})
    gone = _hide_cells(lists, *_encoded(lists), np.array([0]))
    assert gone["l"].to_list() == [["b"], ["b"], []]


def _encoded(frame):
    encoder = Encoder(Schema.from_frame(frame)).fit(frame)
    return encoder, encoder.encode(frame)


@pytest.mark.parametrize("novelty", ["values", "both"])
def test_a_probe_may_expect_new_values(rows, novelty):
    y = classes(rows)
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), novelty=novelty, n_draws=2).fit(rows, y)
    draws = model.bank_.meta["decision"]["draws"]
    n_features = model.bank_.n_observed
    assert all(0 < draw["hidden_features"] < n_features for draw in draws)
    one_column = OpenWorldClassifier(LogisticRegression(), novelty=novelty).fit(rows[["a"]], y)
    assert one_column.bank_.meta["decision"]["draws"]  # its values can be hidden
