"""Logs in time order: a model fitted on the first tenth meets what comes later.

The first tenth of the rows trains, the second validates (and lets every setting be chosen), the
rest streams, chunk by chunk: predict, then observe; labels come `label_delay` later.

    drop          the fitted model, new features ignored
    evidence      what the new features' earlier rows were predicted as, one round of pooling
    late_labels   evidence, and what happened to the new features' labelled rows

A feature with fewer than `min_rows` training rows counts as new: a model learns nothing from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.openworld import (
    NONE,
    Decision,
    Evidence,
    Floats,
    Pooling,
    UseEvidence,
    evidence_candidates,
    hidden_shares,
    new_share,
    pooled_evidence,
    probe,
    reference_strength,
    row_losses,
    score,
)
from openfate.table import MultiHot
from openfate.training import roc_auc
from openfate_lab.data import DAY, Dataset, load
from openfate_lab.experiments import runner
from openfate_lab.experiments.bases import BASES, Base, fit_base
from openfate_lab.experiments.display import Cell, score_cells
from openfate_lab.experiments.runner import Experiment, Plan, Record, at_least, choose

__all__ = ["METHODS", "MIN_ROWS", "Stream", "Streams", "parse_delay"]

METHODS = ("drop", "evidence", "late_labels")
MIN_ROWS = 3
N_CHUNKS = 100  # of the whole log
N_DRAWS = 6
N_TENTHS = 8  # that stream
LABEL_ALPHAS = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

RESULT = {**runner.RESULT, "tenths": [float] * N_TENTHS}
RECORD = {
    **{"dataset": str, "base": str, "label_delay_seconds": float, "min_rows": int},
    "results": {str: RESULT},
}

_load = lru_cache(maxsize=1)(load)


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
    """A log, the model fitted on its first tenth, and the settings that its second tenth chose."""

    def __init__(self, dataset: Dataset, base: str, delay: float, min_rows: int) -> None:
        if dataset.time is None:
            raise InputError(f"{dataset.name} has no times: it cannot stream.")
        self.dataset, self.base, self.delay, self.time = dataset, base, delay, dataset.time
        n = dataset.X.n_rows
        self.n_train, self.start, self.chunk = n // 10, n // 5, max(1, n // N_CHUNKS)
        train = dataset.X.select_rows(np.arange(self.n_train))
        known = train.feature_degree >= min_rows
        self.old = dataset.X.select_features(np.flatnonzero(known))
        self.new = dataset.X.select_features(np.flatnonzero(~known))

    def _part(self, start: int, end: int) -> tuple[MultiHot, NDArray[np.int64]]:
        return self.old.select_rows(np.arange(start, end)), self.dataset.y[start:end]

    @cached_property
    def model(self) -> Base:
        """Fitted on the first tenth."""
        train, validation = self._part(0, self.n_train), self._part(self.n_train, self.start)
        return fit_base(self.base, train, 2, validation=validation)

    @cached_property
    def P0(self) -> Floats:  # noqa: N802
        """(N, 2) predictions of all rows, new features ignored."""
        return self.model(self.old)

    @cached_property
    def decision(self) -> Decision:
        """Whether evidence pays, by probe on the second tenth."""
        middle = np.arange(self.n_train, self.start)
        share = new_share(self.old.select_rows(middle), self.new.select_rows(middle))
        return probe(
            lambda X, y: fit_base(self.base, (X, y), 2, tuned=self.model.tuned),
            self._part(0, self.n_train),
            self._part(self.n_train, self.start),
            evidence_candidates(),
            hidden=hidden_shares(share, N_DRAWS),
        )

    @cached_property
    def unlabelled(self) -> Pooling:
        """Settings of `evidence`; strength 0 where the probe says none."""
        chosen = evidence_candidates().get(self.decision.chosen)
        if self.decision.chosen == NONE or not isinstance(chosen, UseEvidence):
            return Pooling(strength=0.0, label_strength=0.0)
        return replace(chosen.pooling, label_strength=0.0)

    @cached_property
    def label_gains(self) -> dict[float, float]:
        """Log-loss that each alpha of late labels gains on the second tenth, streamed.

        Where the tenth is shorter than ten delays, labels come after a tenth of it instead:
        otherwise none would come in time to choose anything.
        """
        rows = slice(self.n_train, self.start)
        span = float(self.time[self.start - 1] - self.time[self.n_train])
        y, before = self.dataset.y[rows], self.run(self.unlabelled, *self._ends(rows))
        gains = {}
        for alpha in LABEL_ALPHAS:
            pooling = replace(self.unlabelled, label_strength=1.0, label_alpha=alpha)
            P = self.run(pooling, *self._ends(rows), delay=min(self.delay, span / 10))
            gains[alpha] = float(row_losses(before, y).mean() - row_losses(P, y).mean())
        return gains

    @staticmethod
    def _ends(rows: slice) -> tuple[int, int]:
        return int(rows.start), int(rows.stop)

    @cached_property
    def labelled(self) -> Pooling:
        """Settings of `late_labels`; labels are left out where no alpha gains."""
        alpha = max(self.label_gains, key=lambda a: self.label_gains[a])
        if self.label_gains[alpha] <= 0:
            return self.unlabelled
        return replace(self.unlabelled, label_strength=1.0, label_alpha=alpha)

    def run(self, pooling: Pooling, start: int, end: int, *, delay: float | None = None) -> Floats:
        """Predictions (end - start, 2) in streaming order: predict, then observe."""
        state, P = Evidence(2), np.empty((end - start, 2))
        reference, n_labelled = 0.0, start
        delay = self.delay if delay is None else delay
        for rows in self._chunks(start, end):
            X, P0 = self.new.select_rows(np.arange(rows.start, rows.stop)), self.P0[rows]
            due = self._due(start, rows.start, delay)
            self._label(state, n_labelled, due)
            n_labelled = max(due, n_labelled)
            fixed = pooling.fixed(reference) if pooling.relative else pooling
            P[rows.start - start : rows.stop - start] = score(state, X, P0, fixed)
            if pooling.strength:  # of this chunk, for the next
                e = pooled_evidence(state, X, None, pooling.alpha)
                reference = reference_strength(e, P0)
            state.add(X, P0)
        return P

    def _chunks(self, start: int, end: int) -> Iterator[slice]:
        for at in range(start, end, self.chunk):
            yield slice(at, min(at + self.chunk, end))

    def _due(self, start: int, now: int, delay: float) -> int:
        """The first row whose label is not known when row `now` comes."""
        due = int(np.searchsorted(self.time, self.time[now] - delay, side="right"))
        return min(max(due, start), now)

    def _label(self, state: Evidence, start: int, end: int) -> None:
        if end > start:
            X = self.new.select_rows(np.arange(start, end))
            y = self.dataset.y[start:end]
            state.add_labelled(X, self.P0[start:end], y, seen=True)

    def result(self, method: str) -> dict[str, Any]:
        """Run a method over the stream and score its last eight tenths."""
        started = time.perf_counter()
        rows = slice(self.start, self.dataset.X.n_rows)
        P, extra = self.P0[rows], dict[str, Any](tuned=self.model.tuned)
        if method != "drop":
            pooling = self.unlabelled if method == "evidence" else self.labelled
            # The second tenth is observed too, and its labels come in time like all others.
            P = self.run(pooling, self.n_train, rows.stop)[rows.start - self.n_train :]
            extra["decision"] = self.decision.to_json(n_best=3)
        if method == "late_labels":
            extra["label_alpha"] = self.labelled.label_alpha if self.labelled.label_strength else 0
            extra["label_gains"] = {f"{a:g}": gain for a, gain in self.label_gains.items()}
        y = self.dataset.y[rows]
        return {
            "metric": "auc",
            "score": roc_auc(P[:, 1], y),
            "test_log_loss": float(row_losses(P, y).mean()),
            "tenths": [roc_auc(p[:, 1], t) for p, t in _tenths(P, y)],
            "seconds": round(time.perf_counter() - started, 3),
            **extra,
        }


def _tenths(P: Floats, y: NDArray[np.int64]) -> list[tuple[Floats, NDArray[np.int64]]]:
    return list(zip(np.array_split(P, N_TENTHS), np.array_split(y, N_TENTHS), strict=True))


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
            "data_sha256": _load(plan.dataset, plan.data).sha256,
        }

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the record does not have yet."""
        dataset = _load(plan.dataset, plan.data)
        stream = Stream(dataset, self.base, parse_delay(self.label_delay), self.min_rows)
        cells = stream.new.nnz / max(1, stream.new.n_rows)
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
