"""Beyond the paper: what labels that come later are worth, as they arrive.

A model is fitted with part of the columns (or values, or 0-1 features); all are there later.  Test
rows have all of them.  As 100, 300, ... later labels arrive:

    ignore     the fitted model, what is new ignored
    openfate   the same estimator, which observed the labelled rows (and the test rows' features, as
               rows predicted together)
    retrain    the model trained again on the old rows, new columns missing, and the labelled ones
    oracle     the model trained on the old rows with everything known from the start
    calls      openfate without labels, the test rows in calls of 100
    rows       openfate without labels, row by row after all of them were observed
    ceiling    openfate without labels, at the strength that the test rows' labels like best

Every model is a public estimator.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from openfate import FATEClassifier, OpenWorldClassifier
from openfate.errors import InputError
from openfate.estimators import task_scores
from openfate.openworld import Pooling
from openfate_lab.data import Dataset
from openfate_lab.experiments import runner
from openfate_lab.experiments.arrivals import (
    Estimator,
    Predicted,
    best_scores,
    predict_at_best,
    predict_in_calls,
    predict_one_by_one,
)
from openfate_lab.experiments.display import Cell, draw_panels
from openfate_lab.experiments.gaps import Gap, gap_closed, tell_gaps
from openfate_lab.experiments.runner import Experiment, Plan, Record, choose, summarise
from openfate_lab.experiments.uci import check_shares, load_once, place_of
from openfate_lab.experiments.wrapped_models import make_lightgbm

_COLOURS = {
    **{"ignore": "#1f77b4", "openfate": "#d62728"},
    **{"retrain": "#2ca02c", "oracle": "#7f7f7f"},
}
CURVES = tuple(_COLOURS)  # methods that are drawn over the labels
METHODS = (*CURVES, "calls", "rows", "ceiling")
_COUNTED = {
    "ahead_of_retrain": "ahead of retraining",
    "behind_ignore": "behind ignoring by more than .002",
}
COUNTS = (100, 300, 1000, 3000)
MOST_TRAINED, MOST_TEST, LEAST_TEST = 10_000, 6_000, 300  # rows
RECORD = {**runner.RECORD, "observed": float, "seed": int}

Novel = Literal["columns", "values", "features"]
Base = Literal["lightgbm", "hist", "fate"]


@dataclass(frozen=True)
class Labels(Experiment):
    """Beyond the paper: what labels that come later are worth, as they arrive.

    Parameters
    ----------
    datasets
        Their raw columns; github has 0-1 features alone.
    observed
        Shares of columns (values, features) that training knows.
    novelty
        columns: whole raw columns are new; values: values of known columns; features: 0-1 features
        as in the paper.
    counts
        How many later labels have arrived.
    methods
        Of ignore, openfate, retrain and oracle; without labels calls (openfate, the test rows in
        calls of 100), rows (row by row, observed before) and ceiling (at the strength that their
        labels like best; not of fate).  The oracles of two bases compare models to which nothing is
        new.
    base
        The model: lightgbm, hist (scikit-learn's boosting) or fate (FATEClassifier).
    refit
        auto: the training rows are at hand, so that the model trained again is one of the ways;
        never: they are gone.
    trials
        Seeds 0 .. trials - 1.
    """

    record_shape = RECORD
    printed = ("rows", "means", "gap_closed")
    datasets: tuple[str, ...] = (
        "gene",
        "protein-noleak",
        "robot",
        "calls",
        "digits",
        "flights",
        "criteo-sample",
        "avazu-sample",
    )
    observed: tuple[float, ...] = (0.3, 0.5)
    novelty: Novel = "columns"
    counts: tuple[int, ...] = COUNTS
    methods: tuple[str, ...] | Literal["all"] = "all"
    base: Base = "lightgbm"
    refit: Literal["auto", "never"] = "auto"
    trials: int = 5

    @property
    def folder(self) -> str:
        """Such as `columns-lightgbm`, or `columns-lightgbm-never`."""
        parts = [self.novelty, self.base, *(["never"] if self.refit == "never" else [])]
        return "-".join(parts)

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked."""
        choose("novelty", [self.novelty], get_args(Novel))
        choose("base", [self.base], get_args(Base))
        choose("refit", [self.refit], ("auto", "never"))
        known = tuple(m for m in METHODS if m != "ceiling" or self.base != "fate")
        methods = choose("methods", self.methods, known)
        if not self.counts or min(self.counts) < 1:
            raise InputError(f"counts={self.counts}: give numbers of labels from 1 up.")
        for name in choose("datasets", self.datasets):
            dataset = load_once(name, data)
            if dataset.raw is None and self.novelty != "features":
                raise InputError(
                    f"datasets: {name!r} has no raw columns: run it with novelty='features'."
                )
            n_later = len(split_rows(len(dataset.y), 0)[2])
            counts = [count for count in self.counts if count <= n_later]
            names = tuple(n for n in _names(counts) if n.partition("@")[0] in methods)
            for share in check_shares(self.observed):
                for seed in range(trials):
                    place = place_of(name, share, seed)
                    yield Plan(self, name, seed, names, place, share, data=data)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return {
            **{"dataset": plan.dataset, "observed": plan.observed, "seed": plan.seed},
            **{"novelty": self.novelty, "base": self.base, "refit": self.refit},
            "data_sha256": load_once(plan.dataset, plan.data).sha256,
        }

    def run_trial(self, plan: Plan) -> Record:
        """Run what the record does not have yet."""
        dataset = load_once(plan.dataset, plan.data)
        trial = Trial(dataset, self, plan.observed, plan.seed)
        record = plan.record() or plan.begin(
            rows={"train": len(trial.train), "test": len(trial.test), "later": len(trial.later)},
            new=list(trial.new),
        )
        return plan.complete(record, trial.result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Mean and spread of score and log-loss of each cell; and means over cells."""
        lines = list(_lines(records))
        by = ("dataset", "observed", "novelty", "labels", "method", "metric", "base")
        gap = Gap(
            self.base,
            {"batch": "openfate@0", "calls": "calls", "rows": "rows"},
            *("ignore", "oracle", "ceiling"),
        )
        return {
            "rows": summarise(lines, by),
            "means": _means(lines),
            "gap_closed": gap_closed(records, [gap]),
        }

    def figure(self, content: Record, records: Sequence[Record]) -> Figure | None:
        """Score against the number of labels, a panel a data set."""
        return _figure(content["rows"]) if content["rows"] else None

    def cells(self, content: Record) -> Iterable[Cell]:
        """One table a data set and metric: a line a share and count."""
        for row in content["rows"]:
            at = f"{row['observed']:.0%}, {row['labels']} labels"
            yield f"{row['dataset']}: {row['metric']}", at, row["method"], f"{row['mean']:.3f}"

    def remarks(self, content: Record) -> Sequence[str]:
        """The mean over cells, in how many openfate is ahead, and the gap closed without labels."""
        told = [
            f"{row['labels']} labels, {row['n_cells']} cells: "
            + ", ".join(
                f"{method} {row[method]['score']:.4f} / {row[method]['log_loss']:.4f}"
                for method in CURVES
                if method in row
            )
            + "".join(
                f"; log-loss {what} in {row[name]}"
                for name, what in _COUNTED.items()
                if name in row
            )
            for row in content["means"]
        ]
        return [*told, *tell_gaps(content["gap_closed"])]


class Trial:
    """One split of one data set, what is new in it, and its estimators."""

    def __init__(self, dataset: Dataset, settings: Labels, observed: float, seed: int) -> None:
        self.dataset, self.settings, self.seed = dataset, settings, seed
        self.n_labels = 0  # that `fitted` has observed
        self.train, self.test, self.later = split_rows(len(dataset.y), seed)
        rng = np.random.default_rng([seed, 14])
        if settings.novelty == "features":
            order = rng.permutation(dataset.X.n_features)
            hidden = np.sort(order[round(observed * len(order)) :])
            self.new = tuple(hidden.tolist())
            self.all, self.known = dataset.to_frame(), dataset.to_frame(hidden=hidden)
            return
        assert dataset.raw is not None
        self.all = dataset.raw
        if settings.novelty == "columns":
            order = rng.permutation(self.all.columns).tolist()
            self.new = tuple(order[max(1, round(observed * len(order))) :])
            self.known = self.all.drop(self.new)
        else:
            self.new, self.known = (), _hide_values(self.all, observed, rng)

    def _make(self) -> Estimator:
        base = self.settings.base
        if base == "fate":
            return FATEClassifier(random_state=self.seed)
        model = (
            None
            if base == "hist"
            else make_lightgbm(self.seed, zero_one=self.settings.novelty == "features")
        )
        novelty: Any = "columns" if self.settings.novelty == "columns" else "values"
        return OpenWorldClassifier(model, novelty=novelty, random_state=self.seed)

    def _fit(self, rows: pl.DataFrame, y: NDArray[np.int64], probe: bool = False) -> Estimator:
        made = self._make()
        if not probe and isinstance(made, OpenWorldClassifier):
            made.set_params(pooling=Pooling(strength=0.0))  # nothing will be new to it
        return made.fit(rows, y)

    @cached_property
    def fitted(self) -> Estimator:
        """Fitted with what is known at first."""
        return self._fit(self.known[self.train], self.dataset.y[self.train], probe=True)

    def result(self, name: str) -> Record:
        """Run a method, such as openfate@100, and score it on the test rows."""
        started = time.perf_counter()
        method, _, count = name.partition("@")
        every, estimator = self._predict(method, int(count or 0))
        y, task = self.dataset.y[self.test], estimator.bank_.task
        scores = best_scores(every, lambda P: task_scores(P, y, task))
        metric = self.dataset.metric
        found: Record = {
            "metric": metric,
            "score": scores[metric],
            "test_log_loss": scores["log_loss"],
            "seconds": round(time.perf_counter() - started, 3),
        }
        if method == "openfate":
            mixture = estimator.bank_.mixture
            assert mixture is not None
            excess = float((mixture.loss - mixture.loss_of_ignoring).max())
            found |= {"weights": mixture.describe(), "excess_loss": excess}
            found["decision"] = estimator.bank_.meta["decision"]["chosen"]
        return found

    def _predict(self, method: str, count: int) -> tuple[Iterator[Predicted], Estimator]:
        """Predictions (N, C) of the test rows, for a ceiling those of every strength; by whom."""
        y, test = self.dataset.y, self.all[self.test]
        if method in ("oracle", "retrain"):
            made = self._oracle() if method == "oracle" else self._retrained(count)
            return iter([made.predict_proba(test)]), made
        fitted = self.fitted
        if method == "ceiling":
            return predict_at_best(fitted, self.known[self.train], y[self.train], test), fitted
        if method == "ignore":
            P = fitted.predict_proba(test, new_features="drop")
        elif method in ("calls", "rows"):
            assert not self.n_labels, "calls and rows stand before the first label"
            P = (predict_in_calls if method == "calls" else predict_one_by_one)(fitted, test)
        else:
            self._observe_labels(count)
            P = fitted.predict_proba(test)
        return iter([P]), fitted

    def _oracle(self) -> Estimator:
        return self._fit(self.all[self.train], self.dataset.y[self.train])

    def _retrained(self, count: int) -> Estimator:
        later = self.later[:count]
        rows = pl.concat([self.known[self.train], self.all[later]], how="diagonal")
        return self._fit(rows, self.dataset.y[np.concatenate([self.train, later])])

    def _observe_labels(self, count: int) -> None:
        if self.n_labels < count:
            some = self.later[self.n_labels : count]
            refit = self.settings.refit
            self.fitted.observe(self.all[some], self.dataset.y[some], refit=refit)
            self.n_labels = count


def split_rows(
    n_rows: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places of the rows for training, for test and of those that come later, at random.

    Examples
    --------
    >>> [len(part) for part in split_rows(1800, 0)]
    [600, 360, 840]
    """
    order = np.random.default_rng([seed, 13]).permutation(n_rows)
    n_train = min(n_rows // 3, MOST_TRAINED)
    n_test = min(max(n_rows // 5, LEAST_TEST), MOST_TEST)
    return order[:n_train], order[n_train : n_train + n_test], order[n_train + n_test :]


def _hide_values(frame: pl.DataFrame, observed: float, rng: np.random.Generator) -> pl.DataFrame:
    """The frame without some values of each column of text: their cells are missing."""
    columns = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype == pl.String:
            values = column.unique().drop_nulls().sort()
            order = rng.permutation(len(values))
            kept = values.gather(order[: max(1, round(observed * len(order)))])
            column = pl.select(pl.when(column.is_in(kept.implode())).then(column)).to_series()
        columns[name] = column
    return pl.DataFrame(columns)


def _names(counts: Sequence[int]) -> tuple[str, ...]:
    """Every result of a trial, in the order in which labels arrive."""
    later = [f"{method}@{count}" for count in counts for method in ("openfate", "retrain")]
    return ("ignore", "openfate@0", "calls", "rows", "ceiling", "oracle", *later)


def _lines(records: Sequence[Record]) -> Iterator[Record]:
    """One line for each trial, method, number of labels and metric."""
    keys = ("dataset", "observed", "novelty", "base", "seed")
    for record in records:
        for name, result in record["results"].items():
            method, _, count = name.partition("@")
            of = {key: record[key] for key in keys} | {"method": method, "labels": int(count or 0)}
            of["seconds"] = float(result["seconds"])
            yield {**of, "metric": "score", "score": float(result["score"])}
            yield {**of, "metric": "log_loss", "score": float(result["test_log_loss"])}


def _means(lines: Sequence[Record]) -> list[Record]:
    """For each number of labels the means over cells, and how many cells are ahead or behind."""
    by = ("dataset", "observed", "novelty", "base")
    means = {
        (*(row[key] for key in by), row["labels"], row["method"], row["metric"]): row["mean"]
        for row in summarise(lines, (*by, "labels", "method", "metric"))
    }
    found = []
    for count in sorted({line["labels"] for line in lines}):
        cells = list(dict.fromkeys(key[:4] for key in means if key[4] == count))
        # What does not wait for labels has none.
        at = {m: count if (*cells[0], count, m, "score") in means else 0 for m in CURVES}
        row: Record = {"labels": count, "n_cells": len(cells)}
        loss = {}
        for method in CURVES:
            if (*cells[0], at[method], method, "score") not in means:
                continue
            both = {
                metric: [means[(*cell, at[method], method, metric)] for cell in cells]
                for metric in ("score", "log_loss")
            }
            row[method] = {metric: float(np.mean(values)) for metric, values in both.items()}
            loss[method] = np.array(both["log_loss"])
        if "openfate" in loss and "ignore" in loss:
            row["behind_ignore"] = int((loss["openfate"] > loss["ignore"] + 0.002).sum())
        if "openfate" in loss and "retrain" in loss:
            row["ahead_of_retrain"] = int((loss["openfate"] < loss["retrain"]).sum())
        found.append(row)
    return found


def _figure(rows: Sequence[Record]) -> Figure:
    """Score against the number of labels; a panel a data set, shares apart by their lines."""
    scored = [row for row in rows if row["metric"] == "score"]
    names = list(dict.fromkeys(row["dataset"] for row in scored))

    def draw(axes: Axes, name: str) -> None:
        here = [row for row in scored if row["dataset"] == name]
        most = max(row["labels"] for row in here)
        shares = sorted({row["observed"] for row in here})
        for share, style in zip(shares, itertools.cycle(("-", "--", ":")), strict=False):
            for method, colour in _COLOURS.items():
                points = sorted(
                    (row["labels"], row["mean"])
                    for row in here
                    if (row["method"], row["observed"]) == (method, share)
                )
                if len(points) == 1:
                    points = [(0, points[0][1]), (most, points[0][1])]
                if not points:
                    continue
                label = method if style == "-" else None
                x, y = zip(*((count + 30, score) for count, score in points), strict=True)
                axes.plot(x, y, style, color=colour, label=label)
        axes.set_xscale("log")
        axes.set_title(name)
        axes.set_xlabel("labels that have arrived (+30)")

    return draw_panels(names, draw, title="Score as labels arrive")
