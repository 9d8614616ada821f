"""Batches are the prepared rows, whatever their size, and a changed shard is refused."""

from __future__ import annotations

import json
import threading

import numpy as np
import polars as pl
import pytest
from spoiling import spoilt

from openfate.errors import DataFileError, InputError
from openfate.table import PreparedData, RowFile, prepare


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """100 training rows in 8 shards, 1000 rows in all; y of row i is i % 3 == 0."""
    folder = tmp_path_factory.mktemp("prepared")
    rows = [f"{int(i % 3 == 0)},{i % 5},{i % 7},{i // 50}" for i in range(1000)]
    (folder / "rows.csv").write_text("\n".join(["click,a,b,c", *rows]))
    return prepare(folder / "rows.csv", folder / "out", "csv", target="click", shard_rows=13)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log whose cells are text, with holes: 400 rows, and its values' numbers of rows differ."""
    rng = np.random.default_rng(0)
    ads = [f"ad{n}" if n % 7 else None for n in rng.zipf(1.6, 400) % 40]
    sites = [f"site{n}" for n in rng.integers(0, 6, 400)]
    path = tmp_path_factory.mktemp("log") / "rows.csv"
    clicks = rng.integers(0, 2, 400)
    pl.DataFrame({"click": clicks, "ad": ads, "site": sites}).write_csv(path)
    return path


def joined(batches):
    ids, y = zip(*batches, strict=True)
    return np.concatenate(ids), np.concatenate(y)


@pytest.mark.parametrize("batch_rows", [1, 13, 30, 99, 100, 1000])
def test_batches_are_the_rows_of_the_part_in_order(data, batch_rows):
    whole_ids, whole_y = data.read("train")
    batches = list(data.batches("train", batch_rows))
    assert [len(y) for _, y in batches[:-1]] == [batch_rows] * (len(batches) - 1)
    ids, y = joined(batches)
    assert np.array_equal(ids, whole_ids) and np.array_equal(y, whole_y)
    assert ids.shape == (100, 3) and ids.dtype == np.int32 and y.dtype == np.float32
    assert np.array_equal(y, np.arange(100) % 3 == 0)


def test_a_seed_mixes_the_rows_and_another_mixes_them_otherwise(data):
    plain, mixed, again, other = (
        joined(data.batches("T3", 30, seed=seed))[0] for seed in (None, 1, 1, 2)
    )
    assert np.array_equal(mixed, again)
    assert not np.array_equal(mixed, plain) and not np.array_equal(mixed, other)
    assert sorted(mixed.tolist()) == sorted(plain.tolist())


def test_the_field_of_each_feature_is_that_of_the_vocabulary(data):
    table = data.vocabulary().unique(["field", "id"]).sort("id").collect()
    assert table["id"].to_list() == list(range(data.n_features))
    assert [data.fields[f] for f in data.field_of] == table["field"].to_list()
    new = table.filter(pl.col("kind") == "new")["id"]
    assert new.to_list() == list(range(data.n_observed, data.n_features))


def test_new_values_have_ids_beyond_the_observed_ones(data):
    ids, _ = data.read("T8")
    assert (ids[:, 2] >= data.n_observed).all() and (ids[:, :2] < data.n_observed).all()
    assert data.report["new_cells"]["T8"] == round(1 / 3, 6)


def test_a_reader_that_stops_early_leaves_no_thread(data):
    before = threading.active_count()
    batches = data.batches("train", 1)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_a_shard_that_changed_or_is_gone_is_named(data, tmp_path):
    source = data.folder.parent / "rows.csv"
    copy = prepare(source, tmp_path / "out", "csv", target="click", shard_rows=50)
    path = tmp_path / "out" / copy.shards("T1")[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataFileError) as error:
        list(copy.batches("T1"))
    assert str(error.value) == (
        f"{path}: has changed since manifest.json was written; prepare it again, overwriting it."
    )
    path.unlink()
    with pytest.raises(DataFileError, match=r"cannot be read \(No such file or directory\)"):
        list(copy.batches("T1"))


def test_unknown_parts_and_sizes_are_named(data):
    with pytest.raises(InputError) as error:
        data.batches("test")
    assert str(error.value) == (
        "unknown part 'test' (parts: train, validation, T1, T2, T3, T4, T5, T6, T7, T8)."
    )
    with pytest.raises(InputError, match="batch_rows=0: give 1 or more"):
        data.batches("train", 0)


def test_another_programs_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"version": 99}')
    with pytest.raises(DataFileError, match="version is 99, not a number from 1 to 1;"):
        PreparedData(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataFileError, match="is not JSON; prepare it again"):
        PreparedData(tmp_path)


def test_a_manifest_with_one_thing_wrong_is_refused_or_does_no_harm(data, tmp_path):
    manifest = json.loads((data.folder / "manifest.json").read_text())
    manifest["parts"] = {"train": manifest["parts"]["train"][:1]}
    manifest["fields"] = manifest["fields"][:1]
    refused = 0
    for key in spoilt(manifest):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        try:
            read = PreparedData(tmp_path)
            [read.shards(part) for part in read.parts], read.fields
        except DataFileError as error:
            assert str(tmp_path / "manifest.json") in str(error)
            refused += 1
        except Exception as error:
            pytest.fail(f"{key} was let through: {error!r}")
    assert refused > 50


# ---- shards as rows ----------------------------------------------------------------------------


def test_shards_are_the_rows_of_the_log_that_they_were_made_of(log, tmp_path):
    prepare(log, tmp_path / "out", "csv", target="click", threshold=1, shard_rows=37)
    plain = RowFile(log).read()
    again = RowFile(tmp_path / "out").read(columns=plain.columns)
    assert again.cast({"click": pl.Int64}).equals(plain)
    some = RowFile(tmp_path / "out" / "shards" / "validation-*.parquet").read(columns=["ad"])
    assert some["ad"].to_list() == plain["ad"][40:80].to_list()


def test_rare_values_of_shards_are_one(log, tmp_path):
    data = prepare(log, tmp_path / "out", "csv", target="click", threshold=4)
    plain, again = (RowFile(path).read()["ad"].to_list() for path in (log, tmp_path / "out"))
    counts = {ad: plain[:40].count(ad) for ad in plain}
    wanted = ["(rare)" if 0 < counts[ad] < 4 else ad for ad in plain]
    assert again == wanted and "(rare)" in wanted
    assert data.files()[0].name == "train-00000.parquet"
