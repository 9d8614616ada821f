"""kill -9 at any moment of a command leaves the old bundle or the new one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from openfate.bank import FeatureBank, read_bundle

OPENFATE = [sys.executable, "-c", "from openfate.cli import main; main()"]
FIT = ["--target", "y", "--epochs", "2", "--n-members", "1", "--strategy", "none", "--seed"]


def run(*arguments):
    subprocess.run([*OPENFATE, *map(str, arguments)], check=True, capture_output=True)


def killed(seconds, *arguments):
    """Run a command and kill it after some seconds; True if it was faster."""
    process = subprocess.Popen(
        [*OPENFATE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
        return process.returncode == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return False


@pytest.fixture
def files(tmp_path):
    rows = pl.DataFrame({"a": [str(i % 7) for i in range(60)], "y": [i % 2 for i in range(60)]})
    rows.write_csv(tmp_path / "rows.csv")
    rows.with_columns(b=pl.Series([f"v{i % 5}" for i in range(60)])).write_csv(tmp_path / "new.csv")
    run("fit", tmp_path / "rows.csv", *FIT, 0, "--out", tmp_path / "model")
    return tmp_path


def duration(*arguments):
    started = time.monotonic()
    run(*arguments)
    return time.monotonic() - started


@pytest.mark.slow
def test_observe_is_killed_50_times(files):
    model, rows = files / "model", files / "new.csv"
    longest = duration("observe", model, rows)
    rng, n_rows = random.Random(0), FeatureBank.load(model).n_rows
    for _ in range(50):
        # Most of a run is start-up; what matters happens in its second half.
        killed(rng.uniform(0.4, 1.1) * longest, "observe", model, rows)
        found = FeatureBank.load(model).n_rows
        assert found in (n_rows, n_rows + 60)
        n_rows = found


@pytest.mark.slow
def test_fit_is_killed_50_times(files):
    model, rows = files / "model", files / "rows.csv"
    longest = duration("fit", rows, *FIT, 0, "--out", model, "--overwrite")
    rng = random.Random(1)
    versions = {read_bundle(model).meta["params"]["random_state"]}
    for seed in range(1, 51):
        before = read_bundle(model).meta["params"]["random_state"]
        killed(
            rng.uniform(0.4, 1.1) * longest,
            *("fit", rows, *FIT, seed, "--out", model, "--overwrite"),
        )
        FeatureBank.load(model)  # whole, whichever it is
        found = read_bundle(model).meta["params"]["random_state"]
        assert found in (before, seed)
        versions.add(found)
    assert len(versions) > 1  # some were faster than the signal
