"""Probe validation: which way of using new features helps, found out before any is there.

A probe hides part of the *observed* features from a whole fit, treats them as new on validation
rows, and asks how much of each candidate's move the labels of those rows want.  Each draw may
validate on rows of its own, which is more to go by than one part of the rows in all of them:

    for each draw:  hide features -> fit on the rest -> P0, and each candidate's e, on validation
    fitted          slope and strength of  slope logits P0 + strength e,  over the draws
    multiple        strength / slope, and its error: of draws (each left out in turn) or of rows
    used            the posterior mean of the multiple, times the slope
    chosen          the largest gain over draws of the candidates that are likely enough to gain

WHY a posterior: of a table of a few hundred rows and a dozen columns, draws disagree so much that
they tell hardly anything, and a proof by them alone refused what helps most tables.  What the
multiple is in other tables (`PRIOR`) is the better guess there; where hundreds of features are
hidden the draws agree, and their word counts.  The multiple is of the strength to the slope, because
evidence at the reference strength is as sure as P0 is: what a model is too sure of, so is evidence.

"none" is used where the posterior leaves a loss too likely.  The slope that is used is measured
without hiding, from what the draws say of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.openworld.candidates import Candidate, Predict, UseEvidence, View
from openfate.openworld.corrections import (
    logit_losses,
    logits_of,
    to_logits,
    to_predictions,
    to_targets,
)
from openfate.openworld.evidence import TINY, Floats, Pooling, Task
from openfate.table import MultiHot
from openfate.threads import ONE_THREAD

Novelty = Literal["values", "columns", "both"]
Ids = NDArray[np.int64]
# P0 and a candidate's move of the rows of a draw, (N, C) each, and their labels.
Part = tuple[Floats, Floats, NDArray[Any]]

NONE = "none"
# Mean and spread over tables of the multiple that pays.  WHY these: on 34 public tables of 300 to
# 3,000 rows (docs/openworld.md) all from 0.2 to 0.8 for the spread closed as much, within noise.
PRIOR = (1.0, 0.5)
# WHY: a model with hidden features is weaker than the real one, and what helps it helps it more.
MODESTY = 0.8  # of the multiple that draws ask for
# Posterior deviations that the multiple must be above 0.  A multiple gains where the right one is
# more than half of it, so that this is a probability of two in three; the prior alone has more.
SURE = 1.0
_SLOPE_SPREAD = 0.2  # between the slope of the draws and that of the model with nothing hidden
_SLOPES, _STRENGTHS = (0.2, 1.5), (-1.0, 3.0)
_PRIOR_ROWS = 1.0  # how many rows of a draw speak for a slope of 1 and a strength of 0


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
        For each candidate the mean gain in loss over the model alone, and its standard error.
    draws
        What each draw looked like: hidden share and features, new cells a row, loss of "none".
    accepted
        The candidates that gain enough to be chosen.
    strengths
        Of each candidate, as they are to be used.
    slope
        Of the model's logits, as it is to be used in rows that are moved.
    """

    chosen: str
    reason: str
    gains: dict[str, tuple[float, float]]
    draws: list[dict[str, float]]
    accepted: tuple[str, ...] = ()
    strengths: dict[str, float] = field(default_factory=dict)
    slope: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain data for a report: the choice, the draws and the best candidates."""
        best = sorted(self.gains, key=lambda name: -self.gains[name][0])[:5]
        shown = [
            {
                "name": name,
                "gain": self.gains[name][0],
                "standard_error": self.gains[name][1],
                "strength": self.strengths[name],
            }
            for name in best
        ]
        return {
            "chosen": self.chosen,
            "reason": self.reason,
            "slope": self.slope,
            "best": shown,
            "draws": self.draws,
        }


def choose_pooling(
    decision: Decision, candidates: Mapping[str, Candidate]
) -> tuple[Pooling, Pooling]:
    """The settings for what a state knows, and those for rows that are predicted together.

    A state pools once, so that the first is the best of the accepted candidates with one sweep; the
    second is the best of all.  Where there is none, unlabelled rows say nothing.

    Examples
    --------
    >>> ways = {"once": UseEvidence(3.0), "twice": UseEvidence(3.0, 2)}
    >>> gains, strengths = dict.fromkeys(ways, (0.1, 0.01)), dict.fromkeys(ways, 0.5)
    >>> decision = Decision("twice", "gains", gains, [], tuple(ways), strengths)
    >>> [pooling.n_sweeps for pooling in choose_pooling(decision, ways)]
    [1, 2]
    """
    state = batch = Pooling(strength=0.0)
    for name in sorted(decision.accepted, key=lambda name: decision.gains[name][0]):
        use = candidates[name]
        if isinstance(use, UseEvidence):
            batch = use.pooling(decision.strengths[name], decision.slope)
            state = batch if batch.n_sweeps == 1 else state
    return state, batch


def hidden_shares(expected: float | None, n_draws: int = 4) -> tuple[float, ...]:
    """The share of observed features that each draw hides.

    Parameters
    ----------
    expected
        The share of new cells that is expected, e.g. `new_share` of a batch; None where nobody
        knows, which gives draws of several sizes.

    Notes
    -----
    Matched to what is expected, but never above one half: a model fitted with fewer features is so
    much weaker than the real one that the strength that suits it is too large.  Far below one half
    little is hidden, and a probe of few columns sees no gain in it.  The number of new cells in a
    row is matched by the reference strength instead.

    Examples
    --------
    >>> hidden_shares(0.2), hidden_shares(0.7, 2), hidden_shares(None, 3)
    ((0.2, 0.2, 0.2, 0.2), (0.5, 0.5), (0.4, 0.5, 0.6))
    """
    if n_draws < 1:
        raise InputError(f"n_draws={n_draws}: choose 1 or more.")
    if expected is None:
        sizes = (0.4, 0.5, 0.6)
        return tuple(sizes[i % 3] for i in range(n_draws))
    if not 0 <= expected <= 1:
        raise InputError(f"expected={expected} is not a share: choose from 0 to 1.")
    return (round(min(max(expected, 0.05), 0.5), 3),) * n_draws


@dataclass(frozen=True)
class Draw:
    """What one draw of a probe hides.

    Parameters
    ----------
    share
        That was asked for.
    old, new
        Features that a fit may see, and those that it may not, ascending.
    """

    share: float
    old: Ids
    new: Ids

    def view(self, model: Predict, X: MultiHot, task: Task) -> View:
        """Validation rows as a model sees them that was fitted without what is hidden."""
        return View(model, X.select_features(self.old), X.select_features(self.new), task)


def draw_hidden(
    shares: Sequence[float], field_of: NDArray[np.integer], novelty: Novelty, seed: int = 0
) -> list[Draw]:
    """The draws of a probe, without those that would hide nothing or everything.

    Parameters
    ----------
    shares
        The share that each draw hides.
    field_of
        (D,) the field of each feature.
    novelty
        What the future brings: "values" of known columns, whole "columns", or "both".
    seed
        Of the draws.

    Examples
    --------
    >>> draws = draw_hidden([0.5, 0.5], np.array([0, 0, 1, 1]), "columns")
    >>> [len(draw.new) for draw in draws]
    [2, 2]
    """
    rng, every = np.random.default_rng([seed, 3]), np.arange(len(field_of))
    hidden = [(share, hide_features(field_of, share, novelty, rng)) for share in shares]
    return [
        Draw(share, np.setdiff1d(every, new), new)
        for share, new in hidden
        if 0 < len(new) < len(every)
    ]


def judge(
    views: Iterable[tuple[View, float]],
    y: NDArray[Any],
    candidates: Mapping[str, Candidate],
    *,
    plain: Callable[[], View] | None = None,
) -> Decision:
    """Choose between candidates by what they do for features that are hidden from a model.

    Parameters
    ----------
    views
        Views of validation rows, and the share of features that each hides.
    y
        The labels of all rows that are among the views'.
    candidates
        Ways to use new features, by name; "none" is always there.
    plain
        Makes rows and a model from which nothing is hidden, to measure its slope, where one is
        chosen; None: the slope of the views.
    """
    if NONE in candidates:
        raise InputError(f"a candidate is named {NONE!r}, which every probe has: rename it.")
    draws: list[dict[str, float]] = []
    rows: list[Ids] = []  # of each draw
    moves: dict[str, list[Part]] = {name: [] for name in candidates}
    task: Task = "multiclass"
    for view, share in views:
        task = view.task
        rows.append(np.arange(len(y)) if view.rows is None else view.rows)
        own = y[rows[-1]]
        for name, use in candidates.items():
            moves[name].append((view.P0, use(view), own))
        draws.append(
            {
                "hidden_share": float(share),
                "hidden_features": view.X_new.n_features,
                "new_cells_per_row": view.X_new.nnz / view.X_new.n_rows,
                "loss_none": float(row_losses(view.P0, own, task).mean()),
            }
        )
    if not draws:
        return Decision(NONE, "there are too few features or fields to hide some", {}, draws)
    still = [(P0, np.zeros_like(P0), own) for P0, _, own in next(iter(moves.values()))]
    slope = fit_strength(still, task)[0]
    n_rows = len(np.unique(np.concatenate(rows)))
    found = {name: _measure(parts, n_rows, task) for name, parts in moves.items()}
    alone = _left_out(still, task)
    gains = {
        name: _gain([a - b for a, b in zip(alone, each.losses, strict=True)], rows)
        for name, each in found.items()
    }
    accepted = tuple(name for name, each in found.items() if each.is_sure)
    if accepted and plain is not None:
        shown = plain()
        own = y if shown.rows is None else y[shown.rows]
        part = shown.P0, np.zeros_like(shown.P0), own
        slope, _ = fit_strength([part], task, (slope, 0.0), _SLOPE_SPREAD**-2)
    strengths = {name: slope * max(each.multiple, 0.0) for name, each in found.items()}
    if not accepted:
        reason = "no candidate is likely enough to gain"
        return Decision(NONE, reason, gains, draws, (), strengths)
    chosen = max(accepted, key=lambda name: gains[name][0])
    gain, error = gains[chosen]
    each = found[chosen]
    reason = (
        f"gains {gain:.4f} ± {error:.4f} in loss over {len(draws)} draws, "
        f"which say {each.weight:.0%} of its strength and other tables the rest"
    )
    return Decision(chosen, reason, gains, draws, accepted, strengths, slope)


@dataclass(frozen=True)
class _Found:
    """What is known of the multiple of a candidate, and what it leaves of the loss.

    Parameters
    ----------
    multiple, deviation
        Of the posterior.
    weight
        Of the draws in it; the rest is `PRIOR`'s.
    losses
        (N,) of each draw, with slope and strength of the other draws.
    """

    multiple: float
    deviation: float
    weight: float
    losses: list[Floats]

    @property
    def is_sure(self) -> bool:
        """Whether a gain is likely enough."""
        return self.multiple > SURE * self.deviation


def _measure(parts: Sequence[Part], n_rows: int, task: Task) -> _Found:
    """The posterior of the multiple, by draws of so many distinct rows."""
    theta = fit_strength(parts, task)
    others = [fit_strength(_without(parts, at), task) for at in range(len(parts))]
    asked = np.array([_multiple(each) for each in others])  # (draws,) each left out
    mean, spread = PRIOR
    by_draw = (len(asked) - 1) * asked.var()  # the jackknife's; one draw alone has none
    error = max(by_draw, _row_variance(parts, theta, n_rows, task))
    weight = spread**2 / (spread**2 + error)
    found, *used = (
        weight * MODESTY * each + (1 - weight) * mean for each in (_multiple(theta), *asked)
    )
    losses = [
        row_losses(_use(P0, e, slope, slope * multiple, task), y, task)
        for (P0, e, y), (slope, _), multiple in zip(parts, others, used, strict=True)
    ]
    return _Found(found, spread * math.sqrt(1 - weight), weight, losses)


def _multiple(theta: tuple[float, float]) -> float:
    """Strength over slope, within bounds."""
    slope, strength = theta
    return float(np.clip(strength / slope, *_STRENGTHS))


def _row_variance(
    parts: Sequence[Part], theta: tuple[float, float], n_rows: int, task: Task
) -> float:
    """What rows leave open of the multiple: the variance of its score over its curvature squared.

    WHY not the inverse curvature: numbers have a loss of any scale.
    """
    step = 1e-3
    (slope, strength), pulls = theta, []
    for off in (-step, 0.0, step):
        told = []
        for P0, e, y in parts:
            move = logits_of(e, task)
            z = slope * to_logits(P0, task) + (strength + off) * move
            told.append((logit_losses(z, to_targets(y, z.shape[1], task), task)[1] * move).sum(1))
        pulls.append(np.concatenate(told))
    curvature = (pulls[2] - pulls[0]).mean() / (2 * step)
    if curvature < TINY:
        return math.inf
    return float((pulls[1] ** 2).mean() / (n_rows * (slope * curvature) ** 2))


def _left_out(parts: Sequence[Part], task: Task) -> list[Floats]:
    """(N,) losses of P0 in each draw, with the slope that the other draws ask for.

    WHY: what the slope gains is not to be taken for what new features tell.
    """
    slopes = [fit_strength(_without(parts, at), task)[0] for at in range(len(parts))]
    return [
        row_losses(_use(P0, e, slope, 0.0, task), y, task)
        for (P0, e, y), slope in zip(parts, slopes, strict=True)
    ]


def _without(parts: Sequence[Part], at: int) -> Sequence[Part]:
    """The other draws, or the only one."""
    return [part for place, part in enumerate(parts) if place != at] or parts


def _use(P0: Floats, e: Floats, slope: float, strength: float, task: Task) -> Floats:
    """Predictions of which every row is recalibrated, also one without a move."""
    return to_predictions(slope * to_logits(P0, task) + strength * logits_of(e, task), task)


def fit_strength(
    parts: Sequence[Part],
    task: Task,
    centre: tuple[float, float] = (1.0, 0.0),
    precision: float | None = None,
) -> tuple[float, float]:
    """The slope of the logits of P0, and the strength of a move, that labels ask for.

    Parameters
    ----------
    parts
        P0 and the move (N, C) of some rows and their labels, in one draw or several.
    centre, precision
        Of a prior of both; None: as much as one row of each draw.

    Examples
    --------
    >>> P0, e = np.full((4, 2), 0.5), np.array([[1.0, -1.0], [-1.0, 1.0]] * 2)
    >>> slope, strength = fit_strength([(P0, e, np.array([0, 1, 0, 1]))], "binary")
    >>> strength > 0.3
    True
    """
    if task == "regression":
        off = [(e, y.reshape(len(y), -1) - P0) for P0, e, y in parts]
        within = sum(float((e * e).sum()) for e, _ in off)
        asked = sum(float((e * rest).sum()) for e, rest in off)
        return 1.0, float(np.clip(asked / within, *_STRENGTHS)) if within > 0 else 0.0
    sides = np.concatenate(
        [np.stack([to_logits(P0, task), logits_of(e, task)], 1) for P0, e, _ in parts]
    )  # (rows of all draws, 2, Z)
    target = np.concatenate([to_targets(y, sides.shape[2], task) for _, _, y in parts])
    prior = (_PRIOR_ROWS * len(parts) if precision is None else precision) / len(target)

    def loss(theta: Floats) -> tuple[float, Floats]:
        rows, slope = logit_losses(np.einsum("nmz,m->nz", sides, theta), target, task)
        apart = theta - centre
        gradient = np.einsum("nmz,nz->m", sides, slope) / len(rows) + prior * apart
        return float(rows.mean() + prior / 2 * (apart @ apart)), gradient

    bounds = [_SLOPES, _STRENGTHS if sides[:, 1].any() else (0.0, 0.0)]
    with ONE_THREAD:
        found = scipy.optimize.minimize(
            loss, centre, jac=True, method="L-BFGS-B", bounds=bounds
        )
    return float(found.x[0]), float(found.x[1])


def _gain(gained: Sequence[Floats], rows: Sequence[Ids]) -> tuple[float, float]:
    """Mean gain of draws, and its standard error: of rows or of draws, what is larger."""
    means = np.array([gains.mean() for gains in gained])
    every = np.concatenate(rows)
    count = np.bincount(every)
    of_row = np.bincount(every, np.concatenate(gained))[count > 0] / count[count > 0]
    by_row = of_row.std() / math.sqrt(len(of_row))
    by_draw = means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return float(means.mean()), float(max(by_row, by_draw))


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
        How much is hidden, and what: see `draw_hidden`.

    Examples
    --------
    >>> hide_features(np.array([0, 0, 1, 1]), 0.5, "columns", np.random.default_rng(0))
    array([2, 3])
    """
    if novelty not in get_args(Novelty):
        raise InputError(f"novelty={novelty!r} is unknown: choose one of {get_args(Novelty)}.")
    units = np.arange(len(field_of)) if novelty == "values" else field_of
    return _hide(units, share, novelty, rng)


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
