"""`openfate experiment`: a command for each experiment, made of its fields and docstring."""

from dataclasses import fields

import pytest

from openfate_lab import experiments
from openfate_lab.experiments import EXPERIMENTS

SMALL = {
    "ablation": ["--variants", "full,joint", "--epochs", "1", "--trials", "1"],
    "map": ["--epochs", "1", "--trials", "1"],
    "generalization": ["--model", "theory", "--kept", "0.5", "--steps", "2", "--trials", "2"],
}


@pytest.mark.parametrize("command", SMALL)
def test_each_prints_one_json_object_and_leaves_files(tmp_path, openfate, command):
    run = ("experiment", command, "--datasets", "digits", "--out", str(tmp_path), "--jobs", "1")
    content = openfate(*run, *SMALL[command], "--json")
    assert content["experiment"] == command
    keys = {"dataset", "observed", "method", "metric", "mean", "std", "n_trials", "seconds"}
    assert all(keys <= set(row) for row in content["rows"])
    records = {path: path.read_bytes() for path in tmp_path.glob("**/trial.json")}
    assert "digits" in openfate(*run, *SMALL[command])  # now as a table, and nothing is run again
    assert {path: path.read_bytes() for path in records} == records
    for name in ("summary.json", f"{command}.png", f"{command}.svg"):
        (found,) = tmp_path.glob(f"*/{name}")
        assert found.stat().st_size > 500


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_field_is_a_flag_with_its_text_and_default(openfate, name):
    """The flags are read from the source: here they are those of the class itself."""
    text = openfate("experiment", name.lower(), "--help")
    words, text = set(text.split()), "".join(text.split())
    for field in fields(getattr(experiments, name)):
        assert f"--{field.name.replace('_', '-')}" in words
        if isinstance(field.default, tuple) and field.default:
            assert f"[default:{','.join(map(str, field.default))}" in text
    assert {"--out", "--json"} <= words
    assert ({"--jobs", "--data"} <= words) == (name != "Scalability")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["ablation", "--variants", "joined"], "did you mean 'joint'?"),
        (["ablation", "--observed", "half"], "--observed half"),
        (["map", "--perplexity", "0"], "perplexity=0.0"),
        (["generalization", "--kept", "half"], "--kept half: give numbers with commas"),
        (["generalization", "--model", "theories"], "--model theories: choose fate or theory."),
    ],
)
def test_bad_flags_are_refused_in_one_line(tmp_path, refused, arguments, part):
    out = tmp_path / "out"
    assert part in refused("experiment", *arguments, "--datasets", "digits", "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ('{"dataset": "digits", "resul', "is not JSON"),
        ('{"dataset": "digits", "observed": 0.5, "seed": 0}', "results is missing"),
        ('{"results": {}, "dataset": "x", "observed": "half"}', "observed is 'half', not a number"),
    ],
)
def test_a_cut_record_is_refused_in_one_line_that_names_it(tmp_path, refused, text, part):
    path = tmp_path / "default-epochs=1" / "digits" / "observed-0.5" / "seed-0" / "trial.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    run = ("uci", "--datasets", "digits", "--observed", "0.5", "--trials", "1", "--epochs", "1")
    line = refused("experiment", *run, "--out", str(tmp_path))
    assert f"{path}: {part}" in line and "delete it to run the trial again" in line
    assert path.read_text() == text


def test_a_click_record_without_its_parts_is_refused(tmp_path, refused):
    log = ("--datasets", "synthetic", "--rows", "3000", "--features", "500")
    run = ("experiment", "ctr", *log, "--backbones", "nn", "--trials", "1", "--out", str(tmp_path))
    kind = "nfold-n_rows=3000-n_features=500"
    path = tmp_path / "synthetic" / "nn" / kind / "seed-0" / "trial.json"
    path.parent.mkdir(parents=True)
    scores = '{"metric": "auc", "score": 0.5, "seconds": 1, "log_loss": 1, "splits": {}}'
    about = '"dataset": "synthetic", "backbone": "nn", "seed": 0, "kind": "x", "sweep": null'
    settings = '"settings": {"n_kept": 1, "batch_rows": 2}, "new_cells": {"T1": 0.5}'
    path.write_text(f'{{{about}, {settings}, "results": {{"base": {scores}}}}}')
    assert f"{path}: results.base.splits.T1 is missing" in refused(*run)
