"""What all experiments show alike: tables for the terminal, panels of a figure, colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from openfate.files import writing

Row = dict[str, Any]
Cell = tuple[str, str, str, str]  # title of the table, line, column, text

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


def rows_by(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Rows in groups that agree in `keys`, in order of appearance.

    Examples
    --------
    >>> [len(group) for group in rows_by([{"a": 1}, {"a": 2}, {"a": 1}], "a")]
    [2, 1]
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


# ---- tables --------------------------------------------------------------------------------------


def make_tables(cells: Iterable[Cell]) -> Iterator[Table]:
    """Tables of cells, their lines and columns in order of appearance."""
    tables: dict[str, dict[tuple[str, str], str]] = {}
    for title, line, column, text in cells:
        tables.setdefault(title, {})[line, column] = text
    for title, texts in tables.items():
        columns = list(dict.fromkeys(column for _, column in texts))
        table = Table("method", title=title, padding=(0, 1 if len(columns) < 9 else 0))
        for column in columns:
            table.add_column(column, justify="right")
        for line in dict.fromkeys(line for line, _ in texts):
            table.add_row(line, *(texts.get((line, column), "-") for column in columns))
        yield table


def score_cells(rows: Sequence[Row]) -> Iterable[Cell]:
    """One table a data set: methods down, shares of observed features across, the best in bold."""
    for own in rows_by(rows, "dataset"):
        several = any(row["n_trials"] > 1 for row in own)
        over = "mean ± standard deviation over trials" if several else "one trial"
        for row in sorted(own, key=lambda row: float(row["observed"] or 0)):
            # A log that streams has no share: its one column says so.
            column = f"{row['observed']:.0%} observed" if row["observed"] else "stream"
            best = max(r["mean"] for r in own if r["observed"] == row["observed"])
            text = mark_best(mean_and_spread(row), row["mean"] == best)
            yield f"{row['dataset']}: {row['metric']}, {over}", row["method"], column, text


def mark_best(text: str, is_best: bool) -> str:
    """In bold, if it is."""
    return f"[bold]{text}[/bold]" if is_best else text


def mean_and_spread(row: Row) -> str:
    """A score over trials; one trial has no spread.

    Examples
    --------
    >>> mean_and_spread({"mean": 0.51234, "std": 0.02, "n_trials": 3})
    '0.512 ± 0.020'
    >>> mean_and_spread({"mean": 0.51234, "std": 0.0, "n_trials": 1})
    '0.512'
    """
    spread = f" ± {row['std']:.3f}" if row["n_trials"] > 1 else ""
    return f"{row['mean']:.3f}{spread}"


# ---- figures -------------------------------------------------------------------------------------


def draw_panels(
    panels: Sequence[Any],
    draw: Callable[[Axes, Any], None],
    *,
    columns: int = 3,
    size: tuple[float, float] = (4.6, 3.7),
    title: str | None = None,
) -> Figure:
    """A figure of panels, line by line, each drawn by `draw`, with the legend of the first one.

    Parameters
    ----------
    size
        Inches of a panel.
    """
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    width, height = max(9.0, size[0] * columns), size[1] * lines + 1
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flat
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        draw(axis, panel)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title or "")
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    kind = path.suffix[1:].lower()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "openfate"}), writing(path) as file:
        figure.savefig(file, format=kind, dpi=130, metadata=metadata[kind])
    return path
