"""The command line: commands are functions, flags are their arguments.

    learn.py      fit
    use.py        predict, observe, evaluate
    look.py       inspect, export
    prepare.py    prepare
    flags.py      what several commands share; --config
    rows.py, labels.py, predictions.py    files of rows, --target, what predict writes

Other packages add commands by the entry point "openfate.commands": the lab does.
Heavy imports stay inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from openfate import __version__
from openfate.cli import learn, look, prepare, use
from openfate.cli.flags import Json, interruptible, names_in, stderr
from openfate.errors import OpenFATEError

__all__ = ["Json", "interruptible", "main", "make_app", "names_in", "stderr"]


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
    commands = (learn.fit, use.predict, use.observe, use.evaluate, look.inspect, look.export)
    for command in (*commands, prepare.prepare):
        app.command()(command)
    app.callback(invoke_without_command=True)(version)
    for added in entry_points(group="openfate.commands"):
        added.load()(app)
    return app


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
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            make_app()()
    except OpenFATEError as error:
        print(f"openfate: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:  # before a command began
        print("openfate: interrupted.", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        full = ("allocate memory", "out of memory")  # torch's words for the CPU and the GPU
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in full):
            raise
        print("openfate: memory is full: give fewer rows or smaller widths.", file=sys.stderr)
        sys.exit(2)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"openfate: warning: {message}", file=sys.stderr)
