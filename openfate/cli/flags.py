"""Flags: what a parameter is on the command line, and how its text is read.

    bool                        --name, or --name / --no-name where it is true by default
    int, float, str, Path       --name VALUE
    Literal["a", "b"]           --name a|b
    tuple[T, ...], Sequence[T]  --names A,B of str, int or float; or a word of a Literal beside it
    list[T]                     --name A --name B
    Mapping[str, T]             --names A=1,B=2, repeatable; with T: a WORD for all others too

``T | None`` is as T.  A positional parameter without a default, or with None for one, is an
argument without a flag.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from openfate.cli.signature import REQUIRED, Parameter
from openfate.errors import InputError

# Of several commands.
Bundle = Annotated[Path, "A folder that `openfate fit` wrote."]
RowsPath = Annotated[
    Path, "CSV, TSV (also .gz), Parquet or a folder of them; or what prepare wrote."
]
Where = Annotated[str | None, 'Only rows for which this SQL expression is true: "month = 1".']
Null = Annotated[
    list[str] | None,
    'A cell that means "missing", such as NA; repeatable. Empty ones always do.',
]
Exclude = Annotated[
    tuple[str, ...],
    "Columns of ROWS that are not used, besides those that fit excluded. A bundle saved from "
    "Python does not know its target's column: name it here.",
]
Graph = Annotated[
    Literal["auto", "state", "batch"],
    "What new features are computed from. state: rows that the bundle has seen; batch: those and "
    "ROWS; auto: batch for features that the bundle has never seen.",
]
Trusted = Annotated[
    bool,
    "Read a wrapped model that cannot be checked, too: it may run code. Only for bundles of people "
    "whom you would let work with your account.",
]
BatchRows = Annotated[int, "Rows in memory at a time; the result does not depend on it."]

_NUMBERS = {int: ("an integer", "integers", "64,32"), float: ("a number", "numbers", "0.3,0.5")}


@dataclass(frozen=True)
class Flag:
    """A parameter as typer takes it, and what makes its value of what typer gives."""

    parameter: inspect.Parameter
    read: Callable[[Any], Any]


def make_flag(parameter: Parameter) -> Flag:
    """Make the flag of a parameter.

    Raises
    ------
    TypeError
        Where the type of the parameter is none of the above.

    Examples
    --------
    >>> flag = make_flag(Parameter("hidden", tuple[int, ...] | None, None, "Widths."))
    >>> flag.read("64,32"), flag.read(None)
    ((64, 32), None)
    """
    name, default = parameter.name.rstrip("_").replace("_", "-"), parameter.default
    hint, metavar, read = _kind(f"--{name}", parameter)
    shown = default
    if isinstance(default, tuple):
        shown = ",".join(map(str, default)) or None
    elif get_origin(hint) is list and default is not None and default is not REQUIRED:
        shown = [default]
    about: Any
    if parameter.positional and (default is REQUIRED or default is None):
        about = typer.Argument(help=parameter.help, metavar=name.upper())
    else:
        flags = f"--{name}/--no-{name}" if default is True else f"--{name}"
        about = typer.Option(flags, help=parameter.help, metavar=metavar)
    return Flag(
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=shown,
            annotation=Annotated[hint | None if shown is None else hint, about],
        ),
        lambda given: default if given is None or given == [] else read(given),
    )


def _kind(flag: str, parameter: Parameter) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """What typer is to read, how the help shows it, and how its value is read in turn."""
    hint = parameter.type
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = {get_origin(member) or member: member for member in members}
    choices = get_args(kinds.get(Literal, str))
    if mapping := kinds.get(Mapping):
        item = get_args(mapping)[1]
        takes_word = str in kinds or item in kinds
        metavar = "WORD|NAME=WORD,..." if takes_word else "NAME=WORD,..."
        of_all = item if item in kinds else str  # a word alone: max_new_features=9, or "balanced"
        return list[str], metavar, lambda texts: _mapping(flag, texts, item, takes_word, of_all)
    if sequence := kinds.get(Sequence) or kinds.get(tuple):
        item = get_args(sequence)[0]
        return str, "A,B", lambda text: text if text in choices else _list(flag, text, item)
    if choices:
        return str, "|".join(choices), lambda text: _choose(flag, text, choices)
    for kind in (list, bool, Path, float, int, str):
        if kind in kinds:
            return kinds[kind], None, kind
    raise TypeError(f"{parameter.name}: {hint} cannot be a flag; skip it.")


def names_in(text: str) -> tuple[str, ...]:
    """Split a list with commas, each name once.

    Examples
    --------
    >>> names_in("a, b,,a")
    ('a', 'b')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _choose(flag: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        *most, last = choices
        raise InputError(f"{flag} {text}: choose {', '.join(most)} or {last}.")
    return text


def _list(flag: str, text: str, item: Any) -> tuple[Any, ...]:
    if item not in _NUMBERS:
        return names_in(text)
    try:
        return tuple(item(part) for part in text.split(",") if part.strip())
    except ValueError:
        _, what, example = _NUMBERS[item]
        raise InputError(
            f"{flag} {text}: give {what} with commas between them, such as {example}."
        ) from None


def _mapping(flag: str, texts: list[str], item: Any, words: bool, of_all: Any) -> Any:
    """NAME=WORD,NAME=WORD as a dict; one WORD for all others as its "*", or alone as it is."""
    parts = [part for text in texts for part in names_in(text)]
    plain = [part for part in parts if "=" not in part]
    if len(plain) > words or any(part.startswith("=") for part in parts):
        first = "one word for all others, or " * words
        raise InputError(f"{flag} {','.join(parts)}: give {first}NAME=WORD, several with commas.")
    found = {}
    for part in parts:
        name, equals, word = part.rpartition("=")
        try:
            read = item if equals else of_all
            found[name.strip() if equals else "*"] = read(word.strip())
        except ValueError:
            raise InputError(
                f"{flag} {part}: {word.strip()!r} is not {_NUMBERS[item][0]}; give one."
            ) from None
    return found["*"] if parts == plain and plain else found
