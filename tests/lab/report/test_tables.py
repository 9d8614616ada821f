import json
from pathlib import Path

from result_folders import summary_row, trial, write

from openfate_lab.report import build, render_page

ROOT = Path(__file__).parents[3]


def test_the_engine_has_a_table_of_times_and_memory(results):
    sides = {"fused": {"ms": 2.0, "peak_gb": 0.5}, "twin": {"ms": 30.0, "peak_gb": 1.5}}
    rows = {
        "100000": {"train": {"fused": {"ms": 4.0}, "twin": {"ms": 100.0}}},
        "10000": {"train": sides, "infer": {"fused": {"ms": 1.0}, "twin": {"ms": 8.0}}},
    }
    write(results / "bench" / "gpu-engine.json", {"rows": rows, "unit": "ms a mini-batch"})
    (section,) = build([results]).sections
    (table,) = section.tables
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["training", "10,000", "2", "30", "15.0 x", "500.0 MB", "1.50 GB"],
        ["training", "100,000", "4", "100", "25.0 x", "-", "-"],
        ["prediction", "10,000", "1", "8", "8.0 x", "-", "-"],
    ]
    assert table.reading == ["Ours is 8.0 to 25.0 times as fast."]
    assert len(table.columns) == 7


def test_lines_have_units_and_both_sides_beside_one_another(results):
    line = {"against": "rows", "bench": "train", "quantity": "bytes", "r2": 0.25}
    sides = [{**line, "side": "ours", "slope": 5e3}, {**line, "side": "peer", "slope": 2e4}]
    time = {**line, "against": "fields", "quantity": "ms", "side": "ours", "slope": 0.5}
    write(results / "scalability" / "scalability.json", {"rows": [*sides, time]})
    (table,) = build([results]).sections[0].tables
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["training, memory", "rows", "5 MB / 1,000 rows", "0.250", "20 MB / 1,000 rows", "0.250"],
        ["training, time", "fields", "0.5 ms / field", "0.250", "-", "-"],
    ]


def test_the_engine_and_the_lines_of_this_repository_are_on_the_page(whole):
    built, _ = whole
    tables = {section.title: section.tables for section in built.sections}
    content = json.loads((ROOT / "results/bench/gpu-engine.json").read_text())
    n_sizes = len(content["rows"])
    assert len(tables["bench/gpu-engine"][0].rows) == 2 * n_sizes
    for name in ("scalability/scalability", "scalability/gpu/scalability"):
        content = json.loads((ROOT / "results" / f"{name}.json").read_text())
        assert [2 * len(table.rows) for table in tables[name]] == [len(content["rows"])]
    assert built.unread == []


def test_bounds_of_the_theory_have_readable_columns_and_a_line_a_reading(whole):
    built, text = whole
    tables = [t for s in built.sections for t in s.tables if t.title == "Bounds of Theorem 1"]
    assert tables
    for table in tables:
        assert not [column for column in table.columns if "_" in column]
        assert {row[6].text for row in table.rows} >= {"as printed", "as derived"}
        assert {row[-2].text for row in table.rows} <= {"yes", "no"}
    assert "log10_gamma" not in text


def test_one_trial_has_no_spread(results):
    rows = [summary_row("gene", 0.5, m, [s], std=0.0) for m, s in (("fate", 0.7), ("base", 0.6))]
    gains = [{"method": "fate", "mean": 0.1, "std": 0.0, "n_trials": 1}]
    pooled = [
        {
            "base": "b",
            "way": "batch",
            "metric": "score",
            "closed": 0.5,
            "std": 0.0,
            "n_cells": 1,
            "n_trials": 1,
        }
    ]
    gaps = {"cells": [{"base": "b", "gain": 0.1, "standard_error": 0.0, "n_trials": 1}]}
    content = {"rows": rows, "gains": gains, "gap_closed": {**gaps, "pooled": pooled}}
    write(results / "uci" / "default" / "summary.json", content)
    scores = {"fate": 0.7, "base": 0.6}
    path = results / "uci" / "default" / "gene" / "observed-0.5" / "seed-0" / "trial.json"
    write(path, trial("gene", 0.5, 0, scores))
    text = render_page(build([results]))
    assert "one split, so no test" in text
    assert "± .000" not in text and "± 0" not in text and "p = " not in text
    assert '<data value="0.0">' not in text
