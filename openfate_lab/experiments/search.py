"""The paper's grid of settings, chosen on validation rows alone.

PAPER: appendix D.1, "Hyperparameters": both learning rates, rho and n; its k and B are settings of
the click experiment, here every step sees all rows.  Each trial chooses for itself, so that no test
row of it has a say.

A candidate's own validation loss hides 1 / n of the features: it would favour a large n.  So all
candidates are compared on the same five masks, and the choice by their own loss is noted beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from openfate.errors import OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.records import Shape
from openfate.table import MultiHot
from openfate.training import log_loss, n_fold
from openfate_lab.experiments import uci
from openfate_lab.experiments.ablation import CONTROLS, rows_of
from openfate_lab.experiments.methods import Trial
from openfate_lab.experiments.runner import records_in, versions, write_json

__all__ = ["GRID", "SearchPlan", "make_plans", "run_search", "write_summary"]

GRID: dict[str, tuple[Any, ...]] = {
    "lr": (0.1, 0.01, 0.001),
    "lr_extrapolator": (0.1, 0.01, 0.001),
    "drop_edge": (0.0, 0.2, 0.5),
    "n_folds": (2, 5, 10),
}
N_FOLDS = 5  # of the masks that all candidates are compared on

CANDIDATE = {"settings": dict, "own_log_loss": (float, None), "common_log_loss": (float, None)}
RECORD = {**uci.RECORD, "candidates": [CANDIDATE]}


@dataclass(frozen=True)
class SearchPlan(uci.Plan):
    """One trial's search, and the test scores of what it chose beside the full model's."""

    shape: ClassVar[Shape] = RECORD

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        return super().header() | {"grid": {name: list(values) for name, values in GRID.items()}}


def make_plans(**shared: Any) -> list[SearchPlan]:
    """Every trial, checked before anything runs; `shared` are arguments of `uci.make_plans`."""
    methods = tuple(f"{variant}/{m}" for variant in ("full", "searched") for m in CONTROLS)
    return [
        plan.turned_into(SearchPlan, methods=methods, folder=plan.folder / "search")
        for plan in uci.make_plans(methods=["fate"], **shared)
    ]


def run_search(plan: SearchPlan) -> dict[str, Any]:
    """Train the candidates that the record does not have yet, choose, score; the whole record."""
    dataset, split = plan.loaded()
    full = Trial(dataset, split, plan.seed, plan.settings, plan.compat)
    record = plan.record() or plan.new_record(split, full) | {"candidates": []}
    tried = [candidate["settings"] for candidate in record["candidates"]]
    for values in itertools.product(*GRID.values()):
        changes = dict(zip(GRID, values, strict=True))
        if changes not in tried:
            settings = replace(plan.settings, **changes)
            trial = Trial(dataset, split, plan.seed, settings, plan.compat)
            record["candidates"].append({"settings": changes, **_candidate(trial)})
            write_json(plan.path, record)
    record["chosen"] = _least(record["candidates"], "common_log_loss")
    record["chosen_by_own_loss"] = _least(record["candidates"], "own_log_loss")
    chosen = Trial(
        dataset, split, plan.seed, replace(plan.settings, **record["chosen"]), plan.compat
    )
    for variant, trial in (("full", full), ("searched", chosen)):
        for method in CONTROLS:
            record["results"][f"{variant}/{method}"] = trial.result(method)
    write_json(plan.path, record)
    return record


def _candidate(trial: Trial) -> dict[str, Any]:
    """What is known of a candidate without a look at test rows."""
    try:
        with torch.random.fork_rng(devices=[]):
            model, history = trial.fate_fit
    except OpenFATEError as error:  # a step size too large
        return {"own_log_loss": None, "common_log_loss": None, "failed": str(error)}
    best = history.steps[history.best - 1]
    return {
        "own_log_loss": best.validation_loss,
        "common_log_loss": common_loss(trial, model),
        "best_epoch": history.best,
        "seconds": round(history.seconds, 3),
    }


@torch.no_grad()
def common_loss(trial: Trial, model: FATE) -> float:
    """The validation log-loss over masks that depend on the trial's seed alone."""
    X, validation = map(trial.observed_only, (trial.train_all, trial.validation_all))
    edges = Edges.of(Bipartite.from_multihot(MultiHot.stack([X, validation])))
    masks = n_fold(trial.n_observed, N_FOLDS, torch.Generator().manual_seed(trial.seed))
    logits = model(Bipartite.from_multihot(validation), masks.T, edges)  # (N, S, C)
    return float(log_loss(logits, torch.from_numpy(trial.y_validation)))


def _least(candidates: Sequence[dict[str, Any]], loss: str) -> dict[str, Any]:
    """The settings with the least loss; of equals, the first of the grid."""
    found = [candidate for candidate in candidates if candidate.get(loss) is not None]
    if not found:
        raise OpenFATEError("every candidate of the grid diverged: the data set cannot be learnt.")
    settings: dict[str, Any] = min(found, key=lambda candidate: float(candidate[loss]))["settings"]
    return settings


def write_summary(plans: Sequence[SearchPlan]) -> list[Path]:
    """Rows and choices of all searches in the folder, beside them."""
    folder = plans[0].folder
    records = [record for record in records_in(folder, RECORD) if record["results"]]
    names = ("dataset", "observed", "seed", "chosen", "chosen_by_own_loss")
    content = {
        "experiment": "ablation",
        "command": plans[0].command,
        "versions": versions(),
        "grid": GRID,
        "chosen": [{name: record.get(name) for name in names} for record in records],
        "rows": rows_of(records),
    }
    write_json(folder / "summary.json", content)
    return [folder / "summary.json"]
