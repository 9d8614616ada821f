"""The lab's commands: demo, fetch, experiment, bench, report."""

from __future__ import annotations

import typer

from openfate_lab.cli import clicks, experiments, paper, report, research, speed

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add the lab's commands to the command line of the library."""
    for command in (research.demo, research.fetch, report.report):
        app.command()(command)
    for experiment in (clicks.ctr, paper.ablation, paper.generalization, speed.scalability):
        experiments.experiment.command()(experiment)
    experiments.experiment.command("map")(paper.map_)
    app.add_typer(experiments.experiment, name="experiment")
    app.add_typer(speed.bench, name="bench")
