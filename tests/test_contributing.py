"""What CONTRIBUTING adds, made from its text: each a file, a line where it is listed and a test."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^### (.*?)\n(.*?)(?=^###? |\Z)", TEXT))
CODE = r"[^\n]*:\n\n```python\n(.*?)```"


@dataclass(frozen=True)
class Addition:
    """What a section tells a newcomer to write, and where."""

    file: tuple[str, str]  # its path and its content
    line: tuple[str, str, str]  # the name of the list, the file that has it, the line
    test: tuple[str, str]

    @classmethod
    def of(cls, section):
        def only(pattern):
            (found,) = re.findall(pattern + CODE, section, flags=re.DOTALL)
            return found

        line = only(r"The line, in `(\w+)` of `([^`]+)`")
        return cls(only(r"The file, `([^`]+)`"), line, only(r"The test, `([^`]+)`"))


ADDITIONS = {title: Addition.of(section) for title, section in SECTIONS.items()}


def write(root, path, content):
    where = root / path
    assert not where.exists(), f"{path} is there already"
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(content)


def insert(root, name, path, line):
    """Add a line at the end of the list of that name."""
    before, head, rest = re.split(
        rf"(?m)(^{name}\b[^\n]*[(\[{{]\n)", (root / path).read_text(), maxsplit=1
    )
    entries, end = re.match(r"(?s)(.*?)(\n *[)\]}].*)", rest).groups()
    indent = re.match(" *", entries.splitlines()[-1])[0]
    (root / path).write_text(f"{before}{head}{entries}\n{indent}{line.rstrip()}{end}")


@pytest.fixture
def tree(tmp_path):
    """The sources, with every file and test that the text shows but none of its lines."""
    for package in ("openfate", "openfate_lab"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for addition in ADDITIONS.values():
        write(tmp_path, *addition.file)
        write(tmp_path, *addition.test)
    return tmp_path


def run_tests(tree):
    """The titles of the additions whose tests all pass in the tree, and what pytest said."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    options = ["-q", "-rA", "-p", "no:cacheprovider", "--tb=short", "--rootdir", str(tree)]
    command = [sys.executable, "-m", "pytest", *options, "tests", "--doctest-modules"]
    files = [addition.file[0] for addition in ADDITIONS.values()]
    ended = subprocess.run(
        [*command, *files], cwd=tree, env=environment, capture_output=True, text=True
    )
    outcomes = re.findall(r"(?m)^(PASSED|FAILED|ERROR) ([^:\s]+)", ended.stdout)
    good = {path for _, path in outcomes} - {p for word, p in outcomes if word != "PASSED"}
    passed = {title for title, each in ADDITIONS.items() if each.test[0] in good}
    return passed, ended.stdout + ended.stderr


def test_there_are_four():
    assert list(ADDITIONS) == ["A backbone", "A data set", "A kind of field", "An experiment"]


@pytest.mark.parametrize("title", ADDITIONS)
def test_each_is_one_line_and_a_test_at_the_mirror_place(title):
    addition = ADDITIONS[title]
    assert addition.line[2].count("\n") == 1
    package, *inside, file = addition.file[0].split("/")
    lab = ["lab"] if package == "openfate_lab" else []
    assert addition.test[0] == "/".join(["tests", *lab, *inside, f"test_{file}"])


def test_each_addition_works_by_its_text(tree):
    for addition in ADDITIONS.values():
        insert(tree, *addition.line)
    passed, said = run_tests(tree)
    assert passed == set(ADDITIONS), said


def test_none_works_without_its_line(tree):
    passed, said = run_tests(tree)
    assert passed == set(), said
