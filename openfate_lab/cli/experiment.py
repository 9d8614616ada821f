"""`openfate experiment NAME`: a command for each experiment, made of its fields and docstring."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openfate.cli import Json, names_in, stderr
from openfate.errors import InputError
from openfate_lab import experiments
from openfate_lab.cli.signature import flag_of, read_flag, read_signature, shown_default

if TYPE_CHECKING:
    from openfate_lab.experiments.runner import Experiment, Outcome

__all__ = ["add_experiments", "read_settings"]

_COMMON = {
    "data": Annotated[str | None, typer.Option(help="Folder of the data [env: OPENFATE_DATA].")],
    "jobs": Annotated[int | None, typer.Option(min=1, help="Processes [default: the cores].")],
}


def add_experiments(app: typer.Typer) -> None:
    """Add `openfate experiment` and a command for each experiment."""
    group = typer.Typer(
        help="The paper's experiments: resumable, one folder a trial.", no_args_is_help=True
    )
    for name in experiments.EXPERIMENTS:
        group.command(name.lower())(_make_command(name))
    app.add_typer(group, name="experiment")


def _make_command(name: str) -> Callable[..., None]:
    summary, parameters = read_signature(f"openfate_lab.experiments.{name.lower()}:{name}")

    def command(out: Path, as_json: bool, **given: Any) -> None:
        common = {flag: given.pop(flag) for flag in _COMMON if flag in given}
        kind: type[Experiment] = getattr(experiments, name)
        texts = given.pop("set", None)
        settings = {p.name: read_flag(p, given[p.name]) for p in parameters if p.name in given}
        if texts:
            settings["set"] = read_settings(kind.settable(), texts)
        _print(_run(kind(**settings), out, common), as_json)

    hints = {p.name: flag_of(p) for p in parameters}
    defaults: dict[str, Any] = {p.name: shown_default(p) for p in parameters}
    hints |= {"out": Annotated[Path, typer.Option(help="Folder of the results.")]}
    defaults["out"] = Path("results") / name.lower()
    if "trials" in defaults:
        hints |= _COMMON
    hints["as_json"] = Json
    command.__doc__ = summary
    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                flag,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=defaults.get(flag, False if flag == "as_json" else None),
            )
            for flag, hint in hints.items()
        ]
    )
    return command


def _run(experiment: Experiment, out: Path, common: dict[str, Any]) -> Outcome:
    """Run it with a bar on stderr; Ctrl-C says what is kept."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from openfate_lab.experiments.runner import run

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, TextColumn("{task.description}"), console=stderr())
    task, kept = progress.add_task("starting"), "nothing was written"

    def on_trial(done: int, total: int, last: str) -> None:
        nonlocal kept
        kept = f"{done} of {total} trials are done and kept: run it again to go on"
        progress.start()
        progress.update(task, completed=done, total=total, description=last)

    def stop() -> None:
        if progress.live.is_started:  # it is from the first trial on
            progress.stop()

    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = shlex.join(["openfate", *words])
    try:
        return run(experiment, out, on_trial=on_trial, command=command, **common)
    except KeyboardInterrupt:
        stop()
        print(f"openfate: interrupted; {kept}.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        stop()


def _print(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.to_json()))
        return
    from rich.console import Console

    from openfate_lab.experiments.display import print_tables

    print_tables(outcome.experiment.cells(outcome.content), Console())
    print("\n".join([*outcome.experiment.remarks(outcome.content), *map(str, outcome.files)]))


# ---- --set -------------------------------------------------------------------------------------


_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a word"}


def read_settings(plain: Any, assignments: list[str]) -> dict[str, Any]:
    """What --set says of the settings `plain`, a dataclass."""
    known = [field.name for field in fields(plain)]
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if name not in known or not equals:
            raise InputError(
                f"--set {assignment}: give NAME=VALUE with a name from {', '.join(known)}."
            )
        changes[name] = _value(name, text, getattr(plain, name))
    return changes


def _value(name: str, text: str, default: Any) -> Any:
    """Read `text` as the type of the setting's default."""
    if isinstance(default, tuple):
        return tuple(_value(name, part, default[0]) for part in names_in(text))
    kind: Any = type(default)
    if default is None:  # a number that may be left out
        kind = int if text.lstrip("+-").isdecimal() else float
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise InputError(f"--set {name}={text}: not {_KINDS[kind]}.") from None
