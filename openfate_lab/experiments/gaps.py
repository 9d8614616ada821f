"""What the generalisation study found: gaps with intervals, the bound beside them, a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from openfate_lab.experiments.generalization import RECORD, StudyPlan
from openfate_lab.experiments.present import save_figure
from openfate_lab.experiments.runner import records_in, versions, write_json
from openfate_lab.experiments.theory import generalization_report

__all__ = ["GAPS", "bounds", "gap_rows", "interval", "print_rows", "write_summary"]

GAPS = {"rows": "test_hidden", "features": "train_new", "both": "test_new"}  # beyond train_hidden
COLOURS = {"rows": "#1f77b4", "features": "#d62728", "both": "#111111"}

ABOUT = (
    "A gap is how much worse a model does than on the sub-matrices of its training: on new rows, "
    "on features that it was never trained with, on both; 95 % intervals over splits.",
    "The bound of Theorem 1 is an order-of-magnitude diagnostic, not a guarantee and no estimate: "
    "its sub-matrices are not independent, and FATE is trained by Adam with hidden features.",
    "1 / sqrt(C(d, k)) in the picture is a shape alone, scaled to the largest gap.",
)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval by Student's t.

    Examples
    --------
    >>> [round(end, 2) for end in interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean, mean
    t = import_module("scipy.stats").t.ppf(0.975, len(values) - 1)
    half = float(t * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half


def gap_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each data set, method, gap and metric; positive is worse."""
    cells: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        for method, result in record["results"].items():
            cells.setdefault((record["dataset"], method), []).append((record, result))
    rows = []
    for (dataset, method), found in sorted(cells.items(), key=lambda c: _order(*c[0])):
        (record, first), results = found[0], [result for _, result in found]
        for metric, sign in (("log_loss", 1), ("accuracy", -1)):
            for gap, cell in GAPS.items():
                values = [
                    sign * (r["cells"][cell][metric] - r["cells"]["train_hidden"][metric])
                    for r in results
                ]
                mean, low, high = interval(values)
                rows.append(
                    {
                        **{"dataset": dataset, "observed": record["observed"]},
                        **{"method": record["model"], "variant": method},
                        **{"units": first["n_units"], "hidden_share": first["hidden_share"]},
                        **{"gap": gap, "metric": metric, "mean": mean, "low": low, "high": high},
                        "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
                        "level": float(
                            np.mean([r["cells"]["train_hidden"][metric] for r in results])
                        ),
                        "n_trials": len(results),
                        "seconds": float(np.mean([r["seconds"] for r in results])),
                    }
                )
    return rows


def _order(dataset: str, method: str) -> tuple[str, str, int]:
    kind, number = method.split("/")
    return dataset, kind, int(number)


def bounds(rows: Sequence[dict[str, Any]], steps: int, lr: float) -> list[dict[str, Any]]:
    """The bound of Theorem 1 for each k-shot row."""
    found = []
    for row in rows:
        kind, number = row["variant"].split("/")
        if kind == "k_shot" and (row["gap"], row["metric"]) == ("both", "log_loss"):
            report = generalization_report(row["units"], int(number), steps, lr)
            about = {"dataset": row["dataset"], "d": row["units"], "k": int(number)}
            found.append({**about, "T": steps, "lr": lr, **report})
    return found


def write_summary(plans: Sequence[StudyPlan]) -> list[Path]:
    """Rows, bounds and the picture of all trials in the experiment's folder, beside them."""
    plan, folder = plans[0], plans[0].folder
    rows = gap_rows(records_in(folder, RECORD))
    content = {
        "experiment": "generalization",
        "command": plan.command,
        "versions": versions(),
        "about": ABOUT,
        "rows": rows,
        "bounds": bounds(rows, *steps_of(plan)),
    }
    write_json(folder / "summary.json", content)
    figure = _figure(rows, folder.name)
    pictures = [save_figure(figure, folder / f"generalization.{kind}") for kind in ("png", "svg")]
    return [folder / "summary.json", *pictures]


def steps_of(plan: StudyPlan) -> tuple[int, float]:
    """T and the step size that the bound is told: SGD's, or the steps and rate of Adam."""
    if plan.model == "theory":
        return plan.steps, plan.lr
    return plan.settings.epochs * plan.settings.n_draws, plan.settings.lr


def _figure(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """A line a data set: the gap in log-loss against k / d, and against the share hidden."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    kinds = [k for k in ("k_shot", "n_fold") if any(r["variant"].startswith(k) for r in rows)]
    figure = Figure(
        figsize=(max(8, 5 * len(kinds)), 3.6 * len(datasets) + 0.8), layout="constrained"
    )
    axes = figure.subplots(len(datasets), len(kinds), squeeze=False)
    for line, dataset in zip(axes, datasets, strict=True):
        for axis, kind in zip(line, kinds, strict=True):
            own = [
                row
                for row in rows
                if (row["dataset"], row["metric"]) == (dataset, "log_loss")
                and row["variant"].startswith(kind)
            ]
            _panel(axis, own, dataset, kind)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    n = " or ".join(str(n) for n in sorted({row["n_trials"] for row in rows}))
    figure.suptitle(f"Generalisation gap, {title}: 95 % intervals over {n} splits")
    return figure


def _panel(axis: Axes, rows: Sequence[dict[str, Any]], dataset: str, kind: str) -> None:
    def place(row: dict[str, Any]) -> float:
        number = int(row["variant"].split("/")[1])
        return number / row["units"] if kind == "k_shot" else float(row["hidden_share"])

    for gap, colour in COLOURS.items():
        own = sorted((row for row in rows if row["gap"] == gap), key=place)
        mean = np.array([row["mean"] for row in own])
        ends = np.array([[row["low"], row["high"]] for row in own]).T
        axis.errorbar(
            [place(row) for row in own], mean, abs(ends - mean), color=colour, marker="o", ms=4,
            capsize=3, lw=1.3, label=f"new {gap}" if gap != "both" else "both new",
        )  # fmt: skip
    if kind == "k_shot" and rows:
        d, top = rows[0]["units"], max(row["mean"] for row in rows)
        k = np.arange(1, d + 1)
        shape = np.array([1 / math.sqrt(math.comb(d, int(i))) for i in k])
        axis.plot(k / d, top * shape, color="#999999", ls="--", lw=1, label="1/√C(d,k): shape only")
    axis.axhline(0, color="black", lw=0.6)
    label = "k / d, share of fields kept" if kind == "k_shot" else "share of features hidden"
    axis.set(title=f"{dataset}, {kind.replace('_', '-')}", xlabel=label, ylabel="gap in log-loss")
    axis.grid(alpha=0.3)


def print_rows(
    rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], console: Console
) -> None:
    """One table a data set: gaps with intervals, and the bound's size in each reading."""
    size = {(bound["dataset"], f"k_shot/{bound['k']}"): bound for bound in found}
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [r for r in rows if (r["dataset"], r["metric"]) == (dataset, "log_loss")]
        table = Table(title=f"{dataset}: gap in log-loss, 95 % interval over splits")
        for name in ("sub-matrices", "hidden", *(f"new {gap}" for gap in GAPS), "log10 bound"):
            table.add_column(name, justify="left" if name == "sub-matrices" else "right")
        for variant in dict.fromkeys(row["variant"] for row in own):
            by_gap = {row["gap"]: row for row in own if row["variant"] == variant}
            gaps = [by_gap[gap] for gap in GAPS]
            texts = [f"{r['mean']:+.3f} [{r['low']:+.3f}, {r['high']:+.3f}]" for r in gaps]
            bound = size.get((dataset, variant))
            sizes = bound["readings"].values() if bound else ()
            said = " / ".join(f"{reading['log10_bound']:.0f}" for reading in sizes) or "-"
            table.add_row(variant, f"{gaps[0]['hidden_share']:.0%}", *texts, said)
        console.print(table)
    console.print("\n".join(ABOUT), highlight=False)
