"""The tables of docs/openworld.md are those in results/openworld; test_docs.py runs its example."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "openworld.md").read_text()


def rows(kind):
    return json.loads((ROOT / "results" / "openworld" / kind / "summary.json").read_text())["rows"]


def table(name):
    section = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
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
    for dataset, base, *cells in table("stream")[1]:
        for method, cell in zip(("drop", "evidence", "late_labels"), cells, strict=False):
            assert cell == f"{found[dataset, base, 3, method]['mean']:.4f}".lstrip("0")
