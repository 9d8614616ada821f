"""`openfate bench table` and `bench clicks`: what their rows hold; sides run in processes apart."""

import json
from pathlib import Path

import numpy as np
import pytest

from openfate.errors import InputError
from openfate_lab.bench import clicks, tables
from openfate_lab.bench import command as bench

pytest.importorskip("pandas", reason="the tables are of pandas")


def faked(arguments, n_threads, what):
    """A process that took two seconds of ours, one of the peer."""
    _, name, side = arguments
    seconds = 2.0 if side == "ours" else 1.0
    scores = {"auc": 0.8, "log_loss": 0.5} if name.startswith("fit") else {}
    return {"time": seconds * (3 if name == "one-row-unseen" else 1), "bytes": 7, "scores": scores}


def test_rows_hold_both_sides_and_how_many_times_ours_is_faster(monkeypatch):
    pytest.importorskip("lightgbm", reason="the peer needs the extra `peers`")
    monkeypatch.setattr(tables, "run_apart", faked)
    result = tables.bench_table(threads=[1, 2])
    rows = {row["case"]: row for row in result["rows"]}
    assert list(rows) == [
        *("fit-20k", "fit-200k", "fit-2m", "predict-200k", "observe-200k"),
        *("one-row", "one-row-1m-known", "one-row-unseen"),
    ]
    fit = rows["fit-20k"]
    assert (fit["ours"], fit["peer"], fit["ratio"], fit["peer_name"]) == (2.0, 1.0, 0.5, "LightGBM")
    assert fit["ours_bytes"] == fit["peer_bytes"] == 7
    assert set(fit["scores"]) == {"ours", "peer"}
    assert [part["n_threads"] for part in (fit, *fit["more_threads"])] == [1, 2]
    for name in ("observe-200k", "one-row-1m-known", "one-row-unseen"):
        assert rows[name]["ratio"] is None and rows[name]["peer"] is None
    assert rows["one-row-unseen"]["times_one_row"] == 3.0
    text = bench.describe(result)
    assert all(name in text for name in rows)


def test_an_unknown_case_is_one_line():
    with pytest.raises(InputError, match="case 'fit-3' is unknown: choose from fit-20k"):
        tables.bench_table(cases=["fit-3"])


@pytest.mark.parametrize("n_columns", [10, 20])
def test_the_table_has_one_law_and_columns_of_all_kinds(n_columns):
    rows, y = tables.make_table(4000, n_columns)
    again, later = tables.make_table(4000, n_columns), tables.make_table(4000, n_columns, seed=1)
    assert rows.equals(again[0]) and (y == again[1]).all()
    assert not rows.equals(later[0]) and list(rows.columns) == list(later[0].columns)
    n_text = sum(str(kind) == "category" for kind in rows.dtypes)
    assert rows.shape == (4000, n_columns) and n_text == n_columns - n_columns // 2
    assert 0.3 < y.mean() < 0.7


def test_a_side_prints_its_time_memory_and_scores(monkeypatch, capsys):
    small = tables.TableCase("fit", 300)
    monkeypatch.setitem(tables.CASES, "fit-20k", small)
    monkeypatch.setattr(tables, "_HELD_OUT", 200)
    assert bench.main(["side", "fit-20k", "ours"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"time", "bytes", "scores"} and found["time"] > 0
    assert 0.4 < found["scores"]["auc"] <= 1


def test_clicks_compare_seconds_from_the_log_to_the_scored_day(monkeypatch, tmp_path):
    def side(arguments, threads, what, python):
        _, name, folder, _ = arguments
        assert (Path(folder) / "train.csv").read_text().startswith("label,I1,")
        seconds = {"ours": 2.0, "fuxictr": 8.0, "lightgbm": 4.0}[name]
        scores, parts = {"auc": 0.7, "log_loss": 0.5}, {"train": seconds, "score": 0.0}
        return {"seconds": seconds, "bytes": 5, "scores": scores, "parts": parts}

    monkeypatch.setattr(clicks, "run_apart", side)
    result = clicks.bench_clicks(rows=2000)
    assert [row["ratio"] for row in result["rows"]] == [4.0, 2.0]
    assert [row["peer_name"] for row in result["rows"]] == ["FuxiCTR", "LightGBM"]
    assert "FuxiCTR" in bench.describe(result)
    with pytest.raises(InputError, match="peer 'dlrm' is unknown"):
        clicks.bench_clicks(peers=["dlrm"])


def test_a_log_is_nine_days_and_a_tenth(tmp_path):
    clicks.write_log(tmp_path, 1000)
    n_lines = [len((tmp_path / name).read_text().splitlines()) for name in ("train.csv", "day.csv")]
    assert n_lines == [901, 101]
    labels = np.loadtxt(tmp_path / "day.csv", delimiter=",", skiprows=1, usecols=0)
    assert set(labels.tolist()) <= {0.0, 1.0}
