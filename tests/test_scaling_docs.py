"""The tables of docs/scaling.md are those of results/bench/cluster.json.

`python tests/test_scaling_docs.py` brings them up to date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from openfate_lab.bench.cluster_cost import Cost, Machines, Step, simulate

ROOT = Path(__file__).parents[1]
PAGE, RESULT = ROOT / "docs" / "scaling.md", ROOT / "results" / "bench" / "cluster.json"


def measured(result):
    cost = result["cost"]
    lines = ["| workers | embeddings | rows | width | MB sent | ms measured | ms of the model |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        sizes = f"{row['workers']} | {row['embeddings']} | {row['rows']:,} | {row['width']}"
        times = f"{row['measured_ms']:.0f} | {row['modelled_ms']:.0f}"
        lines.append(f"| {sizes} | {row['bytes'] / 1e6:.1f} | {times} |")
    lines += ["", f"fixed = {1000 * cost['fixed']:.1f} ms; a = {1e9 * cost['cell']:.1f} ns; "]
    lines[-1] += f"b = {1e9 * cost['id']:.0f} ns; c = {1e9 * cost['stepped']:.1f} ns; "
    lines[-1] += f"e = {1e9 * cost['byte']:.1f} ns. 20 fields, 200,000 features, 3 masks."
    return lines


def projection(result):
    lines = ["| workers | ms computing | ms sending | ms waiting | rows/s | 10^11 rows | limit |"]
    lines.append("|---|---|---|---|---|---|---|")
    for step in result["projection"]["steps"]:
        parts = [f"{1000 * step[name]:.2f}" for name in ("compute", "network", "waiting")]
        rate = step["rows_per_second"]
        ends = f"{rate / 1e6:.0f} million | {1e11 / rate / 3600:.1f} h | {step['limit']}"
        lines.append(f"| {step['workers']} | {' | '.join(parts)} | {ends} |")
    return lines


def brought_up_to_date(text):
    result = json.loads(RESULT.read_text())
    for name, make in (("measured", measured), ("projection", projection)):
        table = "\n".join(make(result))
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", text, flags=re.DOTALL
        )
    return text


def test_the_tables_are_those_of_the_results():
    text = PAGE.read_text()
    assert text == brought_up_to_date(text), "run python tests/test_scaling_docs.py"


def test_the_simulator_gives_the_measured_steps_and_the_projection_again():
    result = json.loads(RESULT.read_text())
    cost = Cost(**result["cost"])
    errors = []
    for row in result["rows"]:
        step = Step(**{name: row[name] for name in Step.__dataclass_fields__})
        assert 1000 * cost.seconds(step) == pytest.approx(row["modelled_ms"], abs=0.01)
        errors.append(abs(row["modelled_ms"] / row["measured_ms"] - 1))
    assert sum(errors) / len(errors) < 0.15
    machines = Machines(**result["projection"]["machines"])
    for told in result["projection"]["steps"]:
        step = Step(**{name: told[name] for name in Step.__dataclass_fields__})
        assert simulate(cost, step, machines) == pytest.approx(told)


if __name__ == "__main__":
    PAGE.write_text(brought_up_to_date(PAGE.read_text()))
