"""The command line: commands are functions, flags are their arguments.

    learn.py      fit
    use.py        predict, observe, evaluate
    look.py       inspect, export
    research.py   demo, fetch, prepare
    experiments.py, clicks.py, paper.py    experiment
    speed.py, report.py    bench, report
    flags.py      what several commands share; --config
    rows.py, labels.py, predictions.py    files of rows, --target, what predict writes

Heavy imports stay inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer

from openfate import __version__
from openfate.cli import (
    clicks,
    experiments,
    learn,
    look,
    paper,
    report,
    research,
    speed,
    use,
)
from openfate.errors import OpenFATEError

__all__ = ["app", "main"]

app = typer.Typer(
    name="openfate",
    help="Models that keep working, without retraining, when new columns and new values appear.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # or [env: X] would be read as markup
    pretty_exceptions_enable=False,
)
for _command in (
    *(learn.fit, use.predict, use.observe, use.evaluate, look.inspect, look.export),
    *(research.demo, research.fetch, research.prepare, report.report),
):
    app.command()(_command)
for _experiment in (clicks.ctr, paper.ablation, paper.generalization, speed.scalability):
    experiments.experiment.command()(_experiment)
experiments.experiment.command("map")(paper.map_)
app.add_typer(experiments.experiment, name="experiment")
app.add_typer(speed.bench, name="bench")


@app.callback(invoke_without_command=True)
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
            app()
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
