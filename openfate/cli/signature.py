"""Signatures: the parameters of a function or a class, with the help that its docstring gives.

They are read from the source: to import the modules would load torch, and `--help` must not wait
for it.  Nothing of the source is run.  An annotation may be made of the types that flags know (see
`openfate.cli.flags`) and of names for them, a default of literals and of names for them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

REQUIRED: Any = inspect.Parameter.empty

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*)\n((?:[ \t]+\S.*\n?|[ \t]*\n)*)", re.MULTILINE)
_TYPES: dict[str, Any] = {
    **{"bool": bool, "int": int, "float": float, "str": str},
    **{"Path": Path, "Any": Any, "object": object},
}
_GENERICS: dict[str, Any] = {
    **{"list": list, "tuple": tuple},
    **{"Sequence": Sequence, "Mapping": Mapping},
}

# Name, annotation and default of a parameter, and whether it may be given without its name.
Argument = tuple[str, ast.expr, ast.expr | None, bool]


@dataclass(frozen=True)
class Parameter:
    """What may be given to a function or a class.

    Parameters
    ----------
    positional
        Whether a function takes it without its name.
    """

    name: str
    type: Any
    default: Any = REQUIRED
    help: str = ""
    positional: bool = False


@dataclass(frozen=True)
class Signature:
    """A name, what the docstring says before its sections, and the parameters."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]


@cache
def read_signature(where: str) -> Signature:
    """Read the signature of "module:Class" or "module:function" without importing the module.

    A class has the parameters of its own `__init__`, a dataclass the fields of its own body.  Help
    is the entry of its docstring, or the text of ``Annotated[T, "text"]``.

    Examples
    --------
    >>> policies = read_signature("openfate.table:Policies")
    >>> policies.parameters[2].default, policies.parameters[2].help
    ('ignore', 'Known fields that are not among the columns: "ignore" | "warn" | "error".')
    """
    module, _, name = where.partition(":")
    module, node = _find(module, name)
    summary, helps = _split_docstring(ast.get_docstring(node) or "")
    found = []
    for argument, annotation, default, positional in _arguments(node):
        kind, text = _type(annotation, module), helps.get(argument, "")
        if get_origin(kind) is Annotated:
            kind, text = get_args(kind)
        value = REQUIRED if default is None else _value(default, module)
        found.append(Parameter(argument, kind, value, text, positional))
    return Signature(name, summary, tuple(found))


def _split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """What a numpydoc docstring says before its sections, and of each parameter."""
    summary, *parts = _SECTION.split(docstring)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    helps: dict[str, str] = {}
    for heading, text in _ENTRY.findall(sections.get("Parameters", "")):
        first, *others = heading.partition(" : ")[0].split(", ")
        helps[first] = " ".join(text.split()).replace("``", "`")
        helps |= {name: f"See --{first.replace('_', '-')}." for name in others}
    return summary.strip(), helps


# ---- source that is read -------------------------------------------------------------------------


def _arguments(node: ast.ClassDef | ast.FunctionDef) -> Iterator[Argument]:
    """What a function takes, or the `__init__` of a class, or the fields of a dataclass."""
    if isinstance(node, ast.FunctionDef):
        return _of_function(node.args, 0)
    inits = (part for part in node.body if isinstance(part, ast.FunctionDef))
    init = next((part for part in inits if part.name == "__init__"), None)
    return _of_fields(node) if init is None else _of_function(init.args, 1)


def _of_fields(node: ast.ClassDef) -> Iterator[Argument]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if not ast.unparse(part.annotation).startswith("ClassVar"):
                yield part.target.id, part.annotation, part.value, False


def _of_function(head: ast.arguments, n_left_out: int) -> Iterator[Argument]:
    plain = head.args[n_left_out:]  # without self
    defaults = [*[None] * (len(plain) - len(head.defaults)), *head.defaults, *head.kw_defaults]
    for argument, default in zip([*plain, *head.kwonlyargs], defaults, strict=True):
        kind = argument.annotation or ast.Name("object")
        yield argument.arg, kind, default, argument in plain and not n_left_out


def _type(node: ast.expr, module: str) -> Any:
    """What an annotation stands for; `object` for types that no flag has."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=value) if value is ...:
            return ...
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Name(id=name):
            home, found = _find(module, name)
            return _type(found.value, home) if isinstance(found, ast.Assign) else object
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left, module) | _type(right, module)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return Literal[ast.literal_eval(words)]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, text])):
            return Annotated[_type(kind, module), ast.literal_eval(text)]
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _GENERICS:
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _GENERICS[name][tuple(_type(item, module) for item in items)]
    return object


def _value(node: ast.expr, module: str) -> Any:
    """What a default is."""
    match node:
        case ast.Name(id=name):
            home, found = _find(module, name)
            if isinstance(found, ast.Assign):
                return _value(found.value, home)
        case ast.Call(keywords=[ast.keyword(arg="default_factory", value=ast.Name(id="dict"))]):
            return {}
        case ast.BinOp(left=left, op=ast.LShift(), right=right):
            return _value(left, module) << _value(right, module)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TypeError(
            f"{module}: {ast.unparse(node)} cannot be read without importing the module; write it "
            "as a literal."
        ) from None


@cache
def _find(module: str, name: str) -> tuple[str, Any]:
    """The statement that defines a name of a module, and the module where it stands."""
    statements = _statements(module)
    if name not in statements:
        raise TypeError(f"{module} does not define {name}.")
    node = statements[name]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        package = node.module.partition(".")[0]
        if package in (module.partition(".")[0], __name__.partition(".")[0]):
            alias = next(alias for alias in node.names if name in (alias.asname, alias.name))
            return _find(node.module, alias.name)
    return module, node


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """The statements that give a module its names, those under `if TYPE_CHECKING` too."""
    found: dict[str, ast.stmt] = {}
    for top in ast.parse(_path(module).read_text(encoding="utf-8")).body:
        for node in (top, *(top.body if isinstance(top, ast.If) else ())):
            match node:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    found |= dict.fromkeys((n.asname or n.name for n in names), node)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    found[name] = node
                case ast.Assign(targets=targets):
                    found |= {t.id: node for t in targets if isinstance(t, ast.Name)}
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                    found[name] = node
    return found


def _path(module: str) -> Path:
    """The file of a module.  WHY: `find_spec` of the whole name would import its packages."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise TypeError(f"there is no package {top}.")
    path = Path(spec.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
