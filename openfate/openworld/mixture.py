"""Mixture: ways to predict, weighed by what each would have lost on every label that came.

Experts: ignore what is new; the unlabelled evidence; corrections learned from the labels, one for
each ridge; the model trained again, where somebody does that; that model and the corrections
averaged, which err in different ways.  Every labelled row is predicted by
each of them before anything is learned from it, and the weights move by the likelihoods:

    P = a P0 + (1 - a) sum over experts k of v[k] P[k]

`a` is the posterior of "ignore" against all the rest, from a prior that is fixed before the first
label: the total log-loss of the rows as they were scored is never more than ln(1 / prior) above
that of ignoring, whatever the data.  Within the rest, "ignore" among them, weights are shared a
little after every row (fixed share), so that they follow a change of the best expert.

Several labels have a gate each.  Numbers have squared error, clipped to the range of training.
N rows, G gates, E experts, C outputs, Z logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.openworld.corrections import (
    RIDGES,
    Corrections,
    limit,
    to_logits,
    to_predictions,
)
from openfate.openworld.evidence import (
    Floats,
    Names,
    Task,
    Voters,
    by_id,
    hash_cells,
    sigmoid,
)
from openfate.table import MultiHot, mix_bits

EXPERTS = (
    *("ignore", "evidence", *(f"correction(ridge={r:g})" for r in RIDGES)),
    *("retrained", "average of both"),
)
# Of "ignore" against all the rest, then of the rest; where a probe trusts evidence, it has more.
_PRIOR_OF_IGNORING = {False: 0.5, True: 0.1}
_PRIOR = {
    trusts: np.array([ignore, evidence, *([corrected / len(RIDGES)] * len(RIDGES)), *retrained])
    for trusts, (ignore, evidence, corrected, retrained) in {
        False: (0.1, 0.1, 0.4, (0.15, 0.25)),
        True: (0.05, 0.3, 0.35, (0.1, 0.2)),
    }.items()
}
_SHARE = 0.003  # of the weights that is spread anew after each row
_FIRST, GROWTH = 8, 1.25  # labels: solved at 8, 10, 13, 16, ...
# In between, features that came since are corrected alone: after 8 labels, of many after a share.
_LEAST, _PART = 8, 64
_ARRAYS = ("P0", "moved", "y", "weight", "counted")
_SOLVED = ("features", "W", "side", "bias")
WINDOW = 100_000  # labelled rows, at most, that corrections are solved from


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows whose labels have come, and what was predicted for them before.

    Parameters
    ----------
    X
        (N, D) their features.
    P0
        (N, C) predictions of the model, new features ignored.
    moved
        (N, C) the same, moved by what unlabelled rows told of the new features.
    y
        (N,) class numbers, (N, K) labels of 0 and 1, (N, 1) numbers.
    weight
        (N,) above 0 and at most 1.
    counted
        (N,) whether the row is in the state of unlabelled rows already.
    voter
        (N,) whose rows they are, where rows name their source: see `Evidence`.
    """

    X: MultiHot
    P0: Floats
    moved: Floats
    y: NDArray[Any]
    weight: Floats
    counted: NDArray[np.bool_]
    voter: Voters | None = None

    def select(self, rows: NDArray[np.integer]) -> Labelled:
        """Some of the rows."""
        arrays = {name: getattr(self, name)[rows] for name in _ARRAYS}
        voter = None if self.voter is None else self.voter[rows]
        return Labelled(self.X.select_rows(rows), voter=voter, **arrays)

    @staticmethod
    def stack(parts: list[Labelled]) -> Labelled:
        """The rows of all parts."""
        arrays = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS}
        voters = [part.voter for part in parts if part.voter is not None]
        voter = np.concatenate(voters) if len(voters) == len(parts) else None
        return Labelled(MultiHot.stack([part.X for part in parts]), voter=voter, **arrays)

    def arranged(self, most: int, names: Names = by_id) -> Labelled:
        """The rows in an order, and of too many a choice, that depend on nothing but the rows."""
        digits = np.round(np.concatenate([self.P0, self.y.reshape(len(self.y), -1)], 1), 6)
        key = np.zeros(len(self.y), np.uint64)
        for column in digits.T:
            key = mix_bits(key ^ mix_bits((column + 0.0).view(np.uint64)))
        key = mix_bits(key ^ hash_cells(self.X, names))
        return self.select(np.argsort(key, kind="stable")[:most])


class Mixture:
    """The experts of a bank and their weights.

    Parameters
    ----------
    n_outputs, task
        Of the predictions: see `Evidence`.
    trusts_evidence
        Whether a probe found that unlabelled evidence pays: then it counts before any label.
    bounds
        Of numbers: the least and the largest of training.

    Attributes
    ----------
    n_labels
        Labelled rows so far.
    loss, loss_of_ignoring
        (G,) totals over them, each row scored before it was learned from.

    Examples
    --------
    >>> mixture = Mixture(2, "binary")
    >>> rows = MultiHot.from_rows([[0], [1]] * 20, 2)
    >>> P0, y = np.full((40, 2), 0.5), np.array([0, 1] * 20)
    >>> labelled = Labelled(rows, P0, P0, y, np.ones(40), np.zeros(40, bool))
    >>> for part in mixture.blocks(40):
    ...     if mixture.learn(labelled.select(np.arange(40)[part])):
    ...         mixture.solve()
    >>> mixture.predict(rows, P0, P0)[:2].round(1)
    array([[0.9, 0.1],
           [0.1, 0.9]])
    """

    def __init__(
        self,
        n_outputs: int,
        task: Task,
        *,
        trusts_evidence: bool = False,
        bounds: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.n_outputs, self.trusts_evidence, self.bounds = n_outputs, trusts_evidence, bounds
        self.task: Task = task
        n_gates = n_outputs if task == "multilabel" else 1
        prior = _PRIOR_OF_IGNORING[trusts_evidence]
        self.log_odds = np.full(n_gates, np.log(prior / (1 - prior)))  # (G,) of "ignore"
        self.weights = np.tile(_PRIOR[trusts_evidence], (n_gates, 1))  # (G, E) of the rest
        self.n_labels, self._due = 0, _FIRST
        self.loss, self.loss_of_ignoring = np.zeros(n_gates), np.zeros(n_gates)
        self.corrections: Corrections | None = None
        self._solved: Corrections | None = None  # without what came since
        self._window: list[Labelled] = []  # of the solution, if there is one, and since

    def describe(self) -> dict[str, float]:
        """The weight of each expert, the mean over gates; "ignore" with both its parts."""
        ignoring = sigmoid(self.log_odds)
        parts = ((1 - ignoring)[:, None] * self.weights).mean(0)
        parts[0] += ignoring.mean()
        return dict(zip(EXPERTS, parts.tolist(), strict=True))

    # ---- predicting ----------------------------------------------------------------------------

    def predict(
        self, X: MultiHot, P0: Floats, moved: Floats, retrained: Floats | None = None
    ) -> Floats:
        """(N, C) the weighed predictions of rows; before any label, `moved` or P0.

        Parameters
        ----------
        X, P0, moved
            As in `Labelled`.
        retrained
            (N, C) of the model that was trained again; None: there is none, and it counts as
            ignoring.
        """
        if not self.n_labels:
            return moved if self.trusts_evidence else P0
        return self._mix(P0, self._experts(X, P0, moved, retrained))

    def _experts(self, X: MultiHot, P0: Floats, moved: Floats, retrained: Floats | None) -> Floats:
        """(E, N, C), clipped alike; what is not solved yet predicts as before any label."""
        z0, z1 = to_logits(P0, self.task), to_logits(moved, self.task)
        start = z1 if self.trusts_evidence else z0
        z = np.broadcast_to(start, (len(EXPERTS), *z0.shape)).copy()
        z[0] = z0
        if self.corrections is not None:
            z[1] = z1
            z[2:-2] = limit(self.corrections.move(X, start, z1 - z0), self.task)
        z[-2:] = start
        if retrained is not None:
            z[-2] = to_logits(retrained, self.task)
            z[-1] = (z[-2] + z[2:-2].mean(0)) / 2
        return to_predictions(z, self.task)

    def _mix(self, P0: Floats, P: Floats) -> Floats:
        """P (E, N, C) -> (N, C); a row on which all agree with P0 keeps its bits."""
        ignoring = sigmoid(self.log_odds)  # (G,)
        # WHY: not a matrix product, whose last bits depend on where in memory its factors lie.
        rest = (self.weights.T[:, None, :] * P).sum(0)
        if self.task == "regression":
            return self._substitute(P[0], rest, float(ignoring[0]), P0)
        mixed = ignoring * P[0] + (1 - ignoring) * rest
        same = np.abs(mixed - P[0]).max(1, keepdims=True) < 1e-15
        return np.where(same, P0, mixed)

    def _substitute(self, P: Floats, rest: Floats, ignoring: float, P0: Floats) -> Floats:
        """Two numbers as one: what squared error needs where a mean would cost more.

        REFERENCE: Vovk's substitution, for numbers within the range of training.
        """
        low, high = self.bounds
        rate, half = self._rate(), (high - low) / 2
        if half <= 0:
            return P0
        inside = np.clip(np.stack([P, rest]), low, high)  # (2, N, 1)
        weight = np.log(np.maximum([ignoring, 1 - ignoring], 1e-300))[:, None, None]
        cost = [
            -np.logaddexp.reduce(weight - rate * (inside - y) ** 2, axis=0) / rate
            for y in (low, high)
        ]
        found = (low + high) / 2 + (cost[0] - cost[1]) / (4 * half)
        # WHY: beyond the range of training both may agree; the gate has nothing to say there.
        linear = ignoring * P + (1 - ignoring) * rest
        outside = ((np.stack([P, rest]) < low) | (np.stack([P, rest]) > high)).any(0)
        same = np.abs(P - rest) <= 1e-13 * np.maximum(half, np.abs(P))
        return np.where(same, P0, np.where(outside, linear, found))

    def _rate(self) -> float:
        """Of squared error: 1 / (2 B^2) for numbers within B of the middle."""
        half = max((self.bounds[1] - self.bounds[0]) / 2, 1e-12)
        return float(1 / (2 * half * half))

    # ---- learning ------------------------------------------------------------------------------

    def blocks(self, n_rows: int) -> list[slice]:
        """The parts of so many labelled rows, cut where corrections are to be solved anew.

        WHY: at fixed counts of labels, never at the end of a call: how rows are cut into calls does
        not matter.
        """
        cuts, start, count, due = [], 0, self.n_labels, self._due
        while start < n_rows:
            last, step = _since(due)
            extended = last + step * ((count - last) // step + 1)
            stop = min(n_rows, start + min(due, extended) - count)
            cuts.append(slice(start, stop))
            count += stop - start
            start, due = stop, due if count < due else _next(due)
        return cuts

    def learn(self, rows: Labelled, retrained: Floats | None = None) -> bool:
        """Score one block of rows with every expert, then keep it.

        Returns
        -------
            Whether labels have grown enough for corrections to be solved anew, by `solve`.
        """
        self._weigh(self._experts(rows.X, rows.P0, rows.moved, retrained), rows)
        self._window = [*self._window, rows]
        self.n_labels += len(rows.y)
        if self.n_labels >= self._due:
            return True
        last, step = _since(self._due)
        if (self.n_labels - last) % step == 0:
            self._extend()
        return False

    def _extend(self) -> None:
        """Correct what is new since the solution, from the rows of all whole steps since."""
        if self._solved is None or len(self._window) < 2:
            return
        rows, (_, step) = Labelled.stack(self._window[1:]), _since(self._due)
        rows = rows.select(np.arange(len(rows.y) // step * step))
        logits = self._start(rows)
        self.corrections = self._solved.extend(rows.X, *logits, rows.y, rows.weight, self.task)

    def solve(self, move: Callable[[Labelled], Floats] | None = None, names: Names = by_id) -> None:
        """Solve corrections for the labels so far.

        Parameters
        ----------
        move
            Gives (N, C) predictions of labelled rows, moved by what unlabelled rows have told by
            now; None: as they were moved when their labels came.  WHY: corrections learn what is
            missing in what evidence told; what little it told of the first rows is not what it
            tells of the next ones.
        names
            What the features are, whatever ids they have.
        """
        self._due = _next(self._due)
        window = Labelled.stack(self._window).arranged(WINDOW, names)
        window = replace(window, counted=np.ones(len(window.y), dtype=bool))
        if move is not None:
            window = replace(window, moved=move(window))
        self._window = [window]
        logits = self._start(window)
        self.corrections = self._solved = Corrections.solve(
            window.X, *logits, window.y, window.weight, self.task
        )

    def _start(self, rows: Labelled) -> tuple[Floats, Floats]:
        """(N, Z) logits that corrections start from, and the move that evidence asks for."""
        z0, z1 = to_logits(rows.P0, self.task), to_logits(rows.moved, self.task)
        return z1 if self.trusts_evidence else z0, z1 - z0

    def uncounted(self) -> list[Labelled]:
        """Labelled rows that wait to be counted as unlabelled ones too, until the next solution.

        WHY: evidence of rows of the same block would depend on how they are cut into calls.
        """
        parts = [part.select(np.flatnonzero(~part.counted)) for part in self._window]
        return [part for part in parts if len(part.y)]

    def check(self, y: NDArray[Any], n_rows: int) -> NDArray[Any]:
        """Labels as `Labelled` has them; refuses what cannot be learned from."""
        y = np.asarray(y)
        if len(y) != n_rows:
            raise InputError(f"{n_rows} rows but {len(y)} labels: give one label for each row.")
        if self.task in ("binary", "multiclass"):
            if y.ndim != 1 or y.dtype.kind not in "iub":
                raise InputError(f"labels are {y.dtype} {y.shape}: give a class number each.")
            if n_rows and not 0 <= y.min() <= y.max() < self.n_outputs:
                worst = y.max() if y.max() >= self.n_outputs else y.min()
                raise InputError(
                    f"class {worst} is outside 0..{self.n_outputs - 1}: give the place of each "
                    "label among the classes."
                )
            return y.astype(np.int64)
        happened = y.astype(np.float64).reshape(n_rows, -1 if n_rows else self.n_outputs)
        if happened.shape[1] != self.n_outputs or not np.isfinite(happened).all():
            raise InputError(
                f"labels have the shape {y.shape}: give {self.n_outputs} finite numbers a row."
            )
        return happened

    def _weigh(self, P: Floats, rows: Labelled) -> None:
        likelihood = self._likelihood(P, rows.y) * rows.weight[:, None, None]  # logs (N, G, E)
        numbers = self.task == "regression"
        first, rest = likelihood[:, :, 0], np.empty(likelihood.shape[:2])
        weights, prior = self.weights, _PRIOR[self.trusts_evidence]
        for i, row in enumerate(likelihood):  # (G, E)
            top = row.max(1, keepdims=True)
            joint = weights * np.exp(row - top)
            total = joint.sum(1, keepdims=True)
            if numbers:  # WHY: their mean is what `_mix` goes on with, and what is lost by it
                mean = weights[0] @ P[:, i]
                rest[i] = rows.weight[i] * self._likelihood(mean[None, None], rows.y[[i]])[0, :, 0]
            else:
                rest[i] = (np.log(total) + top)[:, 0]
            weights = (1 - _SHARE) * joint / total + _SHARE * prior
        self.weights = weights
        # The posterior of "ignore" before each row, and the loss of the mixture on it.
        odds = self.log_odds + np.concatenate(
            [np.zeros((1, first.shape[1])), np.cumsum(first - rest, 0)]
        )
        ignoring, other = -np.logaddexp(0, -odds[:-1]), -np.logaddexp(0, odds[:-1])
        mixed = np.logaddexp(ignoring + first, other + rest)
        self.log_odds = odds[-1]
        scale = 1 / self._rate() if numbers else 1.0
        self.loss = self.loss - scale * mixed.sum(0)
        self.loss_of_ignoring = self.loss_of_ignoring - scale * first.sum(0)

    def _likelihood(self, P: Floats, y: NDArray[Any]) -> Floats:
        """(N, G, E) the logarithm of what each expert gave to what happened."""
        if self.task == "regression":
            low, high = self.bounds
            off = np.clip(P, low, high) - np.clip(y.reshape(-1, 1), low, high)
            return np.asarray(-self._rate() * (off * off).sum(2).T[:, None, :])
        if self.task == "multilabel":
            return np.asarray(np.log(np.where(y > 0, P, 1 - P)).transpose(1, 2, 0))
        chosen = P[:, np.arange(len(y)), y]  # (E, N)
        return np.asarray(np.log(chosen).T[:, None, :])

    # ---- copies and bundles --------------------------------------------------------------------

    @property
    def features(self) -> NDArray[np.integer]:
        """Ids of the features that the labelled rows it keeps have."""
        return np.unique(np.concatenate([np.empty(0, np.int32), *(p.X.ids for p in self._window)]))

    def select(self, kept: NDArray[np.integer], n_features: int) -> Mixture:
        """The same over some of so many features alone, ascending, numbered 0, 1, ... anew."""
        other = self.copy()
        other._window = [
            replace(part, X=part.X.widen(n_features).select_features(kept)) for part in self._window
        ]
        other.corrections = _select(self.corrections, kept)
        other._solved = _select(self._solved, kept)
        return other

    def copy(self) -> Mixture:
        """An independent copy: what it holds is replaced, never changed."""
        return copy.copy(self)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The state as plain arrays, for a safetensors file."""
        arrays: dict[str, NDArray[Any]] = {
            "log_odds": self.log_odds,
            "weights": self.weights,
            "counts": np.array([self.n_labels, self._due]),
            "loss": np.stack([self.loss, self.loss_of_ignoring]),
        }
        if self._window:
            rows = Labelled.stack(self._window)
            arrays |= {name: getattr(rows, name) for name in _ARRAYS}
            arrays |= {"row_ptr": rows.X.row_ptr, "ids": rows.X.ids}
            arrays["n_features"] = np.array([rows.X.n_features])
            if rows.X.values is not None:
                arrays["values"] = rows.X.values
            if rows.voter is not None:
                arrays["voter"] = rows.voter
        if self._solved is not None:
            arrays |= {f"corrections.{n}": getattr(self._solved, n) for n in _SOLVED}
        return arrays

    def settings(self) -> dict[str, Any]:
        """What a bundle's meta keeps to make it again."""
        return {"trusts_evidence": self.trusts_evidence, "bounds": list(self.bounds)}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], n_outputs: int, task: Task, **settings: Any
    ) -> Mixture:
        """The state that `to_arrays` gave; raises InputError where it is something else."""
        mixture = cls(n_outputs, task, **settings)
        try:
            for name in ("log_odds", "weights"):
                setattr(mixture, name, _fit_shape(name, arrays[name], getattr(mixture, name).shape))
            mixture.n_labels, mixture._due = (int(n) for n in arrays["counts"])
            mixture.loss, mixture.loss_of_ignoring = arrays["loss"]
            if "ids" in arrays:
                n_features = int(arrays["n_features"][0])
                values = arrays.get("values")
                X = MultiHot(arrays["row_ptr"], arrays["ids"], n_features, values)
                voter = arrays.get("voter")
                rows = Labelled(X, voter=voter, **{name: arrays[name] for name in _ARRAYS})
                names = _ARRAYS if voter is None else (*_ARRAYS, "voter")
                if any(len(getattr(rows, name)) != X.n_rows for name in names):
                    raise InputError("labelled rows of different lengths.")
                mixture._window = [rows]
            if "corrections.W" in arrays:
                if "ids" not in arrays:
                    raise InputError("corrections of a mixture lack the rows that they came from.")
                solved = (arrays[f"corrections.{name}"] for name in _SOLVED)
                mixture.corrections = mixture._solved = Corrections(*solved)
                n_since = min(mixture.n_labels - _since(mixture._due)[0], len(rows.y))
                cut = np.split(np.arange(len(rows.y)), [len(rows.y) - max(0, n_since)])
                mixture._window = [rows.select(part) for part in cut]
                mixture._extend()
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(f"a mixture lacks or misshapes an array ({error}).") from None
        return mixture


def _next(due: int) -> int:
    return max(due + 1, round(due * GROWTH))


def _since(due: int) -> tuple[int, int]:
    """The count of labels at the solution before the one that is due, and the step from there on.

    Examples
    --------
    >>> _since(8), _since(15), _since(3000)
    ((0, 8), (12, 8), (2688, 42))
    """
    last, following = 0, _FIRST
    while following < due:
        last, following = following, _next(following)
    return last, max(_LEAST, last // _PART)


def _select(corrections: Corrections | None, kept: NDArray[np.integer]) -> Corrections | None:
    """The same over some of its features, numbered anew."""
    if corrections is None:
        return None
    there = np.isin(corrections.features, kept)
    features = np.searchsorted(kept, corrections.features[there])
    return replace(corrections, features=features, W=corrections.W[:, there])


def _fit_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> Floats:
    if array.shape != shape or array.dtype != np.float64:
        raise InputError(f"{name} of a mixture is {array.dtype} {array.shape}, not {shape}.")
    return array
