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

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.records import Shape
from openfate.table import MultiHot
from openfate.training import Settings, accuracy, k_shot, log_loss, n_fold, probabilities
from openfate_lab.data.datasets import Dataset
from openfate_lab.data.split import Split
from openfate_lab.experiments import runner, uci
from openfate_lab.experiments.methods import Trial, make_split
from openfate_lab.experiments.runner import choose_all, write_json
from openfate_lab.experiments.theory_model import train_theory_model

__all__ = ["CELLS", "StudyPlan", "make_plans", "risks", "run_trial", "sub_matrices"]

CELLS = ("train_hidden", "test_hidden", "train_new", "test_new")
OBSERVED = 0.5  # share of the fields in k-shot, of the features in n-fold
N_DRAWS = 10  # sub-matrices that a k-shot model is asked with

RISKS = {"log_loss": float, "accuracy": float}
RESULT = {
    **runner.RESULT,
    **{"n_units": int, "hidden_share": float, "cells": dict.fromkeys(CELLS, RISKS)},
}
RECORD = {**uci.RECORD, "results": {re.compile(r"(k_shot|n_fold)/\d+"): RESULT}, "model": str}


@dataclass(frozen=True)
class StudyPlan(uci.Plan):
    """One split of one data set; its methods are "k_shot/6", "n_fold/5", ..."""

    shape: ClassVar[Shape] = RECORD
    model: Literal["fate", "theory"] = "fate"
    steps: int = 1000  # of SGD, and its step size: the theory's model
    lr: float = 0.1

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        theory = {"steps": self.steps, "lr": self.lr} if self.model == "theory" else None
        return super().header() | {"model": self.model, "sgd": theory}

    def loaded(self) -> tuple[Dataset, Split]:
        """The data set, for the theory's sigmoid its largest class and the rest; a k-shot split."""
        dataset, split = super().loaded()
        return (_largest_class(dataset) if self.model == "theory" else dataset), split


def make_plans(
    *,
    model: str,
    kept: Sequence[float],
    folds: Sequence[int],
    steps: int = 1000,
    lr: float = 0.1,
    **shared: Any,
) -> list[StudyPlan]:
    """Every split, checked before anything runs.

    Parameters
    ----------
    kept
        Shares k / d of the observed fields, for k-shot.
    folds
        n, for n-fold; the theory's model has none.
    shared
        Arguments of `uci.make_plans`.
    """
    choose_all("--model", [model], ("fate", "theory"))
    for share in kept:
        if not 0 < share <= 1:
            raise InputError(f"--kept {share}: a share lies above 0 and up to 1, such as 0.5.")
    if not lr > 0:
        raise InputError(f"--lr {lr}: choose a number above 0.")
    plans = uci.make_plans(methods=["fate"], observed=[OBSERVED], novelty="columns", **shared)
    made = []
    for plan in plans:
        dataset, split = plan.loaded()
        d = len(np.unique(dataset.field_of[split.observed]))
        names = [f"k_shot/{max(1, round(share * d))}" for share in kept]
        if model == "fate":
            names += [f"n_fold/{n}" for n in folds]
        choose_all("--kept and --folds", names, names)
        folder = plan.folder.with_name(plan.folder.name.replace("default-columns", model, 1))
        sgd = {"model": model, "steps": steps, "lr": lr}
        methods = tuple(dict.fromkeys(names))
        made.append(plan.turned_into(StudyPlan, methods=methods, folder=folder, **sgd))
    return made


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
    Two pairs `shown`, `known` (D',) of truth values.

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


# ---- trials --------------------------------------------------------------------------------------


def run_trial(plan: StudyPlan) -> dict[str, Any]:
    """Run the methods of a split that its record does not have yet; returns the whole record."""
    dataset, split = plan.loaded()
    by_field = Trial(dataset, split, plan.seed, plan.settings)
    record = plan.record() or plan.new_record(split, by_field)
    for method in plan.methods:
        if method in record["results"]:
            continue
        trial = by_field
        if method.startswith("n_fold"):  # it hides features, so single features are the new ones
            values = make_split(dataset, plan.observed, plan.seed, "values")
            trial = Trial(dataset, values, plan.seed, plan.settings)
        started = time.perf_counter()
        model = _fit(plan, method, trial)
        record["results"][method] = _result(plan, method, trial, model) | {
            "seconds": round(time.perf_counter() - started, 3)
        }
        write_json(plan.path, record)
    return record


def _fit(plan: StudyPlan, method: str, trial: Trial) -> FATE:
    kind, number = method.split("/")
    if plan.model == "theory":
        X, y = trial.observed_only(trial.train_all), trial.y_train
        field_of = trial.field_of[: trial.n_observed]
        sgd = {"n_kept": int(number), "steps": plan.steps, "lr": plan.lr, "seed": plan.seed}
        return train_theory_model(X, y, field_of, **sgd)  # type: ignore[arg-type]
    changes: dict[str, Any] = {"n_folds": int(number)}
    if kind == "k_shot":
        changes = {"masking": "k_shot", "unit": "field", "n_kept": int(number)}
    settings: Settings = replace(plan.settings, **changes)
    return Trial(trial.dataset, trial.split, plan.seed, settings).fate_fit[0]


def _result(plan: StudyPlan, method: str, trial: Trial, model: FATE) -> dict[str, Any]:
    fields = _fields(trial)
    unit_of = fields if method.startswith("k_shot") else torch.arange(len(fields))
    generator = torch.Generator().manual_seed(plan.seed + 1)
    masks = _masks(method, unit_of[: trial.n_observed], generator)
    columns = plan.model == "theory"
    pairs = (sub_matrices(kept, unit_of, columns, generator) for kept in masks)
    graph = Bipartite.from_multihot(MultiHot.stack([trial.train_all, trial.test_all]))
    tables = {
        "train": (Bipartite.from_multihot(trial.train_all), torch.from_numpy(trial.y_train)),
        "test": (trial.test_rows, torch.from_numpy(trial.y_test)),
    }
    cells = risks(model, graph, tables, pairs)
    observed = unit_of[: trial.n_observed]
    return {
        "metric": "accuracy",
        "score": cells["test_new"]["accuracy"],
        "n_units": len(torch.unique(observed)),  # d of them, or D
        "hidden_share": 1 - float(masks.float().mean()) if not columns else 0.0,
        "cells": cells,
    }


def _fields(trial: Trial) -> Tensor:
    return torch.from_numpy(trial.field_of.astype(np.int64))
