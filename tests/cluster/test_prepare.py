"""A log that many processes read becomes the very bytes that one makes of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openfate.cluster import RayExecutor
from openfate.errors import DataFileError
from openfate.executor import using
from openfate.table import prepare


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    rng = np.random.default_rng(0)
    for number in range(3):
        values = rng.zipf(1.4, (700, 3)) % 400
        lines = [f"{rng.integers(0, 2)},site{a},app{b},{c}\n" for a, b, c in values]
        (folder / f"{number}.csv").write_text("click,site,app,size\n" + "".join(lines))
    return folder


def contents(folder):
    """Every file, and what the manifest says."""
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.parquet")}
    return files, json.loads((folder / "manifest.json").read_text())


SMALL = {"target": "click", "log": ("size",), "chunk_bytes": 4000, "shard_rows": 300}


def test_shards_and_vocabulary_are_the_same_byte_for_byte(log, ray_cluster, tmp_path):
    prepare(log, tmp_path / "alone", "csv", **SMALL)
    expected = contents(tmp_path / "alone")
    assert len(expected[0]) > 8
    with using(ray_cluster):
        prepare(log, tmp_path / "spread", "csv", **SMALL)
        prepare(log, tmp_path / "other chunks", "csv", **SMALL | {"chunk_bytes": 9000})
    for n_workers in (1, 4):
        one = RayExecutor(n_workers)
        with using(one):
            prepare(log, tmp_path / str(n_workers), "csv", **SMALL)
        one.close()
        assert contents(tmp_path / str(n_workers)) == expected
    assert contents(tmp_path / "spread") == expected
    assert contents(tmp_path / "other chunks") == expected


def test_a_preparation_that_was_stopped_goes_on_on_a_cluster(log, ray_cluster, tmp_path):
    prepare(log, tmp_path / "alone", "csv", **SMALL)

    def stop(stage, done, total):
        if stage == "writing" and done > 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(log, tmp_path / "stopped", "csv", **SMALL, on_progress=stop)
    with using(ray_cluster):
        prepare(log, tmp_path / "stopped", "csv", **SMALL)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "alone")


def test_a_bad_line_is_told_by_its_line(log, ray_cluster, tmp_path):
    text = (log / "1.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join([*text[:500], "1,a,b\n", *text[500:]]))
    (tmp_path / "label.csv").write_text("".join([*text[:500], "7,a,b,1\n", *text[500:]]))
    for name, said in (("rows", "rows.csv, line 501: 3 cells"), ("label", "label.csv, line 501")):
        with using(ray_cluster), pytest.raises(DataFileError, match=said):
            prepare(tmp_path / f"{name}.csv", tmp_path / f"{name}-out", "csv", **SMALL)
