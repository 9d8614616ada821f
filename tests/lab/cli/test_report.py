"""`openfate report`: a page, its data, and what is refused."""

from __future__ import annotations

import json

import pytest
from cli.tables import run
from result_folders import write_run


def test_report_writes_a_page_and_prints_what_it_holds(tmp_path, openfate):
    write_run(tmp_path / "results" / "uci" / "default", 0.1)
    page = tmp_path / "page.html"
    printed = openfate("report", tmp_path / "results", "--out", page, "--json")
    assert printed["page"] == str(page)
    assert page.read_text().startswith("<!doctype html>")
    claim = printed["claims"][0]
    assert (claim["verdict"], claim["run"]) == ("holds", "uci/default")
    scores = next(t for t in printed["tables"] if "fate" in t["columns"])
    rows = json.loads((tmp_path / "results/uci/default/summary.json").read_text())["rows"]
    assert scores["rows"][0][1]["value"] == rows[0]["mean"]


def test_report_prints_verdicts_and_where_the_page_is(tmp_path, openfate, monkeypatch):
    write_run(tmp_path / "results" / "uci" / "default", 0.1)
    monkeypatch.chdir(tmp_path)
    text = openfate("report", "results")
    assert "holds: FATE: 7.3 % higher accuracy than Base (uci/default): +.100" in text
    assert "Page: report.html" in text
    assert "results/uci/default/summary.json rows[0]" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["report", "nowhere"], "nowhere: there is no such folder"),
        (["report", "."], "no summary.json"),
        (["report", ".", "--out", "page.pdf"], "--out page.pdf: the page is a .html file"),
        (["report", ".", "--out", "no/page.html"], "there is no folder"),
    ],
)
def test_report_refuses_in_one_line_and_writes_nothing(
    tmp_path, refused, monkeypatch, arguments, part
):
    monkeypatch.chdir(tmp_path)
    assert part in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_report_says_on_stderr_what_it_leaves_out(tmp_path, capsys):
    write_run(tmp_path / "results" / "uci" / "default", 0.1)
    (tmp_path / "results" / "summary.json").write_text('{"rows": 3}')
    page = tmp_path / "page.html"
    assert run("report", tmp_path / "results", "--out", page) == 0
    errors = capsys.readouterr().err
    assert errors == "openfate: left out: results/summary.json: rows is 3, not a list.\n"
    assert "results/summary.json: rows is 3, not a list; left out" in page.read_text()
