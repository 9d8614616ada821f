"""How large the project is: a table by folder, as `make lines` prints it.

Code is what is left of a file without blank lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("openfate", "openfate_lab")
_SILENT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """Lines of one file or of several."""

    files: list[int] = field(default_factory=list)  # code lines of each file
    docstrings: int = 0
    comments: int = 0
    functions: list[int] = field(default_factory=list)  # code lines of each function

    @property
    def code(self) -> int:
        """Lines of code in all files."""
        return sum(self.files)

    def add(self, other: Size) -> None:
        """Count another size in."""
        self.files += other.files
        self.functions += other.functions
        self.docstrings += other.docstrings
        self.comments += other.comments


def measure(path: Path) -> Size:
    """The size of one file."""
    source = path.read_text()
    tree = ast.parse(source)
    documented = {line for lines in _docstrings(tree) for line in lines}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.update(lines)
        elif token.type not in _SILENT:
            code.update(lines)
    code -= documented
    functions = [
        len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Size([len(code)], len(documented), len(comments - code), functions)


def _docstrings(tree: ast.Module) -> Iterator[range]:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            yield range(first.lineno, (first.end_lineno or first.lineno) + 1)


def measure_all(paths: list[Path]) -> Size:
    """The size of some files together."""
    size = Size()
    for path in paths:
        size.add(measure(path))
    return size


def main() -> None:
    """Print the table."""
    heads = ("files", "code", "docstrings", "comments", "function", "longest", "longest file")
    print(f"{'folder':26}" + "".join(f"{head:>13}" for head in (*heads, "test lines")))
    for package in PACKAGES:
        top = ROOT / package
        folders = sorted(child for child in top.iterdir() if any(child.rglob("*.py")))
        for folder in folders if top.exists() else []:
            name = f"{package}/{folder.name}"
            _print(name, sorted(folder.rglob("*.py")), _tests(package, folder.name))
        _print(f"{package} (files)", sorted(top.glob("*.py")), [])
        _print(package, sorted(top.rglob("*.py")), [])
    _print("tests", sorted((ROOT / "tests").rglob("*.py")), [])


def _tests(package: str, folder: str) -> list[Path]:
    home = ROOT / "tests" / ("lab" if package == "openfate_lab" else "") / folder
    return sorted(home.rglob("*.py"))


def _print(name: str, paths: list[Path], tests: list[Path]) -> None:
    size = measure_all(paths)
    functions = size.functions or [0]
    cells = (
        len(size.files),
        size.code,
        size.docstrings,
        size.comments,
        round(statistics.median(functions)),
        max(functions),
        max(size.files, default=0),
        measure_all(tests).code or "",
    )
    print(f"{name:26}" + "".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
