"""A report, its parts in order, as one HTML page: the template `page.html` writes what is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from openfate import __version__
from openfate.files import writing
from openfate_lab.report.claims import NOT, PARTLY, UNTESTED, Verdict, verdicts
from openfate_lab.report.reasons import paper_tables
from openfate_lab.report.results import TITLES, Figure, Results, Run, find_results
from openfate_lab.report.scores import score_table
from openfate_lab.report.tables import Table, gap_tables, list_tables, row_tables

# What a file says of itself, as far as it does.
ABOUT = (
    *("command", "device", "machine", "threads", "load_average", "commit", "date"),
    *("torch", "python", "versions", "settings"),
)

# Texts come from files that anybody may have written: all of them are escaped.
_TEMPLATE = Environment(
    loader=PackageLoader(__package__, ""),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
).get_template("page.html")


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


def render_page(report: Report) -> str:
    """The page as text."""
    by_topic = groupby(report.sections, key=lambda section: section.topic)
    return _TEMPLATE.render(
        title=f"OpenFATE: {', '.join(report.folders)}",
        version=__version__,
        report=report,
        topics=[(topic, list(sections)) for topic, sections in by_topic],
    )


def write_page(report: Report, path: Path) -> None:
    """Write the page whole or not at all."""
    text = render_page(report)
    with writing(path) as file:
        file.write(text.encode())


def build(folders: Sequence[Path]) -> Report:
    """Read some folders of results and arrange what is there.

    Raises
    ------
    InputError
        Where a folder does not exist, or there is nothing to report.
    """
    results = find_results(folders)
    claims = verdicts(results)
    order = [*TITLES, ""]  # what belongs to no topic comes last
    runs = sorted(results.runs, key=lambda run: (order.index(run.topic), run.name))
    sections = [*_paper_sections(results, claims), *map(_section, runs)]
    return Report([str(folder) for folder in folders], claims, sections, results.unread)


def _paper_sections(results: Results, claims: Sequence[Verdict]) -> list[Section]:
    """Ours beside the paper, where there is something beside it."""
    tables, topic = paper_tables(results), "Beside the paper"
    if not tables:
        return []
    given = [claim.verdict for claim in claims if claim.verdict != UNTESTED]
    n_partly, n_not = given.count(PARTLY), given.count(NOT)
    words = [
        f"Of {len(given)} claims recomputed (each for every run), {len(given) - n_partly - n_not} "
        f"hold, {n_partly} hold in part and {n_not} do not. "
        "The tables below test the likely reasons."
    ]
    # What may differ too, and cannot be told from these trials.
    datasets = {trial["dataset"] for run in results.on("uci") for trial in run.trials}
    if "drive-sample" in datasets and "drive" not in datasets:
        words.append(
            "drive-sample (2,200 rows) stands in for drive (58,509 rows): not a test of the whole."
        )
    if "protein" in datasets:
        words.append(
            "protein contains its label in three columns, as the paper's counts of features imply."
        )
    return [Section(topic, topic, tables, words=words)]


def _section(run: Run) -> Section:
    """A file's results as they are."""
    are_scores = run.rows and all("mean" in row and "method" in row for row in run.rows)
    first = [score_table(run)] if are_scores else row_tables(run)
    words = []
    for key in ("note", "notes", "about"):
        told = run.content.get(key) or []
        words += [told] if isinstance(told, str) else [str(text) for text in told]
    topic, tables = TITLES.get(run.topic, "More results"), [*first, *gap_tables(run)]
    tables += list_tables(run)
    return Section(topic, run.kind, tables, list(run.figures), words, _about(run))


def _about(run: Run) -> dict[str, str]:
    """Command, machine, versions and settings, where the file or its trials say so."""
    about = {key: _flat(run.content[key]) for key in ABOUT if key in run.content}
    for key in ("versions", "settings", "command", "data_sha256"):
        found = dict.fromkeys(_flat(trial[key]) for trial in run.trials if key in trial)
        if found and (key != "data_sha256" or len(found) <= 12):
            about[f"{key} of the trials"] = " | ".join(found)
    if run.trials:
        about["trials"] = f"{len(run.trials)} records below {run.folder}"
    return about


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(one)}" for key, one in value.items())
    return str(value)
