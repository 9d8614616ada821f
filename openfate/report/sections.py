"""The report in order: claims, reasons, then every result that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openfate.report import reasons
from openfate.report.claims import NOT, PARTLY, UNTESTED, Verdict, verdicts
from openfate.report.paper import papers_auc
from openfate.report.results import Figure, Results, Run, find_results
from openfate.report.tables import Cell, Table, number, plain_cell, plain_table, score_table, signed

__all__ = ["Report", "Section", "build"]

# Topics in order; what belongs to none of them comes last.
TITLES = {
    "uci": "The paper's first experiment",
    "departures": "Departures of the released code, one by one",
    "ablation": "Ablation (the paper's Table 3)",
    "ctr": "Click logs (the paper's Tables 1 and 4)",
    "map": "Maps of embeddings",
    "generalization": "Generalisation (section 3 of the paper)",
    "openworld": "Beyond the paper",
    "scalability": "Scalability",
    "bench": "Speed, ours beside a peer",
    "prepare": "Preparing click logs",
}


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
    return list(TITLES).index(topic) if (topic := _topic(run)) else len(TITLES), run.name


def _topic(run: Run) -> str:
    return next((part for part in run.name.split("/") if part in TITLES), "")


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
    datasets = {t.record.get("dataset") for run in results.below("uci") for t in run.trials}
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
    runs = results.below("ctr")
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
    topic = TITLES.get(_topic(run), "More results")
    section = Section(topic, run.kind, figures=list(run.figures), about=_about(run))
    if run.rows and all("mean" in row and "method" in row for row in run.rows):
        section.tables.append(score_table(run, ""))
    elif run.rows and any("ratio" in row for row in run.rows):
        section.tables.append(_bench(run))
    elif run.rows:
        section.tables.append(plain_table(run, ""))
    elif "rows_per_second" in run.content:
        section.tables.append(_prepare(run))
    section.tables += [*_gaps(run), *_more(run)]
    for key in ("note", "notes", "about"):
        told = run.content.get(key) or []
        section.words += [told] if isinstance(told, str) else [str(words) for words in told]
    return section


def _more(run: Run) -> list[Table]:
    """Other lists that a file has beside its rows: differences, bounds, runs."""
    lists = {key: found for key, found in run.content.items() if isinstance(found, list)}
    return [
        plain_table(run, key.replace("_", " "), found, key)
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


def _bench(run: Run) -> Table:
    table = plain_table(run, "")
    ratios = {row["case"]: row["ratio"] for row in run.rows if row.get("ratio") and "case" in row}
    if ratios:
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        peers = ", ".join(dict.fromkeys(str(row.get("peer_name")) for row in run.rows))
        better = sum(ratio > 1 for ratio in ratios.values())
        table.reading = [
            f"Ours is better than {peers} in {better} of {len(ratios)} cases: from "
            f"{ratios[least]:.3g} times ({least}) to {ratios[most]:.3g} times ({most})."
        ]
    return table


def _prepare(run: Run) -> Table:
    plain = {k: v for k, v in run.content.items() if not isinstance(v, list | dict | str)}
    rows = [[Cell(key), plain_cell(key, value, run.name)] for key, value in plain.items()]
    ours, papers = (run.content.get(key) or {} for key in ("features", "paper"))
    for key, value in ours.items():
        papers_text = plain_cell(key, papers.get(key), "").text
        about = f"features {key.replace('_', ' ')} (the paper's full log: {papers_text})"
        rows.append([Cell(about), plain_cell(key, value, run.name)])
    n_rows, rate, memory = (
        plain_cell(key, run.content.get(key), "").text
        for key in ("rows", "rows_per_second", "peak_bytes")
    )
    reading = [f"{n_rows} rows at {rate} rows a second, {memory} at most."]
    return Table("", ["what", "value"], rows, [run.name], reading)


def _gaps(run: Run) -> list[Table]:
    """What evidence closes of the gap to a model fitted with all features."""
    gaps = run.content.get("gap_closed")
    if not isinstance(gaps, dict) or not gaps.get("cells"):
        return []
    table = plain_table(run, "Gap closed, cell by cell", gaps["cells"], "gap_closed.cells")
    for pooled in gaps.get("pooled", ()):
        table.reading.append(
            f"{pooled['base']}: {pooled['closed']:.0%} ± {pooled['std']:.0%} of the gap between "
            f"new features ignored and known in training is closed ({pooled['n_cells']} cells, "
            f"spread over {pooled['n_trials']} splits)."
        )
    where = [
        f"{harm['base']} on {harm['dataset']} {harm['observed']:.0%}, {signed(harm['gain'], 4)}"
        for harm in gaps.get("harms") or ()
    ]
    table.reading.append(f"Harm beyond noise: {'; '.join(where) or 'in no cell'}.")
    return [table]
