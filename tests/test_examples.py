"""Every example runs as it stands, is short, and shows what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def output_of(name, capsys):
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    return capsys.readouterr().out


def test_examples_are_numbered_from_one():
    assert [path.name[:3] for path in EXAMPLES] == ["01_", "02_", "03_", "04_", "05_", "06_"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    assert f"python examples/{path.name}" in text


def test_quickstart_shows_that_new_columns_are_worth_something(capsys):
    text = output_of("01_quickstart.py", capsys)
    used = float(re.search(r"with the new columns +([0-9.]+)", text)[1])
    dropped = float(re.search(r"without them +([0-9.]+)", text)[1])
    assert used > dropped + 0.01
    assert "2 new, 0 missing" in text


def test_own_table_shows_policies_a_report_and_a_bundle(capsys):
    text = output_of("02_own_table.py", capsys)
    assert "8 columns known (8 with nothing new), 3 new, 0 missing" in text
    assert "refused: " in text
    assert "vocabulary-" in text
    assert "the same probabilities after loading: True" in text


def test_streaming_shows_that_observed_rows_help(capsys):
    text = output_of("03_streaming.py", capsys)
    before, after = (float(x) for x in re.findall(r"day 1, .*observed +([0-9.]+)", text))
    assert after > before + 0.01
    assert float(re.search(r"their labels too +([0-9.]+)", text)[1]) > before + 0.01
    assert "row by row as in a batch    True" in text
    assert "absorbed 8 features" in text


def test_regression_and_labels_beat_a_constant(capsys):
    text = output_of("04_regression_and_multilabel.py", capsys)
    error, _, of_mean = map(
        float, re.search(r"error: (\S+), .* (\S+), of the mean (\S+)", text).groups()
    )
    assert error < of_mean
    assert min(map(float, re.findall(r"(?:even|four): ([0-9.]+)", text))) > 0.75


def test_click_logs_are_resumed_exactly_and_every_part_is_scored(capsys):
    text = output_of("05_click_logs.py", capsys)
    assert "the same as without a kill: True" in text
    scores = re.findall(r"T(\d): AUC ([0-9.]+) with new features, ([0-9.]+) without", text)
    assert [int(part) for part, *_ in scores] == list(range(1, 9))
    assert min(float(score) for _, *both in scores for score in both) > 0.65


def test_a_service_uses_what_is_new_and_survives_a_crash(capsys):
    text = output_of("06_service.py", capsys)
    assert "unknown: ['campaign']" in text
    used, ignored = map(float, re.search(r"purchase: (\S+) with .* (\S+) without", text).groups())
    assert used > ignored + 0.05
    assert "campaign=campaign 1" in text
    assert "the same after a crash: True" in text
