"""The story in a minute: scikit-learn's digits, half of whose pixels appear only after training.

Base, FATE and Oracle, the two controls that tell where a gain comes from, and a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from openfate.training import accuracy, probabilities
from openfate_lab.data import Split, load
from openfate_lab.experiments.display import COLOURS
from openfate_lab.experiments.uci_methods import Trial, make_split

METHODS = {
    "base": "Base: new pixels ignored",
    "fate": "FATE: new pixels extrapolated",
    "oracle": "Oracle: trained with all pixels",
    "base_dropout": "control: Base with feature dropout",
    "fate_drop_new": "control: FATE, new pixels ignored",
}


def run_demo(
    n_splits: int = 5, on_method: Callable[[int, str], None] | None = None
) -> tuple[dict[str, Any], Figure]:
    """Run the demo on several splits; returns its result and its figure."""
    dataset = load("digits")
    scores: dict[str, list[float]] = {method: [] for method in METHODS}
    predicted: dict[str, NDArray[np.int64]] = {}
    for seed in reversed(range(n_splits)):  # the figure shows the split of seed 0
        trial = Trial(dataset, make_split(dataset, 0.5, seed, "columns"), seed)
        for method in METHODS:
            with torch.random.fork_rng(devices=[]):
                logits = getattr(trial, method)()[0].detach()
            scores[method].append(accuracy(probabilities(logits), torch.from_numpy(trial.y_test)))
            predicted[method] = logits.argmax(-1).numpy()
            if on_method is not None:
                on_method(seed, method)
    rows = [
        {
            "method": method,
            "accuracy": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if n_splits > 1 else 0.0,
            "n_splits": n_splits,
        }
        for method, values in scores.items()
    ]
    result = {"dataset": "digits", "observed": 0.5, "rows": rows, "reading": read_aloud(scores)}
    return result, _figure(trial.split, dataset.field_of, trial.y_test, predicted, rows)


def read_aloud(scores: dict[str, list[float]]) -> str:
    """One sentence that the numbers support.

    Examples
    --------
    >>> scores = {"base": [0.7, 0.7], "fate": [0.9, 0.9], "fate_drop_new": [0.7, 0.71]}
    >>> sentence = read_aloud(scores)
    >>> sentence[:31], sentence[-15:]
    ('FATE is 20.0 points above Base,', 'so they helped.')
    """
    fate, base, dropped = (100 * np.array(scores[m]) for m in ("fate", "base", "fate_drop_new"))
    gain, used = float(np.mean(fate - base)), fate - dropped  # paired: the same splits
    error = float(np.std(used, ddof=1) / np.sqrt(len(used))) if len(used) > 1 else 0.0
    effect = float(np.mean(used))
    first = f"FATE is {abs(gain):.1f} points {'above' if gain >= 0 else 'below'} Base, and with its"
    if abs(effect) <= 2 * error:
        return (
            f"{first} new pixels ignored the same model scores the same within noise "
            f"({effect:+.1f} ± {error:.1f} points): these splits do not show that they help."
        )
    direction, so = ("lower", "helped") if effect > 0 else ("higher", "did not help here")
    return (
        f"{first} new pixels ignored the same model scores {abs(effect):.1f} points {direction}, "
        f"so they {so}."
    )


def _figure(
    split: Split,
    field_of: NDArray[np.int32],
    y: NDArray[np.int64],
    predicted: dict[str, NDArray[np.int64]],
    rows: list[dict[str, Any]],
) -> Figure:
    images = load_digits().images[split.test]  # (N, 8, 8)
    known = np.isin(np.arange(64), field_of[split.observed]).reshape(8, 8)
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    top = figure.add_subfigure(figure.add_gridspec(2, 1, height_ratios=(1.7, 1))[0])
    bottom = figure.add_subfigure(figure.add_gridspec(2, 1, height_ratios=(1.7, 1))[1])
    top.suptitle(
        "What the model sees, and what it says: blue pixels do not exist yet, "
        "the number is its answer"
    )
    axes = top.subplots(2, 10)
    for digit in range(10):
        example = int(np.flatnonzero(y == digit)[0])  # the first one, whatever was said about it
        _draw(axes[0, digit], images[example], known, predicted["base"][example], digit)
        _draw(axes[1, digit], images[example], known | True, predicted["fate"][example], digit)
    axes[0, 0].set_ylabel("in training: half\nof the pixels (Base)")
    axes[1, 0].set_ylabel("later: all pixels, no\nretraining (FATE)")
    scores = bottom.subplots()
    for place, row in enumerate(rows):
        colour = COLOURS[row["method"]]
        scores.errorbar(
            row["accuracy"], place, xerr=row["std"], fmt="o", ms=9, capsize=4, color=colour
        )
        scores.annotate(
            f"{row['accuracy']:.1%}",
            (row["accuracy"], place),
            (0, 8),
            textcoords="offset points",
            ha="center",
        )
    scores.set_yticks(range(len(rows)), [METHODS[row["method"]] for row in rows])
    scores.set(xlabel=f"test accuracy, mean ± standard deviation of {rows[0]['n_splits']} splits")
    scores.xaxis.set_major_formatter(PercentFormatter(1))
    scores.set_ylim(len(rows) - 0.5, -0.8)
    scores.grid(axis="x", alpha=0.3)
    return figure


def _draw(
    axis: Axes, image: NDArray[np.float64], visible: NDArray[np.bool_], answer: int, digit: int
) -> None:
    """A digit whose invisible pixels are blue, under what the model says of it."""
    axis.imshow(np.ones((8, 8, 3)) * (0.85, 0.88, 0.93))
    axis.imshow(np.ma.masked_where(~visible, image), cmap="gray_r", vmin=0, vmax=16)
    mark, colour = ("✓", "#2a7f3f") if answer == digit else ("✗", "#b3261e")
    axis.set_title(f"{answer} {mark}", color=colour, fontsize=13)
    axis.set_xticks([])
    axis.set_yticks([])
