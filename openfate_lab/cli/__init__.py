"""The lab's commands: demo, fetch, experiment, bench, report."""

from __future__ import annotations

import typer

from openfate_lab.cli import bench, experiment, report, research

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add the lab's commands to the command line of the library."""
    for command in (research.demo, research.fetch, report.report):
        app.command()(command)
    experiment.add_experiments(app)
    bench.add_bench(app)
