"""The report in order: claims, reasons, then every result that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openfate_lab.report import others, reasons
from openfate_lab.report.claims import NOT, PARTLY, UNTESTED, Verdict, verdicts
from openfate_lab.report.paper import papers_auc
from openfate_lab.report.results import TITLES, Figure, Results, Run, find_results
from openfate_lab.report.tables import Cell, Table, number, plain_table, score_table

__all__ = ["Report", "Section", "build"]


@dataclass
class Section:
    """A part of the page."""

    topic: str
    title: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """All that the page holds."""

    folders: list[str]
    claims: list[Verdict]
    sections: list[Section]
    unread: list[str]

    def data(self) -> dict[str, Any]:
        """The same as plain data, for --json."""
        tables = [{"section": s.title, **asdict(t)} for s in self.sections for t in s.tables]
        return {
            "folders": self.folders,
            "claims": [asdict(claim) for claim in self.claims],
            "tables": tables,
            "figures": [figure.name for s in self.sections for figure in s.figures],
            "unread": self.unread,
        }


def build(folders: Sequence[Path]) -> Report:
    """Read some folders of results and arrange what is there.

    Raises
    ------
    InputError
        Where a folder does not exist, or there is nothing to report.
    """
    results = find_results(folders)
    claims = verdicts(results)
    sections = [
        _paper(results, claims),
        *(_section(run) for run in sorted(results.runs, key=_place)),
    ]
    return Report(
        [str(folder) for folder in folders],
        claims,
        [section for section in sections if section is not None],
        results.unread,
    )


def _place(run: Run) -> tuple[int, str]:
    return list(TITLES).index(run.topic) if run.topic else len(TITLES), run.name


# ---- beside the paper --------------------------------------------------------------------------


def _paper(results: Results, claims: Sequence[Verdict]) -> Section | None:
    made = [
        reasons.beside_the_paper(results),
        reasons.baselines_beside(results),
        _ctr_beside_the_paper(results),
        reasons.reasons(results),
        reasons.by_share(results),
        reasons.departures(results),
    ]
    tables = [table for table in made if table is not None]
    if not tables:
        return None
    failed = [claim for claim in claims if claim.verdict in (NOT, PARTLY)]
    tested = [claim for claim in claims if claim.verdict != UNTESTED]
    words = [
        f"Of {len(tested)} claims recomputed (each for every run), {len(tested) - len(failed)} "
        f"hold, {sum(c.verdict == PARTLY for c in failed)} hold in part and "
        f"{sum(c.verdict == NOT for c in failed)} do not. The tables below test the likely reasons."
    ]
    words += _not_tested(results)
    return Section("Beside the paper", "Beside the paper", tables, words=words)


def _not_tested(results: Results) -> list[str]:
    """What may differ too, and cannot be told from these trials."""
    datasets = {t.record.get("dataset") for run in results.on("uci") for t in run.trials}
    told = []
    if "drive-sample" in datasets and "drive" not in datasets:
        told.append(
            "drive-sample (2,200 rows) stands in for drive (58,509 rows): not a test of the whole."
        )
    if "protein" in datasets:
        told.append(
            "protein contains its label in three columns, as the paper's counts of features imply."
        )
    return told


def _ctr_beside_the_paper(results: Results) -> Table | None:
    keys = ("dataset", "backbone", "variant", "k", "split", "method")
    rows = []
    runs = results.on("ctr")
    for run in runs:
        for at, row in enumerate(run.rows):
            paper = papers_auc(row)
            if paper is None or "mean" not in row:
                continue
            where = "the paper, full data (openfate/report/paper.py)"
            names = [Cell("-" if row.get(key) is None else str(row[key])) for key in keys]
            ours = Cell(number(row["mean"], 4), row["mean"], f"{run.name} rows[{at}]")
            rows.append([*names, Cell(number(paper, 4), paper, where), ours])
    if not rows:
        return None
    columns = [*keys, "paper (full data)", "ours (what is here)"]
    table = Table("Click logs: paper and ours", columns, rows, [run.name for run in runs])
    table.legend = "ROC-AUC. Another amount of data: compare differences, not levels."
    return table


# ---- results as they are -----------------------------------------------------------------------


def _section(run: Run) -> Section:
    topic = TITLES.get(run.topic, "More results")
    section = Section(topic, run.kind, figures=list(run.figures), about=_about(run))
    if run.rows and all("mean" in row and "method" in row for row in run.rows):
        section.tables.append(score_table(run, ""))
    elif run.rows and any("ratio" in row for row in run.rows):
        section.tables.append(others.bench(run))
    elif run.rows and others.are_lines(run.rows):
        section.tables.append(others.lines(run))
    elif run.rows:
        section.tables.append(plain_table(run, ""))
    elif "rows_per_second" in run.content:
        section.tables.append(others.prepare(run))
    elif isinstance(run.content.get("rows"), dict):
        section.tables.append(others.engine(run))
    section.tables += [*others.gaps(run), *_more(run)]
    for key in ("note", "notes", "about"):
        told = run.content.get(key) or []
        section.words += [told] if isinstance(told, str) else [str(words) for words in told]
    return section


def _more(run: Run) -> list[Table]:
    """Other lists that a file has beside its rows: differences, bounds, runs."""
    lists = {key: found for key, found in run.content.items() if isinstance(found, list)}
    return [
        others.bounds(run)
        if key == "bounds" and others.are_bounds(found)
        else plain_table(run, key.replace("_", " "), found, key)
        for key, found in lists.items()
        if key != "rows" and found and all(isinstance(row, dict) for row in found)
    ]


def _about(run: Run) -> dict[str, str]:
    """Command, machine, versions and settings, where the file or its trials say so."""
    content = run.content
    about: dict[str, str] = {}
    for key in (
        "command",
        "device",
        "machine",
        "threads",
        "load_average",
        "commit",
        "date",
        "torch",
        "python",
        "versions",
        "settings",
    ):
        if key in content:
            about[key] = _flat(content[key])
    for key in ("versions", "settings", "command", "data_sha256"):
        found = dict.fromkeys(_flat(t.record[key]) for t in run.trials if key in t.record)
        if found and (key != "data_sha256" or len(found) <= 12):
            about[f"{key} of the trials"] = " | ".join(found)
    if run.trials:
        about["trials"] = f"{len(run.trials)} records below {run.folder}"
    return about


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(one)}" for key, one in value.items())
    return str(value)
