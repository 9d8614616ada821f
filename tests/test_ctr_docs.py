"""The tables of docs/ctr.md are those in results/ctr; run this file to write them."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ctr.md"
SPLITS = [*(f"T{t}" for t in range(1, 9)), "overall"]


def summary():
    return json.loads((ROOT / "results" / "ctr" / "summary.json").read_text())


def short(number, digits=3):
    return f"{number:.{digits}f}".replace("0.", ".", 1)


def of(rows, **wanted):
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def table_of(dataset, variant="kshot"):
    """Methods down, test splits across, for each backbone; the best of a column in bold."""
    content = summary()
    lines = ["| backbone, method | " + " | ".join(SPLITS) + " | log-loss | over base | over oov |"]
    lines.append("|---" * (len(SPLITS) + 4) + "|")
    rows = of(content["rows"], dataset=dataset, variant=variant)
    for backbone in dict.fromkeys(row["backbone"] for row in rows):
        here = of(rows, backbone=backbone)
        auc = {(r["method"], r["split"]): r for r in of(here, metric="auc")}
        loss = {r["method"]: r["mean"] for r in of(here, metric="log_loss", split="overall")}
        methods = list(dict.fromkeys(row["method"] for row in here))
        best = {s: max(auc[m, s]["mean"] for m in methods) for s in SPLITS}
        for method in methods:
            cells = [short(auc[method, s]["mean"]) for s in SPLITS]
            cells = [
                f"**{cell}**" if auc[method, s]["mean"] == best[s] else cell
                for cell, s in zip(cells, SPLITS, strict=True)
            ]
            cells[-1] += f" ± {short(auc[method, 'overall']['std'])}"
            gains = of(content["gains"], dataset=dataset, variant=variant, backbone=backbone)
            for other in ("base", "oov"):
                gain = of(gains, method=method, over=other)
                text = f"{gain[0]['mean']:+.4f} ± {gain[0]['std']:.4f}" if gain else ""
                cells.append(text.replace("0.", "."))
            cells.insert(-2, short(loss[method]))
            lines.append(f"| {backbone} `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def synthetic_table():
    """What each method gains on the drawn log, and which share of the ceiling that is."""
    content = summary()
    lines = [
        "| variant, method | AUC | over base | over oov | share of the ceiling |",
        "|---" * 5 + "|",
    ]
    for row in of(content["rows"], dataset="synthetic", split="overall", metric="auc"):
        where = {key: row[key] for key in ("dataset", "variant", "backbone", "method")}
        gains = {gain["over"]: gain for gain in of(content["gains"], **where)}
        cells = [f"{short(row['mean'], 4)} ± {short(row['std'], 4)}"]
        for other in ("base", "oov"):
            gain = gains.get(other)
            text = f"{gain['mean']:+.4f} ± {gain['std']:.4f}" if gain else ""
            cells.append(text.replace("0.", "."))
        cells.append(f"{gains['base']['share_of_ceiling']:.0%}" if "base" in gains else "")
        lines.append(f"| {row['variant']} `{row['method']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sweep_table(dataset, name):
    """AUC of FATE for each value of the sweep: training, validation, T1 .. T8."""
    splits = ["train", "validation", *SPLITS]
    rows = [
        r for r in of(summary()["rows"], dataset=dataset, method="fate", metric="auc") if name in r
    ]
    lines = [f"| {name} | " + " | ".join(splits) + " |", "|---" * (len(splits) + 1) + "|"]
    for value in sorted({row[name] for row in rows}):
        cells = {r["split"]: short(r["mean"]) for r in rows if r[name] == value}
        lines.append(f"| {value:,} | " + " | ".join(cells[s] for s in splits) + " |")
    return "\n".join(lines)


TABLES = {
    **{
        name: lambda name=name: table_of(name)
        for name in ("criteo-sample", "avazu-sample", "flights")
    },
    **{
        f"{name} nfold": lambda name=name: table_of(name, "nfold")
        for name in ("criteo-sample", "avazu-sample")
    },
    "synthetic": synthetic_table,
    **{
        f"{name} {letter}": lambda name=name, letter=letter: sweep_table(name, letter)
        for name in ("criteo-sample", "avazu-sample")
        for letter in ("k", "B")
    },
}


def section(name):
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_comes_from_results(name):
    found = section(name).search(PAGE.read_text())
    assert found, f"docs/ctr.md has no table {name}"
    assert found[2].strip() == TABLES[name]()


if __name__ == "__main__":
    text = PAGE.read_text()
    for name, table in TABLES.items():
        text = section(name).sub(
            lambda found, table=table: found[1] + table() + "\n" + found[3], text
        )
    PAGE.write_text(text)
