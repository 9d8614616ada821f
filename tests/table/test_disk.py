"""X on disk: every operation beside the same one in memory, and parts that survive a kill."""

from __future__ import annotations

import numpy as np
import pytest

from openfate.errors import DataFileError, InputError
from openfate.table import DiskRows, MultiHot, RowCache, RowWriter, disk


def random_rows(rng, n_rows, n_features, has_values, width=None):
    degree = np.full(n_rows, width) if width else rng.integers(0, 5, n_rows)
    row = np.repeat(np.arange(n_rows), degree)
    ids = np.concatenate(
        [np.empty(0, int), *(rng.choice(n_features, d, replace=False) for d in degree)]
    )
    values = rng.normal(size=len(ids)) if has_values else None
    return MultiHot.from_entries(row, ids, n_rows, n_features, values)


def same(one, other):
    assert one.n_features == other.n_features
    assert one.row_ptr.tolist() == other.row_ptr.tolist()
    assert one.ids.tolist() == other.ids.tolist()
    assert (one.values is None) == (other.values is None)
    assert one.values is None or one.values.tolist() == other.values.tolist()


def write(folder, X, size):
    writer = RowWriter(folder, has_values=X.values is not None)
    for start in range(0, X.n_rows, size):
        writer.append(X.cut(start, min(start + size, X.n_rows)))
    return DiskRows(folder, X.n_features)


@pytest.mark.parametrize("seed", range(12))
def test_rows_on_disk_do_what_rows_in_memory_do(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(disk, "_LOADED_ROWS", 4)
    rng = np.random.default_rng(seed)
    X = random_rows(rng, 30, 12, seed % 2 == 0, width=3 if seed % 3 == 0 else None)
    on_disk = write(tmp_path, X, int(rng.integers(1, 31)))
    order, n = rng.permutation(30)[:20], int(rng.integers(3, 13))
    for here, there in [(X, on_disk), (X.below(n), on_disk.below(n))]:
        same(here, there.load())
        same(here.cut(3, 17), there.cut(3, 17))
        same(here.select_rows(order[:3]), there.select_rows(order[:3]))
        view = there.select_rows(order)
        assert isinstance(view, DiskRows)
        chosen = here.select_rows(order)
        same(chosen.cut(2, 9), view.cut(2, 9))
        same(chosen.select_rows([5, 0]), view.select_rows([5, 0]))
        assert (chosen.nnz, chosen.n_rows) == (view.nnz, view.n_rows)
        assert chosen.feature_degree.tolist() == view.feature_degree.tolist()
        assert chosen.feature_sums(2).tolist() == view.feature_sums(2).tolist()
        assert chosen.mass == view.mass


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_what_a_killed_writer_left_half_written_does_not_count(tmp_path, cut):
    X = random_rows(np.random.default_rng(0), 20, 9, True)
    write(tmp_path, X.cut(0, 12), 6)
    for name in ("row_ptr.bin", "ids.bin", "values.bin", "journal.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"x" * cut)
    again = RowWriter(tmp_path, has_values=True)
    assert again.n_rows == 12
    again.append(X.cut(12, 20))
    same(X, DiskRows(tmp_path, 9).load())


def test_a_folder_of_another_table_is_refused_and_not_touched(tmp_path):
    RowCache(tmp_path / "a", {"table": "one"})
    (tmp_path / "a" / "grown.json").write_text("kept")
    with pytest.raises(InputError, match="holds the rows of another table"):
        RowCache(tmp_path / "a", {"table": "two"})
    assert (tmp_path / "a" / "grown.json").read_text() == "kept"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no rows of ours"):
        RowCache(tmp_path / "b", {"table": "one"})


def test_rows_without_features_are_rows(tmp_path):
    rows = write(tmp_path, MultiHot.from_rows([[], [], []], 4), 2)
    same(rows.select_rows([2, 0]), MultiHot.from_rows([[], []], 4))


def test_rows_that_are_gone_are_named(tmp_path):
    X = random_rows(np.random.default_rng(0), 20, 9, False)
    rows = write(tmp_path / "rows", X, 20)
    (tmp_path / "rows" / "ids.bin").unlink()
    with pytest.raises(DataFileError, match="rows cannot be read"):
        rows.cut(0, 3)


@pytest.mark.parametrize("apart", [0, 3, 1000])
@pytest.mark.parametrize("at_once", [1, 5, 10_000])
def test_rows_near_and_far_are_read_alike(tmp_path, monkeypatch, apart, at_once):
    monkeypatch.setattr(disk, "_APART", apart)
    monkeypatch.setattr(disk, "_AT_ONCE", at_once)
    rng = np.random.default_rng(apart + at_once)
    X = random_rows(rng, 60, 9, has_values=True)
    rows = write(tmp_path / "x", X, 20)
    for at in (rng.permutation(60), rng.integers(0, 60, 15), [7, 7, 7], []):
        same(rows.select_rows(np.asarray(at, int)), X.select_rows(np.asarray(at, int)))


def test_a_file_that_is_cut_off_is_told(tmp_path):
    rows = write(tmp_path / "x", random_rows(np.random.default_rng(0), 60, 9, False, 3), 20)
    with (tmp_path / "x" / "ids.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataFileError, match="cut off"):
        rows.select_rows([50, 3])
