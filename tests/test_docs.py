"""The README's example runs, and its figures are those in results/."""

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
    assert scope["p"].shape == (200, 1)
    assert ((scope["p"] > 0.5).numpy()[:4, 0] == [False, True, False, True]).all()


@pytest.mark.parametrize("variant", ["default", "reference"])
def test_readme_table_comes_from_results(variant):
    rows = json.loads((ROOT / "results" / "uci" / variant / "summary.json").read_text())["rows"]
    mean = {(r["dataset"], r["observed"], r["method"]): r["mean"] for r in rows}
    section = re.search(rf"<!-- {variant} -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    header, _, *lines = section[1].strip().splitlines()
    methods = [cell.strip(" `") for cell in header.strip("|").split("|")][1:]
    for line in lines:
        name, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        dataset, share = name.rsplit(" ", 1)
        for method, cell in zip(methods, cells, strict=True):
            assert cell == f"{mean[dataset, float(share), method]:.3f}".lstrip("0")
