"""Flags that several commands share, and how their texts are read."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from openfate.errors import DataFileError, InputError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "BatchRows",
    "Bundle",
    "Config",
    "Exclude",
    "Graph",
    "Json",
    "Null",
    "RowsPath",
    "Target",
    "Where",
    "assignments_in",
    "check_choice",
    "counted",
    "interruptible",
    "names_in",
    "policy_in",
    "stderr",
]

T = TypeVar("T")


# ---- --config ----------------------------------------------------------------------------------


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take a TOML file's values as the defaults of the command's flags."""
    if path is None:
        return None
    flags = {
        flag.removeprefix("--"): parameter
        for parameter in context.command.params
        for flag in parameter.opts
        if flag.startswith("--") and flag not in ("--help", "--config")
    }
    defaults = {}
    for name, value in _toml(path).items():
        if name not in flags:
            close = difflib.get_close_matches(name, flags, n=1)
            hint = f"; did you mean {close[0]}?" if close else f" (flags: {', '.join(flags)})"
            raise InputError(f"--config {path}: {context.info_name} has no flag {name!r}{hint}")
        defaults[flags[name].name] = _as_flag(path, name, value, flags[name])
    context.default_map = {**(context.default_map or {}), **defaults}  # the command line wins
    return path


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise DataFileError(f"--config {path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise DataFileError(f"--config {path}: not TOML ({error}).") from None


def _as_flag(path: Path, name: str, value: Any, flag: Any) -> Any:
    """Turn a TOML value into what the command line would say: lists with commas, tables with =."""
    if isinstance(value, dict):
        value = [f"{key}={word}" for key, word in value.items()]
    if isinstance(value, list):
        words = [str(word) for word in value]
        return words if flag.multiple else ",".join(words)
    if isinstance(value, bool) != bool(getattr(flag, "is_flag", False)):
        kind = "true or false" if not isinstance(value, bool) else "a value, not true or false"
        raise InputError(f"--config {path}: {name} = {value!r}: it takes {kind}.")
    return [value] if flag.multiple else value


# ---- flags -------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=read_config,
        help="A TOML file with flags of this command; the command line wins.",
    ),
]
Bundle = Annotated[
    Path, typer.Argument(help="A folder that `openfate fit` wrote.", metavar="BUNDLE")
]
Where = Annotated[
    str | None,
    typer.Option(help='Only rows for which this SQL expression is true: "month = 1".'),
]
Null = Annotated[
    list[str] | None,
    typer.Option(help='A cell that means "missing", such as NA; repeatable. Empty ones always do.'),
]
BatchRows = Annotated[
    int, typer.Option(min=1, help="Rows in memory at a time; the result does not depend on it.")
]
Exclude = Annotated[
    str,
    typer.Option(
        help="Columns of ROWS that are not used, besides those that fit excluded: A,B. A bundle "
        "saved from Python does not know its target's column: name it here."
    ),
]
RowsPath = Annotated[
    Path, typer.Argument(help="CSV, TSV (also .gz), Parquet or a folder of it.", metavar="ROWS")
]
Graph = Annotated[
    str,
    typer.Option(
        help="What new features are computed from. state: rows that the bundle has seen; batch: "
        "those and ROWS; auto: batch for features that the bundle has never seen."
    ),
]
Target = Annotated[
    str | None,
    typer.Option(help="The target's column or SQL expression [default: as in fit]."),
]


def check_choice(flag: str, word: str, choices: tuple[str, ...]) -> None:
    """Raise InputError where the word is none of the choices."""
    if word not in choices:
        raise InputError(f"{flag} {word}: choose {', '.join(choices[:-1])} or {choices[-1]}.")


def names_in(text: str) -> tuple[str, ...]:
    """Split a list with commas, each name once.

    Examples
    --------
    >>> names_in("a, b,,a")
    ('a', 'b')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def assignments_in(flag: str, text: str) -> dict[str, str]:
    """Split NAME=WORD,NAME=WORD.

    Examples
    --------
    >>> assignments_in("--kinds", "age=numeric,zip=categorical")
    {'age': 'numeric', 'zip': 'categorical'}
    """
    found = {}
    for part in names_in(text):
        name, equals, word = part.rpartition("=")
        if not equals or not name:
            raise InputError(f"{flag} {part}: give NAME=WORD, several with commas between them.")
        found[name.strip()] = word.strip()
    return found


def policy_in(flag: str, texts: list[str] | None, default: str) -> str | dict[str, str]:
    """Read WORD and NAME=WORD: one word for all columns, or a word for each of some.

    Examples
    --------
    >>> policy_in("--new-columns", ["ignore"], "extrapolate")
    'ignore'
    """
    words = [word for text in texts or () for word in names_in(text)]
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise InputError(f"{flag} {','.join(plain)}: give one word for all columns, or NAME=WORD.")
    named = assignments_in(flag, ",".join(word for word in words if "=" in word))
    word = plain[0] if plain else default
    return {"*": word, **named} if named else word


# ---- while it works ------------------------------------------------------------------------------


def stderr() -> Console:
    """Where progress goes, so that what is printed can be piped."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def interruptible(left: str) -> Iterator[None]:
    """Ctrl-C ends a command with one line, which says what is `left`."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"openfate: interrupted; {left}.", file=sys.stderr)
        raise typer.Exit(130) from None


def counted(batches: Iterable[T], what: str) -> Iterator[T]:
    """The batches, while a line on the terminal counts their rows; each batch has a length."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console, n_rows = stderr(), 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=None)
        for batch in batches:
            yield batch
            n_rows += len(batch)  # type: ignore[arg-type]
            progress.update(task, description=f"{what}: {n_rows:,} rows")
