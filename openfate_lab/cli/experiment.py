"""`openfate experiment NAME`: a command for each experiment, made of its fields and docstring."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from openfate.cli import Answer, Parameter, make_command, make_progress, names_in, read_signature
from openfate.errors import InputError
from openfate_lab import experiments
from openfate_lab.arguments import typed_command

if TYPE_CHECKING:
    from openfate_lab.experiments import Experiment, Outcome

_COMMON = (
    Parameter("data", str | None, None, "Folder of the data [env: OPENFATE_DATA]."),
    Parameter("jobs", int | None, None, "Processes [default: the cores]."),
)


def add_experiments(app: typer.Typer) -> None:
    """Add `openfate experiment` and a command for each experiment."""
    group = typer.Typer(
        help="The paper's experiments: resumable, one folder a trial.", no_args_is_help=True
    )
    for name in experiments.EXPERIMENTS:
        group.command(name.lower())(_make_command(name))
    app.add_typer(group, name="experiment")


def _make_command(name: str) -> Callable[..., None]:
    signature = read_signature(f"openfate_lab.experiments.{name.lower()}:{name}")
    flags = {parameter.name: parameter for parameter in signature.parameters}
    if "set" in flags:  # `read_settings` knows what its values are
        flags["set"] = replace(flags["set"], type=list[str], default=None)
    out = Parameter("out", Path, Path("results") / name.lower(), "Folder of the results.")
    common = _COMMON if "trials" in flags else ()

    def run(out: Path, **given: Any) -> Answer:
        options = {parameter.name: given.pop(parameter.name) for parameter in common}
        kind: type[Experiment] = getattr(experiments, name)
        if "set" in given:
            given["set"] = read_settings(kind.settable(), given["set"] or [])
        outcome = _run(kind(**given), out, options)
        return outcome.to_json(), _describe(outcome)

    parameters = (*flags.values(), out, *common)
    return make_command(replace(signature, parameters=parameters), run)


def _run(experiment: Experiment, out: Path, common: dict[str, Any]) -> Outcome:
    """Run it with a bar on stderr; Ctrl-C says what is kept."""
    from rich import progress as bars

    sizes = (bars.BarColumn(), bars.MofNCompleteColumn())
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    kept = "nothing was written"
    try:
        with make_progress(*sizes, *times, bars.TextColumn("{task.description}")) as progress:
            task = progress.add_task("starting", total=None)

            def on_trial(done: int, total: int, last: str) -> None:
                nonlocal kept
                kept = f"{done} of {total} trials are done and kept: run it again to go on"
                progress.update(task, completed=done, total=total, description=last)

            return experiments.run(
                experiment, out, on_trial=on_trial, command=typed_command(), **common
            )
    except KeyboardInterrupt:
        print(f"openfate: interrupted; {kept}.", file=sys.stderr)
        raise typer.Exit(130) from None


def _describe(outcome: Outcome) -> Iterator[Any]:
    yield from experiments.make_tables(outcome.experiment.cells(outcome.content))
    yield from outcome.experiment.remarks(outcome.content)
    yield from map(str, outcome.files)


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
