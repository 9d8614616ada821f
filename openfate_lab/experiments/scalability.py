"""Time and memory of a mini-batch against its rows and its fields (paper, appendix): lines, plots.

The paper claims that both grow linearly in the rows of a mini-batch and in the number of fields.
What is fitted here was measured by `python -m openfate_lab.bench scale`, on a GPU or a CPU.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openfate.errors import DataFileError
from openfate.records import Between, read_record
from openfate_lab.bench import bench_scale
from openfate_lab.experiments.display import draw_panels
from openfate_lab.experiments.runner import Experiment

Row = dict[str, Any]
BENCHES, SIDES = ("train", "infer"), ("ours", "peer")
# What is measured against, the key of its size, and its name on an axis.
AGAINST = {"rows": ("n_rows", "rows of a mini-batch"), "fields": ("n_fields", "fields")}
# The key of a quantity, its name on an axis, and what one unit there is.
QUANTITIES = {"ms": ("ms a mini-batch", 1.0), "bytes": ("peak memory, MB", 1e6)}
MEASURED = {
    "rows": [
        {
            **{"against": tuple(AGAINST), "bench": BENCHES, "side": SIDES},
            **{"n_rows": Between(1), "n_fields": Between(1)},
            **{"ms": Between(sys.float_info.min), "bytes": (Between(0), None)},
        }
    ]
}
COLOURS = {"ours": "#d62728", "peer": "#1f77b4"}
NAMES = {"ours": "OpenFATE", "peer": "PyTorch Geometric"}


@dataclass(frozen=True)
class Scalability(Experiment):
    """Time and memory of a mini-batch against its rows and its fields, with lines fitted.

    Parameters
    ----------
    measured
        What `python -m openfate_lab.bench scale --out FILE` wrote, on a GPU perhaps [default:
        measure now, on the CPU].
    """

    summary_file = "scalability.json"
    measured: Path | None = None

    def __post_init__(self) -> None:
        if self.measured is not None:
            read_measured(Path(self.measured))

    def summary(self, records: Sequence[Row], methods: Sequence[str] = ()) -> Row:
        """Lines, and what they were fitted to."""
        if self.measured is None:
            measured = bench_scale()
        else:
            measured = read_measured(Path(self.measured))
        keys = ("device", "machine", "threads", "load_average", "commit", "date", "torch", "python")
        told = {key: measured[key] for key in keys if key in measured}
        return told | {"rows": fit_lines(measured["rows"]), "measured": measured}

    def figure(self, content: Row, records: Sequence[Row]) -> Figure:
        """Training above, prediction below; time and memory against rows, then against fields."""
        measured = content["measured"]
        panels = itertools.product(BENCHES, AGAINST, QUANTITIES)

        def draw(axis: Axes, what: tuple[str, ...]) -> None:
            _panel(axis, measured["rows"], content["rows"], what)

        title = f"time and memory of a mini-batch on {measured.get('machine', 'a machine')}"
        return draw_panels(list(panels), draw, columns=4, size=(4.25, 3.0), title=title)

    def remarks(self, content: Row) -> Sequence[str]:
        """The lines."""
        return [describe_line(fit) for fit in content["rows"]]


def read_measured(path: Path) -> Row:
    """What `python -m openfate_lab.bench scale --out PATH` wrote."""
    remedy = "give what `python -m openfate_lab.bench scale --out FILE` wrote"
    try:
        measured = cast(Row, read_record(path, MEASURED, remedy))
    except FileNotFoundError:
        raise DataFileError(f"{path}: there is no such file; {remedy}.") from None
    if not fit_lines(measured["rows"]):
        raise DataFileError(f"{path}: no line can be fitted to fewer than three sizes; {remedy}.")
    return measured


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


def describe_line(fit: Row) -> str:
    """A line of `fit_lines` as text.

    Examples
    --------
    >>> fit = {"against": "rows", "bench": "train", "side": "ours", "quantity": "bytes"}
    >>> describe_line(fit | {"slope": 28_400.0, "r2": 0.9961})
    'rows     train  ours         28.4 MB / 1,000 rows    R2 0.9961'
    """
    per, times = ("1,000 rows", 1000) if fit["against"] == "rows" else ("field", 1)
    unit, size = ("ms", 1.0) if fit["quantity"] == "ms" else ("MB", 1e6)
    slope = f"{fit['slope'] * times / size:>12.3g} {unit} / {per:<10}"
    return f"{fit['against']:<8} {fit['bench']:<6} {fit['side']:<5}{slope}    R2 {fit['r2']:.4f}"


def _series(
    rows: Sequence[Row], against: str, bench: str, side: str, quantity: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sizes and what was measured of them, in the order of the sizes."""
    key = AGAINST[against][0]
    points = sorted(
        (row[key], row[quantity])
        for row in rows
        if (row["against"], row["bench"], row["side"]) == (against, bench, side)
        and row.get(quantity) is not None
    )
    return np.array([x for x, _ in points], float), np.array([y for _, y in points], float)


def _panel(axis: Axes, rows: Sequence[Row], fits: Sequence[Row], what: tuple[str, ...]) -> None:
    bench, against, quantity = what
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
