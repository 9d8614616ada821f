"""`openfate fit` on logs in files: kill -9 at any moment, and what is refused or kept."""

from __future__ import annotations

import gzip
import resource
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from interrupted import interrupted

from cli.tables import digest, process

# Small pieces and a checkpoint at every epoch, so that a short log has many moments to die in.
SMALL = (
    "import openfate.estimators.data as d, openfate.estimators.checkpoints as c; "
    "d.PART_ROWS = 100; c._SECONDS = 0.0"
)
MOMENTS = [
    ("openfate.table.cache", "RowCache._write_encoder", 2),
    ("openfate.table.disk", "RowWriter.append", 3),
    ("openfate.training.engine", "Engine.learn", 5),
    ("openfate.bank.bank", "FeatureBank.save", 1),
]


@pytest.fixture
def clicks(tmp_path):
    rng, n = np.random.default_rng(0), 420
    log = pl.DataFrame(
        {
            "ad": [f"a{i}" for i in rng.integers(0, 40, n)],
            "price": rng.normal(size=n).round(3),
            "hour": np.sort(rng.integers(14102100, 14102124, n)),
            "click": rng.integers(0, 2, n),
        }
    )
    (tmp_path / "clicks").mkdir()
    for part in range(3):
        log[part * 140 : part * 140 + 140].write_csv(tmp_path / "clicks" / f"{part}.csv")
    return tmp_path / "clicks"


def words(clicks, out, *flags, strategy="fate", backbone="deepfm"):
    return ("fit", clicks, "--target", "click", "--time", "hour", "--strategy", strategy,
            "--backbone", backbone, "--epochs", 8, "--n-draws", 1, "--memory-limit", 0, *flags,
            "--out", out)  # fmt: skip


def kill(moment, arguments):
    code, _, _ = interrupted(*moment, *arguments, sent="SIGKILL", before=SMALL)
    return code == -signal.SIGKILL


def test_a_fit_that_is_killed_goes_on_and_ends_in_the_same_bytes(clicks, tmp_path, openfate):
    openfate(*words(clicks, tmp_path / "one"))
    assert [kill(moment, words(clicks, tmp_path / "two")) for moment in MOMENTS] == [True] * 4
    assert list((tmp_path / "two.work").rglob("training-*/0.safetensors"))
    openfate(*words(clicks, tmp_path / "two"))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert not (tmp_path / "two.work").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "backbone"), [("fate", "mlp"), ("auto", "dcn")])
def test_a_fit_is_killed_ten_times(clicks, tmp_path, openfate, strategy, backbone):
    how = {"strategy": strategy, "backbone": backbone}
    openfate(*words(clicks, tmp_path / "one", **how))
    learn = ("openfate.training.engine", "Engine.learn")
    # WHY before the last: once the bundle is being written nothing is learned any more.
    more = [(*learn, at) for at in (1, 1, 2, 1, 2, 2)]
    moments = [*MOMENTS[:2], *more, *MOMENTS[-1:], *MOMENTS[-1:]]
    killed = [kill(moment, words(clicks, tmp_path / "two", **how)) for moment in moments]
    assert killed == [True] * 10
    openfate(*words(clicks, tmp_path / "two", **how))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_other_arguments_or_files_do_not_go_on(clicks, tmp_path, openfate, refused):
    assert kill(MOMENTS[2], words(clicks, tmp_path / "m"))
    line = refused(*words(clicks, tmp_path / "m", "--lr", 0.1))
    assert "m.work: holds an unfinished fit of other files or settings" in line
    assert "--overwrite to begin anew" in line
    openfate(*words(clicks, tmp_path / "m", "--lr", 0.1, "--overwrite"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks", "m"]


# ---- bad input -----------------------------------------------------------------------------------


def spoil(clicks, how):
    last = clicks / "2.csv"
    if how == "schema":
        last.write_text(last.read_text().replace("price", "cost", 1))
    elif how == "kind":
        last.write_text(last.read_text() + "a1,cheap,14102123,1\n")
    elif how == "target":
        pl.read_csv(last).drop("click").write_csv(last)
    elif how == "gz":
        (clicks / "3.csv.gz").write_bytes(gzip.compress(last.read_bytes())[:-20])
    elif how == "order":
        for path in clicks.iterdir():
            pl.read_csv(path).with_columns(hour=pl.lit("noon")).write_csv(path)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("schema", ["2.csv: the columns change: 'price' is in 0.csv and not in 2.csv"]),
        ("kind", ["2.csv: column 'price' holds values of type String, and Float64"]),
        ("target", ["2.csv: the columns change: 'click' is in 0.csv and not in 2.csv"]),
        ("gz", ["3.csv.gz: not a whole gzip file"]),
        ("order", ["time='hour': the column holds 'noon', which has no order in time"]),
        ("time", ["time='hours': there is no such column; did you mean 'hour'?"]),
    ],
)
def test_a_bad_log_is_one_line_and_nothing_is_written(clicks, tmp_path, refused, how, told):
    spoil(clicks, how)
    flags = ["--time", "hours"] if how == "time" else []
    line = refused(*words(clicks, tmp_path / "m", *flags))
    assert all(text in line for text in told), line
    assert [path.name for path in tmp_path.iterdir()] == ["clicks"]


def test_a_full_disk_is_one_line_and_what_was_done_is_kept(clicks, tmp_path, openfate):
    openfate(*words(clicks, tmp_path / "one"))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    _, errors = process(*words(clicks, tmp_path / "two"), preexec_fn=limit).communicate()
    assert errors.startswith("openfate: ")
    assert "cannot be written (File too large)" in errors
    assert errors.count("\n") == 1
    assert not Path(tmp_path / "two").exists()
    assert (tmp_path / "two.work" / "fit" / "plan.json").exists()
    openfate(*words(clicks, tmp_path / "two"))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
