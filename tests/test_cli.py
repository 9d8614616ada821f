import json
import os
import signal
import subprocess
import sys
import time

import pytest
from interrupted import interrupted

RUN = [sys.executable, "-c", "from openfate.cli import main; main()"]
ROBOT_ROW = ",".join(["1.0"] * 24)


def openfate(*arguments, **environment):
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment}
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, env=env, check=False)


def assert_one_clear_line(done, *parts):
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("openfate: ")
    for part in parts:
        assert part in done.stderr


def robot_folder(tmp_path, text):
    folder = tmp_path / "data" / "uci" / "robot"
    folder.mkdir(parents=True)
    (folder / "sensor_readings_24.data").write_text(text)
    return str(tmp_path / "data")


def uci(tmp_path, *arguments, **environment):
    out = tmp_path / "results"
    done = openfate("experiment", "uci", "--out", str(out), *arguments, **environment)
    return done, out


@pytest.mark.parametrize(
    "command",
    [[], ["experiment"], ["experiment", "uci"], ["experiment", "openworld"], ["demo"], ["fetch"]],
)
def test_help_names_the_flags(command):
    done = openfate(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_help_does_not_import_torch():
    code = (
        "import sys; from openfate.cli import make_app; make_app(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_version_is_the_package_version():
    from openfate import __version__

    assert openfate("--version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--datasets", "robt"], ["robt", "robot"]),
        (
            ["--datasets", "digits", "--methods", "fates"],
            ["methods: 'fates'", "did you mean 'fate'?"],
        ),
        (["--datasets", "digits", "--observed", "1.2"], ["observed", "1.2", "between 0 and 1"]),
        (["--datasets", "digits", "--observed", "0"], ["observed", "0.0", "between 0 and 1"]),
        (["--datasets", "digits", "--observed", "half"], ["--observed half", "0.3,0.5"]),
        (["--datasets", "digits", "--compat", "code"], ["--compat code", "reference"]),
        (["--datasets", "digits", "--novelty", "rows"], ["--novelty rows", "columns"]),
        (["--datasets", "digits", "--set", "epoch=3"], ["--set epoch=3", "epochs"]),
        (["--datasets", "digits", "--set", "lr=fast"], ["--set lr=fast", "a number"]),
        (["--datasets", "digits", "--set", "masking=rows"], ["masking", "rows", "n_fold"]),
        (["--datasets", "digits", "--set", "drop_edge=2"], ["drop_edge", "2"]),
        (["--datasets", ","], ["datasets is empty"]),
        (["--datasets", "digits", "--split-seed", "9" * 30], ["split_seed="]),
    ],
)
def test_bad_flags_give_one_line_and_write_nothing(tmp_path, arguments, parts):
    done, out = uci(tmp_path, *arguments)
    assert_one_clear_line(done, *parts)
    assert not out.exists()


def test_a_missing_data_folder_is_named_with_the_remedy(tmp_path):
    done, out = uci(tmp_path, "--datasets", "gene", "--data", str(tmp_path / "nowhere"))
    assert_one_clear_line(done, str(tmp_path / "nowhere"), "give the folder of the data sets")
    assert not out.exists()


def test_a_missing_file_tells_how_to_fetch_it(tmp_path):
    done, out = uci(
        tmp_path, "--datasets", "gene", OPENFATE_DATA="", OPENFATE_CACHE=str(tmp_path / "cache")
    )
    assert_one_clear_line(done, "openfate fetch gene")
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1.0,2.0,Slight-Left-Turn\n" * 30, ["sensor_readings_24.data", "25"]),
        (f"{ROBOT_ROW},Slight-Left-Turn\n" * 30, ["sensor_readings_24.data", "class"]),
        ("", ["sensor_readings_24.data", "empty"]),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(tmp_path, text, parts):
    done, out = uci(tmp_path, "--datasets", "robot", "--data", robot_folder(tmp_path, text))
    assert_one_clear_line(done, *parts)
    assert not out.exists()


def test_experiment_prints_one_json_object(tmp_path):
    done, out = uci(
        tmp_path, "--datasets", "digits", "--observed", "0.5", "--methods", "base,fate",
        "--trials", "1", "--epochs", "2", "--json",
    )  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    keys = {"dataset", "observed", "method", "metric", "mean", "std", "n_trials", "seconds"}
    assert [row["method"] for row in rows] == ["base", "fate"]
    assert all(set(row) == keys for row in rows)
    assert (out / "default-epochs=2" / "uci.png").stat().st_size > 1000


def test_experiment_prints_a_table_and_the_files(tmp_path):
    arguments = ["--datasets", "digits", "--observed", "0.5", "--methods", "base", "--trials", "1"]
    done, out = uci(tmp_path, *arguments, "--epochs", "1")
    assert done.returncode == 0
    assert "50% observed" in done.stdout
    assert str(out / "default-epochs=1" / "uci.svg") in done.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["demo", "--out", "picture.txt"], ["picture.txt", ".png"]),
        (["demo", "--out", "/no/such/folder/demo.png"], ["/no/such/folder"]),
        (["fetch", "gen"], ["gen", "gene"]),
        (["fetch", "gene", "--url", "http://127.0.0.1:9/x"], ["http://127.0.0.1:9/x"]),
        (["bench", "train", "--cases", "uci-robots"], ["uci-robots", "uci-robot, uci-github"]),
    ],
)
def test_other_commands_refuse_bad_input_in_one_line(tmp_path, arguments, parts):
    done = openfate(*arguments, OPENFATE_CACHE=str(tmp_path))
    assert_one_clear_line(done, *parts)


def test_equal_shares_count_once_and_settings_come_in_any_order(tmp_path):
    done, _ = uci(
        tmp_path, "--datasets", "digits", "--observed", "0.5,0.50,.5", "--methods", "fate",
        "--trials", "1", "--epochs", "1", "--set", "masking=k_shot", "--set", "n_kept=40", "--json",
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["rows"]
    assert row["n_trials"] == 1


def test_divergence_is_one_line_and_leaves_no_trial(tmp_path):
    arguments = ["--datasets", "digits", "--observed", "0.5", "--methods", "base", "--trials", "1"]
    done, out = uci(tmp_path, *arguments, "--set", "lr=1e12")
    assert done.returncode == 2
    assert "openfate: training diverged: the loss of epoch" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(out.glob("**/*.json")) + list(out.glob("**/*.npz"))


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path):
    command = [*RUN, "experiment", "uci", "--datasets", "digits", "--observed", "0.3,0.5"]
    command += ["--trials", "20", "--epochs", "20", "--jobs", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("**/trial.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "openfate: interrupted;" in errors
    assert "run it again to go on." in errors
    assert "Traceback" not in errors


def test_help_shows_what_stands_in_brackets():
    assert "[env: OPENFATE_DATA]" in openfate("experiment", "uci", "--help").stdout


def test_ctrl_c_in_the_demo_is_one_line_and_writes_nothing(tmp_path):
    done = interrupted(
        "openfate.estimators.fate", "train", 2, "demo", "--out", tmp_path / "demo.png"
    )
    assert done == (130, "", "openfate: interrupted; nothing was written.\n")
    assert list(tmp_path.iterdir()) == []
