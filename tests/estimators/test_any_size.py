"""One path from any size of table to the same bundle: a frame, a scan, a dataset, files, disk."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import polars as pl
import pyarrow.dataset
import pytest
from cli.tables import digest
from sklearn.base import clone

from openfate import FATEClassifier, FATERegressor, load
from openfate.errors import DataFileError, InputError
from openfate.estimators.target import split_rows
from openfate.table import disk

BACKBONES = ("mlp", "deepfm", "widedeep", "dcn")


def log_of(n_rows, seed):
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 12, n_rows)
    price = rng.normal(size=n_rows).round(2)
    p = 1 / (1 + np.exp(-(site % 3 - 1) * 1.5 - price))
    return pl.DataFrame(
        {
            "site": [f"s{i}" for i in site],
            "ad": [f"a{i}" for i in rng.integers(0, 60, n_rows)],
            "price": [None if i % 17 == 3 else float(x) for i, x in enumerate(price)],
            "hour": np.sort(rng.integers(0, 24 * 30, n_rows)),
            "click": (rng.random(n_rows) < p).astype(int),
        }
    )


LOG = log_of(300, 0)
LATER = log_of(80, 1).with_columns(city=pl.Series(["Rome", "Oslo", "Bern", "Kiev"] * 20))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    for part in range(3):
        LOG[part * 100 : part * 100 + 100].write_parquet(tmp_path / "logs" / f"{part}.parquet")
    LOG.write_csv(tmp_path / "log.csv")
    LATER.write_csv(tmp_path / "later.csv")
    return tmp_path


@pytest.fixture
def on_disk(monkeypatch):
    """No selection of rows is so small that it is read at once."""
    monkeypatch.setattr(disk, "_LOADED_ROWS", 16)


def sources(folder):
    logs = folder / "logs"
    return {
        "scan": pl.scan_parquet(logs / "*.parquet"),
        "dataset": pyarrow.dataset.dataset(logs),
        "folder": str(logs),
        "paths": sorted(logs.iterdir()),
        "csv": folder / "log.csv",
    }


@pytest.mark.parametrize("strategy", ["fate", "auto"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_whole_story_from_a_frame_and_from_disk(folder, on_disk, openfate, strategy, backbone):
    model = FATEClassifier(strategy=strategy, backbone=backbone, epochs=3, n_draws=1, n_members=2)
    frame = clone(model).fit(LOG.drop("click"), LOG["click"])
    stored = clone(model).set_params(memory_limit=0).fit(str(folder / "logs"), "click")
    for estimator, name in ((frame, "frame"), (stored, "stored")):
        estimator.save(folder / name)
    assert digest(folder / "frame") == digest(folder / "stored")
    np.testing.assert_allclose(stored.predict_proba(LATER), frame.predict_proba(LATER), atol=1e-6)
    told = {}
    for name in ("frame", "stored"):
        later, out = folder / "later.csv", folder / f"{name}.parquet"
        openfate("predict", folder / name, later, "--out", out, "--exclude", "click")
        told[name] = [
            pl.read_parquet(out).rows(),
            openfate("observe", folder / name, later, "--exclude", "click", "--json")["rows"],
            openfate("observe", folder / name, later, "--target", "click", "--json")["labels"],
            openfate("evaluate", folder / name, later, "--target", "click", "--json")[
                "new_features"
            ],
            openfate("inspect", folder / name, "--feature", "city=Rome", "--json")["rows"],
            load(folder / name).predict_proba(LATER).round(9).tolist(),
        ]
        table = folder / f"{name}.safetensors"
        openfate("export", folder / name, "--format", "table", "--out", table)
    assert told["frame"] == told["stored"]
    tables = [(folder / f"{name}.safetensors").read_bytes() for name in ("frame", "stored")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", ["scan", "dataset", "folder", "paths", "csv"])
def test_what_rows_come_in_does_not_matter(folder, name):
    model = FATEClassifier(strategy="none", epochs=2, n_members=1, min_count=3, time="hour")
    frame = clone(model).fit(LOG, "click")
    other = clone(model).fit(sources(folder)[name], "click")
    assert other.feature_names_in_.tolist() == ["site", "ad", "price", "hour"]
    assert frame.bank_.meta == other.bank_.meta
    np.testing.assert_array_equal(frame.predict_proba(LATER), other.predict_proba(LATER))


@pytest.mark.parametrize("target", [["click", "dear"], "price"])
def test_labels_and_numbers_by_name(folder, on_disk, target):
    rows = LOG.with_columns(dear=(pl.col("price").fill_null(0) > 0).cast(int)).drop_nulls()
    make = FATERegressor if target == "price" else FATEClassifier
    model = make(strategy="none", epochs=2, n_members=1)
    y = rows[target] if target == "price" else rows[target].to_numpy()
    frame = clone(model).fit(rows.drop(target), y)
    scan = clone(model).set_params(memory_limit=0).fit(rows.lazy(), target)
    np.testing.assert_array_equal(frame.predict(rows), scan.predict(rows))


def test_weights_of_rows_that_are_read_in_batches(folder, on_disk):
    weight = np.arange(300) % 3
    model = FATEClassifier(strategy="none", epochs=2, n_members=1)
    frame = clone(model).fit(LOG, "click", weight)
    stored = clone(model).set_params(memory_limit=0).fit(folder / "log.csv", "click", weight)
    np.testing.assert_array_equal(frame.predict_proba(LOG), stored.predict_proba(LOG))


def test_a_large_frame_goes_to_disk_and_gives_the_same(on_disk):
    model = FATEClassifier(strategy="evidence", epochs=2, n_members=1)
    small, large = clone(model).fit(LOG, "click"), clone(model).set_params(memory_limit=0)
    large.fit(LOG, "click")
    np.testing.assert_array_equal(small.predict_proba(LATER), large.predict_proba(LATER))
    large.observe(LATER, LATER["click"])  # the rows of fit are gone: labels correct it without
    assert large.refit(LOG.drop("click"), LOG["click"]).refit_report_["rows"] == 300


def test_many_validation_rows_are_judged_in_parts(monkeypatch, on_disk):
    model = FATEClassifier(strategy="none", epochs=3, n_members=2)
    whole = clone(model).fit(LOG, "click", np.arange(300) % 5 + 1.0)
    monkeypatch.setattr("openfate.training.sources.PART_ROWS", 7)
    parts = clone(model).fit(LOG, "click", np.arange(300) % 5 + 1.0)
    losses = [[s.validation_loss for s in each.history_.steps] for each in (whole, parts)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


# ---- the cache -----------------------------------------------------------------------------------


def test_a_cache_is_used_again_and_refuses_another_table(folder):
    model = FATEClassifier(strategy="none", epochs=1, n_members=1, cache=folder / "cache")
    first = clone(model).fit(folder / "log.csv", "click").predict_proba(LOG)
    written = (folder / "cache" / "rows" / "ids.bin").stat().st_mtime_ns
    assert (clone(model).fit(folder / "log.csv", "click").predict_proba(LOG) == first).all()
    with pytest.warns(UserWarning, match="training begins anew"):
        clone(model).set_params(epochs=2).fit(folder / "log.csv", "click")
    assert (folder / "cache" / "rows" / "ids.bin").stat().st_mtime_ns == written
    with pytest.raises(InputError, match="cache: holds the rows of another table"):
        clone(model).fit(folder / "logs", "click")
    with pytest.raises(InputError, match="cache: holds the rows of another table"):
        clone(model).fit(folder / "log.csv", "site")


@pytest.mark.parametrize("name", ["scan", "dataset"])
def test_a_query_is_known_by_its_rows(folder, name):
    model = FATEClassifier(strategy="none", epochs=1, n_members=1, cache=folder / "cache")
    clone(model).fit(sources(folder)[name], "click")
    written = (folder / "cache" / "rows" / "ids.bin").stat().st_mtime_ns
    clone(model).fit(sources(folder)[name], "click")
    assert (folder / "cache" / "rows" / "ids.bin").stat().st_mtime_ns == written
    LOG[200:].with_columns(site=pl.lit("s1")).write_parquet(folder / "logs" / "2.parquet")
    with pytest.raises(InputError, match="cache: holds the rows of another table"):
        clone(model).fit(sources(folder)[name], "click")


# ---- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["number", "date", "text"])
def test_validation_rows_are_the_last_in_time(how):
    order = np.random.default_rng(0).permutation(60)
    day = pl.Series(order // 2 + 1)
    times = {
        "number": day,
        "date": pl.DataFrame({"y": 2024, "m": 1, "d": day}).select(pl.date("y", "m", "d")),
        "text": [f"2024-01-{number:02}T07:00" for number in day],
    }[how]
    times = times.to_series() if isinstance(times, pl.DataFrame) else pl.Series(times)
    rows = pl.DataFrame({"a": [str(i % 7) for i in range(60)], "t": times})
    model = FATEClassifier(strategy="none", epochs=1, n_members=1, time="t", exclude=["t"])
    model.fit(rows, [i % 2 for i in range(60)])
    assert model.bank_.meta["n_validation"] == 9
    target = model._training.target
    numbers = day.to_numpy()
    training, spared = split_rows(target, 0.15, 0, times=numbers)
    assert numbers[training].max() <= numbers[spared].min()


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (["noon"] * 60, "holds 'noon', which has no order in time"),
        ([[1]] * 60, r"values of type List\(Int64\), which have no order in time"),
        ([1.0, None] * 30, "row 1 has no time"),
    ],
)
def test_a_time_without_an_order_is_refused(times, told):
    rows = pl.DataFrame({"a": ["x", "y"] * 30, "t": times})
    with pytest.raises(InputError, match=told):
        FATEClassifier(time="t").fit(rows, [0, 1] * 30)
    with pytest.raises(InputError, match=told):
        FATEClassifier(time="t").fit(rows.with_columns(y=pl.col("a")).lazy(), "y")


# ---- bad input -----------------------------------------------------------------------------------


def test_bad_rows_are_one_line(folder):
    model = FATEClassifier(strategy="none", epochs=1)
    with pytest.raises(InputError, match="y='clicks': there is no such column; did you mean"):
        model.fit(folder / "logs", "clicks")
    with pytest.raises(InputError, match="y='clicks': there is no such column; did you mean"):
        model.fit(LOG, "clicks")
    with pytest.raises(InputError, match="the target 'price' is missing in row 3"):
        model.fit(LOG.lazy(), "price")
    whole = (folder / "logs" / "2.parquet").read_bytes()
    (folder / "logs" / "2.parquet").write_bytes(whole[:-100])
    with pytest.raises(DataFileError, match=r"2\.parquet: cannot be read as Parquet"):
        model.fit(folder / "logs", "click")
    with pytest.raises(DataFileError, match="cannot be read"):
        model.fit(pl.scan_parquet(folder / "logs" / "2.parquet"), "click")
    LOG.with_columns(price=pl.lit("dear")).write_parquet(folder / "logs" / "2.parquet")
    with pytest.raises(DataFileError, match=r"2\.parquet: column 'price' holds values of type Str"):
        model.fit(folder / "logs", "click")
    assert not hasattr(model, "bank_")


# ---- memory --------------------------------------------------------------------------------------

_MAIN = "from openfate import FATEClassifier; from openfate.cli import main; main()"


def peak_of(*arguments):
    """The most megabytes that a process of ours held at a time."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *map(str, arguments)], env=env, stdout=subprocess.DEVNULL
    )
    _, code, used = os.wait4(child.pid, 0)
    child.returncode = code
    assert code == 0
    return used.ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fate", "auto"])
def test_a_log_four_times_larger_than_the_memory_that_a_fit_takes(tmp_path, strategy):
    rng, n, n_parts, at_rest = np.random.default_rng(0), 65_536, 24, peak_of("--help")
    texts = pl.Series([f"https://somewhere.example.org/page/{i:065}" for i in range(2000)])
    for part in range(n_parts):
        values = rng.integers(0, len(texts), (24, n))
        columns = {f"c{i}": texts[column] for i, column in enumerate(values)}
        rows = pl.DataFrame({**columns, "click": rng.integers(0, 2, n)})
        rows.write_parquet(tmp_path / f"{part:03}.parquet")
    megabytes = n_parts * n * 24 * len(texts[0]) / 2**20  # of text; 3.6 GB
    flags = {"target": "click", "strategy": strategy, "backbone": "deepfm", "epochs": 1}
    flags |= {"n-members": 1, "width": 8, "n-draws": 1, "memory-limit": 0, "out": tmp_path / "m"}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert 4 * (peak_of("fit", tmp_path / "*.parquet", *words) - at_rest) < megabytes
