"""The command line: commands are functions, flags are their arguments.

    fit.py, predict.py, observe.py, merge.py, evaluate.py, inspect.py, export.py, prepare.py,
    serve.py
                    the commands
    command.py      what a function needs to be a command: --json, --config, Ctrl-C
    flags.py        what a parameter is as a flag
    signature.py    parameters and their help, read from the source of functions and classes
    target_flag.py  --target: a column or an expression
    later_rows.py   files of rows that come after fit

Other packages add commands by the entry point "openfate.commands": the lab does.
A command's module is imported when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from openfate import __version__
from openfate.cli.command import (
    Answer,
    Json,
    interruptible,
    make_command,
    make_progress,
    printable,
)
from openfate.cli.flags import names_in
from openfate.cli.signature import Parameter, Signature, read_signature
from openfate.errors import OpenFATEError, is_memory_full

__all__ = [
    "Answer",
    "Json",
    "Parameter",
    "Signature",
    "interruptible",
    "main",
    "make_app",
    "make_command",
    "make_progress",
    "names_in",
    "read_signature",
]


# The commands, and what a Ctrl-C leaves of each.
_COMMANDS = {
    "fit": "run it again to go on from there",
    "predict": "nothing was written",
    "observe": "the bundle is as it was",
    "merge": "nothing was written",
    "evaluate": "nothing was changed",
    "inspect": None,
    "export": "nothing was written",
    "prepare": "run it again to go on from there",
    "serve": None,
}
# Whose parameters are flags of a command too; where two share one, the later says more of it.
_FLAGS_OF = {
    "fit": ("openfate.estimators:FATERegressor", "openfate.estimators:FATEClassifier"),
    "prepare": ("openfate.table:prepare",),
}
# But for these, which the commands give by themselves, or by flags of their own.
_BY_HAND = {
    *("schema", "random_state", "callback", "progress", "cache"),
    *("chunk_bytes", "shard_rows", "workers", "command", "on_progress"),
}


@cache
def make_app() -> typer.Typer:
    """The commands of the library, and those that other packages add."""
    app = typer.Typer(
        name="openfate",
        help="Models that keep working, without retraining, when new columns and values appear.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # or [env: X] would be read as markup
        pretty_exceptions_enable=False,
    )
    for name, left in _COMMANDS.items():
        app.command()(_load_later(name, left))
    app.callback(invoke_without_command=True)(version)
    for added in entry_points(group="openfate.commands"):
        added.load()(app)
    return app


def _load_later(name: str, left: str | None) -> Callable[..., None]:
    """A command whose module is imported when it runs; its flags are read from the source."""
    module = f"openfate.cli.{name}"
    signature = read_signature(f"{module}:{name}")
    own = {parameter.name: parameter for parameter in signature.parameters}
    others = {p.name: p for of in _FLAGS_OF.get(name, ()) for p in read_signature(of).parameters}
    flags = own | {other: others[other] for other in others if other not in _BY_HAND} | own
    signature = replace(signature, parameters=tuple(flags.values()))

    def run(**values: Any) -> Answer:
        answer: Answer = getattr(import_module(module), name)(**values)
        return answer

    return make_command(signature, run, left=left, config=name != "prepare")


def version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Models that keep working, without retraining, when new columns and new values appear."""
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command; errors become one line and exit code 2."""
    try:
        os.getcwd()
    except FileNotFoundError:  # WHY: before torch is loaded, which ends the process there
        print("openfate: the folder you are in was removed; go to another.", file=sys.stderr)
        sys.exit(2)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn_once()
            make_app()()
    except OpenFATEError as error:
        # An argument that the error says to set is a flag here: overwrite=True, --overwrite.
        text = re.sub(r"\b(\w+)=True\b", lambda a: f"--{a[1].replace('_', '-')}", str(error))
        print(f"openfate: {printable(text)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:  # before a command began
        print("openfate: interrupted.", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_full(error):
            raise
        print("openfate: memory is full: give fewer rows or smaller widths.", file=sys.stderr)
        sys.exit(2)


def _warn_once() -> Callable[..., None]:
    """Show warnings as lines, each text once: a command goes through the same rows twice."""
    told = set[str]()

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        text = printable(str(message))
        if text not in told:
            told.add(text)
            print(f"openfate: warning: {text}", file=sys.stderr)

    return warn
