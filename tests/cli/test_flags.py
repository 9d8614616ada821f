"""--help, --json, --config."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import typer
import typer.testing

from cli.tables import run
from openfate.cli import Parameter, Signature, make_command
from openfate.cli.flags import make_flag
from openfate.errors import InputError
from openfate.training import Settings
from openfate_lab.cli.experiment import read_settings
from openfate_lab.experiments.click_settings import ClickSettings

COMMANDS = (
    "fit predict observe merge evaluate inspect export prepare serve"
    " demo fetch report experiment bench"
).split()


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
        ("epoch = 3", ["fit has no flag 'epoch'", "did you mean 'epochs'?"]),
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


# ---- types -----------------------------------------------------------------------------------


def read(kind, given, default=None):
    return make_flag(Parameter("new_values", kind, default)).read(given)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Literal["auto", "none"], "none", "none"),
        (tuple[int, ...], "64, 64,32", (64, 64, 32)),
        (Sequence[str], "a, b,,a", ("a", "b")),
        (tuple[float, ...] | None, "", ()),
        (Mapping[str, float], ["a=1", "b=2,c=3"], {"a": 1.0, "b": 2.0, "c": 3.0}),
        (str | Mapping[str, str], ["warn"], "warn"),
        (str | Mapping[str, str], ["*=warn", "job=error"], {"*": "warn", "job": "error"}),
        (str | Mapping[str, str], ["warn,job=error"], {"*": "warn", "job": "error"}),
        (str | Mapping[str, str], ["a=b=warn"], {"a=b": "warn"}),
        (str | Path | None, Path("x"), Path("x")),
        (tuple[float, ...] | Literal["all"], "all", "all"),
        (tuple[float, ...] | Literal["all"], "1,2", (1.0, 2.0)),
    ],
)
def test_a_text_is_read_as_what_the_parameter_is(kind, given, value):
    assert read(kind, given) == value
    assert read(kind, None, default="as it was") == "as it was"


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Literal["auto", "none"], "all", "--new-values all: choose auto or none."),
        (Literal["a", "b", "c"] | None, "d", "--new-values d: choose a, b or c."),
        (tuple[float, ...], "half", "--new-values half: give numbers with commas between them, "
         "such as 0.3,0.5."),
        (Mapping[str, int], ["a=x"], "--new-values a=x: 'x' is not an integer; give one."),
        (Mapping[str, int], ["a"], "--new-values a: give NAME=WORD, several with commas."),
        (str | Mapping[str, str], ["a,b"], "--new-values a,b: give one word for all others, or "
         "NAME=WORD, several with commas."),
    ],
)  # fmt: skip
def test_a_text_that_is_something_else_is_refused(kind, given, message):
    with pytest.raises(InputError) as error:
        read(kind, given)
    assert str(error.value) == message


def test_a_type_that_no_text_can_give_is_an_error_of_the_program():
    with pytest.raises(TypeError, match="cannot be a flag"):
        make_flag(Parameter("callback", Callable[[], None]))


def test_flags_default_to_what_the_parameters_do():
    parameters = (
        Parameter("datasets", tuple[str, ...], ("gene", "robot")),
        Parameter("normalize", bool, True),
        Parameter("set_", str | Mapping[str, str], "none"),
        Parameter("raw", Path, positional=True),
    )
    app, given = typer.Typer(rich_markup_mode=None), []
    app.command()(
        make_command(
            Signature("run", "Run it.", parameters),
            lambda **values: given.append(values) or ({"a": 1}, ["told"]),
        )
    )
    invoke = partial(typer.testing.CliRunner().invoke, app)
    assert invoke(["here"]).output == "told\n"
    assert invoke(["here", "--no-normalize", "--datasets", "gene", "--json"]).output == '{"a": 1}\n'
    usual = {"datasets": ("gene", "robot"), "normalize": True, "set_": "none", "raw": Path("here")}
    assert given == [usual, usual | {"datasets": ("gene",), "normalize": False}]
    text = invoke(["--help"]).output
    for part in ("Run it.", "RAW", "gene,robot", "--normalize", "--no-normalize", "--set", "none"):
        assert part in text


# ---- settings of experiments -------------------------------------------------------------------


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
