"""Where we do not reproduce the paper: the likely reasons, each tested on the trials at hand.

A difference is between two methods, or between the same method in two runs, paired over all trials
that both have (data set, share and seed; the same seed gives the same split).
"""

from __future__ import annotations

from collections.abc import Sequence

from openfate_lab.report.paired import Difference, difference
from openfate_lab.report.paper import ABLATION_FATE, RELEASED
from openfate_lab.report.results import Results, Run
from openfate_lab.report.tables import Cell, Table, number, signed

__all__ = ["baselines_beside", "beside_the_paper", "by_share", "departures", "reasons"]

Key = tuple[str, float, int]

LEGEND = (
    "Mean difference ± standard error over pairs of trials (data set, share and seed the same); "
    "▲ / ▼: significant (paired t-test, two-sided, 95 %). Trials of one data set share rows, so "
    "these p are rather too small."
)

# What is compared: a title, the first's run and method, the second's.
COMPARISONS = (
    ("released code's way, FATE", "reference", "fate", "default", "fate"),
    ("released code's way, Base (random embeddings of new features)",
     "reference", "base", "default", "base"),
    ("FATE over Base, our defaults", "default", "fate", "default", "base"),
    ("FATE over Base, released code's way", "reference", "fate", "reference", "base"),
    ("FATE of the released code's way over the paper's Base",
     "reference", "fate", "default", "base"),
    ("FATE over itself with new features dropped, our defaults",
     "default", "fate", "default", "fate_drop_new"),
    ("FATE over itself with new features dropped, released code's way",
     "reference", "fate", "reference", "fate_drop_new"),
    ("FATE with new features dropped over Base, our defaults",
     "default", "fate_drop_new", "default", "base"),
    ("Base trained with hidden features over Base, our defaults",
     "default", "base_dropout", "default", "base"),
)  # fmt: skip


METRICS = {"accuracy": "accuracy", "auc": "AUC (github)"}


def _scores(run: Run | None, method: str, metric: str = "accuracy") -> dict[Key, float]:
    found = {}
    for trial in run.trials if run else ():
        record = trial.record
        result = record.get("results", {}).get(method)
        if result is not None and result["metric"] == metric and "observed" in record:
            found[record["dataset"], record["observed"], record["seed"]] = result["score"]
    return found


def _compare(one: dict[Key, float], other: dict[Key, float]) -> Difference | None:
    keys = sorted(set(one) & set(other))
    return difference([one[key] - other[key] for key in keys]) if keys else None


def _cell(found: Difference | None, source: str, metric: str = "accuracy") -> Cell:
    if found is None:
        return Cell("-")
    mark = {1: "▲", -1: "▼", 0: ""}[found.sign]
    digits = 3 if metric == "accuracy" else 4
    error = f" ± {number(found.standard_error, digits)}" if found.n > 1 else ""
    text = f"{signed(found.mean, digits)}{error}{mark}"
    note = f"p = {found.p:.2g}, {found.n} pairs of trials" if found.n > 1 else "one pair of trials"
    return Cell(text, found.mean, source, note)


def _runs(results: Results) -> dict[str, Run]:
    runs = {run.folder.rpartition("/")[2]: run for run in results.on("uci")}
    return {name: run for name, run in runs.items() if name in ("default", "reference")}


def reasons(results: Results) -> Table | None:
    """What the released code's departures, its Base, and hiding alone are worth."""
    runs = _runs(results)
    rows, found = [], {}
    for title, run, method, other_run, other in COMPARISONS:
        tests = [
            _compare(_scores(runs.get(run), method, m), _scores(runs.get(other_run), other, m))
            for m in METRICS
        ]
        if any(tests):
            folders = dict.fromkeys(runs[name].folder for name in (run, other_run))
            source = " and ".join(f"{folder}/**/trial.json" for folder in folders)
            rows.append([Cell(title), *map(_cell, tests, [source] * 2, METRICS)])
        if tests[0] is not None:
            found[title] = tests[0]
    if not rows:
        return None
    sources = [run.name for run in runs.values()]
    table = Table("Reasons, tested", ["compared", *METRICS.values()], rows, sources, _say(found))
    table.legend = LEGEND
    return table


def _say(found: dict[str, Difference]) -> list[str]:
    """The conclusions that the differences in accuracy support, and no others."""
    fate, base, ours, theirs, mixed, drop, _, hidden, masks = (
        found.get(title) for title, *_ in COMPARISONS
    )
    told = []
    if ours and theirs and fate and base:
        told.append(
            f"With the released code's departures FATE's lead over Base goes from "
            f"{signed(ours.mean)} to {signed(theirs.mean)} in accuracy: FATE itself changes by "
            f"{signed(fate.mean)}, Base, whose new features get random embeddings there, by "
            f"{signed(base.mean)}."
        )
    if mixed:
        told.append(
            f"Against the Base of the paper's words, which drops new features, the FATE of the "
            f"released code's way differs by {signed(mixed.mean)} (p = {mixed.p:.2g})."
        )
    if drop and hidden and masks:
        surely = "significant" if drop.sign else "not significant"
        told.append(
            f"Extrapolated embeddings change accuracy by {signed(drop.mean)} ({surely}) against "
            f"the same model with its new features dropped, which itself is {signed(hidden.mean)} "
            f"over Base; Base trained with hidden features is {signed(masks.mean)} over Base. "
            + _where_from(drop, hidden)
        )
    return told


def _where_from(drop: Difference, hidden: Difference) -> str:
    if hidden.sign == 1 and drop.sign != 1:
        return "So the gain over Base comes from training with hidden features, not from new ones."
    return (
        "So new features add to what training with hidden features gives." if drop.sign == 1 else ""
    )


def by_share(results: Results) -> Table | None:
    """FATE over Base, and over itself with new features dropped, share by share."""
    runs = _runs(results)
    shares = sorted(
        {key[1] for run in runs.values() for m in METRICS for key in _scores(run, "fate", m)}
    )
    rows = []
    for name, run in runs.items():
        for metric, title in METRICS.items():
            for other in ("base", "fate_drop_new"):
                cells = [_at_share(run, other, metric, share) for share in shares]
                if any(cell.value is not None for cell in cells):
                    rows.append([Cell(name), Cell(f"fate - {other}"), Cell(title), *cells])
    if not rows:
        return None
    columns = ["run", "difference", "in", *(f"{share:.0%} observed" for share in shares)]
    sources = [run.name for run in runs.values()]
    return Table("FATE's lead, by share observed", columns, rows, sources, legend=LEGEND)


def _at_share(run: Run, other: str, metric: str, share: float) -> Cell:
    one, two = (
        {key: score for key, score in _scores(run, method, metric).items() if key[1] == share}
        for method in ("fate", other)
    )
    return _cell(_compare(one, two), f"{run.folder}/*/observed-{share!r}/*/trial.json", metric)


def departures(results: Results) -> Table | None:
    """Each departure of the released code switched on alone."""
    runs = results.on("departures")
    plain = next((run for run in runs if run.folder.endswith("/default")), None)
    before = _scores(plain, "fate")
    rows, tests = [], {}
    for run in runs:
        test = _compare(_scores(run, "fate"), before)
        if plain is None or run is plain or test is None:
            continue
        name = run.folder.rpartition("/")[2].removeprefix("default-")
        after = _scores(run, "fate")
        mean = sum(after.values()) / len(after)
        tests[name] = test
        source = f"{run.folder}/**/trial.json"
        both = f"{source} and {plain.folder}/**/trial.json"
        rows.append([Cell(name), Cell(number(mean), mean, source), _cell(test, both)])
    if plain is None or not rows:
        return None
    rows.sort(key=lambda row: -(row[2].value or 0.0))
    columns = ["switched on", "FATE", "difference"]
    mean = sum(before.values()) / len(before)
    up = [f"{name} ({signed(test.mean)})" for name, test in tests.items() if test.sign == 1]
    down = [f"{name} ({signed(test.mean)})" for name, test in tests.items() if test.sign == -1]
    reading = [
        f"With nothing switched on FATE scores {number(mean)}. Significantly better with "
        f"{', '.join(up) or 'none'}; significantly worse with {', '.join(down) or 'none'}; "
        f"the other {len(tests) - len(up) - len(down)} are within noise."
    ]
    names = [run.name for run in runs]
    return Table("What each departure is worth", columns, rows, names, reading, LEGEND)


def beside_the_paper(results: Results) -> Table | None:
    """Paper, released code, ours: FATE and Base side by side."""
    table = _side_by_side(results, "Paper, released code, ours", ("fate", "base"))
    if table is None:
        return None
    table.columns.insert(2, "paper: fate, share not stated")
    for row in table.rows:
        row.insert(2, _printed(row[0].text))
    table.reading = _distances(table.rows)
    table.legend = (
        "Accuracy. The paper prints UCI scores only in its Table 3, without the share. The Base of "
        "the released code was made to drop new features, as the paper says; that of `ours, "
        "reference` gives them random embeddings, as the released code does."
    )
    return table


def baselines_beside(results: Results) -> Table | None:
    """The other baselines: released code and ours."""
    methods = ("average", "knn", "pooling", "oracle")
    table = _side_by_side(results, "Baselines: released code, ours", methods)
    if table is not None:
        table.legend = (
            "Accuracy. The released Oracle trains on observed features only; our reference run "
            "does not repeat that. Released KNN and Pooling look at a random tenth of the features "
            "above 200 new ones."
        )
    return table


def _side_by_side(results: Results, title: str, methods: Sequence[str]) -> Table | None:
    runs = _runs(results)
    means = {
        (name, row["dataset"], row["observed"], row["method"]): (row, f"{run.name} rows[{at}]")
        for name, run in runs.items()
        for at, row in enumerate(run.rows)
        if {"dataset", "observed", "method", "mean"} <= row.keys()
    }
    rows = []
    for (dataset, share), released in RELEASED.items():
        cells = [Cell(dataset), Cell(f"{share:.0%}")]
        for method in methods:
            where = "the released code, two splits (openfate/report/paper.py)"
            cells.append(Cell(number(released[method]), released[method], where))
            for name in ("reference", "default"):
                row, source = means.get((name, dataset, share, method), (None, ""))
                cells.append(Cell(number(row["mean"]), row["mean"], source) if row else Cell("-"))
        if any(cell.source.startswith(run.name) for cell in cells for run in runs.values()):
            rows.append(cells)
    if not rows:
        return None
    columns = ["dataset", "observed"]
    for method in methods:
        columns += [f"released: {method}", f"ours, reference: {method}", f"ours: {method}"]
    return Table(title, columns, rows, [run.name for run in runs.values()])


def _printed(dataset: str) -> Cell:
    value = ABLATION_FATE[dataset]
    return Cell(number(value, 4), value, "the paper, Table 3 (openfate/report/paper.py)")


def _distances(rows: list[list[Cell]]) -> list[str]:
    told = []
    for place, name in ((4, "ours, reference"), (5, "ours")):
        pairs = [(row[place].value, row[3].value) for row in rows]
        gaps = [one - two for one, two in pairs if one is not None and two is not None]
        if gaps:
            mean = sum(gaps) / len(gaps)
            worst = max(gaps, key=abs)
            told.append(
                f"FATE, {name}: {signed(mean)} against the released code on average over "
                f"{len(gaps)} cells (largest difference {signed(worst)})."
            )
    return told
