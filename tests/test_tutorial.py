"""The tutorial's commands print what the tutorial says.

`OPENFATE_DATA=DIR python tests/test_tutorial.py` writes what they print now into it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial-flights.md"
BLOCK = re.compile(r"```console\n\$ (.*?[^\\])\n(.*?)```", flags=re.DOTALL)


def flights():
    folder = os.environ.get("OPENFATE_DATA")
    path = Path(folder or "", "flights", "flights.csv.gz")
    if not folder or not path.is_file():
        pytest.skip("OPENFATE_DATA has no flights/flights.csv.gz")
    return path


def output_of(command, folder):
    """What a command of the tutorial prints, run in a folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.sub(r" +\n", "\n", done.stdout)


def without_seconds(text):
    return re.sub(r"in \d+ s\b", "in some s", text)


def test_the_tutorial_is_made_of_commands():
    commands = [command.split()[:2] for command, _ in BLOCK.findall(TUTORIAL.read_text())]
    used = [words[1] for words in commands if words[0] == "openfate"]
    assert used == ["fit", "inspect", "predict", "evaluate", "observe", "inspect", "evaluate"]


@pytest.mark.slow
def test_every_command_prints_what_the_tutorial_shows(tmp_path):
    (tmp_path / "flights.csv.gz").symlink_to(flights().absolute())
    for command, expected in BLOCK.findall(TUTORIAL.read_text()):
        assert without_seconds(output_of(command, tmp_path)) == without_seconds(expected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as here:
        Path(here, "flights.csv.gz").symlink_to(flights().absolute())
        text = BLOCK.sub(
            lambda block: f"```console\n$ {block[1]}\n{output_of(block[1], here)}```",
            TUTORIAL.read_text(),
        )
    TUTORIAL.write_text(text)
