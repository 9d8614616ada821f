"""The experiment of later labels, on scikit-learn's digits; and the demo's sentences."""

import json

import numpy as np
import polars as pl
import pytest

import openfate
from openfate.errors import InputError
from openfate_lab.data import load
from openfate_lab.experiments.arrivals import predict_one_by_one
from openfate_lab.experiments.demo import DEMO_METHODS, read_aloud
from openfate_lab.experiments.labels import METHODS, Labels, Trial, split_rows
from openfate_lab.experiments.runner import make_plans, run


def small(**changes):
    settings = {"datasets": ("digits",), "observed": (0.3,), "counts": (40,), "trials": 1}
    return Labels(**settings | {"base": "hist", "refit": "never"} | changes)


@pytest.fixture
def few_rounds(monkeypatch):
    """Boosting of few rounds, so that a fit takes no time."""
    make = Trial._make

    def quick(self):
        made = make(self)
        if self.settings.base == "hist":
            made.set_params(estimator=made._base().set_params(max_iter=8))
        return made.set_params(n_draws=2)

    monkeypatch.setattr(Trial, "_make", quick)


def test_a_run_prints_score_and_log_loss_of_every_method(tmp_path, few_rounds):
    experiment = small()
    (plan,) = make_plans(experiment, tmp_path)
    record = experiment.run_trial(plan)
    assert list(record["results"]) == [
        "ignore",
        "openfate@0",
        "calls",
        "rows",
        "ceiling",
        "oracle",
        "openfate@40",
        "retrain@40",
    ]
    found = run(experiment, tmp_path, jobs=1)  # nothing is left to run
    rows = found.content["rows"]
    assert {row["method"] for row in rows} == set(METHODS)
    assert {(row["metric"], row["labels"]) for row in rows if row["method"] == "openfate"} == {
        (metric, count) for metric in ("score", "log_loss") for count in (0, 40)
    }
    wanted = {"dataset", "observed", "novelty", "labels", "method", "metric", "base", "mean", "std"}
    assert all(wanted <= row.keys() for row in rows)
    closed = {(row["way"], row["metric"]): row for row in found.content["gap_closed"]["pooled"]}
    assert {way for way, _ in closed} == {"batch", "calls", "rows"}
    loss = {name: result["test_log_loss"] for name, result in record["results"].items()}
    gap = loss["ignore"] - loss["oracle"]
    assert closed["calls", "log_loss"]["closed"] == pytest.approx(
        (loss["ignore"] - loss["calls"]) / gap
    )
    assert closed["batch", "log_loss"]["ceiling"] == pytest.approx(
        (loss["ignore"] - loss["ceiling"]) / gap
    )
    assert any("of the gap closed" in line for line in experiment.remarks(found.content))
    (before, after) = found.content["means"]
    assert after["openfate"]["log_loss"] < after["ignore"]["log_loss"]
    assert before["n_cells"] == after["n_cells"] == 1
    assert json.loads(plan.path.read_text())["results"] == record["results"]
    bound = np.log(10) + 1e-6  # of the smaller prior of ignoring
    assert record["results"]["openfate@40"]["excess_loss"] <= bound


@pytest.mark.parametrize("novelty", ["columns", "features"])
def test_rows_one_by_one_are_predicted_as_if_each_came_alone(novelty, few_rounds):
    base = "lightgbm" if novelty == "features" else "hist"
    trial = Trial(load("digits"), small(novelty=novelty, base=base), 0.3, 0)
    test = trial.all[trial.test]
    fast = predict_one_by_one(trial.fitted, test)
    slow = trial.fitted.observe(test)
    for at in range(8):
        one = slow.predict_proba(test[at : at + 1])
        np.testing.assert_allclose(one[0], fast[at], rtol=0, atol=1e-12)


def test_the_estimator_has_not_observed_what_was_predicted_row_by_row(few_rounds):
    trial = Trial(load("digits"), small(), 0.3, 0)
    before = trial.result("openfate@0")["test_log_loss"]
    trial.result("rows")
    assert trial.result("openfate@0")["test_log_loss"] == before


def test_fate_has_no_ceiling():
    (plan,) = make_plans(small(base="fate"), "unused")
    assert "rows" in plan.methods and "ceiling" not in plan.methods
    with pytest.raises(InputError, match="methods: 'ceiling' is unknown"):
        make_plans(small(base="fate", methods=("ceiling",)), "unused")


def test_one_method_alone_is_run_and_summarised(tmp_path, few_rounds):
    found = run(small(methods=("oracle",)), tmp_path, jobs=1)
    assert {row["method"] for row in found.content["rows"]} == {"oracle"}
    assert [row["n_cells"] for row in found.content["means"]] == [1]
    assert "oracle" in small().remarks(found.content)[0]


def test_a_resumed_trial_goes_on_as_if_it_had_not_stopped(few_rounds):
    settings = small(novelty="features", base="lightgbm")
    whole, resumed = (Trial(load("digits"), settings, 0.3, 0) for _ in range(2))
    first = [whole.result(name) for name in ("openfate@20", "openfate@40")][-1]
    second = resumed.result("openfate@40")  # twenty labels were observed before it stopped
    assert second["test_log_loss"] == pytest.approx(first["test_log_loss"], abs=1e-9)


@pytest.mark.parametrize("novelty", ["columns", "values", "features"])
def test_what_is_new_is_not_there_in_training(novelty):
    trial = Trial(load("digits"), small(novelty=novelty), 0.3, 1)
    assert not set(trial.train) & set(trial.later) and not set(trial.test) & set(trial.later)
    if novelty == "columns":
        assert trial.known.width == 19 and trial.all.width == 64
        assert not set(trial.new) & set(trial.known.columns)
    elif novelty == "features":
        cells = trial.known.select(pl.all().list.len()).sum_horizontal().sum()
        assert 0.2 < cells / load("digits").X.nnz < 0.4


def test_values_are_hidden_of_text_alone():
    from openfate_lab.experiments.labels import _hide_values

    frame = pl.DataFrame({"job": list("abcdefghij"), "age": range(10)})
    shown = _hide_values(frame, 0.3, np.random.default_rng(0))
    assert shown["job"].null_count() == 7 and shown["age"].equals(frame["age"])


@pytest.mark.parametrize("base", ["lightgbm", "hist", "fate"])
def test_every_model_is_a_public_estimator(base):
    made = Trial(load("digits"), small(base=base), 0.5, 0)._make()
    assert type(made) in (openfate.FATEClassifier, openfate.OpenWorldClassifier)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"novelty": "rows"}, "novelty: 'rows' is unknown"),
        ({"base": "forest"}, "base: 'forest' is unknown"),
        ({"counts": (0,)}, "counts=(0,): give numbers of labels from 1 up."),
        ({"observed": ()}, "observed is empty"),
    ],
)
def test_settings_are_refused_before_anything_runs(changes, message, tmp_path):
    with pytest.raises(InputError) as error:
        make_plans(small(**changes), tmp_path)
    assert str(error.value).startswith(message)


def test_too_few_rows_leave_counts_out():
    assert sum(map(len, split_rows(1797, 0))) == 1797
    (plan,) = make_plans(small(counts=(100, 3000)), "unused")
    assert "openfate@100" in plan.methods and "openfate@3000" not in plan.methods


def test_the_demo_reads_its_numbers():
    accuracy = dict.fromkeys(DEMO_METHODS, 0.5) | {"openfate@0": 0.6, "paper": 0.4}
    text = read_aloud(accuracy)
    assert "are worth +10.0 points, with 50 labels +0.0" in text
    assert "without labels -10.0." in text
