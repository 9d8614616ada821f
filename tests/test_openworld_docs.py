"""The tables of docs/openworld.md and README come from results; test_docs.py runs the example."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "openworld.md").read_text()


def rows(kind):
    return json.loads((ROOT / "results" / "openworld" / kind / "summary.json").read_text())["rows"]


def table(name, page=PAGE):
    section = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, flags=re.DOTALL)
    header, _, *lines = section[1].strip().splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return [cell.strip(" `") for cell in header.strip("|").split("|")], cells


def test_the_batch_table_comes_from_results():
    mean = {(r["dataset"], r["observed"], r["method"]): r["mean"] for r in rows("batch")}
    (_, *methods), lines = table("batch")
    assert len(lines) == 15
    for name, *cells in lines:
        dataset, share = name.rsplit(" ", 1)
        for method, cell in zip(methods, cells, strict=True):
            assert cell == f"{mean[dataset, float(share), method]:.3f}".lstrip("0")


def test_the_table_of_streams_comes_from_results():
    found = {(r["dataset"], r["base"], r["min_rows"], r["method"]): r for r in rows("stream")}
    (_, _, *methods), lines = table("stream")
    assert len(lines) == 3
    for dataset, base, *cells in lines:
        for method, cell in zip(methods, cells, strict=True):
            assert cell == f"{found[dataset, base, 3, method]['mean']:.4f}".lstrip("0")


@pytest.mark.parametrize(
    ("page", "name", "folder"),
    [
        ("README.md", "labels", "columns-lightgbm"),
        ("docs/openworld.md", "labels", "columns-lightgbm"),
        ("docs/openworld.md", "never", "columns-lightgbm-never"),
    ],
)
def test_the_tables_of_labels_come_from_results(page, name, folder):
    path = ROOT / "results" / "labels" / folder / "summary.json"
    means = {row["labels"]: row for row in json.loads(path.read_text())["means"]}
    _, lines = table(name, (ROOT / page).read_text())
    assert len(lines) == len(means)
    for count, n_cells, *cells, ahead in lines:
        row = means[int(count.replace(",", ""))]
        assert int(n_cells) == row["n_cells"]
        for method, cell in zip(("ignore", "openfate", "retrain", "oracle"), cells, strict=True):
            if cell != "-":
                both = (f"{row[method][m]:.3f}".lstrip("0") for m in ("score", "log_loss"))
                assert cell.strip("*") == " / ".join(both)
        assert ahead in ("-", f"{row.get('ahead_of_retrain')} of {row['n_cells']}")
