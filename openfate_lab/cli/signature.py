"""The fields of a dataclass and their texts in its docstring, read from the source: no import."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Parameter", "read_signature"]


@dataclass(frozen=True)
class Parameter:
    """A field: its annotation as it is written, its default and its text."""

    name: str
    type: str
    default: Any
    help: str


def read_signature(where: str) -> tuple[str, list[Parameter]]:
    """The first line of a dataclass "module:Class", and its fields; defaults must be literals."""
    module, _, name = where.partition(":")
    package, _, file = module.rpartition(".")
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / f"{file}.py").read_text())
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    summary, _, rest = (ast.get_docstring(node) or "").partition("\n\nParameters\n----------\n")
    texts = dict(re.findall(r"^(\w+)\n((?:    .*\n?)+)", rest, re.MULTILINE))
    found = []
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
            default = None if isinstance(line.value, ast.Call) else ast.literal_eval(line.value)
            text = " ".join(texts[line.target.id].split())
            found.append(Parameter(line.target.id, ast.unparse(line.annotation), default, text))
    return summary, found
