"""Probe validation: which way of using new features helps, found out before any is there.

A probe hides part of the *observed* features from a whole fit, treats them as new on validation
rows, and compares every candidate with "none", the fitted model's own predictions.  Hiding them for
one training step only would flatter a candidate: other steps have trained what it must guess.

    for each draw:  hide features -> fit on the rest -> P0, and each candidate's P, on validation
    gain            = mean over draws and rows of  loss(P0) - loss(P)
    chosen          = the largest gain that exceeds 1.5 standard errors, or "none"

"none" is the promise: never worse than ignoring the new features, beyond noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.openworld.candidates import (
    Candidate,
    Predict,
    UseEvidence,
    View,
    best_label_alpha,
    evidence_candidates,
)
from openfate.openworld.evidence import Floats, Task
from openfate.openworld.pooling import TINY, Pooling
from openfate.table import MultiHot

Fit = Callable[..., Predict]  # of rows, labels and, where asked for, the fields of the features
Novelty = Literal["values", "columns", "both"]
Ids = NDArray[np.int64]

NONE = "none"
GUARD = 1.5  # standard errors; one lets more noise through, two costs a tenth of the gains


@dataclass(frozen=True)
class Decision:
    """What a probe chose, and the numbers behind it.

    Parameters
    ----------
    chosen
        The name of a candidate, or "none".
    reason
        In words.
    gains
        For each candidate the mean gain in loss over "none" and its standard error.
    draws
        What each draw looked like: hidden share and features, new cells a row, loss of "none".
    accepted
        The candidates that gain enough to be chosen.
    """

    chosen: str
    reason: str
    gains: dict[str, tuple[float, float]]
    draws: list[dict[str, float]]
    accepted: tuple[str, ...] = ()

    def to_json(self, n_best: int = 5) -> dict[str, Any]:
        """Plain data for a report: the choice, the draws and the best candidates."""
        best = sorted(self.gains, key=lambda name: -self.gains[name][0])[:n_best]
        shown = [
            {"name": name, "gain": self.gains[name][0], "standard_error": self.gains[name][1]}
            for name in best
        ]
        return {
            "chosen": self.chosen,
            "reason": self.reason,
            "best": shown,
            "draws": self.draws,
        }


def choose_pooling(
    decision: Decision, candidates: Mapping[str, Candidate] | None = None
) -> tuple[Pooling, Pooling]:
    """The settings for what a state knows, and those for rows that are predicted together.

    A state pools once, so that the first is the best of the accepted candidates with one sweep; the
    second is the best of all.  Where there is none, unlabelled rows say nothing.

    Parameters
    ----------
    candidates
        What was probed; by default ``evidence_candidates(sweeps=(1, 2))``.  What they know of late
        labels comes from `label_candidates`, where those were measured.

    Examples
    --------
    >>> names = list(evidence_candidates([0.5], [3], sweeps=(1, 2)))
    >>> gains = {names[0]: (0.1, 0.01), names[1]: (0.2, 0.01)}
    >>> state, batch = choose_pooling(Decision(names[1], "gains", gains, [], tuple(gains)))
    >>> state.n_sweeps, batch.n_sweeps
    (1, 2)
    """
    ways = evidence_candidates(sweeps=(1, 2)) if candidates is None else candidates
    silent = Pooling(strength=0.0, label_alpha=best_label_alpha(decision.gains))
    state = batch = silent
    for name in sorted(decision.accepted, key=lambda name: decision.gains[name][0]):
        use = ways.get(name)
        if isinstance(use, UseEvidence) and use.base is None:
            batch = replace(use.pooling, label_alpha=silent.label_alpha)
            state = batch if batch.n_sweeps == 1 else state
    return state, batch


def new_share(X_old: MultiHot, X_new: MultiHot) -> float:
    """The share of new cells among all cells of a batch; known without labels.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [0, 1]], 2)
    >>> new_share(X, X)
    0.5
    """
    cells = X_old.nnz + X_new.nnz
    return X_new.nnz / cells if cells else 0.0


def hidden_shares(expected: float | None, n_draws: int = 4) -> tuple[float, ...]:
    """The share of observed features that each draw hides.

    Parameters
    ----------
    expected
        The share of new cells that is expected, e.g. `new_share` of a batch; None where nobody
        knows, which gives draws of several sizes.

    Notes
    -----
    Matched to what is expected, but never above a half: a model fitted with fewer features is so
    much weaker than the real one that the strength that suits it is too large.  The number of new
    cells in a row is matched by the reference strength instead.

    Examples
    --------
    >>> hidden_shares(0.2), hidden_shares(0.7, 2), hidden_shares(None, 3)
    ((0.2, 0.2, 0.2, 0.2), (0.5, 0.5), (0.2, 0.35, 0.5))
    """
    if n_draws < 1:
        raise InputError(f"n_draws={n_draws}: choose 1 or more.")
    if expected is None:
        sizes = (0.2, 0.35, 0.5)
        return tuple(sizes[i % 3] for i in range(n_draws))
    if not 0 <= expected <= 1:
        raise InputError(f"expected={expected} is not a share: choose from 0 to 1.")
    return (round(min(max(expected, 0.05), 0.5), 3),) * n_draws


def probe(
    fit: Fit,
    train: tuple[MultiHot, ArrayLike],
    validation: tuple[MultiHot, ArrayLike],
    candidates: Mapping[str, Candidate] | Sequence[Mapping[str, Candidate]],
    *,
    also: Mapping[str, Candidate] | None = None,
    hidden: Sequence[float] | None = None,
    field_of: NDArray[np.integer] | None = None,
    novelty: Novelty = "values",
    task: Task = "multiclass",
    guard: float = GUARD,
    every_size: bool = False,
    fit_fields: bool = False,
    seed: int = 0,
) -> Decision:
    """Choose between candidates by what they do for features hidden from a whole fit.

    Parameters
    ----------
    fit
        Trains on rows and labels and returns a prediction function; called once a draw.
    train, validation
        Rows over the observed features, and their labels.
    candidates
        Ways to use new features, by name; "none" is always there.  Several groups go from simple
        to elaborate: one from a later group must beat the choice so far by more than the standard
        error of their difference.
    also
        What else is measured on the draws, but not chosen from.
    hidden
        The share that each draw hides, one entry a draw; by default ``hidden_shares(None)``.
    field_of
        (D,) the field of each feature, needed to hide whole columns.
    novelty
        What the future brings: "values" of known columns, whole "columns", or "both".
    task
        What is predicted; probabilities are judged by log-loss, numbers by squared error.
    guard
        How many standard errors a gain must exceed.
    every_size
        Whether there must be a gain, beyond its standard error, among the draws of each hidden
        share too.  A model fitted with fewer features is weaker than the real one, and whatever
        helps it helps it more; what still helps with half as many hidden is on safer ground.
    fit_fields
        Whether `fit` is given the fields of the features that are left, too, as its third argument.
    seed
        Of the draws.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 200)
    >>> dense = rng.random((400, 12)) < np.where(y[:, None] == 1, 0.6, 0.3)
    >>> X = MultiHot.from_entries(*np.nonzero(dense), 400, 12)
    >>> from sklearn.linear_model import LogisticRegression
    >>> def fit(X, y):
    ...     model = LogisticRegression().fit(X.to_dense(), y)
    ...     return lambda X: model.predict_proba(X.to_dense())
    >>> halves = np.arange(0, 400, 2), np.arange(1, 400, 2)
    >>> train, validation = ((X.select_rows(rows), y[rows]) for rows in halves)
    >>> decision = probe(fit, train, validation, evidence_candidates())
    >>> decision.gains[decision.chosen][0] > 0
    True
    """
    (X, y), (X_validation, y_validation) = _check_rows(train), _check_rows(validation)

    def views() -> Iterator[tuple[View, float]]:
        unit_of = _units(X.n_features, field_of, novelty)
        rng = np.random.default_rng([seed, 3])
        for share in hidden_shares(None) if hidden is None else hidden:
            new = _hide(unit_of, share, novelty, rng)
            if not 0 < len(new) < X.n_features:
                continue
            old = np.setdiff1d(np.arange(X.n_features), new)
            fields = (field_of[old],) if fit_fields and field_of is not None else ()
            model = fit(X.select_features(old), y, *fields)
            X_old, X_new = (X_validation.select_features(ids) for ids in (old, new))
            yield View(model, X_old, X_new, task), share

    return judge(views(), y_validation, candidates, also=also, guard=guard, every_size=every_size)


def judge(
    views: Iterable[tuple[View, float]],
    y: NDArray[Any],
    candidates: Mapping[str, Candidate] | Sequence[Mapping[str, Candidate]],
    *,
    also: Mapping[str, Candidate] | None = None,
    guard: float = GUARD,
    every_size: bool = False,
) -> Decision:
    """Choose between candidates by what they do in some views; what `probe` does with its own.

    Parameters
    ----------
    views
        Views of the same validation rows, and the share of features that each hides.
    y
        The rows' labels.
    candidates, also, guard, every_size
        See `probe`.
    """
    groups = [candidates] if isinstance(candidates, Mapping) else list(candidates)
    ways = {name: use for group in (*groups, also or {}) for name, use in group.items()}
    if NONE in ways:
        raise InputError(f"a candidate is named {NONE!r}, which every probe has: rename it.")
    draws, losses = [], []
    for view, share in views:
        before = row_losses(view.P0, y, view.task)
        losses.append(
            {name: before - row_losses(use(view), y, view.task) for name, use in ways.items()}
        )
        draws.append(
            {
                "hidden_share": float(share),
                "hidden_features": view.X_new.n_features,
                "new_cells_per_row": view.X_new.nnz / view.X_new.n_rows,
                "loss_none": float(before.mean()),
            }
        )
    return _decide(losses, draws, [list(group) for group in groups], guard, every_size)


def _decide(
    losses: list[dict[str, Floats]],
    draws: list[dict[str, float]],
    groups: list[list[str]],
    guard: float,
    every_size: bool,
) -> Decision:
    if not losses:
        return Decision(NONE, "there are too few features or fields to hide some", {}, draws)
    tables = {name: np.stack([draw[name] for draw in losses]) for name in losses[0]}
    gains = {name: _gain(table) for name, table in tables.items()}
    sizes = np.array([draw["hidden_share"] for draw in draws])
    chosen, accepted = NONE, list[str]()
    for group in groups:
        good = [name for name in group if gains[name][0] > guard * gains[name][1]]
        if every_size:
            good = [name for name in good if _gains_at_every(sizes, tables[name])]
        if not good:
            continue
        accepted += good
        best = max(good, key=lambda name: gains[name][0])
        more, error = _gain(tables[best] - tables[chosen]) if chosen != NONE else gains[best]
        if more > error:
            chosen = best
    if chosen == NONE:
        where = ", at every hidden share" if every_size else ""
        reason = f"no candidate gains more than {guard:g} standard errors{where}"
        return Decision(NONE, reason, gains, draws)
    gain, error = gains[chosen]
    reason = f"gains {gain:.4f} ± {error:.4f} in loss over {len(draws)} draws"
    return Decision(chosen, reason, gains, draws, tuple(accepted))


def _gains_at_every(sizes: Floats, table: Floats) -> bool:
    """Whether (draws, N) holds a gain beyond its standard error for each size of draws."""
    parts = (_gain(table[sizes == size]) for size in np.unique(sizes))
    return all(gain > error for gain, error in parts)


def _gain(table: Floats) -> tuple[float, float]:
    """Mean of (draws, N), and its standard error: of rows or of draws, what is larger."""
    n_draws, n_rows = table.shape
    by_row = table.mean(0).std() / math.sqrt(n_rows)
    by_draw = table.mean(1).std(ddof=1) / math.sqrt(n_draws) if n_draws > 1 else 0.0
    return float(table.mean()), float(max(by_row, by_draw))


def row_losses(P: Floats, y: NDArray[Any], task: Task = "multiclass") -> Floats:
    """(N,) log-loss or squared error of each row.

    Examples
    --------
    >>> row_losses(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0])).round(2)
    array([ 0.69, 27.63])
    """
    if task in ("binary", "multiclass"):
        return np.asarray(-np.log(np.maximum(P[np.arange(len(y)), y], TINY)))
    y = y.reshape(len(P), -1)
    if task == "regression":
        return np.asarray(((P - y) ** 2).sum(1))
    chance = np.where(y > 0, P, 1 - P)
    return np.asarray(-np.log(np.maximum(chance, TINY)).sum(1))


# ---- draws -----------------------------------------------------------------------------------


def hide_features(
    field_of: NDArray[np.integer], share: float, novelty: Novelty, rng: np.random.Generator
) -> Ids:
    """The features that one draw of a probe hides.

    Parameters
    ----------
    field_of
        (D,) the field of each feature.
    share, novelty
        How much is hidden, and what: see `probe`.

    Examples
    --------
    >>> hide_features(np.array([0, 0, 1, 1]), 0.5, "columns", np.random.default_rng(0))
    array([2, 3])
    """
    return _hide(_units(len(field_of), field_of, novelty), share, novelty, rng)


def _units(
    n_features: int, field_of: NDArray[np.integer] | None, novelty: Novelty
) -> NDArray[np.integer]:
    if novelty not in get_args(Novelty):
        raise InputError(f"novelty={novelty!r} is unknown: choose one of {get_args(Novelty)}.")
    if novelty == "values":
        return np.arange(n_features)
    if field_of is None:
        raise InputError(f"novelty={novelty!r} needs field_of, the field of each feature.")
    if len(field_of) != n_features:
        raise InputError(f"field_of has {len(field_of)} entries for {n_features} features.")
    return np.asarray(field_of)


def _hide(
    unit_of: NDArray[np.integer], share: float, novelty: Novelty, rng: np.random.Generator
) -> Ids:
    """The features that a draw hides: whole units, and for "both" as many single ones."""
    if not 0 < share < 1:
        raise InputError(f"a draw cannot hide the share {share}: choose between 0 and 1.")
    units = np.unique(unit_of)
    part = share / 2 if novelty == "both" else share
    n_hidden = min(max(1, round(part * len(units))), len(units) - 1)
    hidden = np.isin(unit_of, rng.choice(units, n_hidden, replace=False))
    if novelty == "both":
        left = np.flatnonzero(~hidden)
        n_single = min(round(part * len(unit_of)), len(left) - 1)
        hidden[rng.choice(left, n_single, replace=False)] = True
    return np.flatnonzero(hidden)


def _check_rows(rows: tuple[MultiHot, ArrayLike]) -> tuple[MultiHot, NDArray[Any]]:
    X, y = rows[0], np.asarray(rows[1])
    if X.n_rows != len(y):
        raise InputError(f"{X.n_rows} rows but {len(y)} labels: give one label for each row.")
    if not X.n_rows:
        raise InputError("a probe needs training and validation rows, and there are none.")
    return X, y
