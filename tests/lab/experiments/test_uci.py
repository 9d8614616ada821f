import json
import os
import signal
import subprocess
import sys
import time

import pytest

from openfate.errors import InputError
from openfate_lab.experiments import UCI, run
from openfate_lab.experiments.runner import make_plans
from openfate_lab.experiments.uci_methods import METHODS

COMMAND = [
    sys.executable, "-c", "from openfate.cli import main; main()", "experiment", "uci",
    "--datasets", "digits", "--observed", "0.3,0.6", "--methods", "fate,base,oracle",
    "--trials", "3", "--epochs", "5", "--jobs", "2", "--json",
]  # fmt: skip


def digits(**changes):
    small = {"datasets": ("digits",), "observed": (0.5,), "methods": ("base", "fate")}
    return UCI(**small | {"trials": 2, "epochs": 2} | changes)


def plans(out, **changes):
    return make_plans(digits(**changes), out)


def run_trial(plan):
    return plan.experiment.run_trial(plan)


def without_seconds(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_trial_records_all_that_its_numbers_depend_on(tmp_path):
    (plan,) = make_plans(digits(trials=1), tmp_path, command="openfate experiment uci")
    run_trial(plan)
    record = json.loads(plan.path.read_text())
    assert record["settings"]["epochs"] == 2
    assert record["versions"]["torch"]
    assert len(record["data_sha256"]) == len(record["split"]["sha256"]) == 64
    assert record["command"] == "openfate experiment uci"
    assert set(record["results"]) == {"base", "fate"}
    assert (plan.path.parent / "split.npz").exists()


def test_a_finished_method_is_not_run_again_and_a_new_one_is_added(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    before = run_trial(plan)["results"]
    (wider,) = plans(tmp_path, trials=1, methods=METHODS)
    assert wider.finished() is None
    after = run_trial(wider)["results"]
    assert {name: after[name] for name in before} == before  # seconds too: copied, not measured
    assert set(after) == set(METHODS)
    assert wider.finished() is not None


def test_a_record_from_before_a_setting_was_added_counts_as_its_default(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    run_trial(plan)
    record = json.loads(plan.path.read_text())
    del record["settings"]["patience"]
    plan.path.write_text(json.dumps(record))
    assert plan.finished() is not None


@pytest.mark.parametrize(
    ("changes", "made_again"),
    [({}, {"fate"}), ({"centred": False}, set()), ({"compat": "reference"}, set())],
)
def test_of_a_record_from_before_centring_fate_alone_is_made_again(tmp_path, changes, made_again):
    (plan,) = plans(tmp_path, trials=1, **changes)
    run_trial(plan)
    record = json.loads(plan.path.read_text())
    assert record.pop("centred") is bool(made_again)
    plan.path.write_text(json.dumps(record))
    assert set(record["results"]) - set(plan.record()["results"]) == made_again
    assert (plan.finished() is None) is bool(made_again)


def test_other_settings_go_to_another_folder(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    (other,) = plans(tmp_path, trials=1, set={"drop_edge": 0.2})
    (reference,) = plans(tmp_path, trials=1, compat="reference", novelty="columns")
    (uncentred,) = plans(tmp_path, trials=1, centred=False)
    assert plan.folder.name == "default-epochs=2"
    assert other.folder.name == "default-drop_edge=0.2-epochs=2"
    assert uncentred.folder.name == "default-uncentred-epochs=2"
    assert reference.folder.name == "reference-columns-epochs=2"


def test_a_record_of_other_data_is_refused(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    record = run_trial(plan)
    plan.path.write_text(json.dumps(record | {"data_sha256": "0"}))
    with pytest.raises(InputError, match="was made with data_sha256='0'"):
        plan.finished()


def test_one_split_for_all_trials_separates_the_spread_of_inits(tmp_path):
    records = [run_trial(plan) for plan in plans(tmp_path, split_seed=7, methods=("base",))]
    assert records[0]["split"] == records[1]["split"]
    assert records[0]["results"]["base"]["score"] != records[1]["results"]["base"]["score"]


def test_summary_and_plots_stand_beside_the_trials(tmp_path):
    files = run(digits(observed=(0.4, 0.6)), tmp_path, jobs=1).files
    assert [path.name for path in files] == ["summary.json", "uci.png", "uci.svg"]
    rows = json.loads(files[0].read_text())["rows"]
    assert len(rows) == 4
    before = [path.read_bytes() for path in files[1:]]
    smaller = run(digits(observed=(0.4,), methods=("base",), trials=1), tmp_path)
    assert [row["method"] for row in smaller.content["rows"]] == ["base"]
    assert smaller.files == files  # a smaller run does not shrink what is there
    assert json.loads(files[0].read_text())["rows"] == rows
    assert [path.read_bytes() for path in files[1:]] == before


def test_a_killed_run_goes_on_to_the_table_of_an_uninterrupted_one(tmp_path):
    """Kill the experiment and its workers in the middle, run it again, compare."""
    whole = subprocess.run(
        [*COMMAND, "--out", str(tmp_path / "whole")], capture_output=True, check=True
    )
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [*COMMAND, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(list(out.glob("**/trial.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {
        path: path.read_text()
        for path in out.glob("**/trial.json")
        if len(json.loads(path.read_text())["results"]) == 3
    }
    assert len(list(out.glob("**/trial.json"))) < 6, "killed too late to prove anything"
    stamps = {path: path.stat().st_mtime_ns for path in finished}
    again = subprocess.run([*COMMAND, "--out", str(out)], capture_output=True, check=True)
    rows, expected = (json.loads(done.stdout)["rows"] for done in (again, whole))
    assert without_seconds(rows) == without_seconds(expected)
    assert {path: path.stat().st_mtime_ns for path in finished} == stamps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": ()}, "datasets is empty: name one or more."),
        ({"methods": ("fates",)}, "did you mean 'fate'?"),
        ({"novelty": "rows"}, "novelty: 'rows' is unknown (choose from values, columns)"),
        ({"compat": "code"}, "compat='code' is unknown: choose 'paper' or 'reference'."),
        ({"observed": (1.5,)}, "observed must be between 0 and 1, not 1.5"),
        ({"observed": ()}, "observed is empty: give one share or more."),
        ({"split_seed": -1}, "split_seed=-1"),
        ({"set": {"left_out": 2.0}}, "left_out=2.0: choose a number from 0 to 1."),
        ({"set": {"n_draws": 0}}, "n_draws=0: choose"),
        ({"set": {"n_drawz": 1}}, "set: 'n_drawz' is unknown"),
        ({"datasets": ("digit",)}, "digits"),
    ],
)
def test_bad_plans_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        plans(tmp_path, **changes)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_settings_are_changed_after_compat(tmp_path):
    (plan,) = plans(
        tmp_path, trials=1, compat="reference", epochs=200, set={"accumulate_backbone": False}
    )
    assert not plan.experiment.settings.accumulate_backbone
    assert plan.experiment.settings.reference_folds
    assert plan.folder.name == "reference-accumulate_backbone=false"
