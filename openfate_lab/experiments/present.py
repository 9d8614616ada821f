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

from openfate.files import writing

__all__ = [
    "COLOURS",
    "gap_plot",
    "line_plots",
    "mean_and_spread",
    "print_clicks",
    "print_gaps",
    "print_table",
    "save_figure",
]

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
        # A log that streams has no share: its one column says so.
        cells = {(r["method"], r["observed"] or 0): r for r in rows if r["dataset"] == dataset}
        shares = sorted({observed for _, observed in cells})
        first = next(iter(cells.values()))
        several = any(row["n_trials"] > 1 for row in cells.values())
        over = "mean ± standard deviation over trials" if several else "one trial"
        table = Table(title=f"{dataset}: {first['metric']}, {over}")
        table.add_column("method")
        for share in shares:
            table.add_column(f"{share:.0%} observed" if share else "stream", justify="right")
        best = {s: max(r["mean"] for (_, o), r in cells.items() if o == s) for s in shares}
        for method in dict.fromkeys(method for method, _ in cells):
            texts = [_cell(cells.get((method, share)), best[share]) for share in shares]
            table.add_row(method, *texts)
        console.print(table)


def print_gaps(gaps: Row | None, console: Console) -> None:
    """What evidence closes of the gap, pooled over all cells, and where it harms."""
    for pooled in gaps["pooled"] if gaps else ():
        spread = f" ± {pooled['std']:.1%}" if pooled["n_trials"] > 1 else ""
        closed = f"{pooled['closed']:.1%}{spread}"
        cells = f"{pooled['n_cells']} cells, {pooled['n_trials']} trials"
        console.print(f"{pooled['base']}: {closed} of the gap closed ({cells})", highlight=False)
    for harm in gaps["harms"] if gaps else ():
        where = f"{harm['dataset']} {harm['observed']:.0%}"
        console.print(f"harm: {harm['base']} on {where}, {harm['gain']:+.4f}", highlight=False)


def print_clicks(rows: Sequence[Row], gains: Sequence[Row], console: Console) -> None:
    """The paper's table 1: a table a log and backbone, methods down, test splits across."""
    keys = ("dataset", "backbone", "variant")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["metric"] == "auc":
            groups.setdefault(tuple(row[name] for name in keys), []).append(row)
    for key, group in groups.items():
        title = f"{', '.join(key)}: ROC-AUC, mean over {group[0]['n_trials']} seeds"
        table = Table(title=title, padding=(0, 0))
        table.add_column("method")
        splits = [s for s in dict.fromkeys(row["split"] for row in group) if s != "train"]
        splits = sorted(splits, key=lambda s: (s == "overall", s != "validation", s))
        for split in (*splits, "-base", "-oov"):
            table.add_column("valid." if split == "validation" else split, justify="right")
        cells = {(row["method"], row["split"]): row for row in group}
        best = {s: max(r["mean"] for (_, t), r in cells.items() if t == s) for s in splits}
        over = {
            (gain["method"], gain["over"]): f"{gain['mean']:+.3f}"
            for gain in gains
            if tuple(gain[name] for name in keys) == key
        }
        for method in dict.fromkeys(method for method, _ in cells):
            texts = [_short(cells.get((method, split)), best[split]) for split in splits]
            texts += [over.get((method, other), "") for other in ("base", "oov")]
            table.add_row(method, *texts)
        console.print(table)


def _short(row: Row | None, best: float) -> str:
    text = "" if row is None else f"{row['mean']:.3f}"[1:]
    return f"[bold]{text}[/bold]" if row is not None and row["mean"] == best else text


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


def _cell(row: Row | None, best: float) -> str:
    if row is None:
        return "-"
    text = mean_and_spread(row)
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


def gap_plot(cells: Sequence[Row], pooled: Sequence[Row]) -> Figure:
    """Share of the gap that evidence closes: a group a data set, a bar a share observed.

    A gap below half a point is left open: its share would be noise over noise.
    """
    bases = list(dict.fromkeys(cell["base"] for cell in cells))
    figure = Figure(figsize=(9, 3.4 * len(bases) + 0.6), layout="constrained")
    axes = figure.subplots(len(bases), 1, squeeze=False)
    for axis, base in zip(axes.flat, bases, strict=True):
        _gap_panel(axis, [cell for cell in cells if cell["base"] == base])
        whole = next((p for p in pooled if p["base"] == base), None)
        about = base
        if whole is not None:
            spread = f" ± {whole['std']:.0%}" if whole["n_trials"] > 1 else ""
            about += f", pooled {whole['closed']:.0%}{spread}"
        axis.set_title(f"gap closed by evidence on {about}")
    return figure


def _gap_panel(axis: Axes, cells: Sequence[Row]) -> None:
    datasets = list(dict.fromkeys(cell["dataset"] for cell in cells))
    shares = sorted({cell["observed"] for cell in cells})
    width = 0.8 / len(shares)
    for place, share in enumerate(shares):
        colour = str(0.75 - 0.55 * place / max(1, len(shares) - 1))
        label: str | None = f"{share:.0%} of the features observed"
        for at, dataset in enumerate(datasets):
            found = [c for c in cells if (c["dataset"], c["observed"]) == (dataset, share)]
            if not found:
                continue
            x, cell = at + (place - (len(shares) - 1) / 2) * width, found[0]
            if cell["gap"] < 0.005:
                axis.text(x, 0.01, "no gap", rotation=90, ha="center", va="bottom", fontsize=7)
                continue
            error = cell["standard_error"] / cell["gap"]
            axis.bar(
                x, cell["closed"], 0.9 * width, yerr=error, color=colour, label=label, capsize=2
            )
            label = None  # once is enough
    axis.axhline(0, color="black", lw=0.8)
    axis.axhline(1, color="black", lw=0.8, ls=":")
    axis.set_xticks(range(len(datasets)), datasets)
    axis.set_ylabel("0: ignored, 1: trained on all")
    axis.legend(fontsize=8, frameon=False)
