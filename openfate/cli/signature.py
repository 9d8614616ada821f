"""Signatures: the parameters of a function or a class, with the help that its docstring gives.

They are read from the source, and no module is imported, for `--help` must not wait for torch: of
the source only the heads of functions, the fields of classes and the constants they need are run.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

REQUIRED: Any = inspect.Parameter.empty

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*)\n((?:[ \t]+\S.*\n?|[ \t]*\n)*)", re.MULTILINE)


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

    A class has the parameters of its `__init__`, or the fields of a dataclass.  Help is the entry
    of the docstring, or of a base's, or the text of ``Annotated[T, "text"]``.

    Examples
    --------
    >>> policies = read_signature("openfate.table:Policies")
    >>> policies.parameters[2].default, policies.parameters[2].help
    ('ignore', 'Known fields that are not among the columns: "ignore" | "warn" | "error".')
    """
    module, _, name = where.partition(":")
    head = _make(module, name)
    summary, helps = "", dict[str, str]()
    for part in reversed(head.__mro__ if inspect.isclass(head) else [head]):
        summary, own = _split_docstring(inspect.cleandoc(part.__doc__ or ""))
        helps |= own
    fields = getattr(head, "__dataclass_fields__", {})
    found = []
    for argument in inspect.signature(head).parameters.values():
        if argument.kind is argument.VAR_KEYWORD:
            continue
        kind, text, default = argument.annotation, helps.get(argument.name, ""), argument.default
        if get_origin(kind) is Annotated:
            kind, text = get_args(kind)
        if argument.name in fields and callable(fields[argument.name].default_factory):
            default = fields[argument.name].default_factory()
        positional = argument.kind is not argument.KEYWORD_ONLY and not inspect.isclass(head)
        found.append(Parameter(argument.name, kind, default, text, positional))
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


# ---- source of which only heads are run ----------------------------------------------------------


class _Foreign(type):
    """The type of names of other packages, which annotations may mention."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, key: Any) -> Any:
        return cls


@cache
def _make(module: str, name: str) -> Any:
    """Make what a name of a module stands for: run its statement with the names that it needs."""
    statements = _statements(module)
    if name not in statements:
        raise TypeError(f"{module} does not define {name}.")
    node = statements[name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        alias = next(alias for alias in node.names if name in (alias.asname, alias.name))
        home = getattr(node, "module", None) or alias.name
        package = home.partition(".")[0]
        if package in (module.partition(".")[0], __name__.partition(".")[0]):
            return _make(home, alias.name)
        if package not in sys.stdlib_module_names:
            return _Foreign(name, (), {})
    _strip(node)
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    loaded = {part.id for part in names if isinstance(part.ctx, ast.Load)}
    scope = {other: _make(module, other) for other in (loaded & statements.keys()) - {name}}
    try:
        code = ast.fix_missing_locations(ast.Module([node], type_ignores=[]))
        exec(compile(code, module, "exec", dont_inherit=True), scope)  # annotations as types
    except (AttributeError, NameError) as error:
        raise TypeError(
            f"{module}: {ast.unparse(node)} cannot be read without importing the module "
            f"({error}); write it as a literal."
        ) from None
    return scope[name]


def _strip(node: ast.stmt) -> None:
    """Leave of a function its head, of a class its `__init__` and its fields; docstrings stay."""
    if isinstance(node, ast.FunctionDef):
        docstring = ast.get_docstring(node)
        node.body, node.decorator_list, node.returns = [ast.Expr(ast.Constant(docstring))], [], None
    elif isinstance(node, ast.ClassDef):
        marks = [mark for mark in node.decorator_list if "dataclass" in ast.unparse(mark)]
        body: list[ast.stmt] = [ast.Expr(ast.Constant(ast.get_docstring(node)))]
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                _strip(part)
                body.append(part)
            elif marks and isinstance(part, ast.AnnAssign):
                if not ast.unparse(part.annotation).startswith("ClassVar"):
                    body.append(part)
        node.body, node.decorator_list = body, marks


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
