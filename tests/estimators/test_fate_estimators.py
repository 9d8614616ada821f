"""What a user may get wrong with an estimator, and what must not be lost by it."""

from __future__ import annotations

import inspect
import threading
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV

from openfate.bank import FeatureBank, Network, contributions, nearest
from openfate.errors import InputError, OpenWorldWarning
from openfate.estimators import FATEClassifier, FATERegressor, OpenWorldClassifier, load
from openfate.estimators.fate import FATEEstimator
from openfate.table import Encoder

QUICK = {"epochs": 3, "n_members": 1, "n_draws": 1, "width": 8, "hidden": (8,)}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return pl.DataFrame({"a": rng.normal(size=120), "c": rng.choice(list("xyz"), 120)})


@pytest.fixture(scope="module")
def y(rows):
    return (rows["c"] == "x").to_numpy().astype(int)


@pytest.fixture(scope="module")
def later(rows):
    return rows.with_columns(city=pl.Series(["Rome", "Oslo"] * 60))


def test_skewed_numbers_and_categories_that_interact_are_learned():
    """Equal buckets put a skewed amount into one; a plain sum knows no interaction."""
    rng = np.random.default_rng(0)
    amount, kind = np.exp(2 * rng.normal(size=1600)), rng.choice(list("ab"), 1600)
    logit = 1.5 * np.log(amount) * np.where(kind == "a", 1, -1)
    y = (rng.random(1600) < 1 / (1 + np.exp(-logit))).astype(int)
    frame = pl.DataFrame({"amount": amount, "kind": kind})
    plain = np.column_stack([np.log(amount), kind == "a"])
    best = LogisticRegression().fit(plain[:1200], y[:1200]).predict_proba(plain[1200:])[:, 1]
    clf = FATEClassifier(strategy="none").fit(frame[:1200], y[:1200])
    found = clf.predict_proba(frame[1200:])[:, 1]
    truth = 1 / (1 + np.exp(-logit[1200:]))
    assert roc_auc_score(y[1200:], found) > roc_auc_score(y[1200:], best) + 0.2
    assert log_loss(y[1200:], found) < log_loss(y[1200:], truth) + 0.03


@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_ahead_of_logistic_regression_on_skewed_amounts(seed):
    rng = np.random.default_rng(seed)
    amounts = np.exp(rng.normal(size=(2000, 5)))
    y = (rng.random(2000) < 1 / (1 + np.exp(-np.log(amounts) @ [1, -1, 0.5, 0, 0]))).astype(int)
    losses = [
        log_loss(y[800:], model.fit(amounts[:800], y[:800]).predict_proba(amounts[800:]))
        for model in (FATEClassifier(strategy="none"), LogisticRegression(max_iter=500))
    ]
    assert losses[0] < losses[1]


@pytest.mark.parametrize(("strategy", "kind"), [("none", "linear"), ("fate", "buckets")])
def test_numbers_are_what_suits_the_strategy(strategy, kind, rows, y):
    clf = FATEClassifier(strategy=strategy, **QUICK).fit(rows, y)
    assert clf.bank_.encoder.schema["a"].numeric == clf.bank_.meta["numeric"] == kind
    later = rows.with_columns(b=pl.Series(np.linspace(0.0, 1.0, 120)))
    assert clf.observe(later).bank_.encoder.schema["b"].numeric == kind


def test_knots_are_explained_and_inspected(rows, y):
    clf = FATEClassifier(strategy="none", **QUICK).fit(rows, y)
    told = clf.explain(rows[:1])
    assert told["field"].to_list().count("a") in (1, 2)
    assert all(float(value) for value in told.filter(pl.col("field") == "a")["value"])
    assert nearest(clf.bank_, "a", 0.3)["field"] == "a"


def test_both_estimators_have_the_same_parameters_but_one():
    ours, others = (
        inspect.signature(kind.__init__).parameters for kind in (FATEClassifier, FATERegressor)
    )
    assert set(ours) ^ set(others) == {"class_weight", "loss"}
    assert all(ours[name] == others[name] for name in set(ours) & set(others))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"strategy": "magic"}, "strategy='magic' is unknown"),
        ({"epochs": 0}, "epochs=0: choose an integer from 1 up"),
        ({"width": 2.5}, r"width=2\.5: choose an integer"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"patience": 0}, "patience=0"),
        ({"hidden": (0,)}, "hidden=0"),
        ({"hidden": 8}, "hidden=8: give a list"),
        ({"lr": -1.0}, r"lr=-1\.0"),
        ({"lr": 0}, "lr=0: nothing would be learned"),
        ({"dropout": 1.0}, r"dropout=1\.0"),
        ({"n_draws": 0}, "n_draws=0"),
        ({"validation_share": 1.0}, "validation_share"),
        ({"exclude": "ac"}, "exclude='ac' is a string"),
        ({"device": "tpu"}, "device='tpu' is not there"),
        ({"new_values": "maybe"}, "new_values='maybe' is unknown"),
        ({"class_weight": {0: -1.0, 1: 1.0}}, "weights must be finite and not negative"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(rows, y, params, message):
    with pytest.raises(InputError, match=message):
        FATEClassifier(**{**QUICK, **params}).fit(rows, y)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "requires y"),
        ([1] * 120, "one class, 1"),
        ([0.0] * 119 + [np.nan], "row 119 has no target"),
        ([0, 1], "X has 120 rows and y 2"),
        ([None] + ["a"] * 119, "row 0 has no target"),
        (np.array([1, "a"] * 60, dtype=object), "mixes values of the types int, str"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused(rows, target, message):
    with pytest.raises(InputError, match=message):
        FATEClassifier(**QUICK).fit(rows, target)


@pytest.mark.parametrize(
    "target",
    [["x"] * 120, np.full(120, 1e200), np.full(120, np.inf), pd.date_range("2024", periods=120)],
)
def test_a_target_without_usable_numbers_is_refused(rows, target):
    with pytest.raises(InputError):
        FATERegressor(**QUICK).fit(rows, target)


def test_bad_frames_are_refused(rows, y):
    frame = pd.DataFrame(rows.to_dict(as_series=False))
    with pytest.raises(InputError, match="unique"):
        FATEClassifier(**QUICK).fit(pd.concat([frame, frame], axis=1), y)
    with pytest.raises(InputError, match="0 sample"):
        FATEClassifier(**QUICK).fit(rows[:0], y[:0])
    with pytest.raises(InputError, match="name of the target's column"):
        FATEClassifier(**QUICK).fit(rows.lazy(), y)
    with pytest.raises(InputError, match="new_features='dropp'"):
        FATEClassifier(**QUICK).fit(rows, y).predict(rows, new_features="dropp")


def test_a_column_of_missing_values_is_a_constant_and_may_fill_later(rows, y):
    empty = rows.with_columns(e=pl.lit(None, dtype=pl.String))
    model = FATEClassifier(**QUICK).fit(empty, y)
    filled = rows.with_columns(e=pl.lit("now"))
    assert model.schema_report(filled).columns[-1].n_values == 1
    assert np.all(np.isfinite(model.predict_proba(filled)))


def test_a_failed_fit_leaves_the_old_model(rows, y, later):
    model = FATEClassifier(**QUICK).fit(rows, y)
    before = model.predict_proba(later)
    with pytest.raises(InputError):
        model.fit(rows.with_columns(s=pl.struct("a")), np.where(y == 1, "u", "v"))
    assert list(model.classes_) == [0, 1] and list(model.feature_names_in_) == ["a", "c"]
    assert np.array_equal(model.predict_proba(later), before)


@pytest.mark.parametrize("kind", [FATEClassifier, FATERegressor])
@pytest.mark.parametrize("place", [(FeatureBank, "count"), (FATEEstimator, "_remember")])
def test_an_interrupted_refit_leaves_the_old_model(rows, y, later, monkeypatch, kind, place):
    model = kind(**QUICK).fit(rows, y)
    before, parts = model.predict(later), dict(vars(model))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*place, _ctrl_c)
        model.refit(later, y)
    assert all(vars(model)[name] is part for name, part in parts.items())
    assert np.array_equal(model.predict(later), before)


def _ctrl_c(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("labels", [["nan"] * 120, np.full(120, 1e308), [1.0]])
def test_labels_that_fail_change_nothing(rows, y, later, labels):
    model = FATERegressor(strategy="evidence", **QUICK).fit(rows, y * 2.0)
    with pytest.raises(ValueError):
        model.observe(later, labels)
    assert model.bank_.n_rows == 120 and "city" not in model.bank_.encoder.fields
    with pytest.raises(InputError):
        model.bank_.observe(later, np.full((120, 2), 7.0))
    assert model.bank_.n_rows == 120


def test_half_a_label_is_refused(rows, y, later):
    labels = np.stack([y, 1 - y], axis=1)
    model = FATEClassifier(**QUICK).fit(rows, labels)
    with pytest.raises(InputError, match="0 and 1"):
        model.observe(later, labels * 0.5)


def test_numpy_parameters_of_a_search_can_be_saved(rows, y, tmp_path):
    frame = pd.DataFrame(rows.to_dict(as_series=False))
    grid = {"width": np.array([4, 8]), "dropout": np.array([0.1], dtype=np.float32)}
    best = GridSearchCV(FATEClassifier(**QUICK), grid, cv=2).fit(frame, y).best_estimator_
    best.save(tmp_path / "model")
    assert load(tmp_path / "model").width in (4, 8)


@pytest.mark.parametrize("names", [[0, 1], ["a", "b"], [False, True], np.array([2, 5])])
def test_weights_of_classes_are_there_for_a_refit_of_a_loaded_model(rows, y, tmp_path, names):
    by_class = dict(zip(names, np.array([1.0, 9.0]), strict=True))
    target = np.array(names)[y]
    unused = {("no", "class"): 2.0}  # which JSON could not keep
    model = FATEClassifier(class_weight=by_class | unused, **QUICK).fit(rows, target)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.class_weight == by_class
    again._validation = model._validation  # which a bundle does not hold
    expected = model.refit(rows, target).predict_proba(rows)
    assert np.array_equal(again.refit(rows, target).predict_proba(rows), expected)


def test_rows_of_weight_0_are_not_there_in_fit_and_refit(rows, y, later):
    weight = np.repeat([0.0, 1.0], 60)
    model = FATEClassifier(**QUICK).fit(rows, y, weight)
    assert model.bank_.n_rows == 60
    model.refit(later, y, weight)
    assert model.bank_.n_rows == 60


def test_threads_that_observe_together_lose_nothing(rows, y):
    model = FATEClassifier(strategy="evidence", **QUICK).fit(rows, y)

    def work(name):
        for at in range(10):
            values = [f"{name}-{at}-{i % 5}" for i in range(20)]
            model.observe(rows[:20].with_columns(city=pl.Series(values)))
            model.predict_proba(rows[:5])

    threads = [threading.Thread(target=work, args=(name,)) for name in "pq"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.bank_.n_rows == 120 + 400
    city = model.bank_.encoder.fields.index("city")
    assert np.sum(model.bank_.encoder.field_of == city) == 100


def _observing(bank, rows):
    """A thread that shows rows to the bank, given as much time as it would need if it could."""
    thread = threading.Thread(target=bank.observe, args=(rows,))
    thread.start()
    thread.join(0.3)
    return thread


READERS = {
    "to_bundle": lambda bank, _: FeatureBank.from_bundle(bank.to_bundle()).n_rows,
    "state": lambda bank, _: {name: len(array) for name, array in bank.state().items()},
    "schema_report": lambda bank, later: len(bank.schema_report(later).new),
    "lookahead": lambda bank, later: bank.lookahead([later]).encoder.n_features,
    "explain": lambda bank, later: len(contributions(bank, later, "state")["row"]),
    "nearest": lambda bank, _: nearest(bank, "c", "x")["rows"],
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_is_of_one_moment_though_another_thread_observes(
    rows, y, later, monkeypatch, reader
):
    """Wherever reading calls the first part of the bank, another thread tries to change it."""
    bank = FATEClassifier(strategy="fate", **QUICK).fit(rows, y).bank_
    read = READERS[reader]
    expected, threads = read(bank, later), []
    for owner, name in [
        (Encoder, "to_parts"),
        (Network, "state"),
        (FeatureBank, "_open"),
        (Encoder, "find"),
    ]:
        whole = getattr(owner, name)

        def tried(*args, whole=whole):
            result = whole(*args)
            if not threads:
                threads.append(None)  # the thread itself calls these too
                threads.append(_observing(bank, later))
            return result

        monkeypatch.setattr(owner, name, tried)
    assert read(bank, later) == expected
    threads[-1].join()
    assert bank.n_rows == 240


def test_a_bundle_in_memory_does_not_follow_what_is_observed_later(rows, y):
    bank = FATEClassifier(strategy="fate", **QUICK).fit(rows, y).bank_
    state = bank.to_bundle().state
    before = {name: array.copy() for name, array in state.items()}
    bank.observe(rows)
    assert all(np.array_equal(state[name], array) for name, array in before.items())


@pytest.mark.parametrize("backbone", ["mlp", "deepfm"])
def test_a_probe_that_has_nothing_to_hide_says_so(backbone):
    """One column of one value, or of two and one draw: the fit failed with an IndexError."""
    for cells, n_draws in ((["x"] * 60, 3), ([True, False] * 30, 1)):
        clf = FATEClassifier(epochs=2, n_draws=n_draws, backbone=backbone, hidden_share=0.3)
        clf.fit(pl.DataFrame({"a": cells}), [0, 1] * 30)
        assert "too few features" in clf.bank_.meta["decision"]["reason"]


def test_progress_callback_and_tensorboard_follow_the_epochs(rows, y, tmp_path, capsys):
    seen = []
    FATEClassifier(
        **QUICK, callback=seen.append, tensorboard=tmp_path / "events", progress=True
    ).fit(rows, y)
    assert [epoch.number for epoch in seen] == [1, 2, 3]
    assert list((tmp_path / "events").glob("events*"))


def test_kinds_can_be_declared_and_ids_hashed(rows, y, tmp_path):
    from openfate import Field

    frame = rows.with_columns(user=pl.Series([f"ann-{i % 9}" for i in range(120)]))
    model = FATEClassifier([Field("user", "categorical", hashed=True)], **QUICK).fit(frame, y)
    model.save(tmp_path / "model")
    content = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert b"ann-" not in content
    assert np.array_equal(load(tmp_path / "model").predict_proba(frame), model.predict_proba(frame))


# ---- a column that vanishes --------------------------------------------------------------------


@pytest.mark.parametrize("make", [FATEClassifier, OpenWorldClassifier])
def test_a_missing_column_is_told_of_where_the_model_leans_on_it(make, tmp_path):
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({"pay": rng.normal(size=300), "noise": rng.normal(size=300)})
    model = make().fit(rows, (rows["pay"].to_numpy() > 0).astype(int))
    model.save(tmp_path / "model")
    for each in (model, load(tmp_path / "model")):
        with pytest.warns(OpenWorldWarning, match=r"'pay' \(predictions move by 0\.[2-9]"):
            each.predict(rows.drop("pay"))
        for silent in (rows, rows.drop("noise"), rows.to_dicts()[0]):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                each.predict(silent)
    assert not make().fit(rows.to_numpy(), rows["pay"].to_numpy() > 0).bank_.meta.get("leans")
