"""Time and memory of a mini-batch against its rows and its fields (paper, appendix): lines, plots.

The paper claims that both grow linearly in the rows of a mini-batch and in the number of fields.
What is fitted here was measured by `python -m openfate.bench scale`, on a GPU or a CPU.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openfate.errors import DataFileError
from openfate.experiments.present import save_figure
from openfate.experiments.runner import write_json

__all__ = ["fit_lines", "plots", "read_measured", "write_report"]

Row = dict[str, Any]
BENCHES, SIDES = ("train", "infer"), ("ours", "peer")
# What is measured against, the key of its size, and its name on an axis.
AGAINST = {"rows": ("n_rows", "rows of a mini-batch"), "fields": ("n_fields", "fields")}
# The key of a quantity, its name on an axis, and what one unit there is.
QUANTITIES = {"ms": ("ms a mini-batch", 1.0), "bytes": ("peak memory, MiB", 2.0**20)}
COLOURS = {"ours": "#d62728", "peer": "#1f77b4"}
NAMES = {"ours": "OpenFATE", "peer": "PyTorch Geometric"}


def read_measured(path: Path) -> Row:
    """What `python -m openfate.bench scale --out PATH` wrote."""
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        for row in measured["rows"]:
            key = AGAINST[row["against"]][0]
            known = row["bench"] in BENCHES and row["side"] in SIDES
            if not known or row[key] < 1 or not row["ms"] > 0 or "bytes" not in row:
                raise ValueError("a row is not one of ours")
    except OSError as error:
        raise DataFileError(f"--measured {path}: cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataFileError(
            f"--measured {path}: not what `python -m openfate.bench scale --out` writes ({error})."
        ) from None
    return cast(Row, measured)


def fit_lines(rows: Sequence[Row]) -> list[Row]:
    """A line through each series of three sizes or more: slope, intercept and R^2.

    Examples
    --------
    >>> row = {"against": "rows", "n_fields": 39, "bench": "train", "side": "ours", "bytes": None}
    >>> fits = fit_lines([row | {"n_rows": n, "ms": 3 * n + 1} for n in (1, 2, 4)])
    >>> fits[0]["slope"], fits[0]["intercept"], fits[0]["r2"]
    (3.0, 1.0, 1.0)
    """
    fits = []
    for against, bench, side, quantity in itertools.product(AGAINST, BENCHES, SIDES, QUANTITIES):
        x, y = _series(rows, against, bench, side, quantity)
        if len(x) < 3:
            continue
        slope, intercept = np.polyfit(x, y, 1)
        spread = float(((y - y.mean()) ** 2).sum())
        left = float(((y - slope * x - intercept) ** 2).sum())
        fit: Row = {"against": against, "bench": bench, "side": side, "quantity": quantity}
        fit |= {"slope": float(f"{slope:.6g}"), "intercept": float(f"{intercept:.6g}")}
        fits.append(fit | {"r2": round(1 - left / spread, 5) if spread else 1.0, "n": len(x)})
    return fits


def _series(
    rows: Sequence[Row], against: str, bench: str, side: str, quantity: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sizes and what was measured of them, in the order of the sizes."""
    key = AGAINST[against][0]
    points = sorted(
        (row[key], row[quantity])
        for row in rows
        if (row["against"], row["bench"], row["side"]) == (against, bench, side)
        and row[quantity] is not None
    )
    return np.array([x for x, _ in points], float), np.array([y for _, y in points], float)


def plots(measured: Row, fits: Sequence[Row]) -> Figure:
    """Training above, prediction below; time and memory against rows, then against fields."""
    figure = Figure(figsize=(17, 7), layout="constrained")
    axes = figure.subplots(2, 4)
    columns = list(itertools.product(AGAINST, QUANTITIES))
    for (line, bench), (column, (against, quantity)) in itertools.product(
        enumerate(BENCHES), enumerate(columns)
    ):
        _panel(axes[line, column], measured["rows"], fits, (against, bench, quantity))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"time and memory of a mini-batch on {measured.get('machine', 'a machine')}")
    return figure


def _panel(axis: Axes, rows: Sequence[Row], fits: Sequence[Row], what: tuple[str, ...]) -> None:
    against, bench, quantity = what
    name, unit = QUANTITIES[quantity]
    title = "training" if bench == "train" else "prediction"
    for side in SIDES:
        x, y = _series(rows, against, bench, side, quantity)
        axis.plot(x, y / unit, "o", ms=4, color=COLOURS[side], label=NAMES[side])
        wanted = {"against": against, "bench": bench, "side": side, "quantity": quantity}
        fit = next((fit for fit in fits if wanted.items() <= fit.items()), None)
        if fit is None:
            continue
        axis.plot(x, (fit["slope"] * x + fit["intercept"]) / unit, lw=1.2, color=COLOURS[side])
        title += f"   {side}: R² {fit['r2']:.3f}"
    axis.set_title(title, fontsize=9)
    axis.set(xlabel=AGAINST[against][1], ylabel=name, ylim=(0, None))
    axis.grid(alpha=0.3)


def write_report(measured: Row, out: Path, command: str) -> list[Path]:
    """`scalability.json` with lines and what was measured, `.png` and `.svg` with plots."""
    fits = fit_lines(measured["rows"])
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"scalability.{kind}" for kind in ("json", "png", "svg")]
    told: Row = {key: measured[key] for key in ("device", "machine") if key in measured}
    write_json(paths[0], {"command": command} | told | {"rows": fits, "measured": measured})
    figure = plots(measured, fits)
    for path in paths[1:]:
        save_figure(figure, path)
    return paths
