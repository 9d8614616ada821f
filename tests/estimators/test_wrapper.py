"""The open world around somebody else's model."""

from __future__ import annotations

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from openfate.bank import read_bundle
from openfate.bank.wrapped import revive
from openfate.errors import DataFileError, InputError
from openfate.estimators import FATEClassifier, OpenWorldClassifier, OpenWorldRegressor, load
from openfate.estimators.target import Target, split_rows
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
    assert model.bank_.retrained is not None
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    found, expected = (one.predict_proba(later, graph="state") for one in (again, model))
    assert np.array_equal(found, expected)
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
    assert np.array_equal(last, weight)
    assert [X.nunique().min() for X, _ in probed] == [1, 1]  # each draw hides a column
    for X, part in probed:
        shown = "a" if X["a"].nunique() > 1 else "b"  # the other one is hidden
        assert np.array_equal(rows[shown].to_numpy()[np.asarray(part, int) - 1], X[shown])
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[200, 3\]"):
        OpenWorldClassifier(Noted(), n_draws=2).fit(rows, classes(rows), [1.0, 2.0, 3.0])


def test_a_model_without_probabilities_is_refused(rows):
    with pytest.raises(InputError, match="LinearSVC has no predict_proba"):
        OpenWorldClassifier(LinearSVC()).fit(rows, classes(rows))


def test_what_predicts_no_numbers_is_refused(rows):
    """It ended in scikit-learn's TypeError, or in an AttributeError after the fit."""
    for model, said in (
        (LinearRegression, "is a class"),
        (StandardScaler(), "has no predict: wrap"),
    ):
        with pytest.raises(InputError, match=said):
            OpenWorldRegressor(model).fit(rows, classes(rows))


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
    with pytest.raises(DataFileError, match="is unknown"):
        revive("pickle", b"", [])
    with pytest.raises(DataFileError, match="is damaged"):
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


# ---- labels that come later ----------------------------------------------------------------------


def shifting(n, seed=0):
    """Two known columns that tell a little, and two new ones that tell much; classes 0 and 1."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(size=(3, n))
    d = rng.integers(0, 4, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-(a + 2 * c + np.array([-2, -1, 1, 2])[d])))).astype(int)
    text = np.array(["north", "east", "south", "west"])[d]
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": text}), y


def log_loss(P, y):
    return -np.log(np.clip(P[np.arange(len(y)), y], 1e-6, 1)).mean()


@pytest.mark.parametrize("refit", ["auto", "never"])
@pytest.mark.parametrize("name", ["lightgbm", "boosting", "linear"])
def test_labels_of_later_rows_count_at_once(name, refit):
    model = CLASSIFIERS.get(name, LogisticRegression())
    (train, y), (later, y_later), (test, y_test) = (shifting(300, seed) for seed in range(3))
    clf = OpenWorldClassifier(model, n_draws=2).fit(train[["a", "b"]], y)
    ignoring = log_loss(clf.predict_proba(test, new_features="drop"), y_test)
    clf.observe(later, y_later, refit=refit)
    assert log_loss(clf.predict_proba(test), y_test) < ignoring - 0.1
    assert (clf.bank_.retrained is None) == (refit == "never" or name == "linear")
    mixture = clf.bank_.mixture
    assert mixture.loss - mixture.loss_of_ignoring < -20


def test_labels_of_numbers_count_at_once():
    """In thousands, and far from zero."""
    (train, _), (later, _), (test, _) = (shifting(300, seed) for seed in range(3))
    target = [2e5 + 1e4 * (t["a"] + 2 * t["c"]) for t in (train, later, test)]
    reg = OpenWorldRegressor(LinearRegression(), n_draws=2).fit(train[["a", "b"]], target[0])
    ignoring = reg.predict(test, new_features="drop")
    reg.observe(later, target[1])
    errors = [np.mean((found - target[2]) ** 2) for found in (reg.predict(test), ignoring)]
    assert errors[0] < 0.4 * errors[1]


@pytest.mark.parametrize("refit", ["auto", "never"])
@pytest.mark.parametrize("seen", [False, True])
def test_how_labels_are_cut_into_calls_does_not_matter(seen, refit):
    (train, y), (later, y_later) = shifting(200), shifting(400, 1)
    frames = [later[["a", "b", "d"]] if refit == "never" else later[["a", "b"]]]
    found = []
    for size in (400, 200, 7):
        clf = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(train[["a", "b"]], y)
        if seen:
            clf.observe(frames[0])
        for start in range(0, 400, size):
            part = slice(start, start + size)
            clf.observe(frames[0][part], y_later[part], seen=seen, refit=refit)
        found.append(clf.predict_proba(frames[0], graph="state"))
    np.testing.assert_allclose(found[1], found[0], atol=1e-9)
    np.testing.assert_allclose(found[2], found[0], atol=1e-9)


def test_what_cannot_be_learned_from_leaves_everything_as_it_was():
    (train, y), (later, y_later) = shifting(100), shifting(50, 1)
    clf = OpenWorldClassifier(CLASSIFIERS["lightgbm"], pooling=POOLING).fit(train[["a", "b"]], y)
    clf.observe(later[:20], y_later[:20])
    before, n_later = clf.bank_.state(), len(clf.bank_.kept)
    wrong = [
        {"y": y_later + 2},  # a class that training never had
        {"y": y_later[1:]},
        {"y": y_later, "sample_weight": np.zeros(50)},
        {"y": y_later, "sample_weight": -np.ones(50)},
        {"y": y_later, "sample_weight": [np.nan] * 50},
        {"y": y_later, "sample_weight": [1.0, 2.0]},
        {"y": y_later, "refit": "always"},
    ]
    for options in wrong:
        with pytest.raises(ValueError):
            clf.observe(later.assign(e="new"), **options)
    after = clf.bank_.state()
    assert before.keys() == after.keys() and len(clf.bank_.kept) == n_later
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    assert "e" not in clf.bank_.encoder.fields


def test_rows_for_training_again_are_the_newest_and_not_ever_more(monkeypatch):
    monkeypatch.setattr("openfate.estimators.estimator.WINDOW", 60)
    (train, y), (later, y_later) = shifting(100), shifting(200, 1)
    clf = OpenWorldClassifier(HistGradientBoostingClassifier(), pooling=Pooling(0.0)).fit(train, y)
    for start in range(0, 200, 25):
        part = slice(start, start + 25)
        clf.observe(later[part], y_later[part])
        assert sum(rows.n_rows for rows, _, _ in clf.bank_.kept) == min(start + 25, 75)
    kept = np.concatenate([labels for _, labels, _ in clf.bank_.kept])
    assert np.array_equal(kept, y_later[125:])


def test_a_report_tells_that_a_loaded_model_is_not_trained_again(tmp_path):
    train, y = shifting(100)
    clf = OpenWorldClassifier(HistGradientBoostingClassifier(), pooling=Pooling(0.0)).fit(train, y)
    clf.save(tmp_path / "model")
    told = "labels correct the model without training again"
    assert told not in clf.schema_report(train).note
    assert told in load(tmp_path / "model").schema_report(train).note


def test_a_model_that_cannot_be_trained_again_leaves_the_bank_as_it_was():
    class Fails(HistGradientBoostingClassifier):
        def fit(self, X, y, sample_weight=None):
            if len(X) > 100:
                raise MemoryError("too many rows")
            return super().fit(X, y, sample_weight)

    (train, y), (later, y_later) = shifting(100), shifting(50, 1)
    clf = OpenWorldClassifier(Fails(max_iter=5), pooling=POOLING).fit(train[["a", "b"]], y)
    with pytest.raises(MemoryError):
        clf.observe(later, y_later)
    assert clf.bank_.mixture.n_labels == 0 and "d" not in clf.bank_.encoder.fields
    clf.observe(later, y_later, refit="never")
    assert clf.bank_.mixture.n_labels == 50


def test_without_an_argument_it_wraps_boosting_and_takes_text(tmp_path):
    (train, y), (later, y_later) = shifting(200), shifting(100, 1)
    clf = OpenWorldClassifier(n_draws=1).fit(train[["a", "d"]], y)
    assert isinstance(clf.estimator_, HistGradientBoostingClassifier)
    assert log_loss(clf.predict_proba(train), y) < 0.55  # the text tells most of what it knows
    unseen = later.assign(d="elsewhere")
    assert np.isfinite(clf.predict_proba(unseen)).all()
    clf.observe(later, y_later).save(tmp_path / "model")
    again = load(tmp_path / "model")
    for frame in (later, unseen):
        found, expected = (one.predict_proba(frame, graph="state") for one in (again, clf))
        assert np.array_equal(found, expected)
    reg = OpenWorldRegressor(n_draws=1).fit(train[["a", "d"]], train["c"])
    assert np.isfinite(reg.predict(later)).all()


@pytest.mark.parametrize("kind", ["pandas text", "pandas categories", "polars text", "polars enum"])
def test_lightgbm_takes_text_and_categories(kind, tmp_path):
    (train, y), (later, y_later) = shifting(200), shifting(100, 1)
    frames = [train[["a", "d"]], later]
    if kind == "pandas categories":
        names = ["east", "north", "south", "west"]
        frames = [f.assign(d=pd.Categorical(f["d"], names)) for f in frames]
    elif kind != "pandas text":
        frames = [pl.from_dict({n: f[n].to_numpy() for n in f}) for f in frames]
        dtype = pl.String if kind == "polars text" else pl.Enum(["east", "north", "south", "west"])
        frames = [f.with_columns(pl.col("d").cast(dtype)) for f in frames]
    clf = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(frames[0], y)
    assert log_loss(clf.predict_proba(frames[0]), y) < 0.55
    clf.observe(frames[1], y_later).save(tmp_path / "model")
    assert clf.bank_.retrained is not None
    again = load(tmp_path / "model")
    found, expected = (one.predict_proba(frames[1], graph="state") for one in (again, clf))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_catboost_with_cat_features_fits_observes_saves_and_loads(tmp_path):
    (train, y), (later, y_later) = shifting(200), shifting(100, 1)
    model = CatBoostClassifier(**CATBOOST, cat_features=["d"])
    clf = OpenWorldClassifier(model, n_draws=1).fit(train[["a", "d"]], y)
    ignoring = log_loss(clf.predict_proba(later, new_features="drop"), y_later)
    clf.observe(later.assign(e=later["d"] + "!"), y_later)  # a new column of numbers, one of text
    assert clf.bank_.retrained.columns == ["a", "d"]  # it was told of no others
    assert log_loss(clf.predict_proba(later), y_later) < ignoring
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model")
    found, expected = (one.predict_proba(later, graph="state") for one in (again, clf))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    again.observe(later, y_later)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("model", [LogisticRegression(), GaussianNB(), KNeighborsClassifier()])
def test_text_is_encoded_for_a_model_that_takes_none(frame, model, tmp_path):
    (train, y), (later, y_later) = shifting(200), shifting(300, 1)
    train, later = (frame(rows.to_dict("list")) for rows in (train, later))
    weight = None if isinstance(model, KNeighborsClassifier) else np.ones(len(y))
    clf = OpenWorldClassifier(model, n_draws=1).fit(train[["a", "d"]], y, weight)
    zero_one = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("d", zero_one, ["d"])], remainder="passthrough")
    own = make_pipeline(columns, clone(model)).fit(train[["a", "d"]], y)
    P = clf.predict_proba(later, new_features="drop")  # values that it does not know among them
    np.testing.assert_allclose(P, own.predict_proba(later), atol=1e-12)
    clf.observe(later, y_later)
    assert log_loss(clf.predict_proba(later), y_later) < log_loss(P, y_later)
    if not isinstance(model, KNeighborsClassifier):  # which no bundle takes
        clf.save(tmp_path / "model")
        assert np.array_equal(load(tmp_path / "model").predict_proba(later, new_features="drop"), P)


def test_a_fitted_model_is_wrapped_whose_columns_have_spaces():
    train, y = shifting(200)
    spaced = train[["a", "b"]].rename(columns={"a": "an a", "b": "a b"})
    model = LGBMClassifier(**LGBM).fit(spaced, y)
    clf = OpenWorldClassifier(model, prefit=True, n_draws=1).fit(spaced, y)
    np.testing.assert_array_equal(clf.predict_proba(spaced), model.predict_proba(spaced))


def test_a_report_of_training_again_counts_no_row_that_was_trained_on():
    (train, y), (later, y_later) = shifting(200), shifting(300, 1)
    clf = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(train[["a", "b"]], y)
    clf.refit(pd.concat([train, later]), np.concatenate([y, y_later]))
    assert 40 <= clf.refit_report_["validation_rows"] <= 75  # of 100 that are spared
    again = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(train, y).refit(train, y)
    assert again.refit_report_["validation_rows"] == 0 and again.refit_report_["before"] == {}


def test_a_wrapper_is_trained_anew_on_rows_with_new_columns():
    (train, y), (later, y_later) = shifting(200), shifting(300, 1)
    clf = OpenWorldClassifier(LGBMClassifier(**LGBM), n_draws=1).fit(train[["a", "b"]], y)
    clf.observe(later).refit(later, y_later)
    report = clf.refit_report_
    assert report["rows"] == 300 and 50 <= report["validation_rows"] <= 70
    assert report["gained"]["accuracy"] > 0
    assert clf.bank_.encoder.fields == ("a", "b", "c", "d") and clf.bank_.mixture.n_labels == 0
    with pytest.raises(ValueError):
        clf.refit(later, y_later[1:])
    assert clf.refit_report_ is report


def test_draws_of_a_probe_validate_on_rows_of_their_own():
    """Every fold has its share of each class, no row twice until the folds start again."""
    target = Target("binary", np.array([0, 1, 1, 1] * 25), (0, 1))
    folds = [split_rows(target, 0.2, 0, fold=fold)[1] for fold in range(6)]
    assert sorted(np.concatenate(folds[:5])) == list(range(100))
    assert all(np.bincount(target.y[own]).tolist() == [5, 15] for own in folds)
    assert np.array_equal(folds[5], folds[0]) and np.array_equal(
        folds[0], split_rows(target, 0.2, 0)[1]
    )


def odd_columns(n):
    """A column of each kind that LightGBM or CatBoost failed at, or ended the process."""
    start = datetime.datetime(2024, 1, 1)
    return pl.DataFrame(
        {
            "number": np.linspace(-1, 1, n),
            "moment": [start + datetime.timedelta(hours=at) for at in range(n)],
            "price": [decimal.Decimal(at % 7) / 4 for at in range(n)],
            "maybe": [(None, True, False)[at % 3] for at in range(n)],
            "empty": pl.Series([None] * n),
            "place": pl.Series([("east", "west")[at % 2] for at in range(n)], dtype=pl.Categorical),
        }
    )


@pytest.mark.parametrize("name", ["lightgbm", "catboost", "boosting"])
@pytest.mark.parametrize("kind", ["polars", "pandas", "pyarrow"])
@pytest.mark.parametrize("column", ["moment", "price", "maybe", "empty", "place", None])
def test_trees_take_columns_of_every_kind_and_a_dict_is_a_row(name, kind, column):
    rows = odd_columns(200) if column is None else odd_columns(60).select("number", column)
    convert = {"polars": pl.DataFrame.clone, "pandas": pl.DataFrame.to_pandas}
    X = convert.get(kind, pl.DataFrame.to_arrow)(rows)
    y = rows["number"].to_numpy() > 0
    model = OpenWorldClassifier(clone(CLASSIFIERS[name]), pooling=POOLING).fit(X, y)
    P = model.predict_proba(X)
    requests = rows.with_columns(pl.selectors.categorical().cast(pl.String)).to_dicts()
    one = [model.predict_proba(request)[0] for request in requests[:9]]
    np.testing.assert_allclose(one, P[:9], atol=1e-12)
    assert np.isfinite(model.predict_proba({"number": None})).all()
    text = {**requests[0], "number": str(requests[0]["number"])}  # as a form sends it
    np.testing.assert_allclose(model.predict_proba(text), P[:1], atol=1e-12)
    assert model.observe(X, y).bank_.retrained is not None


def test_a_request_is_a_row_of_pandas_categories_in_lightgbm(tmp_path):
    """LightGBM knows their places, and had no pandas to tell them by."""
    train, y = shifting(200)
    train = train[["a", "d"]].assign(d=pd.Categorical(train["d"]))
    OpenWorldClassifier(LGBMClassifier(**LGBM), pooling=POOLING).fit(train, y).save(tmp_path / "m")
    model = load(tmp_path / "m")
    one = [model.predict_proba(row)[0] for row in train[:9].to_dict("records")]
    np.testing.assert_allclose(one, model.predict_proba(train)[:9], atol=1e-12)
    unknown, missing = (model.predict_proba({"a": 0.5, "d": d}) for d in ("moon", None))
    assert np.array_equal(unknown, missing)


def test_a_moment_is_the_same_in_every_unit_and_as_text():
    """Nanoseconds of pandas were taken for microseconds: a thousand times later."""
    rows = odd_columns(80).select("moment", pl.col("place").cast(pl.String))
    model = OpenWorldClassifier(CLASSIFIERS["boosting"], pooling=POOLING)
    model.fit(rows, [*[0] * 40, *[1] * 40])
    P = model.predict_proba(rows)
    assert P[0, 1] < 0.1 and P[-1, 1] > 0.9
    for moment in (
        *(pl.col("moment").cast(pl.Datetime(unit)) for unit in ("ms", "ns")),
        pl.col("moment").dt.to_string("%Y-%m-%dT%H:%M"),
    ):
        assert np.array_equal(model.predict_proba(rows.with_columns(moment)), P)


@pytest.mark.parametrize("n_values", [0, 1, 7])
def test_boosting_is_trained_again_where_hardly_a_row_has_a_new_column(n_values):
    """scikit-learn's fails where none of the rows that it draws has a value."""
    (train, y), (later, y_later) = shifting(200), shifting(60, 1)
    later["e"] = [*range(n_values), *[None] * (60 - n_values)]
    boosting = HistGradientBoostingClassifier(max_iter=3, early_stopping=True)
    clf = OpenWorldClassifier(boosting, pooling=POOLING).fit(train[["a"]], y)
    clf.observe(later[["a", "e"]], y_later)
    assert clf.bank_.retrained.columns == ["a", "e"]


@pytest.mark.parametrize("model", [LGBMClassifier(**LGBM), LogisticRegression()])
def test_a_column_that_a_model_cannot_take_is_named_with_a_remedy(rows, model):
    lists = rows.assign(tags=[["a", "b"]] * len(rows))
    with pytest.raises(InputError, match=r"'tags' holds values of type List.*: exclude it"):
        OpenWorldClassifier(model, pooling=POOLING).fit(lists, classes(rows))
    OpenWorldClassifier(model, pooling=POOLING, exclude=["tags"]).fit(lists, classes(rows))


def test_text_in_an_array_is_taken_by_trees():
    array = np.array([["east", 1.0], ["west", 2.0]] * 30, dtype=object)
    model = OpenWorldClassifier(CLASSIFIERS["boosting"], pooling=POOLING).fit(array, [0, 1] * 30)
    assert model.predict_proba(array)[:2].argmax(axis=1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("weight", "what"), [([1, 0], "holds 0"), ([1, np.nan], "holds nan"), ([1], "has the shape")]
)
def test_a_weight_of_a_label_that_cannot_be_is_told(rows, weight, what):
    model = OpenWorldClassifier(LGBMClassifier(**LGBM), pooling=POOLING).fit(rows, classes(rows))
    with pytest.raises(InputError, match=f"sample_weight {what}.*: give 2 finite numbers above 0"):
        model.observe(rows[:2], [0, 1], sample_weight=weight)
