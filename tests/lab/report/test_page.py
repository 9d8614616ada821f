"""The page is well-formed, loads nothing, and its numbers are those of the files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from result_folders import summary_row, trial, write, write_run

from openfate.errors import InputError
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


@pytest.fixture(scope="module")
def whole():
    """The page over the results of this repository."""
    built = build([ROOT / "results"])
    return built, render_page(built)


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


def test_the_reading_counts_what_the_trials_say(results):
    write_run(results / "uci" / "default", 0.1)
    (section,) = (s for s in build([results]).sections if s.title == "uci/default")
    text = " ".join(section.tables[0].reading)
    assert "fate is above base in 2 of 2 cells, significantly in 2, and below in 0" in text
    assert "Best of 2 lines (ties count for each): fate in 2." in text
    assert "knn is above base in 0 of 2 cells, significantly in 0, and below in 0" in text


def test_the_best_is_bold_and_an_oracle_is_not(results):
    rows = [
        summary_row("a", 0.5, m, [s]) for m, s in (("fate", 0.7), ("base", 0.6), ("oracle", 0.9))
    ]
    write(results / "uci" / "default" / "summary.json", {"rows": rows})
    assert re.findall(r"<strong><data[^>]*>([^<]*)", render_page(build([results]))) == [".700"]


def test_trials_that_do_not_agree_with_the_summary_are_not_tested(results):
    write_run(results / "uci" / "default", 0.1)
    path = results / "uci" / "default" / "summary.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["mean"] += 0.01
    write(path, content)
    (section,) = (s for s in build([results]).sections if s.title == "uci/default")
    assert "Not tested against base" in section.tables[0].legend


def test_text_from_files_cannot_become_markup(results):
    name = '<script>alert("1")</script>'
    rows = [summary_row(name, 0.5, "base", [0.5]), summary_row("b", 0.5, "base", [0.5])]
    write(results / "new" / "summary.json", {"command": name, "rows": rows, "note": name})
    text = render_page(build([results]))
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in text
    assert name in read(text).words


def test_variants_are_columns_and_the_papers_numbers_stand_below(results):
    scores = {"full": [0.91, 0.92, 0.93], "no_drop_edge": [0.81, 0.82, 0.83]}
    paper = {"full": 0.9345, "no_drop_edge": 0.9226}
    rows = [
        summary_row("gene", share, "fate", found, variant=variant, paper=paper[variant])
        for share in (0.3, 0.5)
        for variant, found in scores.items()
    ]
    for share in (0.3, 0.5):
        for seed in range(3):
            record = trial("gene", share, seed, {f"{v}/fate": s[seed] for v, s in scores.items()})
            write(results / "ablation" / "gene" / f"{share}" / f"{seed}" / "trial.json", record)
    notes = ["The paper does not state its share."]
    write(results / "ablation" / "summary.json", {"rows": rows, "notes": notes})
    (section,) = build([results]).sections
    (table,) = section.tables
    assert section.words == notes
    assert table.columns == ["observed", "full", "no_drop_edge"]
    assert [cell.text for cell in table.rows[0]] == ["30%", ".920", ".820▼"]
    assert [cell.text for cell in table.rows[1]] == ["30% (paper)", ".9345", ".9226"]
    assert table.legend.startswith("All lines: dataset gene, method fate. Bold")


def test_clicks_are_tested_split_by_split_and_log_loss_is_no_score(results):
    rows = []
    auc = {"base": [0.70, 0.71, 0.72], "fate": [0.72, 0.73, 0.74]}
    for split in ("T1", "overall"):
        for metric in ("auc", "log_loss"):
            for method, scores in auc.items():
                more = {"backbone": "nn", "variant": "k_shot", "split": split}
                rows.append(summary_row("avazu-sample", None, method, scores, metric, **more))
    for seed in range(3):
        found = {}
        for method, scores in auc.items():
            both = {"auc": scores[seed], "log_loss": scores[seed]}
            found[method] = {"metric": "auc", "score": scores[seed], "splits": {"T1": both}, **both}
        head = {"dataset": "avazu-sample", "backbone": "nn", "kind": "k_shot", "seed": seed}
        write(results / "ctr" / "a" / f"{seed}" / "trial.json", {**head, "results": found})
    write(results / "ctr" / "summary.json", {"rows": rows})
    (section,) = (s for s in build([results]).sections if s.title == "ctr")
    (table,) = section.tables
    assert table.columns == ["split", "metric", "base", "fate"]
    assert [cell.text for cell in table.rows[0]] == ["T1", "auc", ".7100", ".7300▲"]
    assert "fate is above base in 2 of 2 cells, significantly in 2" in table.reading[-1]
    assert [row[3].best for row in table.rows] == [True, False, True, False]


def test_measures_that_are_no_scores_are_lines_and_none_is_best(results):
    rows = [
        summary_row("gene", 0.5, method, [mean], metric, by_chance=0.5)
        for metric in ("agreement", "energy")
        for method, mean in (("fate", 0.3), ("oracle", 0.2))
    ]
    content = {"rows": rows, "bounds": [{"k": 2, "readings": {"printed": {"log10": 84.0}}}]}
    write(results / "map" / "summary.json", content)
    (section,) = build([results]).sections
    scores, bounds = section.tables
    assert scores.columns == ["metric", "fate", "oracle"]
    assert not any(cell.best for row in scores.rows for cell in row)
    assert scores.reading == []
    assert (bounds.title, bounds.columns) == ("bounds", ["k", "readings printed log10"])


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


def test_a_file_that_is_no_json_is_named(results):
    write_run(results / "uci" / "default", 0.1)
    (results / "broken.json").write_text("{")
    assert "broken.json: not JSON" in render_page(build([results]))


def test_figures_are_embedded_in_the_smaller_format(results):
    write_run(results / "uci" / "default", 0.1)
    (results / "uci" / "default" / "uci.png").write_bytes(b"\x89PNG" * 9)
    (results / "uci" / "default" / "uci.svg").write_text("<svg/>")
    text = render_page(build([results]))
    assert "data:image/svg+xml;base64,PHN2Zy8+" in text
    assert "image/png" not in text


@pytest.mark.parametrize("make", [True, False])
def test_nothing_to_report_is_said(tmp_path, make):
    folder = tmp_path / "empty"
    if make:
        folder.mkdir()
    with pytest.raises(InputError, match="empty"):
        build([folder])


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


@pytest.mark.parametrize(
    "said", [{"experiment": "map"}, {"command": "openfate experiment map --json"}]
)
def test_the_section_is_what_the_summary_says_not_its_folder(results, said):
    rows = [summary_row("gene", 0.5, m, [0.3, 0.4], "energy") for m in ("fate", "oracle")]
    for folder in ("mine", "uci"):
        write(results / folder / "summary.json", {**said, "rows": rows})
    built = build([results])
    assert [section.topic for section in built.sections] == ["Maps of embeddings"] * 2
    assert built.claims == []


def test_claims_are_recomputed_in_a_folder_of_any_name(results):
    write_run(results / "mine" / "default", 0.1)
    path = results / "mine" / "default" / "summary.json"
    built = build([results])
    assert built.claims[0].run == "mine/default"
    assert "The paper's first experiment" in [section.topic for section in built.sections]
    write(path, {**json.loads(path.read_text()), "command": "", "experiment": "departures"})
    assert build([results]).claims == []


def test_departures_say_uci_and_keep_their_section(results):
    write_run(results / "departures" / "default", 0.1)
    topics = [section.topic for section in build([results]).sections]
    assert topics == ["Departures of the released code, one by one"]


def test_the_engine_has_a_table_of_times_and_memory(results):
    sides = {"fused": {"ms": 2.0, "peak_gb": 0.5}, "twin": {"ms": 30.0, "peak_gb": 1.5}}
    rows = {
        "100000": {"train": {"fused": {"ms": 4.0}, "twin": {"ms": 100.0}}},
        "10000": {"train": sides, "infer": {"fused": {"ms": 1.0}, "twin": {"ms": 8.0}}},
    }
    write(results / "bench" / "gpu-engine.json", {"rows": rows, "unit": "ms a mini-batch"})
    (section,) = build([results]).sections
    (table,) = section.tables
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["training", "10,000", "2", "30", "15.0 x", "500.0 MB", "1.50 GB"],
        ["training", "100,000", "4", "100", "25.0 x", "-", "-"],
        ["prediction", "10,000", "1", "8", "8.0 x", "-", "-"],
    ]
    assert table.reading == ["Ours is 8.0 to 25.0 times as fast."]
    assert len(table.columns) == 7


def test_lines_have_units_and_both_sides_beside_one_another(results):
    line = {"against": "rows", "bench": "train", "quantity": "bytes", "r2": 0.25}
    sides = [{**line, "side": "ours", "slope": 5e3}, {**line, "side": "peer", "slope": 2e4}]
    time = {**line, "against": "fields", "quantity": "ms", "side": "ours", "slope": 0.5}
    write(results / "scalability" / "scalability.json", {"rows": [*sides, time]})
    (table,) = build([results]).sections[0].tables
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["training, memory", "rows", "5 MB / 1,000 rows", "0.250", "20 MB / 1,000 rows", "0.250"],
        ["training, time", "fields", "0.5 ms / field", "0.250", "-", "-"],
    ]


def test_the_engine_and_the_lines_of_this_repository_are_on_the_page(whole):
    built, _ = whole
    tables = {section.title: section.tables for section in built.sections}
    content = json.loads((ROOT / "results/bench/gpu-engine.json").read_text())
    n_sizes = len(content["rows"])
    assert len(tables["bench/gpu-engine"][0].rows) == 2 * n_sizes
    for name in ("scalability/scalability", "scalability/gpu/scalability"):
        content = json.loads((ROOT / "results" / f"{name}.json").read_text())
        assert [2 * len(table.rows) for table in tables[name]] == [len(content["rows"])]
    assert built.unread == []


def test_bounds_of_the_theory_have_readable_columns_and_a_line_a_reading(whole):
    built, text = whole
    tables = [t for s in built.sections for t in s.tables if t.title == "Bounds of Theorem 1"]
    assert tables
    for table in tables:
        assert not [column for column in table.columns if "_" in column]
        assert {row[6].text for row in table.rows} >= {"as printed", "as derived"}
        assert {row[-2].text for row in table.rows} <= {"yes", "no"}
    assert "log10_gamma" not in text


def test_one_trial_has_no_spread(results):
    rows = [summary_row("gene", 0.5, m, [s], std=0.0) for m, s in (("fate", 0.7), ("base", 0.6))]
    gains = [{"method": "fate", "mean": 0.1, "std": 0.0, "n_trials": 1}]
    pooled = [{"base": "b", "closed": 0.5, "std": 0.0, "n_cells": 1, "n_trials": 1}]
    gaps = {"cells": [{"base": "b", "gain": 0.1, "standard_error": 0.0, "n_trials": 1}]}
    content = {"rows": rows, "gains": gains, "gap_closed": {**gaps, "pooled": pooled}}
    write(results / "uci" / "default" / "summary.json", content)
    scores = {"fate": 0.7, "base": 0.6}
    path = results / "uci" / "default" / "gene" / "observed-0.5" / "seed-0" / "trial.json"
    write(path, trial("gene", 0.5, 0, scores))
    text = render_page(build([results]))
    assert "one split, so no test" in text
    assert "± .000" not in text and "± 0" not in text and "p = " not in text
    assert '<data value="0.0">' not in text


def test_a_folder_that_is_named_twice_is_read_once(results):
    write_run(results / "uci" / "default", 0.1)
    once, twice = build([results]), build([results, results / ".." / results.name])
    assert len(once.sections) == len(twice.sections)
