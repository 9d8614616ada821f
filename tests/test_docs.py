"""The README's example runs, and the figures of the pages are those in results/."""

import json
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_readme_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 13
    scope = {}
    torch.manual_seed(0)
    exec(code, scope)
    assert scope["p"].shape == (200, 2)
    assert (scope["p"].argmax(1)[:4] == [0, 1, 0, 1]).all()


@pytest.mark.parametrize(
    ("page", "table", "results"),
    [
        ("README.md", "openworld", "openworld/batch"),
        ("docs/uci.md", "default", "uci/default"),
        ("docs/uci.md", "reference", "uci/reference"),
    ],
)
def test_a_table_comes_from_results(page, table, results):
    rows = json.loads((ROOT / "results" / results / "summary.json").read_text())["rows"]
    mean = {(r["dataset"], r["observed"], r["method"]): r["mean"] for r in rows}
    text = (ROOT / page).read_text()
    section = re.search(rf"<!-- {table} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    header, _, *lines = section[1].strip().splitlines()
    methods = [cell.strip(" `") for cell in header.strip("|").split("|")][1:]
    for line in lines:
        name, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        dataset, share = name.rsplit(" ", 1)
        for method, cell in zip(methods, cells, strict=True):
            assert cell == f"{mean[dataset, float(share), method]:.3f}".lstrip("0")
