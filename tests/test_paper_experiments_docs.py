"""The tables of docs/paper-experiments.md are those in results/."""

import json
import re
from pathlib import Path

import pytest

from openfate_lab.experiments.ablation import VARIANTS
from openfate_lab.experiments.map import MEASURES, METHODS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper-experiments.md").read_text()
DATASETS = ("gene", "protein", "robot", "drive-sample", "calls", "github")


def summary(kind):
    return json.loads((ROOT / "results" / kind / "summary.json").read_text())


def number(value, digits=3):
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def ablation():
    rows = [row for row in summary("ablation/default")["rows"] if row["observed"] == 0.5]
    cells = {(row["dataset"], row["variant"], row["method"]): row for row in rows}
    for variant in VARIANTS:
        texts = []
        for dataset in DATASETS:
            fate = cells.get((dataset, variant, "fate"))
            if fate is None:
                texts.append("-")
                continue
            control = cells[dataset, variant, "fate_drop_new"]
            paper = "-" if fate["paper"] is None else number(fate["paper"], 4)
            texts.append(f"{number(fate['mean'])} · {number(control['mean'])} · {paper}")
        yield [VARIANTS[variant].label, *texts]
    yield ["base", *(f"{number(cells[name, 'base', 'base']['mean'])}" for name in DATASETS)]


def embeddings():
    rows = summary("map/default")["rows"]
    cells = {(row["dataset"], row["method"], row["metric"]): row for row in rows}
    for dataset in ("gene", "protein", "robot"):
        for method in METHODS:
            found = [cells[dataset, method, name]["mean"] for name in MEASURES]
            yield [f"{dataset} `{method}`", *(number(value, 2) for value in found)]


def gaps(model):
    rows = [
        row for row in summary(f"generalization/{model}")["rows"] if row["metric"] == "log_loss"
    ]
    for dataset, variant in dict.fromkeys((row["dataset"], row["variant"]) for row in rows):
        own = {r["gap"]: r for r in rows if (r["dataset"], r["variant"]) == (dataset, variant)}
        texts = [
            f"{own[gap]['mean']:+.3f} ({own[gap]['low']:+.3f}, {own[gap]['high']:+.3f})"
            for gap in ("rows", "features", "both")
        ]
        of = f"{variant.replace('/', ' ').replace('_', '-')} of {own['rows']['units']}"
        yield [f"{dataset}, {of}" if "k" in variant else f"{dataset}, {of[: of.index(' of')]}",
               number(own["rows"]["level"]), *texts]  # fmt: skip


def bounds(model):
    for bound in summary(f"generalization/{model}")["bounds"]:
        readings = bound["readings"].values()
        sizes = [f"{reading['log10_bound']:.0f}" for reading in readings]
        steps = [str(reading["largest_T"]) for reading in readings]
        convex = f"{bound['convex_sgd']['log10_gamma']:.1f}"
        yield [
            f"{bound['dataset']}, {bound['k']} of {bound['d']}",
            *sizes,
            " / ".join(steps),
            convex,
        ]


TABLES = {
    "ablation": ablation,
    "map": embeddings,
    "gaps-fate": lambda: gaps("fate"),
    "gaps-theory": lambda: gaps("theory"),
    "bounds-theory": lambda: bounds("theory"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_comes_from_results(name):
    section = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
    _, _, *lines = section[1].strip().splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert found == list(TABLES[name]())


def test_every_bound_is_vacuous_where_the_page_says_so():
    for model in ("fate", "theory"):
        for bound in summary(f"generalization/{model}")["bounds"]:
            assert all(reading["vacuous"] for reading in bound["readings"].values())
