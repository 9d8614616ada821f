"""Every block of README and docs runs or is a command that exists; their figures are in results/.

`python tests/test_docs.py` brings what is computed in the pages up to date: the lines of
docs/paper-and-code.md, the claims, reasons and folders of docs/results.md, and the tables of
docs/security.md and docs/howto/serving.md.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from snippets import PAGES, ROOT, blocks_of, commands_in, is_commands

from openfate.cli import main, make_app
from openfate_lab.experiments.labels import Labels
from openfate_lab.report import build

README = (ROOT / "README.md").read_text()
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# The first is shown step by step below, the files of the second are made by test_contributing.py.
TESTED_APART = ("README.md", "CONTRIBUTING.md")
TARGETS = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())


def pages_with(*languages):
    return [
        name
        for name, page in zip(NAMES, PAGES, strict=True)
        if any(block.language in languages for block in blocks_of(page.read_text()))
    ]


# ---- blocks ------------------------------------------------------------------------------------


def parse_openfate(words):
    """Let the command line read a command, without running it; bad flags raise."""
    command, name = typer.main.get_command(make_app()), "openfate"
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no command {words[:1]} in {name}"
        name, words = words[0], words[1:]
        command = command.commands[name]
    command.make_context(name, list(words))


def check_command(words):
    if words[0] == "openfate":
        parse_openfate(words[1:])
    elif words[0] == "make":
        assert words[1] in TARGETS, f"no target {words[1]} in Makefile"
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), f"no file {words[1]}"
    else:
        assert words[0] in ("pip", "pytest", "head", "python"), f"what is {words[0]}?"


def check_flags(text):
    """A file for --config: its first line names the command, whose flags its keys are."""
    command = re.match(r"# \S+: openfate (\w+)", text)[1]
    flags = typer.main.get_command(make_app()).commands[command].params
    known = {option.lstrip("-") for flag in flags for option in flag.opts}
    assert set(tomllib.loads(text)) <= known


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_run_or_is_a_command_that_exists(name):
    for block in blocks_of((ROOT / name).read_text()):
        if block.language in ("sh", "console") or (
            block.language in ("", "indented") and is_commands(block)
        ):
            for words in commands_in(block):
                check_command(words)
        elif block.language == "toml":
            check_flags(block.text)
        elif block.language != "python":
            assert block.language in ("", "text", "indented", "mermaid"), f"line {block.line}"
            looks = re.search(r"(?m)^(import |from \w+ import|>>> |\$ |def )", block.text)
            assert looks is None, f"line {block.line}: say ```python, ```sh or ```console"


@pytest.mark.parametrize("name", [n for n in pages_with("python", "sh") if n not in TESTED_APART])
def test_every_page_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope = {"__name__": "__main__"}
    for block in blocks_of((ROOT / name).read_text()):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, name, "exec"), scope)
        elif block.language == "sh":
            for words in commands_in(block):
                assert words[0] == "openfate", f"line {block.line}: only openfate is run"
                monkeypatch.setattr(sys, "argv", words)
                with pytest.raises(SystemExit) as ended:
                    main()
                assert not ended.value.code, capsys.readouterr().err


def test_a_block_that_is_neither_would_be_found():
    (bad,) = blocks_of("text\n\n    openfate fitt a.csv\n")
    with pytest.raises(AssertionError, match="fitt"):
        check_command(commands_in(bad)[0])
    with pytest.raises(Exception, match="--targt"):
        check_command(["openfate", "fit", "a.csv", "--targt", "b", "--out", "c"])
    with pytest.raises(AssertionError, match="no target"):
        check_command(["make", "coffee"])


def test_the_example_of_the_readme_is_short_and_right():
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 13
    scope = {}
    torch.manual_seed(0)
    exec(code, scope)
    assert scope["p"].shape == (200, 2)
    assert (scope["p"].argmax(1)[:4] == [0, 1, 0, 1]).all()


# ---- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "table", "results"),
    [
        ("docs/uci.md", "default", "uci/default"),
        ("docs/uci.md", "uncentred", "uci/default-uncentred"),
        ("docs/uci.md", "reference", "uci/reference"),
    ],
)
def test_a_table_comes_from_results(page, table, results):
    rows = json.loads((ROOT / "results" / results / "summary.json").read_text())["rows"]
    mean = {(r["dataset"], r["observed"], r["method"]): r["mean"] for r in rows}
    text = (ROOT / page).read_text()
    section = re.search(rf"<!-- {table} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    header, _, *lines = section[1].strip().splitlines()
    methods = [cell.strip(" `") for cell in header.strip("|").split("|")][1:]
    for line in lines:
        name, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        dataset, share = name.rsplit(" ", 1)
        for method, cell in zip(methods, cells, strict=True):
            assert cell == f"{mean[dataset, float(share), method]:.3f}".lstrip("0")


def with_report(text):
    """A page with the claims, and the reasons where they do not hold, as the report finds them."""
    report = build([ROOT / "results"])
    claims = ["| claim of the paper | run | | what we find |", "|---|---|---|---|"]
    for claim in report.claims:
        claims.append(f"| {claim.claim} | {claim.run} | **{claim.verdict}** | {claim.detail} |")
    reasons = [
        f"- {sentence}"
        for table in report.sections[0].tables
        if table.title in ("Reasons, tested", "What each departure is worth")
        for sentence in table.reading
    ]
    folders = ["| what | where | trials | made by |", "|---|---|---|---|"]
    for section in (s for s in report.sections if s.tables and s.title != "Beside the paper"):
        source = section.tables[0].sources[0]
        n_trials = section.about.get("trials", "-").split(" ")[0]
        folders.append(
            f"| {section.topic} | `{source.removesuffix('/summary.json')}` | {n_trials} | "
            f"`{section.about.get('command', '-')}` |"
        )
    made_of = (("claims", claims), ("reasons", reasons), ("folders", folders))
    for name, lines in made_of:
        pattern, made = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)", "\n".join(lines)
        assert re.search(pattern, text), name
        text = re.sub(pattern, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    return text


def test_the_claims_are_those_of_the_report():
    text = (ROOT / "docs" / "results.md").read_text()
    assert text == with_report(text), "run python tests/test_docs.py"


def with_speed(text):
    """The page on serving with what `openfate bench serve` measured."""
    told = json.loads((ROOT / "results" / "bench" / "serve-cpu.json").read_text())
    by = {row["case"]: row for row in told["rows"]}
    lines = ["| | ours | FastAPI and LightGBM | times better |", "|---|---:|---:|---:|"]
    for case, what, digits in (
        ("requests", "single rows a second", 0),
        ("p99", "99th percentile of them, ms", 1),
        ("bulk", "rows a second in bulk, Arrow beside JSON", 0),
    ):
        row = by[case]
        sides = " | ".join(f"{row[side]:,.{digits}f}" for side in ("ours", "peer"))
        lines.append(f"| {what} | {sides} | {row['ratio']:.1f} |")
    grown = by["growth"]
    lines += [
        "",
        f"{told['cores']} cores, load {told['load_average']}, {told['connections']} connections, "
        f"{told['observes_a_second']} observes a second. A row alone takes {grown['peer']:.2f} ms "
        f"with a thousand observed new features and {grown['ours']:.2f} ms with a million.",
    ]
    pattern, made = r"(?s)(<!-- speed -->\n).*?(<!-- end -->)", "\n".join(lines)
    assert re.search(pattern, text)
    return re.sub(pattern, lambda m: f"{m[1]}{made}\n{m[2]}", text)


def test_the_speed_of_the_service_is_that_of_its_bench():
    text = (ROOT / "docs" / "howto" / "serving.md").read_text()
    assert text == with_speed(text), "run python tests/test_docs.py"


def _short(number):
    return f"{number:.3f}".lstrip("0")


def _label_means(folder):
    """Lines of what labels are worth in the mean of all cells."""
    told = json.loads((ROOT / "results" / "labels" / folder / "summary.json").read_text())
    yield (
        "| labels that have arrived | cells | ignored | **OpenFATE** | retrained | "
        "known from the start | ahead of retraining |"
    )
    yield "|---" * 7 + "|"
    for row in told["means"]:
        by = {
            method: f"{_short(row[method]['score'])} / {_short(row[method]['log_loss'])}"
            for method in ("ignore", "openfate", "retrain", "oracle")
            if method in row
        }
        ahead = f"{row['ahead_of_retrain']} of {row['n_cells']}" if "retrain" in by else "-"
        yield (
            f"| {row['labels']:,} | {row['n_cells']} | {by['ignore']} | **{by['openfate']}** | "
            f"{by.get('retrain', '-')} | {by['oracle']} | {ahead} |"
        )


def _label_cells(folder):
    """Lines of the cells behind them: OpenFATE, and the model trained again below it."""
    path = ROOT / "results" / "labels" / folder / "summary.json"
    mean = {
        (r["dataset"], r["observed"], r["method"], r["labels"], r["metric"]): r["mean"]
        for r in json.loads(path.read_text())["rows"]
    }
    counts = (0, 100, 300, 1000, 3000)

    def line(name, *places):
        told = [
            f"{_short(mean[*at, 'score'])} / {_short(mean[*at, 'log_loss'])}"
            if (*at, "score") in mean
            else ""
            for at in places
        ]
        return f"| {name} | " + " | ".join(told) + " |"

    yield "| | ignored | no label | 100 labels | 300 | 1,000 | 3,000 | known from the start |"
    yield "|---" * 8 + "|"
    for cell in sorted({key[:2] for key in mean}):
        ours = [(*cell, "openfate", n) for n in counts]
        yield line(f"{cell[0]} {cell[1]}", (*cell, "ignore", 0), *ours, (*cell, "oracle", 0))
        again = [(*cell, "retrain", n) for n in counts]
        yield line("trained again", (*cell, "none", 0), *again, (*cell, "none", 0))


def _batch_cells():
    """Lines of the paper's protocol, without labels."""
    path = ROOT / "results" / "openworld" / "batch" / "summary.json"
    rows = json.loads(path.read_text())["rows"]
    mean = {(r["dataset"], r["observed"], r["method"]): r["mean"] for r in rows}
    known = {key[2] for key in mean}
    methods = [f"lightgbm_{way}" for way in ("drop", "evidence", "calls", "oracle")]
    methods += [name for name in ("fate_auto_drop", "fate_auto", "fate") if name in known]
    yield "| | " + " | ".join(f"`{name}`" for name in methods) + " |"
    yield "|---" * (1 + len(methods)) + "|"
    for cell in sorted({key[:2] for key in mean}):
        told = [_short(mean[*cell, name]) if (*cell, name) in mean else "-" for name in methods]
        yield f"| {cell[0]} {cell[1]} | " + " | ".join(told) + " |"


def _gaps():
    """Lines of what evidence closes of the gap, without labels."""
    batch = ROOT / "results" / "openworld" / "batch" / "summary.json"
    columns = ROOT / "results" / "labels" / "columns-lightgbm"
    records = [json.loads(path.read_text()) for path in sorted(columns.glob("*/*/*/trial.json"))]
    found = {
        "0-1 features": json.loads(batch.read_text())["gap_closed"],
        "whole columns": Labels().summary(records)["gap_closed"],
    }
    ways = {
        "batch": "in one batch",
        "calls": "in calls of 100 rows",
        "rows": "row by row after `observe`",
    }
    yield "| | cells | score | log-loss | harmed in log-loss | best strength |"
    yield "|---" * 6 + "|"
    for novelty, gaps in found.items():
        closed = {
            (told["way"], told["metric"]): told
            for told in gaps["pooled"]
            if told["base"] == "lightgbm"
        }
        for way, name in ways.items():
            if (way, "score") not in closed:
                continue
            both = [closed[way, metric] for metric in ("score", "log_loss")]
            shares = " | ".join(f"{told['closed']:.0%} ± {told['std']:.0%}" for told in both)
            own = [cell for cell in gaps["cells"] if cell["base"] == "lightgbm"]
            harmed = sum(
                cell["harm"] for cell in own if (cell["way"], cell["metric"]) == (way, "log_loss")
            )
            best = [f"{told['ceiling']:.0%}" for told in both if "ceiling" in told]
            at_best = " / ".join(best) or "-"
            yield f"| {novelty}, {name} | {both[0]['n_cells']} | {shares} | {harmed} | {at_best} |"


def _nothing_new():
    """Lines of both models with all columns known, on raw tables."""
    bases = {"fate": "`FATEClassifier`", "lightgbm": "LightGBM"}
    found = {}
    for base in bases:
        path = ROOT / "results" / "nothing-new" / f"columns-{base}" / "summary.json"
        for row in json.loads(path.read_text())["rows"]:
            found[row["dataset"], base, row["metric"]] = row["mean"]
    yield "| | " + " | ".join(bases.values()) + " |"
    yield "|---" * 3 + "|"
    names = sorted({key[0] for key in found})
    for name in [*names, "mean"]:
        some = names if name == "mean" else [name]
        told = [
            " / ".join(
                _short(sum(found[each, base, metric] for each in some) / len(some))
                for metric in ("score", "log_loss")
            )
            for base in bases
        ]
        yield f"| {name} | " + " | ".join(told) + " |"


def with_gains(text):
    """A page with what new features and later labels were measured to be worth."""
    made = {
        "labels": list(_label_means("columns-lightgbm")),
        "never": list(_label_means("columns-lightgbm-never")),
        "cells": list(_label_cells("columns-lightgbm")),
        "github": list(_label_cells("features-lightgbm")),
        "github-never": list(_label_cells("features-lightgbm-never")),
        "batch": list(_batch_cells()),
        "gaps": list(_gaps()),
        "nothing": list(_nothing_new()),
    }
    for name, lines in made.items():
        pattern, found = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)", "\n".join(lines)
        text = re.sub(pattern, lambda m, found=found: f"{m[1]}{found}\n{m[2]}", text)
    return text


@pytest.mark.parametrize("page", ["README.md", "docs/openworld.md"])
def test_what_is_gained_comes_from_results(page):
    text = (ROOT / page).read_text()
    assert "<!-- labels -->" in text
    assert text == with_gains(text), "run python tests/test_docs.py"


def with_security(text):
    """The page on security with what poison, growth and the fuzzers were measured to do."""
    folder = ROOT / "results" / "security"
    poison, growth = (json.loads((folder / f"{n}.json").read_text()) for n in ("poison", "growth"))
    pooled, sides = poison["pooled"], ("capped", "source", "uncapped")
    attacks = {
        "values": "the surest row, new values that nobody else has",
        "ids": "the same, a value of its own for each row",
        "many rows": "the 200 surest rows of one class",
        "hijack": "the surest row, values that others have too",
    }
    lines = ["| attack | 200 rows | 20,000 | source: 200 | 20,000 | uncapped: 200 | 20,000 |"]
    lines.append("|---" + "|---:" * 6 + "|")
    for attack, what in attacks.items():
        flipped = [pooled[side]["flipped"][attack][n] for side in sides for n in ("200", "20000")]
        lines.append(f"| {what} | " + " | ".join(f"{100 * x:.1f} %" for x in flipped) + " |")
    worst = ", ".join(f"{100 * pooled['worst_cell'][attack]:.1f}" for attack in attacks)
    alone, batch = (
        ", ".join(f"{pooled[side][name]:.4f}" for side in sides)
        for name in ("accuracy", "accuracy_batch")
    )
    lines.append(f"\nThe worst of the six cells, by default, 20,000 rows: {worst} %. ")
    lines[-1] += f"Honest accuracy in these three ways: {alone} row by row, {batch} in a batch."
    fuzz = _fuzz_lines((folder / "fuzz.txt").read_text())
    made = {"poison": lines, "growth": _growth_lines(growth), "fuzz": fuzz}
    for name, lines in made.items():
        pattern, found = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)", "\n".join(lines)
        assert re.search(pattern, text), name
        text = re.sub(pattern, lambda m, found=found: f"{m[1]}{found}\n{m[2]}", text)
    return text


def _growth_lines(growth):
    memory, old = growth["memory"]["ours"], growth["memory"]["before"]
    bound, free = growth["bound"]["bound"], growth["bound"]["no_bound"]
    each, saved, more, bundle = (
        f"{memory[name]:{form}}{unit} (before: {old[name]:,{form}})"
        for name, form, unit in (
            ("bytes_a_value", ".0f", " bytes each"),
            ("save_seconds", ".1f", " s"),
            ("save_more_megabytes", ".0f", " MB more"),
            ("bundle_megabytes", ".0f", " MB"),
        )
    )
    wide = {}
    for case in ("frame", "file"):
        ours, before, quarter = (growth[case][n] for n in ("ours", "before", "ours_quarter"))
        times = before["seconds"] / ours["seconds"]
        wide[case] = (
            f"of {ours['columns']:,} in {ours['seconds']:.1f} s (before: {before['seconds']:.1f}, "
            f"{times:.1f} times), of a quarter of them in {quarter['seconds']:.1f}"
        )
    known = f"{memory['one_row_ms']:.1f} ms, by a fresh bank"
    return [
        "| | |",
        "|---|---|",
        f"| {memory['values']:,} values of a new column, two classes | "
        f"{memory['megabytes']:.0f} MB, {each}; saved in {saved} and {more}, a bundle of {bundle}; "
        f"one row takes {known} {memory['one_row_of_fresh_bank_ms']:.1f} |",
        f"| `max_new_features=100_000`, 10 million rows, users by p(rank) ~ 1/rank | "
        f"{bound['most_new_features']:,} new features at most, {bound['megabytes']:.0f} MB; AUC "
        f"{bound['auc']:.4f}, without a bound ({free['most_new_features']:,}, "
        f"{free['megabytes']:.0f} MB) {free['auc']:.4f}, with new features ignored "
        f"{bound['auc_without_new_features']:.4f} |",
        f"| three rows of new columns | a frame {wide['frame']}; a file, by `openfate predict` "
        f"with its start, {wide['file']} |",
    ]


def _fuzz_lines(told):
    """What `make fuzz` printed, as a table; outcomes that are none of the good ones are bad."""
    cases = re.findall(r"(?m)^(.{26})(.{22}) *(\d+)$", told)
    count = {(kind.strip(), outcome.strip()): int(n) for kind, outcome, n in cases}
    everything, seconds, n_bad = re.search(
        r"(?m)^([\d,]+) cases in (\d+) seconds, (\d+) bad ones\.$", told
    ).groups()
    good = ("refused", "same", "other")
    assert sum(count.values()) == int(everything.replace(",", ""))
    assert sum(n for (_, outcome), n in count.items() if outcome not in good) == int(n_bad)
    lines = [
        "| | refused | predicts the same | predicts other finite numbers | bad |",
        "|---" + "|---:" * 4 + "|",
    ]
    for kind in sorted({kind for kind, _ in count}):
        own = {outcome: n for (other, outcome), n in count.items() if other == kind}
        n, bad = sum(own.values()), sum(n for what, n in own.items() if what not in good)
        what = "files of rows" if kind == "rows" else kind.replace("bundle", "bundles")
        cells = [f"{own.get(outcome, 0):,}" for outcome in good]
        lines.append(f"| {n:,} {what} | " + " | ".join([*cells, f"{bad:,}"]) + " |")
    return [f"{everything} cases in {seconds} seconds, {n_bad} bad:", "", *lines]


def test_the_tables_of_security_come_from_results():
    text = (ROOT / "docs" / "security.md").read_text()
    assert text == with_security(text), "run python tests/test_docs.py"


# ---- links -------------------------------------------------------------------------------------

LINE_LINK = re.compile(
    r"\[`(?P<name>\w[\w.]*)`\]\(\.\./(?P<path>openfate(?:_lab)?/[\w/.]+)#L(?P<line>\d+)\)"
)


def line_of(path, name):
    """The line on which a class, function, method or setting begins; methods as Class.name."""
    *above, last = name.split(".")
    first = 0
    lines = path.read_text().splitlines()
    for part in above:
        first = next(
            n for n in range(first, len(lines)) if re.match(rf"\s*class {part}\b", lines[n])
        )
    pattern = rf"\s*(class|def) {last}\b" if above else rf"(class|def) {last}\b|{last}\b( =|:)"
    pattern = pattern if not above else rf"{pattern}|\s+{last}: |\s+self\.{last} ="
    return next(n for n in range(first, len(lines)) if re.match(pattern, lines[n])) + 1


def with_lines(text):
    """A page whose links to lines lead to where the names are now."""
    return LINE_LINK.sub(
        lambda m: f"[`{m['name']}`](../{m['path']}#L{line_of(ROOT / m['path'], m['name'])})", text
    )


def test_links_to_lines_lead_to_what_they_name():
    text = (ROOT / "docs" / "paper-and-code.md").read_text()
    assert len(LINE_LINK.findall(text)) > 25
    assert text == with_lines(text), "run python tests/test_docs.py"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors_of(found.read_text()), target


def anchors_of(text):
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", text))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    config = (ROOT / "mkdocs.yml").read_text()
    entries = set(re.findall(r"(?m)^ +- (?:[^\n]+: )?([\w/-]+\.md)$", config))
    pages = {str(p.relative_to(ROOT / "docs")) for p in PAGES if p.is_relative_to(ROOT / "docs")}
    assert entries == pages


if __name__ == "__main__":
    for path, made in (
        ("README.md", with_gains),
        ("docs/openworld.md", with_gains),
        ("docs/paper-and-code.md", with_lines),
        ("docs/results.md", with_report),
        ("docs/security.md", with_security),
        ("docs/howto/serving.md", with_speed),
    ):
        page = Path(ROOT, path)
        page.write_text(made(page.read_text()))
