"""--help, --json, --config."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from cli.tables import run
from openfate.errors import InputError
from openfate.training import Settings
from openfate_lab.cli.experiment import read_settings
from openfate_lab.experiments.click_settings import ClickSettings

COMMANDS = (
    "fit predict observe evaluate inspect export demo fetch prepare report experiment bench".split()
)


# ---- help ----------------------------------------------------------------------------------------


def test_help_lists_the_commands(openfate):
    lines = openfate("--help").split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in lines if line.strip()] == [*COMMANDS]


@pytest.mark.parametrize("command", ["fit", "predict", "observe", "evaluate", "inspect", "export"])
def test_every_table_command_takes_json_and_config(openfate, command):
    text = openfate(command, "--help")
    assert "--json" in text
    assert "--config" in text


@pytest.mark.parametrize("command", [[], ["fit"], ["experiment", "uci"], ["demo"], ["bench"]])
def test_help_loads_nothing_heavy(command):
    """It answers in a fifth of a second; each of these would take longer than that."""
    code = (
        "import atexit, sys; heavy = {'torch', 'polars', 'numpy', 'sklearn', 'matplotlib'}\n"
        "atexit.register(lambda: print(heavy & set(sys.modules), file=sys.stderr))\n"
        "from openfate.cli import main; main()"
    )
    words = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout and done.stderr.strip() == "set()"


# ---- --config ------------------------------------------------------------------------------------


def test_a_config_file_holds_flags_and_the_command_line_wins(tables, tmp_path, openfate):
    (tmp_path / "fit.toml").write_text(
        'target = "rich"\nexclude = ["id"]\nepochs = 3\nwidth = 8\nhidden = [8, 4]\n'
        f'out = "{tmp_path / "m"}"\nkinds = {{ age = "categorical" }}\n'
        'strategy = "fate"\njson = true\nnew-columns = ["ignore", "city=warn"]\n'
    )
    text = openfate("fit", tables / "train.csv", "--config", tmp_path / "fit.toml", "--epochs", 2)
    result = json.loads(text)
    assert result["training"]["epochs"] == 2
    assert result["fields"] == {"job": "categorical", "age": "categorical", "zip": "categorical"}
    policies = openfate("inspect", tmp_path / "m", "--json")["policies"]
    assert policies["new_columns"] == {"*": "ignore", "city": "warn"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("epoch = 3", ["fit has no flag 'epoch'", "did you mean epochs?"]),
        ("zebra = 3", ["fit has no flag 'zebra'", "flags: ", "epochs"]),
        ("epochs = true", ["epochs = True", "a value, not true or false"]),
        ("overwrite = 'yes'", ["overwrite = 'yes'", "true or false"]),
        ("epochs =", ["not TOML"]),
    ],
)
def test_a_bad_config_is_one_line(tables, tmp_path, refused, text, parts):
    (tmp_path / "fit.toml").write_text(text)
    line = refused("fit", tables / "train.csv", "--config", tmp_path / "fit.toml")
    for part in ["--config", *parts]:
        assert part in line


def test_a_missing_config_is_named(tables, refused):
    assert "cannot be read" in refused("fit", tables / "train.csv", "--config", "/no/fit.toml")


def test_the_tutorials_config_is_one(tables, tmp_path, capsys):
    """It names columns of another table, which is the only thing wrong with it here."""
    text = (Path(__file__).parents[2] / "docs" / "tutorial-flights.md").read_text()
    (tmp_path / "fit.toml").write_text(re.search(r"```toml\n(.*?)```", text, flags=re.DOTALL)[1])
    assert run("fit", tables / "train.csv", "--config", tmp_path / "fit.toml", "--out", "m") == 2
    assert "there is no column 'arr_delay'" in capsys.readouterr().err


def test_a_star_stands_for_the_other_columns():
    from openfate.cli.flags import policy_in

    assert policy_in("--new-values", ["*=warn", "job=error"], "ignore") == {
        "*": "warn",
        "job": "error",
    }
    assert policy_in("--new-values", ["job=error"], "ignore") == {"*": "ignore", "job": "error"}


@pytest.mark.parametrize(("command", "settings"), [("uci", Settings), ("ctr", ClickSettings)])
def test_help_lists_every_name_that_may_be_set(openfate, command, settings):
    text = " ".join(openfate("experiment", command, "--help").split())
    names = re.search(r"--set .*?Names: ([^.]*)\.", text)[1]
    assert names.split(", ") == [field.name for field in fields(settings)]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("n_kept=3", {"n_kept": 3}),
        ("prior_rows=0.5", {"prior_rows": 0.5}),
        ("prior_rows=2", {"prior_rows": 2}),
        ("hidden=8,4", {"hidden": (8, 4)}),
        ("normalize=false", {"normalize": False}),
    ],
)
def test_a_setting_is_read_as_what_it_is(given, read):
    assert read_settings(ClickSettings(), [given]) == read


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("prior_rows=few", "--set prior_rows=few: not a number."),
        ("epochs=2.5", "--set epochs=2.5: not an integer."),
        ("normalize=3", "--set normalize=3: not true or false."),
    ],
)
def test_a_setting_of_another_kind_is_refused(given, message):
    with pytest.raises(InputError) as error:
        read_settings(ClickSettings(), [given])
    assert str(error.value) == message
