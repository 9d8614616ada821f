"""Commands: functions and their signatures become them; --json, --config, Ctrl-C, progress."""

from __future__ import annotations

import inspect
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from openfate.cli.flags import make_flag
from openfate.cli.signature import Signature
from openfate.errors import DataFileError, InputError, suggest
from openfate.files import check_place

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

T = TypeVar("T", bound=Sized)
# What a command found, for --json, and the same for people: lines of text and tables of rich.
Answer = tuple[dict[str, Any], Iterable[Any]]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def make_command(
    signature: Signature,
    run: Callable[..., Answer],
    *,
    left: str | None = None,
    config: bool = False,
) -> Callable[..., None]:
    """Make what `typer.Typer.command` takes of a function and a signature.

    Parameters
    ----------
    signature
        Name, help and flags of the command; see `openfate.cli.flags` for what a parameter becomes.
    run
        Called with the values by name.
    left
        What a Ctrl-C leaves, such as "nothing was written"; where it is not given `run` may see to
        it itself.
    config
        Whether --config names a file of flags.
    """
    flags = {parameter.name: make_flag(parameter) for parameter in signature.parameters}

    def command(**given: Any) -> None:
        as_json = given.pop("as_json")
        given.pop("config", None)
        with interruptible(left):
            result, told = run(**{name: flags[name].read(given[name]) for name in given})
        with _answering():
            if as_json:
                print(json.dumps(result))
                return
            for part in told:
                if isinstance(part, str):
                    print(printable(part))
                else:
                    from rich.console import Console

                    Console().print(part)

    command.__name__, command.__doc__ = signature.name, signature.summary
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [flag.parameter for flag in flags.values()]
    if config:
        parameters += [inspect.Parameter("config", keyword, default=None, annotation=_Config)]
    parameters += [inspect.Parameter("as_json", keyword, default=False, annotation=Json)]
    # WHY: typer looks at both, and finds in them what it would find in a function's head.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@contextmanager
def _answering() -> Iterator[None]:
    """Say in one line that the answer cannot be written, such as to a file on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # WHY: Python would write what is left once more when it ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise DataFileError(
            f"standard output: cannot be written ({error.strerror}); what the command made is "
            "there all the same."
        ) from None


_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    r"""A text in which names and values from a file command no terminal.

    Examples
    --------
    >>> print(printable("\x1b[2J clears the screen"))
    \x1b[2J clears the screen
    """
    return text.translate(_CONTROLS)


def make_table(
    title: str, names: Iterable[str], numbers: Iterable[str], rows: Iterable[Iterable[str]]
) -> Table:
    """A table of columns of names and, to the right of them, columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title), style="table.title"))
    for heading in names:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # not markup: "[/b]" is a name
    return table


# ---- --config ------------------------------------------------------------------------------------


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
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
            hint = suggest(name, flags) or f" (flags: {', '.join(flags)})."
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


_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=_read_config,
        help="A TOML file with flags of this command; the command line wins.",
    ),
]


# ---- while it works ------------------------------------------------------------------------------


def make_progress(*columns: Any) -> Progress:
    """Progress on stderr, so that what is printed can be piped, and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def check_out(out: Path, rows: Path) -> None:
    """Refuse, before the work, a path that cannot be written or is one of the rows."""
    check_place(out)
    if rows.resolve() in (out.resolve(), *out.resolve().parents):
        raise InputError(f"--out {out}: that would change the rows, {rows}; choose another path.")


@contextmanager
def interruptible(left: str | None) -> Iterator[None]:
    """Ctrl-C ends a command with one line, which says what is `left`."""
    try:
        yield
    except KeyboardInterrupt:
        if left is None:
            raise
        print(f"openfate: interrupted; {left}.", file=sys.stderr)
        raise typer.Exit(130) from None


def count_rows(batches: Iterable[T], what: str) -> Iterator[T]:
    """Give the batches on, while a line on the terminal counts their rows."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with make_progress(*columns) as progress:
        task, n_rows = progress.add_task(what, total=None), 0
        for batch in batches:
            yield batch
            n_rows += len(batch)
            progress.update(task, description=f"{what}: {n_rows:,} rows")
