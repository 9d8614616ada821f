"""Signatures: the parameters of a function or a class, with the help that its docstring gives.

They are read from the source, and nothing is imported, for `--help` must not wait for torch.  Names
in annotations and defaults are looked up in the source too, from module to module.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
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
    type
        The annotation, evaluated; `object` where it names something of another package.
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
def read_signature(where: str, skip: tuple[str, ...] = ()) -> Signature:
    """Read the signature of "module:Class" or "module:function" without importing the module.

    A class has the parameters of its `__init__`, or the fields of a dataclass after those of its
    bases.  Help is the entry of the docstring, or the text of ``Annotated[T, "text"]``.

    Parameters
    ----------
    skip
        Parameters to leave out.

    Examples
    --------
    >>> policies = read_signature("openfate.table:Policies")
    >>> policies.parameters[2].default, policies.parameters[2].help
    ('ignore', 'Known fields that are not among the columns: "ignore" | "warn" | "error".')
    """
    module, _, name = where.partition(":")
    home, node = _find(module, name)
    summary, helps = _split_docstring(ast.get_docstring(node) or "")
    found = []
    for argument, (source, hint, default, positional) in _parameters(home, node, helps).items():
        if argument in skip:
            continue
        value = REQUIRED if default is None else _evaluate(source, default)
        if isinstance(value, dataclasses.Field):
            factory, value = value.default_factory, value.default
            value = value if factory is dataclasses.MISSING else factory()
            value = REQUIRED if value is dataclasses.MISSING else value
        kind, text = _evaluate(source, hint, object), helps.get(argument, "")
        if get_origin(kind) is Annotated:
            kind, text = get_args(kind)
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


_Unevaluated = tuple[
    str, ast.expr, ast.expr | None, bool
]  # module, annotation, default, positional


def _parameters(module: str, node: Any, helps: dict[str, str]) -> dict[str, _Unevaluated]:
    """The parameters of a class or a function; `helps` gains what bases say of theirs."""
    if isinstance(node, ast.FunctionDef):
        return _arguments(module, node.args)
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            found = _arguments(module, statement.args)
            return {name: (*found[name][:3], False) for name in list(found) if name != "self"}
    found = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name) and (there := _find(module, base.id, None)):
            inherited = _split_docstring(ast.get_docstring(there[1]) or "")[1]
            found |= _parameters(there[0], there[1], inherited)
            helps |= inherited | helps
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=default):
                    if not ast.unparse(hint).startswith("ClassVar"):
                        found[name] = (module, hint, default, False)
    return found


def _arguments(module: str, arguments: ast.arguments) -> dict[str, _Unevaluated]:
    plain = [*arguments.posonlyargs, *arguments.args]
    without = [None] * (len(plain) - len(arguments.defaults))
    defaults = [*without, *arguments.defaults, *arguments.kw_defaults]
    return {
        argument.arg: (module, argument.annotation or ast.Name("object"), default, at < len(plain))
        for at, (argument, default) in enumerate(
            zip([*plain, *arguments.kwonlyargs], defaults, strict=True)
        )
    }


# ---- source that is not run ----------------------------------------------------------------------


def _find(module: str, name: str, *default: Any) -> Any:
    """The module that defines a name, and the statement; names of other packages are not found."""
    node = _names(module).get(name)
    if isinstance(node, tuple):
        home, there = node
        ours = (module.partition(".")[0], __name__.partition(".")[0])
        if there is not None and home.partition(".")[0] in ours:
            return _find(home, there, *default)
    elif node is not None:
        return module, node
    if default:
        return default[0]
    raise TypeError(f"{module} does not define {name}.")


@cache
def _names(module: str) -> dict[str, Any]:
    """The names of a module: a statement each, or the module and the name that are imported."""
    found: dict[str, Any] = {}
    for node in _statements(ast.parse(_path(module).read_text(encoding="utf-8")).body):
        match node:
            case ast.Import(names=names):
                found |= {n.asname or n.name.partition(".")[0]: (n.name, None) for n in names}
            case ast.ImportFrom(module=home, names=names):
                found |= {n.asname or n.name: (home, n.name) for n in names}
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under `if TYPE_CHECKING` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node.body)


def _path(module: str) -> Path:
    """The file of a module.  WHY: `find_spec` of the whole name would import its packages."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise TypeError(f"there is no package {top}.")
    path = Path(spec.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")


def _evaluate(module: str, node: ast.expr, *default: Any) -> Any:
    code = compile(ast.fix_missing_locations(ast.Expression(node)), module, "eval")
    try:
        return eval(code, {}, _Namespace(module))
    except (AttributeError, NameError, TypeError) as error:
        if default:
            return default[0]
        raise TypeError(
            f"{module}: {ast.unparse(node)} cannot be read without importing the module "
            f"({error}); write it as a literal."
        ) from None


class _Namespace(dict[str, Any]):
    """The names of a module, each evaluated when an expression asks for it."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        node = _names(self.module)[name]  # KeyError: a builtin
        if isinstance(node, tuple) and node[0].partition(".")[0] in sys.stdlib_module_names:
            there = import_module(node[0])
            return there if node[1] is None else getattr(there, node[1])
        module, node = _find(self.module, name, (self.module, None))
        value = getattr(node, "value", None)  # of an assignment
        return object if value is None else _evaluate(module, value)
