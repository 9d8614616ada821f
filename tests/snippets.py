"""Code blocks of README and docs: which there are, and what each must be.

Fenced `python` and `sh` blocks are run, in order, all of a page in one folder and one namespace;
`console` blocks show what a command prints (`test_tutorial.py` runs them); commands in indented
blocks are only parsed, for they need data or minutes.  Everything else is text, and must not look
like code.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = ("openfate", "make", "pip", "pytest", "python", "head", "git")
FENCE = re.compile(r"```(\w*)[^\n]*\n(.*?)\n```", flags=re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page: its language ("indented" for one without a fence), text and line."""

    language: str
    text: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """Every code block, fenced or indented, in order."""
    found = []
    for fence in FENCE.finditer(text):
        found.append(Block(fence[1], fence[2], text[: fence.start()].count("\n") + 1))
    plain = FENCE.sub(
        lambda fence: "\n" * fence[0].count("\n"), text
    )  # the lines keep their numbers
    for indented in re.finditer(r"(?<=\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", f"{plain}\n"):
        before = plain[: indented.start()].rstrip("\n").rpartition("\n")[2]
        if not re.match(r"\s*([-*]|\d+\.) ", before):  # else it goes on with a list
            line = plain[: indented.start()].count("\n") + 1
            found.append(Block("indented", re.sub(r"(?m)^ {4}", "", indented[1]), line))
    return sorted(found, key=lambda block: block.line)


def is_commands(block: Block) -> bool:
    """Whether a block without a language is one of commands."""
    return any(line.split(" ")[0] in COMMANDS for line in block.text.splitlines())


def commands_in(block: Block) -> list[list[str]]:
    """The commands of a block, as words; continued lines are one."""
    text = block.text
    if block.language == "console":  # what is printed is not ours to read
        text = "\n".join(re.findall(r"^\$ (.*?[^\\])$", text, flags=re.DOTALL | re.MULTILINE))
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]
