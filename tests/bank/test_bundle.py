"""A bundle is whole, verified, and runs no code; a crash leaves the old one or the new one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from bundle_writer import add_one, make, processes, write_for_ever

from openfate.bank import read_bundle
from openfate.bank.bundle import FORMAT, write_bundle
from openfate.errors import DataFileError, InputError
from openfate.estimators import FATEClassifier, load


def numbers(path) -> set[float]:
    bundle = read_bundle(path)
    return {
        float(bundle.schema["number"]),
        float(bundle.vocabulary["id"][0]),
        float(bundle.meta["number"]),
        *bundle.state["sums"].tolist(),
    }


def test_a_bundle_comes_back_as_it_was(tmp_path):
    write_bundle(make(5), tmp_path / "model")
    bundle = read_bundle(tmp_path / "model")
    assert numbers(tmp_path / "model") == {5.0}
    assert bundle.weights["W"].dtype == np.float64 and bundle.estimator is None
    assert bundle.meta["format"] == FORMAT == 2 and "numpy" in bundle.meta["versions"]


def test_an_existing_bundle_needs_overwrite_and_unchanged_files_stay(tmp_path):
    path = tmp_path / "model"
    write_bundle(make(1), path)
    with pytest.raises(InputError, match="overwrite"):
        write_bundle(make(2), path)
    weights = next(path.glob("weights-*"))
    before = weights.stat().st_mtime_ns
    write_bundle(make(2), path, overwrite=True)
    assert numbers(path) == {2.0}
    assert weights.stat().st_mtime_ns == before  # the same content has the same name
    assert len(list(path.iterdir())) == 6  # four files, meta.json and the lock: nothing old


def test_nothing_but_a_bundle_is_ever_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        write_bundle(make(), tmp_path / "file", overwrite=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"letter\.txt"):
        write_bundle(make(), tmp_path / "folder", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "meta.json").write_text('{"name": "not ours"}')
    with pytest.raises(DataFileError, match="not that of a bundle"):
        write_bundle(make(), tmp_path / "other", overwrite=True)
    with pytest.raises(InputError, match="no folder"):
        write_bundle(make(), tmp_path / "missing" / "model")


@pytest.mark.parametrize("role", ["schema", "vocabulary", "weights", "state"])
def test_a_truncated_changed_or_missing_file_is_named(tmp_path, role):
    path = tmp_path / "model"
    write_bundle(make(), path)
    file = next(path.glob(f"{role}-*"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(DataFileError, match=f"the {role} file .* truncated or was changed"):
        read_bundle(path)
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(DataFileError, match=role):
        read_bundle(path)
    file.unlink()
    with pytest.raises(DataFileError, match="is missing"):
        read_bundle(path)


def test_meta_that_is_foreign_changed_or_newer_is_refused(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(DataFileError, match="no such folder"):
        read_bundle(path)
    path.mkdir()
    with pytest.raises(DataFileError, match=r"no meta\.json"):
        read_bundle(path)
    write_bundle(make(), path)
    text = (path / "meta.json").read_text()
    for broken in ("", "[]", "{", '{"format": "x"}', "[" * 100_000, text[:-20]):
        (path / "meta.json").write_text(broken)
        with pytest.raises(DataFileError, match="damaged"):
            read_bundle(path)
    (path / "meta.json").write_text(text.replace('"number": 0', '"number": 1'))
    with pytest.raises(DataFileError, match="was changed"):
        read_bundle(path)
    (path / "meta.json").write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(DataFileError, match="upgrade OpenFATE"):
        read_bundle(path)


def test_meta_cannot_lead_out_of_the_folder(tmp_path):
    from openfate.bank.bundle import _digest

    path = tmp_path / "model"
    write_bundle(make(), path)
    meta = json.loads((path / "meta.json").read_text())
    meta["files"]["state"]["name"] = "../secret"
    meta["digest"] = _digest(meta)
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataFileError, match="damaged"):
        read_bundle(path)


def test_strays_of_a_crash_are_swept_by_the_next_writer_and_nothing_by_a_reader(tmp_path):
    path = tmp_path / "model"
    write_bundle(make(), path)
    old = next(path.glob("state-*"))
    content = old.read_bytes()
    write_bundle(make(1), path, overwrite=True)
    old.write_bytes(content)  # as if a crash had left it
    half = path / f".meta.json.{'0' * 32}"
    half.write_bytes(b"")
    mine = [path / "README.txt", path / "state-0123456789abcdef.safetensors"]
    for file in mine:  # the second looks like one of ours, and is not what its name says
        file.write_text("a note of the owner")
    before = sorted(path.iterdir())
    (path / ".lock").unlink()
    read_bundle(path)
    assert sorted(path.iterdir()) == [file for file in before if file.name != ".lock"]
    write_bundle(make(2), path, overwrite=True)
    assert not old.exists() and not half.exists() and all(file.exists() for file in mine)


@pytest.mark.parametrize("n_kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_writer_leaves_the_old_or_the_new_bundle(tmp_path, n_kills):
    path = tmp_path / "model"
    write_bundle(make(0, 20_000), path)
    rng = random.Random(0)
    seen = set()
    for round_ in range(n_kills):
        writer = processes.Process(target=write_for_ever, args=(str(path), 20_000, 1000 * round_))
        writer.start()
        while json.loads((path / "meta.json").read_text())["number"] <= 1000 * round_:
            time.sleep(0.01)  # until it has begun
        time.sleep(rng.uniform(0, 0.05))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        found = numbers(path)
        assert len(found) == 1  # every file is of one and the same version
        seen |= found
    assert len(seen) == n_kills


def test_readers_never_see_a_torn_bundle(tmp_path):
    path = tmp_path / "model"
    write_bundle(make(0, 20_000), path)
    writer = processes.Process(target=write_for_ever, args=(str(path), 20_000, 0), daemon=True)
    writer.start()
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert len(numbers(path)) == 1
    finally:
        writer.kill()
        writer.join()


def test_two_writers_lose_nothing(tmp_path):
    path = tmp_path / "model"
    write_bundle(make(0), path)
    writers = [processes.Process(target=add_one, args=(str(path), 20)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert numbers(path) == {60.0}


def test_a_fresh_process_predicts_the_same_bytes(tmp_path):
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({"a": rng.normal(size=80), "b": rng.choice(["x", "y", "z"], 80)})
    model = FATEClassifier(epochs=5).fit(rows, rows["b"] == "x")
    later = rows.with_columns(c=pl.Series(rng.choice(["p", "q"], 80)))
    model.observe(later[:30])
    model.save(tmp_path / "model")
    later.write_parquet(tmp_path / "later.parquet")
    code = (
        "import sys, polars as pl; from openfate import load;"
        "p = load(sys.argv[1]).predict_proba(pl.read_parquet(sys.argv[2]));"
        "sys.stdout.buffer.write(p.tobytes())"
    )
    command = [sys.executable, "-c", code, tmp_path / "model", tmp_path / "later.parquet"]
    found = subprocess.run(command, capture_output=True, check=True).stdout
    assert found == model.predict_proba(later).tobytes()


def test_a_bundle_of_parts_that_do_not_fit_is_refused(tmp_path):
    write_bundle(make(), tmp_path / "model")
    with pytest.raises(DataFileError, match="do not fit together"):
        load(tmp_path / "model")


def test_a_bundle_of_format_one_is_read_without_what_its_late_labels_taught():
    """Means over single features, which nothing uses any more."""
    folder = Path(__file__).parents[1] / "golden" / "bundles"
    with pytest.warns(UserWarning, match="what late labels taught it is not carried over; observe"):
        model = load(folder / "auto")
    bank = model.bank_
    assert read_bundle(folder / "auto").meta["format"] == 1
    assert bank.mixture.n_labels == 0 and bank.evidence.state.count.sum() > 0
    assert not any("labelled" in name for name in bank.evidence.to_arrays())
