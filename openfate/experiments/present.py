"""Results as a table for the terminal and as the paper's line plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from openfate.data.files import writing

__all__ = ["COLOURS", "line_plots", "print_table", "save_figure"]

Row = dict[str, Any]

# Controls are dashed, and share the colour of the method that they control.
COLOURS = {
    "fate": "#d62728",
    "fate_drop_new": "#d62728",
    "base": "#1f77b4",
    "base_dropout": "#1f77b4",
    "average": "#7f7f7f",
    "knn": "#2ca02c",
    "pooling": "#9467bd",
    "inl": "#ff7f0e",
    "oracle": "#111111",
}
CONTROLS = ("fate_drop_new", "base_dropout")


def print_table(rows: Sequence[Row], console: Console) -> None:
    """One table a data set: methods down, shares of observed features across."""
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        cells = {(r["method"], r["observed"]): r for r in rows if r["dataset"] == dataset}
        shares = sorted({observed for _, observed in cells})
        first = next(iter(cells.values()))
        table = Table(title=f"{dataset}: {first['metric']}, mean ± standard deviation over trials")
        table.add_column("method")
        for share in shares:
            table.add_column(f"{share:.0%} observed", justify="right")
        best = {s: max(r["mean"] for (_, o), r in cells.items() if o == s) for s in shares}
        for method in dict.fromkeys(method for method, _ in cells):
            texts = [_cell(cells.get((method, share)), best[share]) for share in shares]
            table.add_row(method, *texts)
        console.print(table)


def _cell(row: Row | None, best: float) -> str:
    if row is None:
        return "-"
    spread = f" ± {row['std']:.3f}" if row["n_trials"] > 1 else ""
    text = f"{row['mean']:.3f}{spread}"
    return f"[bold]{text}[/bold]" if row["mean"] == best else text


def line_plots(rows: Sequence[Row], title: str) -> Figure:
    """The paper's figure 4: one panel a data set, a line a method, mean and spread over trials."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    columns = min(3, len(datasets))
    lines = -(-len(datasets) // columns)
    figure = Figure(figsize=(max(9, 4.6 * columns), 3.7 * lines + 1), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(datasets) :]:
        axis.set_axis_off()
    for axis, dataset in zip(axes.flat, datasets, strict=False):
        _panel(axis, dataset, [row for row in rows if row["dataset"] == dataset])
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title)
    return figure


def _panel(axis: Axes, dataset: str, rows: Sequence[Row]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for place, method in enumerate(methods):
        points = sorted((r["observed"], r["mean"], r["std"]) for r in rows if r["method"] == method)
        x, mean, std = zip(*points, strict=True)
        aside = 0.002 * (place - len(methods) / 2)  # so that bars do not hide one another
        colour = COLOURS[method]
        face, style = ("white", "--") if method in CONTROLS else (colour, "-")
        axis.errorbar(
            [share + aside for share in x], mean, std, color=colour, ls=style, label=method,
            marker="o", ms=4, mfc=face, capsize=2, lw=1.3, elinewidth=0.8,
        )  # fmt: skip
    axis.set(title=dataset, xlabel="share of observed features", ylabel=rows[0]["metric"])
    axis.set_xlim(min(r["observed"] for r in rows) - 0.05, max(r["observed"] for r in rows) + 0.05)
    axis.grid(alpha=0.3)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    kind = path.suffix[1:].lower()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "openfate"}), writing(path) as file:
        figure.savefig(file, format=kind, dpi=130, metadata=metadata[kind])
    return path
