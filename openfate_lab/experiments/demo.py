"""The story in a minute: scikit-learn's digits, most of whose pixels appear only after training.

    ignore       FATEClassifier fitted with the pixels known at first, the others ignored
    openfate@N   the same, after N later labels have arrived; 0 before any
    paper        FATEClassifier(strategy="fate"), the paper's model, without labels
    retrained    FATEClassifier trained again on the old rows and all later labels
    oracle       trained on the old rows with all pixels known from the start

Every model is a public estimator; the picture shows the curve over labels, and digits that turn
from wrong to right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from openfate import FATEClassifier
from openfate_lab.data import load

COUNTS = (0, 50, 100, 200, 500)  # later labels
OBSERVED = 0.3  # of the pixels
N_TRAIN, N_TEST = 600, 600
DEMO_METHODS = {
    "ignore": "new pixels ignored",
    **{f"openfate@{n}": f"OpenFATE, {n or 'no'} later labels" for n in COUNTS},
    "paper": "the paper's model, no labels",
    "retrained": f"trained again with {COUNTS[-1]} labels",
    "oracle": "all pixels known from the start",
}
_LINES = {"ignore": "#1f77b4", "paper": "#9467bd", "retrained": "#2ca02c", "oracle": "#7f7f7f"}


def run_demo(
    n_splits: int = 3, on_method: Callable[[int, str], None] | None = None
) -> tuple[dict[str, Any], Figure]:
    """Run the demo on several splits; returns its result and its figure."""
    scores: dict[str, list[float]] = {method: [] for method in DEMO_METHODS}
    for seed in reversed(range(n_splits)):  # the figure shows the split of seed 0
        split = _Split(seed)
        answers = {}
        for method, answer in split.answers():
            answers[method] = answer
            scores[method].append(float((answer == split.y_test).mean()))
            if on_method is not None:
                on_method(seed, method)
    rows: list[dict[str, Any]] = [
        {
            "method": method,
            "accuracy": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if n_splits > 1 else 0.0,
            "n_splits": n_splits,
        }
        for method, values in scores.items()
    ]
    result = {
        **{"dataset": "digits", "observed": OBSERVED, "rows": rows},
        "reading": read_aloud({row["method"]: row["accuracy"] for row in rows}),
    }
    return result, _figure(split, answers, rows)


class _Split:
    """One split of the digits, and what is known at first."""

    def __init__(self, seed: int) -> None:
        digits = load("digits")
        assert digits.raw is not None
        rng = np.random.default_rng([seed, 11])
        order, pixels = rng.permutation(len(digits.y)), rng.permutation(digits.raw.columns)
        self.seed, self.frame = seed, digits.raw
        self.known = pixels[: round(OBSERVED * len(pixels))].tolist()
        parts = np.split(order, [N_TRAIN, N_TRAIN + N_TEST, N_TRAIN + N_TEST + COUNTS[-1]])[:3]
        (self.train, self.test, self.later), y = (digits.raw[part] for part in parts), digits.y
        self.y_train, self.y_test, self.y_later = (y[part] for part in parts)

    def answers(self) -> Any:
        """Each method and the digits that it reads in the test rows."""
        old = self.train.select(self.known)
        model = FATEClassifier(random_state=self.seed).fit(old, self.y_train)
        yield "ignore", model.predict(self.test, new_features="drop")
        for start, stop in zip((0, *COUNTS), COUNTS, strict=False):
            if stop > start:
                later = self.later[start:stop], self.y_later[start:stop]
                model.observe(*later, refit="never")
            yield f"openfate@{stop}", model.predict(self.test)
        paper = FATEClassifier(strategy="fate", random_state=self.seed).fit(old, self.y_train)
        yield "paper", paper.predict(self.test)
        rows = pl.concat([old, self.later], how="diagonal")
        y = np.concatenate([self.y_train, self.y_later])
        for name, (X, labels) in {
            "retrained": (rows, y),
            "oracle": (self.train, self.y_train),
        }.items():
            plain = FATEClassifier(strategy="none", random_state=self.seed).fit(X, labels)
            yield name, plain.predict(self.test)


def read_aloud(accuracy: dict[str, float]) -> str:
    """Two sentences that the numbers support.

    Examples
    --------
    >>> accuracy = {"ignore": 0.7, "openfate@0": 0.8, "openfate@50": 0.84, "openfate@500": 0.9}
    >>> read_aloud(accuracy | {"retrained": 0.91, "paper": 0.69})[:56]
    'Without any label the new pixels are worth +10.0 points,'
    """
    base = accuracy["ignore"]
    gained = {n: 100 * (accuracy[f"openfate@{n}"] - base) for n in (0, 50, COUNTS[-1])}
    paper, again = (100 * (accuracy[name] - base) for name in ("paper", "retrained"))
    return (
        f"Without any label the new pixels are worth {gained[0]:+.1f} points, with 50 labels "
        f"{gained[50]:+.1f}, with {COUNTS[-1]} {gained[COUNTS[-1]]:+.1f}. Training again with all "
        f"of them gives {again:+.1f}, the paper's model without labels {paper:+.1f}."
    )


def _figure(
    split: _Split, answers: dict[str, NDArray[np.int64]], rows: list[dict[str, Any]]
) -> Figure:
    images = split.test.to_numpy().reshape(-1, 8, 8)
    known = np.isin(split.frame.columns, split.known).reshape(8, 8)
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(1.3, 1))
    top, bottom = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    top.suptitle("Digits that turn from wrong to right: blue pixels do not exist in training")
    last, y = f"openfate@{COUNTS[-1]}", split.y_test
    turned = np.flatnonzero((answers["ignore"] != y) & (answers[last] == y))[:10]
    axes = top.subplots(2, 10)
    for axis in axes.flat[:]:
        axis.set_axis_off()
    for place, example in enumerate(turned):
        for line, method in enumerate(("ignore", last)):
            axes[line, place].set_axis_on()
            shown = known if line == 0 else np.ones_like(known)
            _draw(axes[line, place], images[example], shown, answers[method][example], y[example])
    axes[0, 0].set_ylabel("new pixels ignored")
    axes[1, 0].set_ylabel(f"after {COUNTS[-1]} labels,\nnot trained again")
    _draw_curve(bottom.subplots(), rows)
    return figure


def _draw_curve(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Accuracy against the labels that have arrived."""
    found = {row["method"]: row for row in rows}
    own = [found[f"openfate@{n}"] for n in COUNTS]
    mean, std = (np.array([row[name] for row in own]) for name in ("accuracy", "std"))
    axis.errorbar(COUNTS, mean, std, fmt="o-", capsize=3, color="#d62728", label="OpenFATE")
    for method, colour in _LINES.items():
        label = DEMO_METHODS[method]
        axis.axhline(found[method]["accuracy"], color=colour, ls="--", lw=1.5, label=label)
    axis.set(xlabel="labels that have arrived after training", ylabel="test accuracy")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.set_title(f"mean of {rows[0]['n_splits']} splits, bars: standard deviation", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw(
    axis: Axes, image: NDArray[np.float64], visible: NDArray[np.bool_], answer: int, digit: int
) -> None:
    """A digit whose invisible pixels are blue, under what the model says of it."""
    axis.imshow(np.ones((8, 8, 3)) * (0.75, 0.82, 0.95))
    axis.imshow(np.ma.masked_where(~visible, image), cmap="gray_r", vmin=0, vmax=16)
    mark, colour = ("✓", "#2a7f3f") if answer == digit else ("✗", "#b3261e")
    axis.set_title(f"{answer} {mark}", color=colour, fontsize=13)
    axis.set_xticks([])
    axis.set_yticks([])
