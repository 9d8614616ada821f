"""The tables of speed in README.md and docs/performance.md are those of results/bench.

`python tests/test_bench_docs.py` brings them up to date.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/performance.md")
WHAT = {
    "uci-robot": {
        "train": "an epoch of robot: 3,273 rows, 118 features, 12 ids a row",
        "infer": "robot: 1,091 rows, half of 236 features new",
    },
    "uci-github": {
        "train": "an epoch of github: 22,620 rows, 2,002 features, 9 ids a row",
        "infer": "github",
    },
    "ctr-cpu-2k": "2,000 clicks at once: 39 fields, 2.65 M features",
    "ctr-cpu-10k": "10,000 clicks at once",
    "ctr-gpu-100k": "100,000 clicks at once",
    "ctr-gpu-1m": "1,000,000 clicks at once",
}
SIDES = ("ours", "peer")


def read(name):
    return json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())


def short(number):
    """Three digits, and no fewer than all of a whole number."""
    after = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:,.{after}f}"


def time(row, side):
    return f"{short(row[side])} {row['unit'].partition('/')[0]}"


def megabytes(count):
    return short(count / 1e6)


def beside(name):
    told = read(name)
    n = told["threads"]
    n = " and ".join(map(str, n)) if isinstance(n, list) else n
    machine = f"{told['cores']} cores, load {told['load_average']}, threads: {n}"
    return f"{machine}; commit {told['commit']}."


def fitting():
    told = read("table-cpu")
    by = {
        row["case"]: [{**row, **more} for more in ({}, *row.get("more_threads", []))]
        for row in told["rows"]
    }
    lines = ["| case | ours | LightGBM | times faster |", "|---|---|---|---|"]

    def line(what, case):
        ours, peers = ([time(row, side) for row in by[case] if row[side]] for side in SIDES)
        ratios = [short(row["ratio"]) for row in by[case] if row["ratio"]]
        lines.append(
            f"| {what} | " + " | ".join(", ".join(c) or "-" for c in (ours, peers, ratios)) + " |"
        )

    for case, what in (
        ("fit-20k", "fit, 20,000 rows x 10, probe included"),
        ("fit-200k", "fit, 200,000 rows x 10"),
        ("fit-2m", "fit, 2 million rows x 20"),
    ):
        line(what, case)
        peaks = (
            ", ".join(f"{megabytes(row[side + '_bytes'])} MB" for row in by[case]) for side in SIDES
        )
        lines.append(f"| its memory | {' | '.join(peaks)} | |")
    line("predict 200,000 rows", "predict-200k")
    line("observe 200,000 rows", "observe-200k")
    line("one row, a dict (LightGBM: a frame of one row)", "one-row")
    for case, what in (
        ("one-row-unseen", "one row with a value never seen"),
        ("one-row-1m-known", "one row with a new value, one of a million known ones"),
    ):
        times = ", ".join(time(row, "ours") for row in by[case])
        lines.append(f"| {what} | {times} | - | {by[case][0]['times_one_row']} times a plain row |")
    lines += ["", "| AUC / log-loss on other rows | ours | LightGBM |", "|---|---|---|"]
    for case in ("fit-20k", "fit-200k", "fit-2m"):
        scores = by[case][0]["scores"]
        lines.append(f"| {case} | {' | '.join(score(scores[side]) for side in SIDES)} |")
    return [*lines, "", beside("table-cpu")]


def score(found):
    return f"{found['auc']:.4f} / {found['log_loss']:.4f}".replace("0.", ".")


def clicks():
    lines = ["| rows | side | seconds | rows/s | times faster | AUC / log-loss | peak, MB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in read("clicks-cpu")["rows"]:
        n_rows = int(row["case"].split("-")[1])
        for side in SIDES if row["peer_name"] == "FuxiCTR" else SIDES[1:]:
            ours = side == "ours"
            lines.append(
                f"| {n_rows:,} | {'ours' if ours else row['peer_name']} | {short(row[side])} | "
                f"{row['rows_per_second'][side]:,} | {'' if ours else short(row['ratio'])} | "
                f"{score(row['scores'][side])} | {megabytes(row[side + '_bytes'])} |"
            )
    return [*lines, "", beside("clicks-cpu")]


def algorithm(name):
    def made():
        lines = ["| case | ours, ms | PyG twin, ms | times faster | memory, ours / twin |"]
        lines.append("|---|---|---|---|---|")
        told = read(name)
        for row in told["rows"]:
            what = WHAT[row["case"]]
            what = what if isinstance(what, str) else what[told["bench"]]
            memory = " / ".join(megabytes(row[f"{side}_bytes"]) for side in SIDES)
            times = " | ".join(short(row[side]) for side in SIDES)
            same = row.get("ratio_same_mlp")
            same = f" ({short(same)} with the twin's network)" if same else ""
            lines.append(f"| {what} | {times} | {short(row['ratio'])}{same} | {memory} MB |")
        return [*lines, "", beside(name)]

    return made


MADE = {
    "bench-table": fitting,
    "bench-clicks": clicks,
    "bench-train-cpu": algorithm("train-cpu"),
    "bench-infer-cpu": algorithm("infer-cpu"),
    "bench-train-gpu": algorithm("train-gpu"),
    "bench-infer-gpu": algorithm("infer-gpu"),
}


def with_benches(text):
    for name, make in MADE.items():
        found = "\n".join(make())
        pattern = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, found=found: f"{m[1]}{found}\n{m[2]}", text)
    return text


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_speed_are_those_of_the_benches(page):
    text = (ROOT / page).read_text()
    assert "<!-- bench-train-cpu -->" in text
    assert text == with_benches(text), "run python tests/test_bench_docs.py"


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_benches(path.read_text()))
