import json
import os
import signal
import subprocess
import sys
import time

import pytest

from openfate.errors import InputError
from openfate_lab.experiments.runner import only_writer
from openfate_lab.experiments.uci import METHODS, make_plans, run_trial, write_summary

COMMAND = [
    sys.executable, "-c", "from openfate.cli import main; main()", "experiment", "uci",
    "--datasets", "digits", "--observed", "0.3,0.6", "--methods", "fate,base,oracle",
    "--trials", "3", "--epochs", "12", "--jobs", "2", "--json",
]  # fmt: skip


def plans(out, **changes):
    arguments = {"datasets": ["digits"], "observed": [0.5], "methods": ["base", "fate"]}
    arguments |= {"trials": 2, "out": out, "changes": {"epochs": 2}, **changes}
    return make_plans(**arguments)


def without_seconds(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_trial_records_all_that_its_numbers_depend_on(tmp_path):
    (plan,) = plans(tmp_path, trials=1, command="openfate experiment uci")
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


def test_other_settings_go_to_another_folder(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    (other,) = plans(tmp_path, trials=1, changes={"epochs": 2, "drop_edge": 0.2})
    (reference,) = plans(tmp_path, trials=1, compat="reference", novelty="columns")
    assert plan.folder.name == "default-epochs=2"
    assert other.folder.name == "default-drop_edge=0.2-epochs=2"
    assert reference.folder.name == "reference-columns-epochs=2"


def test_a_record_of_other_data_is_refused(tmp_path):
    (plan,) = plans(tmp_path, trials=1)
    record = run_trial(plan)
    plan.path.write_text(json.dumps(record | {"data_sha256": "0"}))
    with pytest.raises(InputError, match="was made with data_sha256='0'"):
        plan.finished()


def test_one_split_for_all_trials_separates_the_spread_of_inits(tmp_path):
    records = [run_trial(plan) for plan in plans(tmp_path, split_seed=7, methods=["base"])]
    assert records[0]["split"] == records[1]["split"]
    assert records[0]["results"]["base"]["score"] != records[1]["results"]["base"]["score"]


def test_summary_and_plots_stand_beside_the_trials(tmp_path):
    all_plans = plans(tmp_path, observed=[0.4, 0.6])
    for plan in all_plans:
        run_trial(plan)
    paths = write_summary(all_plans[:1])  # a smaller run does not shrink what is there
    assert [path.name for path in paths] == ["summary.json", "uci.png", "uci.svg"]
    assert len(json.loads(paths[0].read_text())["rows"]) == 4
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_summary(all_plans)] == before


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
        ({"datasets": []}, "--datasets is empty: name one or more."),
        ({"methods": ["fates"]}, "Did you mean fate?"),
        ({"novelty": "rows"}, "--novelty rows: unknown; choose from values, columns."),
        ({"compat": "code"}, "--compat code: unknown; choose from paper, reference."),
        ({"observed": [1.5]}, "1.5"),
        ({"split_seed": -1}, "--split-seed -1"),
        ({"changes": {"left_out": 2.0}}, "left_out=2.0: choose a number from 0 to 1."),
        ({"changes": {"n_draws": 0}}, "n_draws=0: choose a whole number from 1 up."),
        ({"datasets": ["digit"]}, "digits"),
    ],
)
def test_bad_plans_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        plans(tmp_path, **changes)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    with only_writer(tmp_path), pytest.raises(InputError, match="another process is writing"):
        with only_writer(tmp_path):
            pass
    with only_writer(tmp_path):  # free again
        pass


def test_what_a_killed_run_left_half_written_is_swept(tmp_path):
    stray = tmp_path / "gene" / f".trial.json.{'0' * 32}"
    stray.parent.mkdir()
    stray.touch()
    with only_writer(tmp_path):
        assert not stray.exists()


def test_settings_are_changed_after_compat(tmp_path):
    (plan,) = plans(tmp_path, trials=1, compat="reference", changes={"accumulate_backbone": False})
    assert not plan.settings.accumulate_backbone
    assert plan.settings.reference_folds
    assert plan.folder.name == "reference-accumulate_backbone=false"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match="is a file: choose a folder"):
        plans(tmp_path / "out")
