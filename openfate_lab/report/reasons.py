"""Ours beside the paper and its released code, and the likely reasons where we do not reproduce it.

Each reason is tested on the trials at hand: a difference is between two methods, or between the
same method in two runs, paired over all trials that both have (data set, share and seed; the same
seed gives the same split).
"""

from __future__ import annotations

from collections.abc import Sequence

from openfate_lab.report.differences import ABOVE, BELOW, Difference, compare
from openfate_lab.report.paper import NOTES, RELEASED, SOURCE, TABLE3, papers_auc
from openfate_lab.report.results import Results, Run
from openfate_lab.report.tables import Cell, Table, number, signed

LEGEND = (
    "Mean difference ± standard error over pairs of trials (data set, share and seed the same); "
    f"{ABOVE} / {BELOW}: significant (paired t-test, two-sided, 95 %). Trials of one data set "
    "share rows, so these p are rather too small."
)
METRICS = {"accuracy": "accuracy", "auc": "AUC (github)"}

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


def paper_tables(results: Results) -> list[Table]:
    """The tables for which there are results."""
    found = {run.folder.rpartition("/")[2]: run for run in results.on("uci")}
    runs = {name: run for name, run in found.items() if name in ("default", "reference")}
    tables = (
        _beside_the_paper(runs),
        _baselines_beside(runs),
        _clicks_beside(results.on("ctr")),
        _reasons(runs),
        _by_share(runs),
        _departures(results.on("departures")),
    )
    return [table for table in tables if table.rows]


# ---- paper, released code, ours ----------------------------------------------------------------


def _beside_the_paper(runs: dict[str, Run]) -> Table:
    """FATE and Base."""
    table = _side_by_side(runs, "Paper, released code, ours", ("fate", "base"))
    table.columns.insert(2, "paper: fate, share not stated")
    for row in table.rows:
        row.insert(2, Cell.score(TABLE3["full"][row[0].text], f"the paper, Table 3 ({SOURCE})", 4))
    table.reading, table.legend = _distances(table.rows), NOTES[0]
    return table


def _distances(rows: list[list[Cell]]) -> list[str]:
    told = []
    for place, name in ((4, "ours, reference"), (5, "ours")):
        pairs = [(row[place].value, row[3].value) for row in rows]
        gaps = [one - two for one, two in pairs if one is not None and two is not None]
        if gaps:
            told.append(
                f"FATE, {name}: {signed(sum(gaps) / len(gaps))} against the released code on "
                f"average over {len(gaps)} cells (largest difference {signed(max(gaps, key=abs))})."
            )
    return told


def _baselines_beside(runs: dict[str, Run]) -> Table:
    """The other baselines."""
    methods = ("average", "knn", "pooling", "oracle")
    table = _side_by_side(runs, "Baselines: released code, ours", methods)
    table.legend = NOTES[1]
    return table


def _side_by_side(runs: dict[str, Run], title: str, methods: Sequence[str]) -> Table:
    ours = {
        (name, row["dataset"], row["observed"], row["method"]): (
            row["mean"],
            f"{run.name} rows[{at}]",
        )
        for name, run in runs.items()
        for at, row in enumerate(run.rows)
        if {"dataset", "observed", "method", "mean"} <= row.keys()
    }
    where = f"the released code, two splits ({SOURCE})"
    rows = []
    for (dataset, share), released in RELEASED.items():
        cells = [Cell(dataset), Cell(f"{share:.0%}")]
        for method in methods:
            cells.append(Cell.score(released[method], where))
            for name in ("reference", "default"):
                cells.append(Cell.score(*ours.get((name, dataset, share, method), (None, ""))))
        if any(cell.source not in ("", where) for cell in cells):
            rows.append(cells)
    columns = ["dataset", "observed"]
    for method in methods:
        columns += [f"released: {method}", f"ours, reference: {method}", f"ours: {method}"]
    return Table(title, columns, rows, [run.name for run in runs.values()])


def _clicks_beside(runs: Sequence[Run]) -> Table:
    """Table 1 and Table 4 of the paper."""
    keys = ("dataset", "backbone", "variant", "k", "split", "method")
    rows = []
    for run in runs:
        for at, row in enumerate(run.rows):
            paper = papers_auc(row)
            if paper is not None and "mean" in row:
                names = [Cell("-" if row.get(key) is None else str(row[key])) for key in keys]
                papers = Cell.score(paper, f"the paper, full data ({SOURCE})", 4)
                rows.append([*names, papers, Cell.score(row["mean"], f"{run.name} rows[{at}]", 4)])
    columns = [*keys, "paper (full data)", "ours (what is here)"]
    legend = "ROC-AUC. Another amount of data: compare differences, not levels."
    sources = [run.name for run in runs]
    return Table("Click logs: paper and ours", columns, rows, sources, legend=legend)


# ---- reasons, tested ---------------------------------------------------------------------------


def _cell(found: Difference | None, source: str, metric: str = "accuracy") -> Cell:
    if found is None:
        return Cell("-")
    digits = 3 if metric == "accuracy" else 4
    error = f" ± {number(found.standard_error, digits)}" if found.n > 1 else ""
    text = f"{signed(found.mean, digits)}{error}{found.mark}"
    note = f"p = {found.p:.2g}, {found.n} pairs of trials" if found.n > 1 else "one pair of trials"
    return Cell(text, found.mean, source, note)


def _reasons(runs: dict[str, Run]) -> Table:
    """What the released code's departures, its Base, and hiding alone are worth."""
    rows, found = [], {}
    for title, name, method, other_name, other in COMPARISONS:
        if not {name, other_name} <= runs.keys():
            continue
        one, two = runs[name], runs[other_name]
        tests = [compare(one.scores_of(method, m), two.scores_of(other, m)) for m in METRICS]
        source = " and ".join(dict.fromkeys((one.trials_name, two.trials_name)))
        if any(tests):
            rows.append([Cell(title), *map(_cell, tests, [source] * 2, METRICS)])
        if tests[0] is not None:
            found[title] = tests[0]
    columns, sources = ["compared", *METRICS.values()], [run.name for run in runs.values()]
    return Table("Reasons, tested", columns, rows, sources, _conclusions(found), LEGEND)


def _conclusions(found: dict[str, Difference]) -> list[str]:
    """What the differences in accuracy support, and nothing else."""
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
        told.append(
            f"Extrapolated embeddings change accuracy by {signed(drop.mean)} "
            f"({'significant' if drop.sign else 'not significant'}) against the same model with "
            f"its new features dropped, which itself is {signed(hidden.mean)} over Base; Base "
            f"trained with hidden features is {signed(masks.mean)} over Base. "
            + _where_from(drop, hidden)
        )
    return told


def _where_from(drop: Difference, hidden: Difference) -> str:
    if drop.sign == 1:
        return "So new features add to what training with hidden features gives."
    gain = "So the gain over Base comes from training with hidden features, not from new ones."
    return gain if hidden.sign == 1 else ""


def _by_share(runs: dict[str, Run]) -> Table:
    """FATE over Base, and over itself with new features dropped, share by share."""
    scores = [run.scores_of("fate", metric) for run in runs.values() for metric in METRICS]
    shares = sorted({share for found in scores for _, share, _ in found})
    rows = []
    for name, run in runs.items():
        for metric, title in METRICS.items():
            for other in ("base", "fate_drop_new"):
                cells = [_at_share(run, other, metric, share) for share in shares]
                if any(cell.value is not None for cell in cells):
                    rows.append([Cell(name), Cell(f"fate - {other}"), Cell(title), *cells])
    columns = ["run", "difference", "in", *(f"{share:.0%} observed" for share in shares)]
    sources = [run.name for run in runs.values()]
    return Table("FATE's lead, by share observed", columns, rows, sources, legend=LEGEND)


def _at_share(run: Run, other: str, metric: str, share: float) -> Cell:
    one, two = (
        {key: score for key, score in run.scores_of(method, metric).items() if key[1] == share}
        for method in ("fate", other)
    )
    return _cell(compare(one, two), f"{run.folder}/*/observed-{share!r}/*/trial.json", metric)


def _departures(runs: Sequence[Run]) -> Table:
    """Each departure of the released code switched on alone."""
    title, columns = "What each departure is worth", ["switched on", "FATE", "difference"]
    table = Table(title, columns, [], [run.name for run in runs], legend=LEGEND)
    plain = next((run for run in runs if run.folder.endswith("/default")), None)
    if plain is None:
        return table
    before, tests = plain.scores_of("fate"), {}
    for run in runs:
        after = run.scores_of("fate")
        test = compare(after, before)
        if run is plain or test is None:
            continue
        name = run.folder.rpartition("/")[2].removeprefix("default-")
        tests[name] = test
        both = f"{run.trials_name} and {plain.trials_name}"
        mean = Cell.score(sum(after.values()) / len(after), run.trials_name)
        table.rows.append([Cell(name), mean, _cell(test, both)])
    if table.rows:
        table.rows.sort(key=lambda row: -(row[2].value or 0.0))
        up, down = (
            [f"{name} ({signed(test.mean)})" for name, test in tests.items() if test.sign == way]
            for way in (1, -1)
        )
        table.reading = [
            f"With nothing switched on FATE scores {number(sum(before.values()) / len(before))}. "
            f"Significantly better with {', '.join(up) or 'none'}; significantly worse with "
            f"{', '.join(down) or 'none'}; "
            f"the other {len(tests) - len(up) - len(down)} are within noise."
        ]
    return table
