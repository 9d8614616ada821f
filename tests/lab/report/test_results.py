"""Files are read or left out by name: what a person edited never ends the report."""

import json
import os
from itertools import islice
from pathlib import Path

import pytest
from result_folders import summary_row, write, write_run
from spoiling import spoilt

from openfate.errors import InputError
from openfate_lab.report import build, render_page

RESULTS = Path(__file__).parents[3] / "results"
FILES = [
    "uci/default/summary.json",
    "uci/default/gene/observed-0.3/seed-0/trial.json",
    "ctr/summary.json",
    "ctr/flights/nn/kshot/seed-0/trial.json",
    "map/default/summary.json",
    "generalization/theory/summary.json",
    "openworld/batch/summary.json",
    "openworld/stream/summary.json",
    "scalability/scalability.json",
    "prepare/criteo-5m.json",
    "bench/train-cpu.json",
    "bench/gpu-engine.json",
]
MANY = ("results", "splits", "rows", "new_cells", "chosen", "tried", "kernels", "parts_ms")


def few(content, n=2):
    """The content with two of what is many and alike."""
    if isinstance(content, list):
        return [few(inner) for inner in content[:n]]
    if not isinstance(content, dict):
        return content
    kept = {key: inner for key, inner in content.items() if key not in ("settings", "versions")}
    for key in MANY:
        if isinstance(kept.get(key), dict):
            kept[key] = dict(islice(kept[key].items(), n))
    return {key: few(inner) for key, inner in kept.items()}


@pytest.mark.parametrize("name", FILES)
def test_one_thing_wrong_never_ends_the_report(tmp_path, name):
    results = tmp_path / "results"
    write(results / "bench" / "a.json", {"rows": [{"case": "a", "ratio": 2.0}]})
    content = few(json.loads((RESULTS / name).read_text()))
    if name.endswith("trial.json"):
        write_run(results / name.split("/")[0] / "default", 0.1)
    shown = 0
    for key in spoilt(content):
        write(results / name, content)
        try:
            built = build([results])
            render_page(built)
        except Exception as error:
            pytest.fail(f"{key} of {name} ended the report: {error!r}")
        assert all(f"results/{name}: " in told for told in built.unread)
        shown += not built.unread
    assert shown > 5


def test_what_is_left_out_is_told_by_file_and_key(tmp_path):
    write_run(tmp_path / "results" / "uci" / "default", 0.1)
    path = tmp_path / "results" / "uci" / "default" / "gene" / "observed-0.3" / "seed-0"
    write(path / "trial.json", {"dataset": "gene", "observed": 0.3, "seed": 0})
    write(tmp_path / "results" / "map" / "summary.json", {"rows": [{"mean": "high"}]})
    (tmp_path / "results" / "ctr").mkdir()
    (tmp_path / "results" / "ctr" / "summary.json").write_text("")
    built = build([tmp_path / "results"])
    assert built.unread == [
        "results/ctr/summary.json: not JSON that can be read",
        "results/map/summary.json: rows[0].mean is 'high', not a number",
        "results/uci/default/gene/observed-0.3/seed-0/trial.json: results is missing",
    ]
    assert "rows[0].mean is &#39;high&#39;, not a number; left out" in render_page(built)


def test_nothing_but_unreadable_files_is_refused_with_their_fault(tmp_path):
    write(tmp_path / "results" / "summary.json", {"rows": 3})
    with pytest.raises(InputError, match=r"results/summary.json: rows is 3, not a list"):
        build([tmp_path / "results"])


def test_folders_and_files_that_cannot_be_opened_are_told(tmp_path, monkeypatch):
    """Root may open anything, so refusal is played here."""
    write_run(tmp_path / "results" / "uci" / "default", 0.1)
    write(tmp_path / "results" / "map" / "summary.json", {"rows": []})
    write(tmp_path / "results" / "ctr" / "summary.json", {"rows": []})
    scan, read = os.scandir, Path.read_text

    def scandir(path):
        if Path(path).name == "map":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    def read_text(path, **more):
        if "ctr" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, **more)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(Path, "read_text", read_text)
    built = build([tmp_path / "results"])
    assert built.unread == [
        "results/map: cannot be opened",
        "results/ctr/summary.json: cannot be opened",
    ]


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


def test_departures_say_uci_and_keep_their_section(results):
    write_run(results / "departures" / "default", 0.1)
    topics = [section.topic for section in build([results]).sections]
    assert topics == ["Departures of the released code, one by one"]


def test_a_folder_that_is_named_twice_is_read_once(results):
    write_run(results / "uci" / "default", 0.1)
    once, twice = build([results]), build([results, results / ".." / results.name])
    assert len(once.sections) == len(twice.sections)
