"""The page is well-formed, loads nothing, and its numbers are those of the files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from result_folders import summary_row, trial, write, write_run

from openfate_lab.report import build, render_page, write_page

ROOT = Path(__file__).parents[3]
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Checks that tags nest; keeps tables, links and numbers with their titles."""

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.tables, self.numbers, self.words = [], [], 0, [], []
        self.title = ""

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        assert len(named) == len(attributes), f"an attribute twice in <{tag}>"
        self.loaded += [named[key] for key in ("src", "href", "srcset", "action") if key in named]
        self.tables += tag == "table"
        self.title = named.get("title", "") if tag == "td" else self.title
        if tag == "data":
            self.numbers.append((self.title, float(named["value"])))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_well_formed_and_loads_nothing(whole):
    _, text = whole
    reader = read(text)
    assert not [link for link in reader.loaded if not link.startswith(("#", "data:image/"))]
    assert "<script" not in text
    assert not re.search(r"@import|url\(", re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1])


def test_every_table_is_on_the_page(whole):
    built, text = whole
    n_tables = sum(len(section.tables) for section in built.sections)
    assert read(text).tables == n_tables + 1  # and the claims
    titles = " ".join(read(text).words)
    for section in built.sections:
        assert section.title in titles


def test_every_number_of_a_summary_is_the_files(whole):
    checked = 0
    files = {}
    for title, value in read(whole[1]).numbers:
        place = re.search(r"(results/\S+\.json) rows\[(\d+)\]", title)
        if place and "the paper" not in title and "over " in title:
            path = ROOT / place[1]
            if path not in files:
                files[path] = json.loads(path.read_text())
            assert value == files[path]["rows"][int(place[2])]["mean"]
            checked += 1
    assert checked > 800
    summaries = set((ROOT / "results").rglob("summary.json"))
    scored = {p for p in summaries if "mean" in json.loads(p.read_text())["rows"][0]}
    assert set(files) == scored


def test_every_source_exists(whole):
    built, text = whole
    names = {
        name for section in built.sections for table in section.tables for name in table.sources
    }
    names |= set(re.findall(r"results/[^\s;\"]+\.json", " ".join(t for t, _ in read(text).numbers)))
    for name in names:
        assert list(ROOT.glob(name.replace("[", "[[]"))), name


def test_links_within_the_page_lead_somewhere(whole):
    text = whole[1]
    targets = set(re.findall(r'id="([^"]+)"', text))
    links = {link[1:] for link in read(text).loaded if link.startswith("#")}
    assert links <= targets
    assert "claims" in links


def test_text_from_files_cannot_become_markup(results):
    name = '<script>alert("1")</script>'
    rows = [summary_row(name, 0.5, "base", [0.5]), summary_row("b", 0.5, "base", [0.5])]
    write(results / "new" / "summary.json", {"command": name, "rows": rows, "note": name})
    text = render_page(build([results]))
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in text
    assert name in read(text).words


@pytest.mark.parametrize(
    ("content", "cells"),
    [
        (
            {"rows": [{"case": "a", "ours": 1.0, "peer": None, "ratio": None, "unit": "ms"}]},
            [["a", "1", "-", "-", "ms"]],
        ),
        ({"rows": [{"anything": [1, 2], "k": 3}, {"other": True}]}, [["3", "-"], ["-", "yes"]]),
        (
            {"rows": "none", "rows_per_second": 3, "rows_in": {}, "peak_bytes": 5, "n": 1},
            [["rows_per_second", "3"], ["peak_bytes", "0.0 MB"], ["n", "1"]],
        ),
    ],
)
def test_results_of_an_unknown_shape_are_shown_as_they_are(results, content, cells):
    write(results / "bench" / "a.json", content)
    write_run(results / "uci" / "default", 0.1)
    report = build([results])
    (table,) = next(s for s in report.sections if s.title == "bench/a").tables
    assert [[cell.text for cell in row] for row in table.rows] == cells
    words = read(render_page(report)).words
    assert all(cell in words for row in cells for cell in row)


def test_results_that_cannot_be_shown_are_named(results):
    write(results / "bench" / "a.json", {"rows": [1, None]})
    write_run(results / "uci" / "default", 0.1)
    text = render_page(build([results]))
    read(text)
    assert "results/bench/a.json: rows[0] is 1, not a mapping" in text


def test_settings_that_differ_between_trials_are_both_told(results):
    write_run(results / "uci" / "default", 0.1)
    odd = trial("gene", 0.3, 9, {}) | {"settings": {"epochs": 7}}
    write(results / "uci" / "default" / "gene" / "observed-0.3" / "seed-9" / "trial.json", odd)
    (section,) = (s for s in build([results]).sections if s.title == "uci/default")
    assert section.about["settings of the trials"] in ("epochs 2 | epochs 7", "epochs 7 | epochs 2")


def test_the_page_is_written_whole(results):
    write_run(results / "uci" / "default", 0.1)
    built = build([results])
    write_page(built, results / "report.html")
    assert (results / "report.html").read_text() == render_page(built)
    assert json.dumps(built.data(), allow_nan=False)


def test_claims_are_recomputed_in_a_folder_of_any_name(results):
    write_run(results / "mine" / "default", 0.1)
    path = results / "mine" / "default" / "summary.json"
    built = build([results])
    assert built.claims[0].run == "mine/default"
    assert "The paper's first experiment" in [section.topic for section in built.sections]
    write(path, {**json.loads(path.read_text()), "command": "", "experiment": "departures"})
    assert build([results]).claims == []
