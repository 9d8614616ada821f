"""Probe validation: which way of using new features helps, found out before any is there.

A probe hides part of the *observed* features from a whole fit, treats them as new on validation
rows, and asks how much of each candidate's move the labels of those rows want.  Each draw may
validate on rows of its own, which is more to go by than one part of the rows in all of them:

    for each draw:  hide features -> fit on the rest -> P0, and each candidate's e, on validation
    fitted          slope and strength of  slope logits P0 + strength e,  over all draws but one
    gain            = mean over rows and the draw left out of  loss(slope alone) - loss(both)
    chosen          = the largest gain that exceeds 1.5 standard errors, or "none"

The promise is modest.  A model with hidden features is weaker than the real one, and what helps it
helps it more: eight tenths of the strength are used, which lose a 25th of the gain where the
strength was right and still gain where it was twice too large.  The slope, what the model
is too sure of, is measured without hiding.

"none" is the promise kept: never worse than ignoring the new features, beyond noise.
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
GUARD = 1.5  # standard errors; one lets more noise through, two costs a tenth of the gains
MODESTY = 0.8
_SLOPES, _STRENGTHS = (0.2, 1.5), (0.0, 3.0)
_PRIOR_ROWS = 1.0  # how many rows speak for a slope of 1 and a strength of 0


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
    alone = _recalibrate(next(iter(moves.values())), task)
    measured = {name: _measure(parts, alone, task) for name, parts in moves.items()}
    gains = {name: _gain(gained, rows) for name, (_, _, gained) in measured.items()}
    strengths = {name: MODESTY * strength for name, (_, strength, _) in measured.items()}
    sizes = np.array([draw["hidden_share"] for draw in draws])
    accepted = tuple(
        name
        for name, (gain, error) in gains.items()
        if gain > GUARD * error and strengths[name] > 0
        if _gains_at_every(sizes, measured[name][2])
    )
    if not accepted:
        reason = f"no candidate gains more than {GUARD:g} standard errors at every hidden share"
        return Decision(NONE, reason, gains, draws, (), strengths)
    chosen = max(accepted, key=lambda name: gains[name][0])
    slope = measured[chosen][0]
    if plain is not None:
        shown = plain()
        own = y if shown.rows is None else y[shown.rows]
        slope, _ = fit_strength([(shown.P0, np.zeros_like(shown.P0), own)], task)
    gain, error = gains[chosen]
    reason = f"gains {gain:.4f} ± {error:.4f} in loss over {len(draws)} draws"
    slope = 1 + MODESTY * (slope - 1)
    return Decision(chosen, reason, gains, draws, accepted, strengths, slope)


def _recalibrate(parts: Sequence[Part], task: Task) -> list[Floats]:
    """(N,) losses of P0 in each draw, with the slope that the other draws ask for."""
    losses = []
    still = [(P0, np.zeros_like(P0), y) for P0, _, y in parts]
    for at, (P0, e, y) in enumerate(still):
        slope, _ = fit_strength(_without(still, at), task)
        used = _use(P0, e, 1 + MODESTY * (slope - 1), 0.0, task)
        losses.append(row_losses(used, y, task))
    return losses


def _measure(
    parts: Sequence[Part], alone: list[Floats], task: Task
) -> tuple[float, float, list[Floats]]:
    """Slope and strength over all draws, and the gains (N,) of each draw, left out of the fit.

    The gain is over the model recalibrated (`alone`), so that what the slope gains is not taken for
    what the new features tell, and of slope and strength as they will be used.
    """
    gains = []
    for at, (P0, e, y) in enumerate(parts):
        slope, strength = fit_strength(_without(parts, at), task)
        used = _use(P0, e, 1 + MODESTY * (slope - 1), MODESTY * strength, task)
        gains.append(alone[at] - row_losses(used, y, task))
    return (*fit_strength(parts, task), gains)


def _without(parts: Sequence[Part], at: int) -> Sequence[Part]:
    """The other draws, or the only one."""
    return [part for place, part in enumerate(parts) if place != at] or parts


def _use(P0: Floats, e: Floats, slope: float, strength: float, task: Task) -> Floats:
    """Predictions of which every row is recalibrated, also one without a move."""
    return to_predictions(slope * to_logits(P0, task) + strength * logits_of(e, task), task)


def fit_strength(parts: Sequence[Part], task: Task) -> tuple[float, float]:
    """The slope of the logits of P0, and the strength of a move, that labels ask for.

    Parameters
    ----------
    parts
        P0 and the move (N, C) of some rows and their labels, in one draw or several.

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
    prior = _PRIOR_ROWS * len(parts) / len(target)

    def loss(theta: Floats) -> tuple[float, Floats]:
        rows, slope = logit_losses(np.einsum("nmz,m->nz", sides, theta), target, task)
        apart = theta - [1.0, 0.0]
        gradient = np.einsum("nmz,nz->m", sides, slope) / len(rows) + prior * apart
        return float(rows.mean() + prior / 2 * (apart @ apart)), gradient

    bounds = [_SLOPES, _STRENGTHS if sides[:, 1].any() else (0.0, 0.0)]
    with ONE_THREAD:
        found = scipy.optimize.minimize(
            loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds
        )
    return float(found.x[0]), float(found.x[1])


def _gains_at_every(sizes: Floats, gained: Sequence[Floats]) -> bool:
    """Whether draws gain at each size; `gained` holds the gains (N,) of each draw."""
    means = np.array([gains.mean() for gains in gained])
    return all(means[sizes == size].mean() > 0 for size in np.unique(sizes))


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
