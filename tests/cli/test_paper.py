"""The commands of the paper's other experiments, each in one small run."""

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["ablation", "--variants", "joined"], "Did you mean joint?"),
        (["ablation", "--observed", "half"], "--observed half"),
        (["map", "--perplexity", "0"], "--perplexity 0.0"),
        (["generalization", "--kept", "half"], "--kept half: give numbers with commas"),
        (["generalization", "--model", "theories"], "Did you mean theory?"),
    ],
)
def test_bad_flags_are_refused_in_one_line(tmp_path, refused, arguments, part):
    out = tmp_path / "out"
    assert part in refused("experiment", *arguments, "--datasets", "digits", "--out", str(out))
    assert not out.exists()
