"""Logs in time order: a model fitted on the first tenth meets what comes later.

`OpenWorldClassifier` is fitted on the first tenth of the rows; the second chooses the one setting
of the wrapped model; what follows streams, chunk by chunk: predict, then observe; labels come
`label_delay` later.

    drop                the fitted model, new features ignored
    evidence            what the new features' earlier rows were predicted as, one round of pooling
    late_labels         the same, which observes labels when they come (`observe`)
    late_labels_alone   the same without the rows of `fit`: so the service learns, and a loaded
                        model, that are not told where these are
    retrain             the wrapped model trained again on all labelled rows, every fifth chunk

A feature with fewer than `min_rows` training rows counts as new: a model learns nothing from it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from sklearn.base import clone

from openfate import OpenWorldClassifier
from openfate.errors import InputError
from openfate.estimators import task_scores
from openfate.openworld import Floats, Pooling
from openfate.training import roc_auc
from openfate_lab.arguments import at_least
from openfate_lab.data import DAY, Dataset
from openfate_lab.experiments import runner
from openfate_lab.experiments.display import Cell, score_cells
from openfate_lab.experiments.runner import Experiment, Plan, Record, choose
from openfate_lab.experiments.uci import load_once
from openfate_lab.experiments.wrapped_models import BASES, make_base

METHODS = ("drop", "evidence", "late_labels", "late_labels_alone", "retrain")
MIN_ROWS = 3
RETRAIN_EVERY = 5  # chunks
N_CHUNKS = 100  # of the whole log
N_DRAWS = 6
N_TENTHS = 8  # that stream

RESULT = {**runner.RESULT, "tenths": [float] * N_TENTHS}
RECORD = {
    **{"dataset": str, "base": str, "label_delay_seconds": float, "min_rows": int},
    "results": {str: RESULT},
}


def parse_delay(text: str) -> float:
    """Seconds of a delay such as "30m", "6h" or "1d".

    Examples
    --------
    >>> parse_delay("6h")
    21600.0
    """
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * unit
    except ValueError:
        seconds = -1.0
    if not unit or not 0 <= seconds < np.inf:
        raise InputError(f"label_delay={text!r}: give a number and a unit, such as 30m, 6h or 1d.")
    return seconds


class Stream:
    """A log, and `OpenWorldClassifier` fitted on its first tenth."""

    def __init__(self, dataset: Dataset, base: str, delay: float, min_rows: int) -> None:
        if dataset.time is None:
            raise InputError(f"{dataset.name} has no times: it cannot stream; choose a log.")
        self.dataset, self.base, self.delay, self.time = dataset, base, delay, dataset.time
        n = dataset.X.n_rows
        self.n_train, self.start, self.chunk = n // 10, n // 5, max(1, n // N_CHUNKS)
        train = dataset.X.select_rows(np.arange(self.n_train))
        self.new = np.flatnonzero(train.feature_degree < min_rows)
        self.rows = dataset.to_frame()

    @cached_property
    def model(self) -> OpenWorldClassifier:
        """Fitted on the first tenth, in which new features are missing."""
        known = self.dataset.to_frame(hidden=self.new)
        first, second = slice(0, self.n_train), slice(self.n_train, self.start)
        y = self.dataset.y
        base = make_base(self.base, (known[first], y[first]), (known[second], y[second]))
        wrapper = OpenWorldClassifier(base, novelty="values", n_draws=N_DRAWS)
        return wrapper.fit(known[first], y[first], unlabelled=self.rows[second])

    def run(self, method: str) -> Floats:
        """Predictions (N - n_train, 2) in streaming order: predict, then observe."""
        if method == "retrain":
            return self._retrained()
        model, n_labelled = copy.deepcopy(self.model), self.n_train
        use: Any = "drop" if method == "drop" else "use"
        learns = method in ("late_labels", "late_labels_alone")
        refit: Any = "never" if method == "late_labels_alone" else "auto"
        P = []
        for start in range(self.n_train, self.dataset.X.n_rows, self.chunk):
            rows = self.rows[start : start + self.chunk]
            due = self._due(start)
            if learns and due > n_labelled:
                past = slice(n_labelled, due)
                model.observe(self.rows[past], self.dataset.y[past], seen=True, refit=refit)
                n_labelled = due
            P.append(model.predict_proba(rows, graph="state", new_features=use))
            if method != "drop":
                model.observe(rows)
        return np.concatenate(P)

    def _retrained(self) -> Floats:
        """Predictions of the wrapped model, trained anew on all rows whose labels are known."""
        model, P = self.model, []
        for number, start in enumerate(range(self.n_train, self.dataset.X.n_rows, self.chunk)):
            due = self._due(start)
            if number % RETRAIN_EVERY == 0 and due > self.n_train:
                base = clone(self.model.estimator)
                model = OpenWorldClassifier(base, pooling=Pooling(strength=0.0))
                model.fit(self.rows[:due], self.dataset.y[:due])
            rows = self.rows[start : start + self.chunk]
            P.append(model.predict_proba(rows, new_features="drop"))
        return np.concatenate(P)

    def _due(self, now: int) -> int:
        """The first row whose label is not known when row `now` comes."""
        due = int(np.searchsorted(self.time, self.time[now] - self.delay, side="right"))
        return min(max(due, self.n_train), now)

    def result(self, method: str) -> dict[str, Any]:
        """Run a method over the stream and score its last eight tenths."""
        started = time.perf_counter()
        # The second tenth is observed too, and its labels come in time like all others.
        P, y = self.run(method)[self.start - self.n_train :], self.dataset.y[self.start :]
        scores = task_scores(P, y, "binary")
        uses = method in ("evidence", "late_labels", "late_labels_alone")
        tenths = np.array_split(P, N_TENTHS), np.array_split(y, N_TENTHS)
        return {
            "metric": "auc",
            "score": scores["auc"],
            "test_log_loss": scores["log_loss"],
            "tenths": [roc_auc(p[:, 1], t) for p, t in zip(*tenths, strict=True)],
            "seconds": round(time.perf_counter() - started, 3),
            **({"decision": self.model.bank_.meta["decision"]} if uses else {}),
        }


@dataclass(frozen=True)
class Streams(Experiment):
    """Logs in time order: `OpenWorld` with such data sets.

    Parameters
    ----------
    datasets, methods, base, label_delay, min_rows
        As `OpenWorld`'s.
    """

    record_shape = RECORD
    datasets: tuple[str, ...]
    methods: tuple[str, ...] | Literal["all"] = "all"
    base: str = "logistic"
    label_delay: str = "1d"
    min_rows: int = MIN_ROWS

    @property
    def name(self) -> str:
        """Of the command that runs it."""
        return "openworld"

    @property
    def folder(self) -> str:
        """Beside the batches."""
        return "stream"

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """One trial a log: nothing is drawn."""
        methods = choose("methods", self.methods, METHODS)
        choose("base", [self.base], BASES)
        at_least(1, min_rows=self.min_rows)
        kind = f"{self.base}-delay={parse_delay(self.label_delay):g}s-min_rows={self.min_rows}"
        for name in self.datasets:
            yield Plan(self, name, 0, methods, f"{name}/{kind}")

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return {
            "dataset": plan.dataset,
            "base": self.base,
            "label_delay_seconds": parse_delay(self.label_delay),
            "min_rows": self.min_rows,
            "data_sha256": load_once(plan.dataset, plan.data).sha256,
        }

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the record does not have yet."""
        dataset = load_once(plan.dataset, plan.data)
        stream = Stream(dataset, self.base, parse_delay(self.label_delay), self.min_rows)
        X = dataset.X.select_features(stream.new)
        cells = X.nnz / max(1, X.n_rows)
        record = plan.record() or plan.begin(new_cells_per_row=cells)
        return plan.complete(record, stream.result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """One row for each log, base and method, with its lift over "drop" and the lift's error."""
        ordered = sorted(records, key=lambda r: (r["dataset"], r["base"], r["min_rows"]))
        rows = [_row(r, method) for r in ordered for method in METHODS if method in r["results"]]
        return {"rows": rows}

    def cells(self, content: Record) -> Iterable[Cell]:
        """One table a log."""
        return score_cells(content["rows"])


def _row(record: dict[str, Any], method: str) -> dict[str, Any]:
    result, drop = record["results"][method], record["results"].get("drop")
    lift: Sequence[float] = (
        [] if drop is None else np.subtract(result["tenths"], drop["tenths"]).tolist()
    )
    return {
        "dataset": record["dataset"],
        "observed": None,
        "split": "stream",
        "base": record["base"],
        "label_delay_seconds": record["label_delay_seconds"],
        "min_rows": record["min_rows"],
        "method": method,
        "metric": result["metric"],
        "mean": result["score"],
        "std": 0.0,
        "n_trials": 1,
        "seconds": result["seconds"],
        "lift": None if drop is None else result["score"] - drop["score"],
        "lift_standard_error": float(np.std(lift, ddof=1) / np.sqrt(len(lift))) if lift else None,
    }
