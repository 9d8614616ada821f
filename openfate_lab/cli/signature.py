"""The fields of a dataclass and their texts in its docstring, read from the source: no import."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from openfate.cli import names_in
from openfate.errors import InputError

__all__ = ["Parameter", "flag_of", "read_flag", "read_signature", "shown_default"]

_NUMBERS = {"int": int, "float": float}


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


def flag_of(parameter: Parameter) -> Any:
    """What typer is to read: lists as one text, `set` as several."""
    plain = parameter.type.removesuffix(" | None")
    hint: Any = {"bool": bool, "Path": Path, **_NUMBERS}.get(plain, str)
    hint = list[str] if plain.startswith("Mapping") else hint
    name = f"--{parameter.name.replace('_', '-')}"
    hint = hint | None if parameter.default is None else hint
    return Annotated[hint, typer.Option(name, help=parameter.help)]


def shown_default(parameter: Parameter) -> Any:
    """The default as the help shows it."""
    given = parameter.default
    return ",".join(map(str, given)) if isinstance(given, tuple) else given


def read_flag(parameter: Parameter, given: Any) -> Any:
    """The value of a flag: a list's text is split, and read as its items' type."""
    if not parameter.type.startswith("tuple[") or given == "all":
        return given
    item = _NUMBERS.get(parameter.type.removeprefix("tuple[").partition(",")[0])
    try:
        return tuple(item(part) if item else part for part in names_in(given))
    except ValueError:
        flag, kind = parameter.name.replace("_", "-"), "integers" if item is int else "numbers"
        example = "11,14" if item is int else "0.3,0.5"
        raise InputError(
            f"--{flag} {given}: give {kind} with commas between them, such as {example}."
        ) from None
