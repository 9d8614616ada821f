"""The open-world experiment on scikit-learn's digits and on a small invented log."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import openfate
from openfate.errors import InputError, OpenFATEError
from openfate.table import MultiHot
from openfate_lab.data import Dataset, load
from openfate_lab.experiments import arrivals, openworld_methods, wrapped_models
from openfate_lab.experiments import gaps as gaps_of
from openfate_lab.experiments.openworld import GAPS, OpenWorld, gap_plot
from openfate_lab.experiments.openworld_methods import METHODS, OpenTrial
from openfate_lab.experiments.runner import make_plans, run
from openfate_lab.experiments.streaming import Stream, Streams, parse_delay
from openfate_lab.experiments.uci_methods import make_split
from openfate_lab.experiments.wrapped_models import BASES, make_base

FLIGHTS = {"datasets": ("flights",), "methods": "all"}
LOGISTIC = tuple(name for name in METHODS if name.startswith("logistic_"))


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrapped_models, "PENALTIES", (0.1,))
        patch.setattr(openworld_methods, "N_DRAWS", 2)
        patch.setattr(arrivals, "POOLINGS", arrivals.POOLINGS[::7])
        yield


def digits(**changes):
    small = {"datasets": ("digits",), "observed": (0.3,), "methods": LOGISTIC, "trials": 1}
    return OpenWorld(**small | changes)


def plan(out, **changes):
    (only,) = make_plans(digits(**changes), out)
    return only


def run_trial(plan):
    return plan.experiment.run_trial(plan)


def gap_closed(records):
    return gaps_of.gap_closed(records, GAPS)


def record(seed, observed=0.3, **scores):
    results = {name: {"metric": "auc", "score": s, "seconds": 1} for name, s in scores.items()}
    return {"dataset": "d", "observed": observed, "seed": seed, "results": results}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quick):
    """The folder of one trial with all ways of one base, and its record."""
    out = tmp_path_factory.mktemp("openworld")
    return out, run_trial(plan(out))


def test_a_trial_says_what_was_decided_and_why(finished):
    out, found = finished
    results = found["results"]
    assert json.loads(plan(out).path.read_text())["results"] == results
    assert set(results) == set(LOGISTIC)
    decision = results["logistic_evidence"]["decision"]
    assert decision["chosen"].startswith("evidence")
    assert len(decision["draws"]) == 2


def test_every_way_to_send_rows_is_between_ignoring_and_knowing_all(finished):
    results = finished[1]["results"]
    loss = {way: results[f"logistic_{way}"]["test_log_loss"] for way in openworld_methods.WAYS}
    assert loss["drop"] > loss["evidence"] > loss["oracle"]
    assert loss["evidence"] <= loss["calls"] <= loss["drop"] and loss["rows"] < loss["drop"]
    # No strength at all is among those of the ceiling.
    assert loss["ceiling"] < loss["drop"]
    assert results["logistic_ceiling"]["score"] >= results["logistic_drop"]["score"]


def test_a_finished_trial_is_not_run_again(tmp_path):
    own = plan(tmp_path, methods=("logistic_drop",))
    first = run_trial(own)
    assert own.finished() == first
    wider = plan(tmp_path, methods=("logistic_drop", "logistic_oracle"))
    assert wider.finished() is None
    assert run_trial(wider)["results"]["logistic_drop"] == first["results"]["logistic_drop"]


def test_the_gap_closed_is_summed_over_cells_and_harms_are_named():
    up = [record(s, 0.3, lightgbm_drop=0.5, lightgbm_evidence=0.6 + s / 100, lightgbm_oracle=0.7)
          for s in (0, 1)]  # fmt: skip
    down = [record(s, 0.5, lightgbm_drop=0.6, lightgbm_evidence=0.58, lightgbm_oracle=0.7)
            for s in (0, 1)]  # fmt: skip
    gaps = gap_closed([*up, *down])
    assert [cell["gain"] for cell in gaps["cells"]] == pytest.approx([0.105, -0.02])
    assert gaps["cells"][0]["closed"] == pytest.approx(0.105 / 0.2)
    (pooled,) = gaps["pooled"]
    assert pooled["closed"] == pytest.approx(0.085 / 0.3)
    assert pooled["n_cells"] == pooled["n_trials"] == 2
    assert pooled["n_harmed"] == 1
    assert [(harm["observed"], harm["harm"]) for harm in gaps["harms"]] == [(0.5, True)]


def test_the_gap_in_log_loss_and_of_rows_that_come_apart_stands_beside():
    own = record(0, 0.3, lightgbm_drop=0.5, lightgbm_rows=0.6, lightgbm_oracle=0.7)
    for result, loss in zip(own["results"].values(), (0.9, 0.91, 0.5), strict=True):
        result["test_log_loss"] = loss
    gaps = gap_closed([own])
    found = {(row["way"], row["metric"]): row["closed"] for row in gaps["pooled"]}
    assert found == pytest.approx({("rows", "score"): 0.5, ("rows", "log_loss"): -0.01 / 0.4})
    assert [(harm["way"], harm["metric"]) for harm in gaps["harms"]] == [("rows", "log_loss")]


def test_the_ceiling_of_the_best_strength_stands_beside_the_gap():
    scores = {"lightgbm_drop": 0.5, "lightgbm_evidence": 0.55, "lightgbm_oracle": 0.7}
    (pooled,) = gap_closed([record(0, 0.3, **scores, lightgbm_ceiling=0.6)])["pooled"]
    assert pooled["ceiling"] == pytest.approx(0.5)
    (pooled,) = gap_closed([record(0, 0.3, **scores)])["pooled"]
    assert "ceiling" not in pooled


def test_a_small_or_noisy_loss_is_no_harm():
    small = [record(s, lightgbm_drop=0.5, lightgbm_evidence=0.498, lightgbm_oracle=0.5)
             for s in (0, 1)]  # fmt: skip
    noisy = [record(s, 0.5, lightgbm_drop=0.5, lightgbm_evidence=0.49 + 0.02 * s,
                    lightgbm_oracle=0.6) for s in (0, 1)]  # fmt: skip
    gaps = gap_closed([*small, *noisy])
    assert gaps["harms"] == []
    assert gaps["cells"][0]["closed"] is None  # there is no gap to close


def test_summary_and_figure_stand_beside_the_trials(finished):
    found = run(digits(), finished[0])
    assert [path.name for path in found.files] == ["summary.json", "openworld.png", "openworld.svg"]
    content = json.loads(found.files[0].read_text())
    assert content["rows"] == found.content["rows"]
    assert content["gap_closed"]["pooled"][0]["base"] == "logistic"
    assert "of the gap closed (1 cells, 1 trials)" in found.experiment.remarks(content)[0]


def test_a_gap_that_is_noise_has_no_bar():
    cell = {"base": "b", "dataset": "d", "standard_error": 0.01, "gain": 0.0}
    cells = [cell | {"observed": 0.3, "gap": 0.1, "closed": 0.5},
             cell | {"observed": 0.8, "gap": 0.001, "closed": 40.0}]  # fmt: skip
    figure = gap_plot(cells, [])
    (axis,) = figure.axes
    assert len(axis.patches) == 1
    assert [text.get_text() for text in axis.texts] == ["no gap"]


@pytest.mark.parametrize("method", METHODS)
def test_the_model_of_every_method_is_a_public_estimator(method, monkeypatch):
    """What is measured is what is shipped."""
    made = []
    dataset = load("digits")
    trial = OpenTrial(dataset, make_split(dataset, 0.5, 0), seed=0)
    trial.fitted = lambda model: made.append(model) or 1 / 0
    with pytest.raises(ZeroDivisionError):
        trial.result(method)
    monkeypatch.setattr(openworld_methods, "make_base", lambda *_: None)
    public = (openfate.FATEClassifier, openfate.OpenWorldClassifier)
    assert type(trial.make(*made)) in public
    assert all(getattr(openfate, kind.__name__) is kind for kind in public)


@pytest.mark.parametrize("name", BASES)
def test_every_base_is_a_pipeline_that_takes_values_it_does_not_know(name):
    pytest.importorskip({"logistic": "sklearn"}.get(name, name))
    rows = pl.DataFrame({"a": [["x"], ["y"], ["x", "z"], []] * 20})
    y = np.array([0, 1, 0, 1] * 20)
    model = make_base(name, (rows, y), (rows, y)).fit(rows, y)
    assert (model.predict(rows).ravel() == y).all()
    unknown = pl.DataFrame({"a": [["w"], []]})
    assert np.ptp(model.predict_proba(unknown), axis=0) == pytest.approx(0)


def test_a_base_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "catboost", None)
    rows = pl.DataFrame({"a": ["x", "y"]}), np.array([0, 1])
    with pytest.raises(OpenFATEError, match=r"need catboost: pip install 'openfate\[peers\]'"):
        make_base("catboost", rows, rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": ()}, "datasets is empty: name one or more."),
        ({"datasets": ("digits", "flights")}, "'flights' is in time order and 'digits' is not"),
        ({"methods": ("lightgbm_drops",)}, "did you mean 'lightgbm_drop'?"),
        ({"methods": ("late_labels",)}, "methods: 'late_labels' is unknown"),
        ({"datasets": ("flights",)}, "methods: 'logistic_drop' is unknown"),
        ({**FLIGHTS, "base": "ridge"}, "base: 'ridge' is unknown"),
        ({"novelty": "rows"}, "novelty: 'rows' is unknown (choose from values, columns)"),
        ({**FLIGHTS, "label_delay": "soon"}, "label_delay='soon': give a number and a unit"),
        ({**FLIGHTS, "min_rows": 0}, "min_rows=0: choose a number from 1 up."),
    ],
)
def test_bad_plans_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        make_plans(digits(**changes), tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5d", 129_600)])
def test_delays_have_units(text, seconds):
    assert parse_delay(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "5", "nand", "infd"])
def test_delays_without_sense_are_refused(text):
    with pytest.raises(InputError, match="such as 30m, 6h or 1d"):
        parse_delay(text)


# ---- streams -----------------------------------------------------------------------------------


def log(seed=0, n_rows=3000, shift=1.5):
    """Rows of one old and one campaign feature; campaigns come and go, each with its own rate."""
    rng = np.random.default_rng(seed)
    old = rng.integers(4, size=n_rows)
    campaign = np.arange(n_rows) // 120 + 4
    effect = rng.normal(0, shift, campaign.max() + 1)
    p = 1 / (1 + np.exp(1 - 0.5 * old - effect[campaign]))
    y = (rng.random(n_rows) < p).astype(np.int64)
    X = MultiHot.from_rows(np.stack([old, campaign], 1), int(campaign.max()) + 1)
    field_of = np.repeat([0, 1], [4, X.n_features - 4]).astype(np.int32)
    time = np.arange(n_rows, dtype=np.float64)
    return Dataset("log", X, y, ("0", "1"), ("a", "b"), field_of, "auc", "0" * 64, time)


def test_late_labels_learn_what_no_training_row_showed():
    stream = Stream(log(), "logistic", delay=20.0, min_rows=3)
    assert type(stream.model) is openfate.OpenWorldClassifier
    drop, late = stream.result("drop"), stream.result("late_labels")
    assert late["score"] > drop["score"]


def test_late_labels_learn_campaigns_that_live_for_120_rows():
    stream = Stream(log(), "logistic", delay=20.0, min_rows=3)
    drop, late = stream.result("drop"), stream.result("late_labels")
    assert late["score"] > drop["score"] + 0.03


def test_labels_that_never_come_change_nothing():
    stream = Stream(log(), "logistic", delay=1e9, min_rows=3)
    assert np.array_equal(stream.run("late_labels"), stream.run("evidence"))


def test_a_prediction_knows_nothing_of_its_own_chunk_or_later():
    data = log()
    y = data.y.copy()
    y[1500:] = 1 - y[1500:]
    other = Dataset(*(getattr(data, name) if name != "y" else y for name in data.__dict__))
    streams = [Stream(d, "logistic", delay=0.0, min_rows=3) for d in (data, other)]
    one, two = (s.run("late_labels") for s in streams)
    until = 1500 - streams[0].n_train
    assert np.array_equal(one[:until], two[:until])
    assert not np.array_equal(one[until:], two[until:])


def test_rare_features_count_as_new():
    data = log()
    few, many = (Stream(data, "logistic", 0.0, min_rows) for min_rows in (1, 61))
    assert len(few.new) == len(many.new) - 1  # the third campaign has 60


def test_data_without_times_cannot_stream():
    data = Dataset(*(log().__dict__ | {"time": None}).values())
    with pytest.raises(InputError, match="log has no times: it cannot stream"):
        Stream(data, "logistic", 0.0, 3)


def test_a_stream_is_recorded_and_summed_up(tmp_path, monkeypatch):
    monkeypatch.setattr("openfate_lab.experiments.streaming.load_once", lambda name, data: log())
    logs = Streams(("flights",), ("drop", "late_labels"), "logistic", "20s")
    (own,) = make_plans(logs, tmp_path)
    record = run_trial(own)
    assert own.finished() == record
    found = run(logs, tmp_path)
    drop, late = found.content["rows"]
    assert (drop["lift"], drop["method"], drop["base"]) == (0.0, "drop", "logistic")
    assert late["lift"] == pytest.approx(late["mean"] - drop["mean"])
    assert found.files == [tmp_path / "stream" / "summary.json"]
    assert json.loads(found.files[0].read_text())["rows"] == [drop, late]


def test_the_command_prints_rows_and_gaps_as_json(tmp_path):
    command = [sys.executable, "-c", "from openfate.cli import main; main()", "experiment"]
    flags = ["--datasets", "digits", "--observed", "0.5", "--methods", "lightgbm_oracle",
             "--trials", "1", "--json", "--out", str(tmp_path)]  # fmt: skip
    done = subprocess.run([*command, "openworld", *flags], capture_output=True, check=True)
    content = json.loads(done.stdout)
    assert content["experiment"] == "openworld"
    (row,) = content["rows"]
    assert (row["dataset"], row["observed"], row["n_trials"]) == ("digits", 0.5, 1)
    assert content["gap_closed"] == {"cells": [], "pooled": [], "harms": []}
