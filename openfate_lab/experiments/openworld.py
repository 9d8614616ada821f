"""Beyond the paper: what new features are worth to models that were fitted without them.

Two settings.  Data sets in no order are split at random and their test rows come in one batch
(`open_methods`); logs in time order stream, predict first, observe then, labels late (`streaming`).
The summary says what share of the gap between "new features ignored" and "fitted with all features"
is closed, and where using new features does harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from openfate.errors import InputError
from openfate.records import Shape
from openfate_lab.data.datasets import load
from openfate_lab.data.logs import READERS as LOGS
from openfate_lab.experiments import bases, streaming
from openfate_lab.experiments.auto import AutoSettings
from openfate_lab.experiments.methods import Novelty, make_split
from openfate_lab.experiments.open_methods import METHODS, N_DRAWS, OpenTrial
from openfate_lab.experiments.present import gap_plot, save_figure
from openfate_lab.experiments.runner import (
    RECORD,
    Recorded,
    choose_all,
    records_in,
    summarise,
    trial_path,
    versions,
    write_json,
)

__all__ = [
    "METHODS",
    "Plan",
    "gap_closed",
    "make_plans",
    "run_trial",
    "summary",
    "write_summary",
]

_load = lru_cache(maxsize=2)(load)  # a worker runs many trials of one data set

TOLERANCE = 0.003  # a mean that is lower by less is called noise, like two standard errors


@dataclass(frozen=True)
class Plan(Recorded):
    """One trial to run: everything that its numbers depend on."""

    shape: ClassVar[Shape] = {**RECORD, "observed": float, "seed": int}
    dataset: str
    observed: float
    seed: int
    methods: tuple[str, ...]
    folder: Path
    data: str | None = None
    novelty: Novelty = "values"
    command: str = ""

    @property
    def path(self) -> Path:
        """The trial's record."""
        return trial_path(self.folder, self.dataset, self.observed, self.seed)

    @property
    def title(self) -> str:
        """For the progress bar."""
        return f"{self.dataset} {self.observed:.0%} seed {self.seed}"

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        return {
            "dataset": self.dataset,
            "observed": self.observed,
            "seed": self.seed,
            "novelty": self.novelty,
            "settings": {
                "n_draws": N_DRAWS,
                "boosting_rounds": bases.ROUNDS,
                "auto": {**asdict(AutoSettings()), "hidden": list(AutoSettings().hidden)},
            },
            "data_sha256": _load(self.dataset, self.data).sha256,
        }

    def run(self) -> dict[str, Any]:
        """Run the methods that the record does not have yet; returns the whole record."""
        dataset = _load(self.dataset, self.data)
        split = make_split(dataset, self.observed, self.seed, self.novelty)
        trial = OpenTrial(dataset, split, self.seed, self.novelty)
        record = self.record()
        if record is None:
            record = {
                **self.header(),
                "split": {"sha256": split.sha256},
                "command": self.command,
                "versions": versions(),
                "results": {},
            }
        for method in self.methods:
            if method not in record["results"]:
                record["results"][method] = trial.result(method)
                write_json(self.path, record)
        return record


Plans = Sequence[Plan] | Sequence[streaming.StreamPlan]


def make_plans(
    *,
    datasets: Sequence[str],
    observed: Sequence[float],
    methods: Sequence[str] | None,
    trials: int,
    out: Path,
    data: str | None = None,
    novelty: str = "values",
    base: str = "logistic",
    label_delay: str = "1d",
    min_rows: int = streaming.MIN_ROWS,
    command: str = "",
) -> Plans:
    """Every trial of an experiment, checked before anything runs; `methods` None means all."""
    choose_all("--datasets", datasets, datasets)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: choose a folder.")
    in_time = [name for name in datasets if name in LOGS]
    if in_time and len(in_time) < len(datasets):
        other = next(name for name in datasets if name not in LOGS)
        raise InputError(
            f"--datasets {in_time[0]} is in time order and {other} is not: "
            "they have other methods, run them apart."
        )
    if in_time:
        methods = streaming.METHODS if methods is None else methods
        choose_all("--methods", methods, streaming.METHODS)
        choose_all("--base", [base], bases.BASES)
        delay = streaming.parse_delay(label_delay)
        return [
            streaming.StreamPlan(name, tuple(methods), out, data, base, delay, min_rows, command)
            for name in datasets
        ]
    methods = METHODS if methods is None else methods
    choose_all("--methods", methods, METHODS)
    choose_all("--observed", observed, observed)
    choose_all("--novelty", [novelty], get_args(Novelty))
    folder = out / ("batch" if novelty == "values" else f"batch-{novelty}")
    return [
        Plan(name, share, seed, tuple(methods), folder, data, novelty, command)  # type: ignore[arg-type]
        for name in datasets
        for share in observed
        for seed in range(trials)
    ]


def run_trial(plan: Plan | streaming.StreamPlan) -> dict[str, Any]:
    """Run a plan; a function of the module, so that a worker process can be given it."""
    return plan.run()


# ---- summary -----------------------------------------------------------------------------------


def gap_closed(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What evidence closes of the gap to a model fitted with all features, base by base.

    Returns
    -------
        "cells": for each base, data set and share the gain over "drop", its paired standard error,
        the gap to "oracle" and the share closed; "pooled": sums over all cells, with the spread
        over trials; "harms": the cells where the gain is below both -0.003 and minus two standard
        errors.
    """
    records = sorted(records, key=lambda record: int(record["seed"]))
    cells, pooled = [], []
    for base in (*bases.BASES, "fate_auto"):
        names = _names(base)
        used = [r for r in records if all(name in r["results"] for name in names if name)]
        own = [_cell(base, key, group, names) for key, group in _by_cell(used)]
        cells += own
        if own and names[2]:
            pooled.append({"base": base, "n_cells": len(own), **_pool(used, names)})
    harms = [cell for cell in cells if cell["harm"]]
    return {"cells": cells, "pooled": pooled, "harms": harms}


def _names(base: str) -> tuple[str, str, str | None]:
    if base == "fate_auto":
        return "fate_auto_drop", "fate_auto", None
    return f"{base}_drop", f"{base}_evidence", f"{base}_oracle"


def _by_cell(
    records: Sequence[dict[str, Any]],
) -> list[tuple[tuple[str, float], list[dict[str, Any]]]]:
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["observed"]), []).append(record)
    return sorted(groups.items())


def _scores(records: Sequence[dict[str, Any]], name: str) -> np.ndarray[Any, Any]:
    return np.array([record["results"][name]["score"] for record in records])


def _cell(
    base: str,
    key: tuple[str, float],
    records: Sequence[dict[str, Any]],
    names: tuple[str, str, str | None],
) -> dict[str, Any]:
    drop, evidence = _scores(records, names[0]), _scores(records, names[1])
    gains, n = evidence - drop, len(records)
    error = float(gains.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    gain = float(gains.mean())
    cell: dict[str, Any] = {
        "base": base,
        "dataset": key[0],
        "observed": key[1],
        "gain": gain,
        "standard_error": error,
        "n_trials": n,
        "harm": bool(gain < -max(TOLERANCE, 2 * error)),
    }
    if names[2]:
        gap = float((_scores(records, names[2]) - drop).mean())
        cell |= {"gap": gap, "closed": gain / gap if gap > 0 else None}
    return cell


def _pool(
    records: Sequence[dict[str, Any]], names: tuple[str, str, str | None]
) -> dict[str, float]:
    """Sum of gains over sum of gaps: over cell means, and seed by seed for the spread."""
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        by_seed.setdefault(record["seed"], []).append(record)
    n_cells = len(_by_cell(records))
    whole = [group for group in by_seed.values() if len(group) == n_cells]
    shares = [_share(group, names) for group in whole]
    means = [
        [float(_scores(group, str(n)).mean()) for n in names] for _, group in _by_cell(records)
    ]
    drop, evidence, oracle = np.array(means).T
    closed = float((evidence - drop).sum() / (oracle - drop).sum())
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0
    return {"closed": closed, "std": spread, "n_trials": len(whole)}


def _share(records: Sequence[dict[str, Any]], names: tuple[str, str, str | None]) -> float:
    drop, evidence, oracle = (_scores(records, str(name)) for name in names)
    return float((evidence - drop).sum() / (oracle - drop).sum())


def summary(plans: Plans, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows of the records, and for batches the gap closed."""
    if isinstance(plans[0], streaming.StreamPlan):
        return {"rows": streaming.summarise(records)}
    return {"rows": summarise(records, METHODS), "gap_closed": gap_closed(records)}


def write_summary(plans: Plans) -> list[Path]:
    """Sum up all trials in the experiment's folder, with a figure, beside them."""
    folder = plans[0].folder
    content = summary(plans, records_in(folder, plans[0].shape, below="**"))
    path = folder / "summary.json"
    about = {"experiment": "openworld", "command": plans[0].command, "versions": versions()}
    write_json(path, {**about, **content})
    gaps = content.get("gap_closed", {"cells": []})
    cells = [cell for cell in gaps["cells"] if cell.get("gap") is not None]
    if not cells:
        return [path]
    figure = gap_plot(cells, gaps["pooled"])
    return [path, *(save_figure(figure, folder / f"openworld.{k}") for k in ("png", "svg"))]
