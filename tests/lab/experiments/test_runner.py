import json
import os
import signal
from dataclasses import dataclass

import pytest

from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate_lab.experiments.runner import (
    Experiment,
    Plan,
    only_writer,
    open_record,
    run,
    run_jobs,
    scores,
    summarise,
    write_json,
)


def square(number):
    return number * number


def fail(number):
    raise InputError(f"number {number} is bad.")


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_json_is_written_whole_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "deep" / "trial.json"
    write_json(path, {"ids": [1, 2, 3], "score": 0.5})
    assert json.loads(path.read_text()) == {"ids": [1, 2, 3], "score": 0.5}
    assert "[ 1, 2, 3 ]" in path.read_text()
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "trial.json"
    write_json(path, {"score": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"score": float("nan")})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_is_not_there_is_none(tmp_path):
    assert open_record(tmp_path / "trial.json") is None


BROKEN = ["", "{", "[]", '{"results": 3}', '{"results": {"base": null}}', "[" * 100_000]
BROKEN += ['{"results": {"base": {"metric": "auc", "score": 7, "seconds": 1}}}']


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_record_is_named_with_its_remedy(tmp_path, text):
    path = tmp_path / "trial.json"
    path.write_text(text)
    with pytest.raises(DataFileError, match="delete it to run the trial again") as caught:
        open_record(path)
    assert str(path) in str(caught.value)


# ---- an experiment of a newcomer -----------------------------------------------------------------


@dataclass(frozen=True)
class Coin(Experiment):
    """How often a coin of each bias shows heads."""

    biases: tuple[float, ...] = (0.25, 0.75)
    throws: int = 10
    trials: int = 2

    def plan(self, data, trials):
        for bias in self.biases:
            for seed in range(trials):
                yield Plan(self, f"coin-{bias}", seed, ("heads",), f"coin-{bias}/seed-{seed}", bias)

    def header(self, plan):
        settings = {"throws": self.throws}
        about = {"dataset": plan.dataset, "observed": plan.observed, "seed": plan.seed}
        return {**about, "settings": settings}

    def run_trial(self, plan):
        score = min(1.0, plan.observed + plan.seed / self.throws)
        result = {"metric": "share", "score": score, "seconds": 0.0}
        return plan.complete(plan.record() or plan.begin(), lambda method: result)

    def summary(self, records, methods=()):
        return {"rows": summarise(scores(records, ["heads"]))}


def test_an_experiment_is_run_summed_up_and_resumed(tmp_path):
    seen = []
    found = run(Coin(), tmp_path, jobs=2, on_trial=lambda *told: seen.append(told))
    assert found.folder == tmp_path and found.files == [tmp_path / "summary.json"]
    assert [row["mean"] for row in found.content["rows"]] == pytest.approx([0.3, 0.8])
    assert seen[0] == (0, 4, "starting") and [done for done, _, _ in seen] == [0, 1, 2, 3, 4]
    assert found.to_json() == {
        "experiment": "coin",
        "folder": str(tmp_path),
        "rows": found.content["rows"],
    }
    summary = json.loads(found.files[0].read_text())
    assert summary["experiment"] == "coin" and summary["command"].startswith("run(Coin(biases=")
    records = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/trial.json")}
    assert len(records) == 4
    less = run(Coin(biases=(0.25,)), tmp_path, trials=1, on_trial=lambda *told: seen.append(told))
    assert seen[-1] == (1, 1, "nothing left to run")
    assert [row["n_trials"] for row in less.content["rows"]] == [1]  # its own trials
    assert json.loads(less.files[0].read_text())["rows"] == found.content["rows"]  # all of them
    assert {path: path.stat().st_mtime_ns for path in records} == records


def test_a_method_without_a_score_is_named_and_not_recorded(tmp_path):
    plan = Plan(Coin(), "digits", 3, ("base",), "digits", folder=tmp_path)
    with pytest.raises(
        OpenFATEError, match=r"base has no auc .* digits, seed 3: .* one class alone"
    ):
        plan.complete({"results": {}}, lambda _: {"metric": "auc", "score": float("nan")})
    assert not plan.path.exists()


def test_other_settings_are_refused_by_name(tmp_path):
    run(Coin(biases=(0.25,)), tmp_path, jobs=1)
    with pytest.raises(InputError) as caught:
        run(Coin(biases=(0.25,), throws=3), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/coin-0.25/seed-0/trial.json was made with throws=10, not 3: "
        "choose another folder, or delete that one."
    )


@pytest.mark.parametrize("changes", [{"trials": 0}, {"jobs": 0}])
def test_no_trials_and_no_processes_are_refused(tmp_path, changes):
    with pytest.raises(InputError, match="=0: choose a number from 1 up"):
        run(Coin(), tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["file", "file/deep"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path, out):
    (tmp_path / "file").touch()
    with pytest.raises(DataFileError, match="cannot be written"):
        run(Coin(), tmp_path / out)


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_jobs_come_back_with_their_results(n_jobs):
    assert sorted(run_jobs(square, [3, 1, 2], n_jobs)) == [(1, 1), (2, 4), (3, 9)]


def test_no_jobs_start_no_process():
    assert list(run_jobs(square, [], 2)) == []


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(InputError, match=r"number [12] is bad\."):  # whichever is seen first
        list(run_jobs(fail, [1, 2], 1))


def test_a_killed_worker_is_reported_with_a_remedy():
    with pytest.raises(OpenFATEError, match=r"worker process was killed .* fewer jobs"):
        list(run_jobs(die, [1], 1))


def test_summary_has_mean_and_spread_over_trials():
    def record(score):
        result = {"metric": "accuracy", "score": score, "seconds": 2.0}
        seed = round(10 * score)
        return {"dataset": "gene", "observed": 0.3, "seed": seed, "results": {"base": result}}

    def rows(*records):
        return summarise(scores(records, ["fate", "base"]))

    (row,) = rows(record(0.5), record(0.7))
    assert rows(record(0.7), record(0.5)) == [row]  # in any order
    assert row["method"] == "base"
    assert row["mean"] == pytest.approx(0.6)
    assert row["std"] == pytest.approx(0.1414, abs=1e-4)
    assert row["n_trials"] == 2


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    with only_writer(tmp_path), pytest.raises(InputError, match="another process is writing there"):
        with only_writer(tmp_path):
            pass
    with only_writer(tmp_path):  # free again
        pass


def test_only_half_written_files_of_ours_are_swept(tmp_path):
    ours = tmp_path / "deep" / f".trial.json.{'0a' * 16}"
    theirs = tmp_path / ".eslintrc.json.bak"
    ours.parent.mkdir()
    for path in (ours, theirs):
        path.write_text("")
    with only_writer(tmp_path):
        assert theirs.exists() and not ours.exists()
