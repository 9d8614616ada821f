"""The study behind section 3 of the paper: the generalisation gap, by rows and by features.

Training draws sub-matrices of one table: k of its d observed fields (k-shot), or all but one of n
parts of its features (n-fold).  A trained model is then asked four times, rows by features:

                      hidden observed features     features it was never trained with
    training rows     the empirical risk           + features gap
    test rows         + rows gap                   + both

The never-trained features take the place of as many hidden ones, kept features staying as they
are, so that the sub-matrices are of one kind; which fields are new is drawn by the split, so
neither side is the more informative one on average.  In the theory's reading ("columns", nothing
hidden) a sub-matrix has k fields, of the observed ones or of all.  Its graph always has training
and test rows: in graphs of other sizes a GCN's outputs shift with the features' degrees, which is
no matter of new rows.

Beside the gaps stands the bound of Theorem 1 (`theory`): no estimate of them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.table import MultiHot
from openfate.training import accuracy, k_shot, log_loss, n_fold, probabilities
from openfate_lab.arguments import at_least
from openfate_lab.data import Dataset, Split
from openfate_lab.experiments import runner, uci
from openfate_lab.experiments.display import Cell, draw_panels
from openfate_lab.experiments.runner import Plan, Record, choose, summarise
from openfate_lab.experiments.theory import generalization_report, train_theory_model
from openfate_lab.experiments.uci import TableExperiment
from openfate_lab.experiments.uci_methods import Trial, make_split
from openfate_lab.report import difference

GAPS = {"rows": "test_hidden", "features": "train_new", "both": "test_new"}  # beyond train_hidden
CELLS = ("train_hidden", "test_hidden", "train_new", "test_new")
N_DRAWS = 10  # sub-matrices that a k-shot model is asked with

RISKS = {"log_loss": float, "accuracy": float}
RESULT = {
    **runner.RESULT,
    **{"n_units": int, "hidden_share": float, "cells": dict.fromkeys(CELLS, RISKS)},
}
RECORD = {**uci.RECORD, "results": {re.compile(r"(k_shot|n_fold)/\d+"): RESULT}, "model": str}

ABOUT = (
    "A gap is how much worse a model does than on the sub-matrices of its training: on new rows, "
    "on features that it was never trained with, on both; 95 % intervals over splits.",
    "The bound of Theorem 1 is an order-of-magnitude diagnostic, not a guarantee and no estimate: "
    "its sub-matrices are not independent, and FATE is trained by Adam with hidden features.",
    "1 / sqrt(C(d, k)) in the picture is a shape alone, scaled to the largest gap.",
)


@dataclass(frozen=True)
class Generalization(TableExperiment):
    """The generalisation gap, by rows and by features, beside the bound of Theorem 1.

    Parameters
    ----------
    datasets
        Data sets of whole raw columns.
    model
        fate; or theory: the very model that the paper analyses.
    kept
        k-shot: shares k / d of the fields kept.
    folds
        n-fold: n, of which one part is hidden.
    trials
        Splits of fields and rows.
    steps
        theory: steps of SGD.
    lr
        theory: its step size.
    epochs
        fate: passes over training rows.
    """

    record_shape = RECORD
    printed = ("about", "rows", "bounds")
    observed = (0.5,)  # no setting: of fields in k-shot, of features in n-fold
    novelty = "columns"
    datasets: tuple[str, ...] = ("robot", "gene")
    model: Literal["fate", "theory"] = "fate"
    kept: tuple[float, ...] = (0.25, 0.5, 0.75)
    folds: tuple[int, ...] = (2, 3, 5)
    trials: int = 10
    steps: int = 1000
    lr: float = 0.1
    epochs: int = 200

    @property
    def folder(self) -> str:
        """Named after the model."""
        choose("model", [self.model], ("fate", "theory"))
        return super().folder.replace("default-columns", self.model, 1)

    def methods_of(self, plan: Plan) -> tuple[str, ...]:
        """Names such as "k_shot/6" and "n_fold/5"; the theory's model has no n-fold."""
        at_least(1, steps=self.steps)
        for share in self.kept:
            if not 0 < share <= 1:
                raise InputError(f"kept={share}: a share lies above 0 and up to 1, such as 0.5.")
        if not self.lr > 0:
            raise InputError(f"lr={self.lr}: choose a number above 0.")
        dataset, split = self.load(plan)
        d = len(np.unique(dataset.field_of[split.observed]))
        names = [f"k_shot/{max(1, round(share * d))}" for share in self.kept]
        if self.model == "fate":
            names += [f"n_fold/{n}" for n in self.folds]
        return choose("kept and folds", names)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        theory = {"steps": self.steps, "lr": self.lr} if self.model == "theory" else None
        return super().header(plan) | {"model": self.model, "sgd": theory}

    def load(self, plan: Plan) -> tuple[Dataset, Split]:
        """The data set, for the theory's sigmoid its largest class and the rest; a k-shot split."""
        dataset, split = super().load(plan)
        return (_largest_class(dataset) if self.model == "theory" else dataset), split

    def run_trial(self, plan: Plan) -> Record:
        """Run the ways of hiding that the record does not have yet."""
        by_field, record = self.open(plan)

        def result(method: str) -> Record:
            trial = by_field
            if method.startswith("n_fold"):  # it hides features, so these are the new ones
                values = make_split(trial.dataset, plan.observed, plan.seed, "values")
                trial = Trial(trial.dataset, values, plan.seed, self.settings)
            started = time.perf_counter()
            found = self.measure(method, trial, self.fit(method, trial))
            return found | {"seconds": round(time.perf_counter() - started, 3)}

        return plan.complete(record, result)

    def fit(self, method: str, trial: Trial) -> FATE:
        """The model of a trial that is trained on sub-matrices of this kind."""
        kind, number = method.split("/")
        if self.model == "theory":
            X, field_of = trial.observed_only(trial.train_all), trial.field_of[: trial.n_observed]
            sgd: Record = {"steps": self.steps, "lr": self.lr, "seed": trial.seed}
            return train_theory_model(X, trial.y_train, field_of, n_kept=int(number), **sgd)
        changes: Record = {"n_folds": int(number)}
        if kind == "k_shot":
            changes = {"masking": "k_shot", "unit": "field", "n_kept": int(number)}
        settings = replace(self.settings, **changes)
        return Trial(trial.dataset, trial.split, trial.seed, settings).fate_fit[0]

    def measure(self, method: str, trial: Trial, model: FATE) -> Record:
        """The risks of a trained model in the four cells."""
        fields = torch.from_numpy(trial.field_of.astype(np.int64))
        unit_of = fields if method.startswith("k_shot") else torch.arange(len(fields))
        generator = torch.Generator().manual_seed(trial.seed + 1)
        observed = unit_of[: trial.n_observed]
        masks = _masks(method, observed, generator)
        columns = self.model == "theory"
        pairs = (sub_matrices(kept, unit_of, columns, generator) for kept in masks)
        graph = Bipartite.from_multihot(MultiHot.stack([trial.train_all, trial.test_all]))
        tables = {
            "train": (Bipartite.from_multihot(trial.train_all), torch.from_numpy(trial.y_train)),
            "test": (trial.test_rows, torch.from_numpy(trial.y_test)),
        }
        cells = risks(model, graph, tables, pairs)
        return {
            "metric": "accuracy",
            "score": cells["test_new"]["accuracy"],
            "n_units": len(torch.unique(observed)),  # d of them, or D
            "hidden_share": 1 - float(masks.float().mean()) if not columns else 0.0,
            "cells": cells,
        }

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Gaps with intervals, and the bound of Theorem 1 for each k-shot row."""
        rows, bounds = gap_rows(records), []
        # T and the step size that the bound is told: SGD's, or the steps and rate of Adam.
        T, lr = self.settings.epochs * self.settings.n_draws, self.settings.lr
        T, lr = (self.steps, self.lr) if self.model == "theory" else (T, lr)
        for row in rows:
            kind, number = row["variant"].split("/")
            if kind == "k_shot" and (row["gap"], row["metric"]) == ("both", "log_loss"):
                report = generalization_report(row["units"], int(number), T, lr)
                of = {"dataset": row["dataset"], "d": row["units"], "k": int(number)}
                bounds.append({**of, "T": T, "lr": lr, **report})
        return {"about": ABOUT, "rows": rows, "bounds": bounds}

    def figure(self, content: Record, records: Sequence[Record]) -> Figure:
        """A line a data set: the gap in log-loss against k / d, and against the share hidden."""
        rows = [row for row in content["rows"] if row["metric"] == "log_loss"]
        kinds = [k for k in ("k_shot", "n_fold") if any(r["variant"].startswith(k) for r in rows)]
        panels = [
            [r for r in rows if r["dataset"] == dataset and r["variant"].startswith(kind)]
            for dataset in dict.fromkeys(row["dataset"] for row in rows)
            for kind in kinds
        ]
        n = " or ".join(str(n) for n in sorted({row["n_trials"] for row in rows}))
        title = f"Generalisation gap, {self.folder}: 95 % intervals over {n} splits"
        return draw_panels(panels, _panel, columns=len(kinds), size=(5.0, 3.6), title=title)

    def cells(self, content: Record) -> Iterator[Cell]:
        """One table a data set: gaps with intervals, and the bound's size in each reading."""
        size = {(bound["dataset"], f"k_shot/{bound['k']}"): bound for bound in content["bounds"]}
        for row in content["rows"]:
            if row["metric"] == "log_loss":
                title = f"{row['dataset']}: gap in log-loss, 95 % interval over splits"
                yield title, row["variant"], "hidden", f"{row['hidden_share']:.0%}"
                text = f"{row['mean']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
                yield title, row["variant"], f"new {row['gap']}", text
                if row["gap"] == "both" and (row["dataset"], row["variant"]) in size:
                    readings = size[row["dataset"], row["variant"]]["readings"].values()
                    text = " / ".join(f"{reading['log10_bound']:.0f}" for reading in readings)
                    yield title, row["variant"], "log10 bound", text

    def remarks(self, content: Record) -> Sequence[str]:
        """What the numbers are."""
        return ABOUT


@lru_cache(maxsize=2)
def _largest_class(dataset: Dataset) -> Dataset:
    """The same rows, their label whether they are of the largest class."""
    largest = int(np.bincount(dataset.y).argmax())
    y = (dataset.y == largest).astype(np.int64)
    return replace(dataset, y=y, classes=("rest", dataset.classes[largest]))


# ---- sub-matrices --------------------------------------------------------------------------------


def sub_matrices(
    kept: Tensor, unit_of: Tensor, columns: bool, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What a model is shown and what it knows of it: hidden observed features, then new ones.

    Parameters
    ----------
    kept
        (D,) over the observed features, which are the first ones.
    unit_of
        (D',) the unit, field or feature, that each feature belongs to.
    columns
        Nothing is hidden: k kept units alone, and as many of all units.

    Returns
    -------
    Two pairs `shown`, `known` (D',) of booleans.

    Examples
    --------
    >>> kept, units = torch.tensor([True, True, False]), torch.arange(6)
    >>> hidden, new = sub_matrices(kept, units, False, torch.Generator().manual_seed(0))
    >>> hidden[0].tolist(), int(new[0].sum()), new[0][:3].tolist()
    ([True, True, True, False, False, False], 3, [True, True, False])
    """
    D = len(kept)
    observed = torch.arange(len(unit_of)) < D
    known = torch.cat([kept, kept.new_zeros(len(unit_of) - D)])
    if columns:
        n_kept = len(torch.unique(unit_of[known]))
        (shown,) = k_shot(unit_of, n_kept, 1, generator)
        return (known, known), (shown, shown & observed)
    n_hidden = len(torch.unique(unit_of[:D][~kept]))
    (drawn,) = k_shot(unit_of[D:], n_hidden, 1, generator) if n_hidden else (~kept[:0],)
    swapped = torch.cat([kept, drawn if n_hidden else kept.new_zeros(len(unit_of) - D)])
    return (observed, known), (swapped, known)


def _masks(method: str, unit_of: Tensor, generator: torch.Generator) -> Tensor:
    """The masks (S, D) over the observed features that a model of this method is asked with."""
    kind, number = method.split("/")
    if kind == "n_fold":
        return n_fold(len(unit_of), int(number), generator)
    return k_shot(unit_of, int(number), N_DRAWS, generator)


@torch.no_grad()
def risks(
    model: FATE,
    graph: Bipartite,
    tables: dict[str, tuple[Bipartite, Tensor]],
    pairs: Iterator[Any],
) -> dict[str, dict[str, float]]:
    """Log-loss and accuracy of each of `CELLS`, the mean over sub-matrices.

    Parameters
    ----------
    graph
        The rows that the extrapolator sees, over all features.
    tables
        "train" and "test": the rows to predict, over all features, and their classes.
    pairs
        What `sub_matrices` returns, time after time.
    """
    new = model.W.new_zeros(graph.n_features - len(model.W), model.W.size(1))
    W = torch.cat([model.W, new])
    sums = {cell: np.zeros(2) for cell in CELLS}
    n = 0
    for n, pair in enumerate(pairs, start=1):  # noqa: B007
        for (shown, known), features in zip(pair, ("hidden", "new"), strict=True):
            edges = Edges.of(graph.keep_features(shown))
            for rows, (X, y) in tables.items():
                logits = model(X.keep_features(shown), known, edges, W)
                pair_of_scores = float(log_loss(logits, y)), accuracy(probabilities(logits), y)
                sums[f"{rows}_{features}"] += pair_of_scores
    return {
        cell: {"log_loss": float(total[0] / n), "accuracy": float(total[1] / n)}
        for cell, total in sums.items()
    }


# ---- summary -------------------------------------------------------------------------------------

COLOURS = {"rows": "#1f77b4", "features": "#d62728", "both": "#111111"}


def gap_rows(records: Sequence[Record]) -> list[Record]:
    """One row for each data set, method, gap and metric; positive is worse."""
    lines = []
    for record in records:
        for method, result in record["results"].items():
            kind, number = method.split("/")
            order = (record["dataset"], kind, int(number), int(record["seed"]))
            cells = result["cells"]
            about = {"dataset": record["dataset"], "observed": record["observed"]}
            about |= {"method": record["model"], "variant": method, "units": result["n_units"]}
            about |= {"hidden_share": result["hidden_share"], "seconds": float(result["seconds"])}
            for metric, sign in (("log_loss", 1), ("accuracy", -1)):
                level = float(cells["train_hidden"][metric])
                for gap, cell in GAPS.items():
                    score = sign * (cells[cell][metric] - level)
                    of = {"order": order, "gap": gap, "metric": metric, "level": level}
                    lines.append(about | of | {"score": float(score)})
    lines.sort(key=lambda line: line.pop("order"))
    by = ("dataset", "variant", "gap", "metric")
    firsts = [pl.col(name).first() for name in ("observed", "method", "units", "hidden_share")]
    rows = summarise(lines, by, *firsts, pl.col("level").mean(), pl.col("score").alias("values"))
    for row in rows:
        found = difference(row.pop("values"))
        row["low"], row["high"] = found.interval if found.n > 1 else (found.mean, found.mean)
    return rows


def _panel(axis: Axes, rows: Sequence[Record]) -> None:
    if not rows:
        return
    dataset, kind = rows[0]["dataset"], rows[0]["variant"].split("/")[0]

    def place(row: Record) -> float:
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
    if kind == "k_shot":
        d, top = rows[0]["units"], max(row["mean"] for row in rows)
        k = np.arange(1, d + 1)
        shape = np.array([1 / math.sqrt(math.comb(d, int(i))) for i in k])
        axis.plot(k / d, top * shape, color="#999999", ls="--", lw=1, label="1/√C(d,k): shape only")
    axis.axhline(0, color="black", lw=0.6)
    label = "k / d, share of fields kept" if kind == "k_shot" else "share of features hidden"
    axis.set(title=f"{dataset}, {kind.replace('_', '-')}", xlabel=label, ylabel="gap in log-loss")
    axis.grid(alpha=0.3)
