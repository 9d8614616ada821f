"""The click experiment on small drawn logs."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import DataFileError, InputError
from openfate.models import FATE, MLP
from openfate.openworld import Evidence, Pooling, score
from openfate_lab.experiments.click_baselines import buckets, pooled_logits
from openfate_lab.experiments.click_data import ClicksInMemory, Synthetic, in_parts, load_clicks
from openfate_lab.experiments.click_methods import (
    ALPHAS,
    BACKBONES,
    METHODS,
    STRENGTHS,
    ClickTrial,
)
from openfate_lab.experiments.click_settings import ClickSettings
from openfate_lab.experiments.ctr import CTR, ceiling, check_parts
from openfate_lab.experiments.runner import make_plans, run

SMALL = Synthetic(n_rows=6000, n_features=2000)
QUICK = ClickSettings(
    n_kept=17,
    batch_rows=200,
    plain_batch_rows=100,
    lrs=(3e-3,),
    epochs=2,
    hidden=(8, 8),
    dropout=0.0,
)


@pytest.fixture(scope="module")
def clicks():
    return load_clicks("synthetic", synthetic=SMALL)


def small(**changes):
    quick = {"lrs": (3e-3,), "epochs": 1, "hidden": (8, 8), "batch_rows": 200}
    log = {"datasets": ("synthetic",), "rows": 6000, "features": 2000, "set": quick}
    return CTR(**log | {"backbones": ("nn",), "methods": ("base",), "trials": 1} | changes)


def plans(out, **changes):
    return make_plans(small(**changes), out)


def run_trial(plan):
    return plan.experiment.run_trial(plan)


# ---- parts -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_features_are_numbered_by_what_training_rows_show(data):
    n, d, per_field = data.draw(st.integers(4, 30)), data.draw(st.integers(1, 3)), 4
    value = np.array(
        data.draw(st.lists(st.integers(0, per_field - 1), min_size=n * d, max_size=n * d))
    ).reshape(n, d)
    ids = (value + per_field * np.arange(d)).astype(np.int32)
    part = np.sort(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    part[:2], part[-1] = 0, 3
    field_of = np.repeat(np.arange(d), per_field).astype(np.int32)
    log = in_parts("log", ids, np.zeros(n, np.float32), part, field_of, threshold=2)
    train = ids[part == 0]
    seen = {}  # new number -> what stood there
    for number, name in enumerate(log.parts):
        before, after = ids[part == number], log.rows[name][0]
        assert before.shape == after.shape
        for old, new in zip(before.ravel(), after.ravel(), strict=True):
            count = int((train == old).sum())
            assert log.field_of[new] == field_of[old]
            assert (new < log.n_observed) == (count > 0)
            thing = ("rare", int(field_of[old])) if count == 1 else ("value", int(old))
            assert seen.setdefault(int(new), thing) == thing
    assert len(set(seen.values())) == len(seen)


def test_the_full_logs_must_be_prepared(tmp_path):
    with pytest.raises(DataFileError, match="openfate prepare RAW --format criteo"):
        load_clicks("criteo", str(tmp_path))


def test_a_prepared_log_runs_as_one_in_memory(tmp_path):
    from openfate.table import prepare
    from openfate_lab.data import write_raw_criteo

    raw = tmp_path / "raw.txt"
    write_raw_criteo(raw, 3000, n_features=3000)
    prepare(raw, tmp_path / "criteo", "criteo")
    log = load_clicks("criteo", str(tmp_path))
    assert log.parts[:3] == ("train", "validation", "T1") and log.n_fields == 39
    trial = ClickTrial(log, "nn", 0, replace(QUICK, n_kept=24))
    result = trial.result("fate")
    assert set(result["splits"]) == set(log.parts)
    assert sum(split["rows"] for split in result["splits"].values()) == 3000


# ---- methods -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_method_runs_with_every_backbone(clicks, backbone):
    trial = ClickTrial(clicks, backbone, 0, replace(QUICK, epochs=1))
    for method in METHODS:
        result = trial.result(method)
        assert 0.4 < result["score"] < 1 and result["log_loss"] > 0
        assert {f"T{t}" for t in range(1, 9)} <= set(result["splits"])


def test_later_labels_never_reach_earlier_predictions(clicks):
    """Turning the labels of the last part around changes nothing but its scores."""
    ids, y = clicks.rows["T8"]
    other = replace(clicks, rows={**clicks.rows, "T8": (ids, 1 - y)})
    for method in METHODS:
        scores = [
            getattr(ClickTrial(log, "nn", 0, replace(QUICK, epochs=1)), method)()[0]
            for log in (clicks, other)
        ]
        for part in scores[0]:
            np.testing.assert_array_equal(scores[0][part], scores[1][part])


def test_pooling_is_the_mean_over_rows_of_the_means_of_their_observed_features():
    torch.manual_seed(0)
    model = FATE(4, MLP(3, 1, (5,), batch_norm=True)).eval()
    ids = np.array([[0, 4], [1, 4], [2, 3], [1, 5]], np.int32)  # 4 and 5 are new
    W = model.W.detach()
    new = {4: (W[0] + W[1]) / 2, 5: W[1]}
    z = torch.stack([sum(new.get(int(j), W[min(j, 3)]) for j in row) for row in ids])
    logits = pooled_logits(model, [(ids, np.zeros(4, np.float32))])
    np.testing.assert_allclose(logits, model.backbone(z)[:, 0].detach().numpy(), atol=1e-6)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 40))
def test_a_bucket_belongs_to_the_field_of_its_feature(sizes, n_new):
    field_of = np.repeat(np.arange(len(sizes)), sizes)
    n_observed = len(field_of)
    field_of = np.concatenate([field_of, np.arange(n_new) % len(sizes)]).astype(np.int32)
    bucket = buckets(field_of, n_observed)
    assert bucket.max() < n_observed
    np.testing.assert_array_equal(field_of[:n_observed][bucket], field_of)


def test_oov_knows_nothing_of_which_new_feature_it_is(clicks):
    trial = ClickTrial(clicks, "nn", 0, replace(QUICK, epochs=1))
    ids, y = clicks.rows["T1"]
    last = np.zeros(22, np.int32)  # one new feature for all of a field
    np.maximum.at(last, clicks.field_of, np.arange(clicks.n_features, dtype=np.int32))
    swapped = np.where(ids < clicks.n_observed, ids, last)
    other = replace(clicks, rows={**clicks.rows, "T1": (swapped, y)})
    a, b = trial.oov()[0], ClickTrial(other, "nn", 0, trial.settings).oov()[0]
    np.testing.assert_array_equal(a["T1"], b["T1"])
    assert (swapped != ids).any()


def test_evidence_is_weighed_by_the_log_loss_of_validation_alone(clicks):
    trial = ClickTrial(clicks, "nn", 0, QUICK)
    X, P0, y = trial._base_rows("validation")
    state = Evidence(2).add(X, P0)

    def loss(strength, alpha):
        P = score(state, X, P0, Pooling(strength=strength, alpha=alpha), own=True)
        return -np.log(P[np.arange(len(y)), y]).mean()

    grid = {(0.0, 10.0): loss(0.0, 10.0)}
    grid |= {(s, a): loss(s, a) for s in STRENGTHS for a in ALPHAS}
    best = min(grid, key=lambda settings: grid[settings])
    assert (trial.unlabelled.strength, trial.unlabelled.alpha) == best


def test_evidence_of_strength_zero_leaves_base_as_it_is(clicks):
    trial = ClickTrial(clicks, "nn", 0, QUICK)
    trial.unlabelled = Pooling(strength=0.0)
    evidence, base = trial.result("evidence"), trial.result("base")
    assert evidence["score"] == pytest.approx(base["score"], abs=1e-6)


# ---- records -----------------------------------------------------------------------------------


def test_a_trial_goes_on_where_it_stopped(tmp_path):
    (plan,) = plans(tmp_path)
    first = run_trial(plan)
    assert plan.finished() == first
    (wider,) = plans(tmp_path, methods=("base", "evidence"))
    assert wider.finished() is None
    assert run_trial(wider)["results"]["base"] == first["results"]["base"]
    assert json.loads(plan.path.read_text())["ceiling"]["all"] > first["ceiling"]["observed"]
    with pytest.raises(InputError, match="was made with epochs"):
        path = json.loads(plan.path.read_text())
        path["settings"]["epochs"] = 7
        plan.path.write_text(json.dumps(path))
        plan.record()


def test_gains_are_paired_and_told_as_a_share_of_the_ceiling():
    """The share was of the first seed's ceiling, though each seed draws a log of its own."""

    def record(seed, ceiling, **scores):
        splits = {"T1": 0.0, "T2": 0.1}
        results = {
            name: {
                "metric": "auc",
                "score": score,
                "log_loss": 0.5,
                "seconds": 1.0,
                "splits": {t: {"auc": score + x, "log_loss": 0.5} for t, x in splits.items()},
            }
            for name, score in scores.items()
        }
        about = {"dataset": "synthetic", "backbone": "nn", "kind": "kshot", "sweep": None}
        top = {"all": 0.8 + ceiling, "observed": 0.8}
        return {**about, "seed": seed, "settings": {}, "ceiling": top, "results": results}

    content = CTR().summary(
        [record(0, 0.1, base=0.7, fate=0.72), record(1, 0.06, base=0.6, fate=0.66)]
    )
    (gain,) = content["gains"]
    assert gain["over"] == "base" and gain["splits_won"] == gain["n_splits"] == 2
    assert gain["mean"] == pytest.approx(0.04)
    assert gain["std"] == pytest.approx(np.std([0.02, 0.06], ddof=1))
    assert gain["share_of_ceiling"] == pytest.approx(0.04 / 0.08)
    row = next(r for r in content["rows"] if (r["method"], r["split"]) == ("fate", "overall"))
    assert row["mean"] == pytest.approx(0.69) and row["n_trials"] == 2


def test_a_sweep_has_a_folder_for_each_value(tmp_path):
    swept = small(methods=("fate",), sweep="k", values=(11, 20))
    found = run(swept, tmp_path, jobs=1)
    rows = json.loads(found.files[0].read_text())["rows"]
    assert rows == found.content["rows"]
    overall = [r for r in rows if r["split"] == "overall" and r["metric"] == "auc"]
    assert [row["k"] for row in overall] == [11, 20]
    assert {row["split"] for row in rows} >= {"train", "validation", "T1"}
    by_rows = plans(tmp_path, sweep="B")
    assert [plan.case.settings.batch_rows for plan in by_rows] == [50, 100, 200, 400]
    assert not {plan.path for plan in by_rows} & {plan.path for plan in plans(tmp_path)}


def test_the_ceiling_grows_with_what_is_known():
    top = ceiling(SMALL)
    assert top["observed_plain"] <= top["observed"] < top["extrapolated"] < top["all"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": ("crito",)}, "datasets: 'crito' is unknown.*did you mean 'criteo'"),
        ({"backbones": ()}, "backbones is empty"),
        ({"methods": ("fat",)}, "methods: 'fat' is unknown"),
        ({"masking": "fold"}, "masking: 'fold' is unknown"),
        ({"sweep": "n"}, "sweep: 'n' is unknown"),
        ({"values": (3, 4)}, r"values=\(3, 4\): of what"),
        ({"sweep": "k", "values": (23,)}, "k=23: synthetic has 22 fields"),
        ({"sweep": "B", "values": (0,)}, "values=0: choose a number from 1 up"),
        ({"rows": 999}, "rows=999: choose a number from 1000 up"),
        ({"set": {"epoch": 1}}, "set: 'epoch' is unknown"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        plans(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masking": "xyz"}, "masking='xyz' is unknown"),
        ({"lrs": ()}, "lrs is empty"),
        ({"lrs": (1e-3, -1.0)}, "lrs=-1.0: choose a number from 1e-09 to 1"),
        ({"batch_rows": 0}, "batch_rows=0: choose a number from 2"),
        ({"hidden": (0,)}, "hidden=0: choose a number from 1"),
        ({"dropout": float("nan")}, "dropout=nan"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        ClickSettings(**changes)


@pytest.mark.parametrize("part", ["train", "validation", "T3"])
def test_a_part_of_one_class_is_refused_before_training(clicks, part):
    ids, y = clicks.rows[part]
    for rows in ((ids, np.zeros_like(y)), (ids[:0], y[:0])):
        with pytest.raises(InputError, match=f"{part} of synthetic holds"):
            check_parts(replace(clicks, rows={**clicks.rows, part: rows}))
    check_parts(clicks)


def test_the_command_prints_rows_and_gains(tmp_path):
    flags = ["--datasets", "synthetic", "--rows", "3000", "--features", "2000", "--trials", "1"]
    flags += ["--backbones", "nn", "--methods", "base,fate", "--set", "epochs=1"]
    command = [sys.executable, "-c", "from openfate.cli import main; main()", "experiment", "ctr"]
    done = subprocess.run(
        [*command, *flags, "--out", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert {row["split"] for row in result["rows"]} >= {"T1", "T8", "overall"}
    assert {gain["method"] for gain in result["gains"]} == {"fate"}
    assert (tmp_path / "summary.json").is_file()


@pytest.mark.skipif("OPENFATE_DATA" not in os.environ, reason="OPENFATE_DATA is not set")
def test_the_samples_have_the_papers_parts():
    for name, fields in (("criteo-sample", 39), ("avazu-sample", 22), ("flights", 8)):
        log = load_clicks(name)
        assert isinstance(log, ClicksInMemory)
        assert log.n_fields == fields and log.parts[-1] == "T8"
        assert all(len(y) for _, y in log.rows.values())
        train = log.rows["train"][0]
        assert train.max() < log.n_observed
