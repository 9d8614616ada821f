"""A report as one HTML page: no script, no font, no network; light or dark as the reader's system.

A number stands in `<data value="...">` with the full value; the `title` of its cell says spread,
test and file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from openfate import __version__
from openfate.files import writing
from openfate_lab.report.claims import HOLDS, NOT, PARTLY, Verdict
from openfate_lab.report.results import Figure
from openfate_lab.report.sections import Report, Section
from openfate_lab.report.tables import Cell, Table

__all__ = ["page", "write_page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fdfdfc; --line: #d9d7d2;
  --soft: #f3f1ec; --quiet: #66635d; --yes: #1a7f37; --part: #9a6700; --no: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4df; --paper: #17181a; --line: #3a3b3e;
  --soft: #212327; --quiet: #a09d96; --yes: #57c26d; --part: #d9a441; --no: #f28b82; } }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem;
  border-top: 1px solid var(--line); padding-top: 1rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
h4 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
a { color: inherit; } nav ul { columns: 18rem; padding-left: 1.2rem; margin: .5rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem;
  font-variant-numeric: tabular-nums; } th, td { padding: .2rem .55rem; text-align: right;
  border-bottom: 1px solid var(--line); white-space: nowrap; } th { background: var(--soft); }
th:first-child, td.word, .claims th { text-align: left; } .claims td { white-space: normal;
  text-align: left; vertical-align: top; min-width: 6rem; }
tbody tr:hover { background: var(--soft); }
.source, .legend, figcaption { color: var(--quiet); font-size: .82rem; margin: .3rem 0;
  overflow-wrap: anywhere; } .holds { color: var(--yes); } .part { color: var(--part); }
.no { color: var(--no); } figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto;
  background: #fff; } dl { font-size: .82rem; overflow-wrap: anywhere; } dt { font-weight: 600; }
dd { margin: 0 0 .4rem 1rem; } summary { cursor: pointer; color: var(--quiet); }
@media (max-width: 45rem) { .claims thead { display: none; } .claims tr { display: block;
  padding: .5rem 0; border-bottom: 1px solid var(--line); } .claims td { display: block;
  border: 0; padding: .05rem 0; } }
""".strip()

VERDICTS = {HOLDS: "holds", PARTLY: "part", NOT: "no"}
LONG = 40  # lines; a longer table is folded
FEW = 3  # runs of a topic; more are folded


def page(report: Report) -> str:
    """The page as text."""
    return "\n".join(_page(report)) + "\n"


def write_page(report: Report, path: Path) -> None:
    """Write the page whole or not at all."""
    text = page(report)
    with writing(path) as file:
        file.write(text.encode())


def _page(report: Report) -> Iterator[str]:
    title = f"OpenFATE: {', '.join(report.folders)}"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>"
    yield f"<h1>{escape(title)}</h1>"
    yield (
        f"<p>Made by <code>openfate report</code> {escape(__version__)} from files alone. Each "
        "table names its files; hold the pointer over a number for its spread, its test and its "
        "place.</p>"
    )
    yield from _contents(report)
    yield from _claims(report.claims)
    for at, (topic, sections) in enumerate(_topics(report)):
        yield f'<h2 id="s{at}">{escape(topic)}</h2>'
        for section in sections:
            yield from _section(section, fold=len(sections) > FEW)
    if report.unread:
        yield "<h2>Not read</h2>"
        yield from _list(f"{told}; left out" for told in report.unread)
    yield "</body>\n</html>"


def _contents(report: Report) -> Iterator[str]:
    yield "<nav><ul>"
    if report.claims:
        yield '<li><a href="#claims">The paper\'s claims</a></li>'
    for at, (topic, _) in enumerate(_topics(report)):
        yield f'<li><a href="#s{at}">{escape(topic)}</a></li>'
    yield "</ul></nav>"


def _topics(report: Report) -> list[tuple[str, list[Section]]]:
    return [
        (topic, list(sections))
        for topic, sections in groupby(report.sections, key=lambda section: section.topic)
    ]


def _list(texts: Iterable[str]) -> Iterator[str]:
    items = [f"<li>{escape(text)}</li>" for text in texts]
    if items:
        yield f"<ul>{''.join(items)}</ul>"


def _claims(claims: list[Verdict]) -> Iterator[str]:
    if not claims:
        return
    yield '<h2 id="claims">The paper\'s claims</h2>'
    yield (
        '<p class="legend">Each claim, recomputed from the trials of a run. Holds: a significant '
        "gain whose 95 % interval reaches the paper's figure, in points or as a ratio, whichever "
        "is kinder to the paper (it does not say which it means). In part: significant, but "
        "smaller than claimed.</p>"
    )
    yield '<div class="wide"><table class="claims"><thead><tr>'
    heads = ("claim of the paper", "run", "verdict", "what we find", "source")
    yield "".join(f"<th>{head}</th>" for head in heads) + "</tr></thead><tbody>"
    for claim in claims:
        kind = VERDICTS.get(claim.verdict, "legend")
        yield (
            f'<tr><td>{escape(claim.claim)}</td><td>{escape(claim.run)}</td><td class="{kind}">'
            f"<strong>{escape(claim.verdict)}</strong></td><td>{escape(claim.detail)}</td>"
            f'<td class="source">{escape(claim.source or "-")}</td></tr>'
        )
    yield "</tbody></table></div>"


def _section(section: Section, fold: bool) -> Iterator[str]:
    if fold:
        yield f"<details><summary>{escape(section.title)}</summary>"
    elif section.title != section.topic:
        yield f"<h3>{escape(section.title)}</h3>"
    for words in section.words:
        yield f"<p>{escape(words)}</p>"
    for table in section.tables:
        yield from _table(table)
    for figure in section.figures:
        yield _figure(figure)
    if section.about:
        yield "<details><summary>command, machine, versions, settings</summary><dl>"
        for key, text in section.about.items():
            yield f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>"
        yield "</dl></details>"
    if fold:
        yield "</details>"


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"<h4>{escape(table.title)}</h4>"
    yield from _list(table.reading)
    folded = len(table.rows) > LONG
    if folded:
        yield f"<details><summary>{len(table.rows)} lines</summary>"
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{escape(column)}</th>" for column in table.columns) + "</tr></thead><tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(map(_cell, row))}</tr>"
    yield "</tbody></table></div>"
    if folded:
        yield "</details>"
    if table.legend:
        yield f'<p class="legend">{escape(table.legend)}</p>'
    yield f'<p class="source">Source: {escape(", ".join(table.sources))}</p>'


def _cell(cell: Cell) -> str:
    if cell.value is None:
        return f'<td class="word">{escape(cell.text)}</td>'
    title = " · ".join(part for part in (cell.note, cell.source) if part)
    text = f'<data value="{cell.value!r}">{escape(cell.text)}</data>'
    text = f"<strong>{text}</strong>" if cell.best else text
    return f'<td title="{escape(title)}">{text}</td>'


def _figure(figure: Figure) -> str:
    kind = "svg+xml" if figure.path.suffix == ".svg" else "png"
    content = base64.b64encode(figure.path.read_bytes()).decode()
    name = escape(figure.name)
    return (
        f'<figure><img alt="{name}" src="data:image/{kind};base64,{content}">'
        f"<figcaption>{name}</figcaption></figure>"
    )
