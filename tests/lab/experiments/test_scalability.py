"""Lines through measured sizes, and the files that show them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from openfate.cli import make_app
from openfate.errors import DataFileError
from openfate_lab.experiments.runner import only_writer, run
from openfate_lab.experiments.scalability import Scalability, fit_lines, read_measured
from openfate_lab.report import build


def rows(noise: float = 0.0):
    """Time 2 B + 5 and memory 100 B of ours, twice that of the peer; against fields likewise."""
    found = []
    for against, key, sizes in [
        ("rows", "n_rows", (10, 20, 30, 40)),
        ("fields", "n_fields", (2, 3, 5)),
    ]:
        for place, size in enumerate(sizes):
            for bench in ("train", "infer"):
                for side, times in (("ours", 1), ("peer", 2)):
                    row = {"against": against, "n_rows": 10, "n_fields": 39, key: size}
                    ms = times * (2 * size + 5) + noise * (-1) ** place
                    row |= {"bench": bench, "side": side, "ms": ms, "bytes": times * 100 * size}
                    found.append(row)
    return found


def fit_of(fits, **wanted):
    (fit,) = [fit for fit in fits if wanted.items() <= fit.items()]
    return fit


def test_a_line_is_found_again():
    fits = fit_lines(rows())
    assert len(fits) == 2 * 2 * 2 * 2
    ours = fit_of(fits, against="rows", bench="train", side="ours", quantity="ms")
    assert (ours["slope"], ours["intercept"], ours["r2"]) == pytest.approx((2, 5, 1))
    peer = fit_of(fits, against="fields", bench="infer", side="peer", quantity="bytes")
    assert (peer["slope"], peer["intercept"]) == pytest.approx((200, 0), abs=1e-6)


def test_what_is_not_on_a_line_lowers_r2():
    fits = fit_lines(rows(noise=20))
    assert fit_of(fits, against="rows", bench="train", side="ours", quantity="ms")["r2"] < 0.8


def test_memory_that_was_not_measured_has_no_line():
    without = [row | {"bytes": None} for row in rows()]
    assert {fit["quantity"] for fit in fit_lines(without)} == {"ms"}


def test_two_points_are_no_line():
    few = [row for row in rows() if row["against"] == "rows" and row["n_rows"] <= 20]
    assert fit_lines(few) == []


def scale_file(folder, **about):
    path = folder / "scale.json"
    path.write_text(json.dumps({**about, "rows": rows()}))
    return path


def test_the_report_holds_the_lines_and_what_they_were_fitted_to(tmp_path):
    path = scale_file(tmp_path, machine="a machine")
    found = run(Scalability(path), tmp_path / "new", command="a command")
    assert [path.name.split(".")[1] for path in found.files] == ["json", "png", "svg"]
    report = json.loads(found.files[0].read_text())
    assert report["measured"] == json.loads(path.read_text()) and report["rows"] == fit_lines(
        rows()
    )
    assert (report["command"], report["machine"]) == ("a command", "a machine")
    assert all(path.stat().st_size > 1000 for path in found.files)


def test_both_machines_are_on_the_report_s_page(tmp_path):
    for machine in ("cpu", "gpu"):
        path = scale_file(tmp_path, machine=machine)
        run(Scalability(path), tmp_path / "results" / "scalability" / machine)
    sections = [s for s in build([tmp_path / "results"]).sections if s.topic == "Scalability"]
    assert [section.about["machine"] for section in sections] == ["cpu", "gpu"]
    assert all(len(section.figures) == 1 and section.tables[0].rows for section in sections)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"rows": [{"against": "weeks"}]}', '{"rows": [{"against": "rows"}]}']
)
def test_another_file_is_refused(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(
        DataFileError,
        match=r"give what `python -m openfate_lab.bench scale --out FILE` wrote",
    ):
        read_measured(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataFileError, match=r"gone\.json: there is no such file"):
        read_measured(tmp_path / "gone.json")


def test_the_command_prints_the_lines_as_json(tmp_path):
    path = scale_file(tmp_path)
    words = ["experiment", "scalability", "--measured", str(path), "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(make_app(), words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["rows"] == fit_lines(rows())
    assert (tmp_path / "scalability.png").exists()


def test_fewer_than_three_sizes_are_refused(tmp_path):
    for few in ([], rows()[:1]):
        (tmp_path / "few.json").write_text(json.dumps({"rows": few}))
        with pytest.raises(DataFileError, match="no line can be fitted to fewer than three sizes"):
            read_measured(tmp_path / "few.json")


@pytest.mark.parametrize("out", ["file", "file/deep"])
def test_a_place_that_cannot_hold_results_is_refused_before_measuring(tmp_path, out):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(
        make_app(), ["experiment", "scalability", "--out", str(tmp_path / out)]
    )
    assert isinstance(done.exception, DataFileError)
    assert "cannot be written" in str(done.exception)


def test_a_second_run_into_the_same_folder_is_refused(tmp_path):
    path = scale_file(tmp_path)
    words = ["experiment", "scalability", "--measured", str(path), "--out", str(tmp_path / "out")]
    with only_writer(tmp_path / "out"):
        done = CliRunner().invoke(make_app(), words)
    assert "another process is writing" in str(done.exception)
    assert CliRunner().invoke(make_app(), words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["bench", "train"], "openfate_lab.bench.command.bench_sides"),
        (
            ["experiment", "scalability", "--out", "out"],
            "openfate_lab.experiments.scalability.bench_scale",
        ),
        (["report", "."], "openfate_lab.report.build"),
    ],
)
def test_ctrl_c_is_one_line(tmp_path, monkeypatch, words, work):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, interrupted)
    done = CliRunner().invoke(make_app(), words)
    assert done.exit_code == 130
    assert done.stderr == "openfate: interrupted; nothing was written.\n"
