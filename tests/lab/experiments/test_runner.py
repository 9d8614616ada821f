import json
import os
import signal

import pytest

from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate_lab.experiments.runner import (
    check_same,
    only_writer,
    open_record,
    run_jobs,
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


def test_other_settings_are_refused_by_name(tmp_path):
    record = {"settings": {"epochs": 200, "lr": 0.01}}
    with pytest.raises(InputError) as caught:
        check_same(tmp_path / "trial.json", record, {"settings": {"epochs": 3, "lr": 0.01}})
    assert str(caught.value) == (
        f"{tmp_path}/trial.json was made with epochs=200, not 3: "
        "choose another --out, or delete that folder."
    )


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_jobs_come_back_with_their_results(n_jobs):
    assert sorted(run_jobs(square, [3, 1, 2], n_jobs)) == [(1, 1), (2, 4), (3, 9)]


def test_no_jobs_start_no_process():
    assert list(run_jobs(square, [], 2)) == []


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(InputError, match=r"number [12] is bad\."):  # whichever is seen first
        list(run_jobs(fail, [1, 2], 1))


def test_a_killed_worker_is_reported_with_a_remedy():
    with pytest.raises(OpenFATEError, match=r"worker process was killed .* fewer --jobs"):
        list(run_jobs(die, [1], 1))


def test_summary_has_mean_and_spread_over_trials():
    def record(score):
        result = {"metric": "accuracy", "score": score, "seconds": 2.0}
        seed = round(10 * score)
        return {"dataset": "gene", "observed": 0.3, "seed": seed, "results": {"base": result}}

    (row,) = summarise([record(0.5), record(0.7)], ["fate", "base"])
    assert summarise([record(0.7), record(0.5)], ["fate", "base"]) == [row]  # in any order
    assert row["method"] == "base"
    assert row["mean"] == pytest.approx(0.6)
    assert row["std"] == pytest.approx(0.1414, abs=1e-4)
    assert row["n_trials"] == 2


def test_only_half_written_files_of_ours_are_swept(tmp_path):
    ours = tmp_path / "deep" / f".trial.json.{'0a' * 16}"
    theirs = tmp_path / ".eslintrc.json.bak"
    ours.parent.mkdir()
    for path in (ours, theirs):
        path.write_text("")
    with only_writer(tmp_path):
        assert theirs.exists() and not ours.exists()
