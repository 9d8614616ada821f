"""Bases: what predicts a row from the features it was trained with, under a `FeatureBank`.

    Network   members of one fit, FATE each, with running sums; their predictions are averaged
    Wrapped   any fitted model with predict_proba or predict, which knows nothing of new features

N rows, C outputs.  Both give predictions: probabilities, or numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.models import FATE, GraphSAGE, RunningFATE, Sums, make_backbone
from openfate.table import MultiHot, Table

__all__ = ["Base", "Network", "Task", "Wrapped", "used_part"]

Task = Literal["binary", "multiclass", "multilabel", "regression"]
Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
Fields = NDArray[np.integer] | None  # (D',) the field of each feature


class Base(Protocol):
    """What a bank asks of the model that it is built on."""

    task: Task

    @property
    def n_observed(self) -> int:
        """D: ids from it on are new."""

    def outputs(self, table: Table, X: MultiHot, field_of: Fields, drop_new: bool) -> Floats:
        """Predictions (N, C) of rows, from the features that were trained, or from all."""

    def observe(self, X: MultiHot, only: NDArray[np.bool_] | None = None) -> None:
        """Add rows to the state, of all features or of some."""

    def copied(self) -> Base:
        """A copy with a state of its own."""

    def weights(self) -> Arrays:
        """What training learned, by name."""

    def state(self) -> Arrays:
        """Running sums, by name."""

    def about(self) -> dict[str, Any]:
        """What else a bundle must tell to make it again."""


class Network:
    """The networks of a fit with their running sums.

    Parameters
    ----------
    members
        One or more, over the same features.
    task
        What the outputs are.
    target_scale
        Of regression: the mean and the deviation that standardised the target.
    """

    def __init__(
        self,
        members: Sequence[RunningFATE],
        task: Task,
        target_scale: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.members, self.target_scale = list(members), target_scale
        self.task: Task = task

    @property
    def n_observed(self) -> int:
        """D."""
        return self.members[0].n_observed

    @property
    def n_fields(self) -> int | None:
        """Of networks that sum fields apart: how many they know; a new column is none of them."""
        return self.members[0].backbone.n_fields

    def outputs(self, table: Table | None, X: MultiHot, field_of: Fields, drop_new: bool) -> Floats:
        """Predictions (N, C): the mean over the members."""
        parts = [self.finish(m.logits(X, field_of, drop_new)) for m in self.members]
        return np.asarray(np.mean(parts, axis=0)) if len(parts) > 1 else parts[0]

    def finish(self, logits: Floats) -> Floats:
        """Logits (N, C) -> what the task predicts: probabilities, or numbers."""
        if self.task == "regression":
            mean, deviation = self.target_scale
            return logits * deviation + mean
        if self.task == "multiclass":
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        p = torch.from_numpy(logits).sigmoid().numpy()
        return p if self.task == "multilabel" else np.concatenate([1 - p, p], axis=1)

    def observe(self, X: MultiHot, only: NDArray[np.bool_] | None = None) -> None:
        """Add rows to the sums of every member."""
        for member in self.members:
            member.observe(X, only)

    def copied(self) -> Network:
        """A copy with sums of its own."""
        return Network([m.copied() for m in self.members], self.task, self.target_scale)

    # ---- bundles -------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        """``0.W``, ``0.backbone.layers.0.weight``, ... for member 0, and so on."""
        weights: Arrays = {}
        for at, member in enumerate(self.members):
            weights[f"{at}.W"] = member.W.cpu().numpy()
            for part in ("backbone", "extrapolator"):
                module = getattr(member, part)
                if module is not None:
                    for name, tensor in module.state_dict().items():
                        number = tensor.float() if tensor.is_floating_point() else tensor
                        weights[f"{at}.{part}.{name}"] = number.cpu().numpy()
        return weights

    def state(self) -> Arrays:
        """Copies of the counts and sums of each member: rows are added to these in place."""
        state: Arrays = {}
        for at, member in enumerate(self.members):
            state[f"{at}.counts"] = member.sums.counts.copy()
            state[f"{at}.messages"] = member.sums.messages.copy()
        return state

    def about(self) -> dict[str, Any]:
        """Task, scale of the target, backbone, extrapolator, and how W_hat is put together."""
        return {
            "task": self.task,
            "target_scale": list(self.target_scale),
            "backbone": self.members[0].backbone.about(),
            "extrapolator": _settings(self.members[0].extrapolator),
            "recompose": self.members[0].recompose,
        }

    @classmethod
    def from_arrays(cls, weights: Arrays, state: Arrays, about: dict[str, Any]) -> Network:
        """The networks that were taken apart; raises where the parts do not fit together."""
        n_members = sum(name.endswith(".W") for name in weights)
        members = [
            _member(_under(weights, f"{at}."), _under(state, f"{at}."), about)
            for at in range(n_members)
        ]
        if not members or len({m.n_observed for m in members}) > 1:
            raise InputError("the members of the network have different features, or are none.")
        mean, deviation = about["target_scale"]
        return cls(members, about["task"], (float(mean), float(deviation)))


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}


def _member(weights: Arrays, state: Arrays, about: dict[str, Any]) -> RunningFATE:
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    settings = about["extrapolator"]
    with torch.device("meta"):  # WHY: sizes that the file tells allocate nothing before they fit
        backbone = make_backbone(**about["backbone"])
        extrapolator = None if settings is None else GraphSAGE(backbone.width, 2, **settings)
        model = FATE(len(tensors["W"]), backbone, extrapolator, recompose=about["recompose"])
    model.load_state_dict(tensors, assign=True)
    sums = Sums(state["counts"].copy(), state["messages"].copy())
    shape = (len(sums.counts), backbone.width)
    good = sums.messages.shape == shape and len(sums.counts) >= len(model.W)
    if not good or {sums.counts.dtype, sums.messages.dtype} != {np.dtype(np.float64)}:
        raise InputError(f"sums have the shape {sums.messages.shape} for the width {shape[1]}.")
    return RunningFATE(model, sums)


def _settings(extrapolator: GraphSAGE | None) -> dict[str, Any] | None:
    """What else than its width and two layers makes an extrapolator again."""
    if extrapolator is None:
        return None
    prior = extrapolator.log_prior  # what was learned, to start from; weights hold it exactly
    prior_rows = None if prior is None else float(prior.exp())
    return {"normalize": extrapolator.normalize, "prior_rows": prior_rows}


def used_part(table: Table) -> Any:
    """The rows as they were given, without the columns that are not used.

    Examples
    --------
    >>> import polars as pl
    >>> table = Table(1, {"x1": pl.Series([5])}, np.array([[4, 5]]))  # x0 is not used
    >>> used_part(table)
    array([[5]])
    """
    if not isinstance(table.native, np.ndarray):
        frame = nw.from_native(table.native, eager_only=True)
        return frame.select(*table.columns).to_native()
    # Columns of an array are named by their place (`openfate.estimators.estimator`): x0, x1, ...
    places = [int(name.removeprefix("x")) for name in table.columns]
    return table.native if len(places) == table.native.shape[1] else table.native.take(places, 1)


class Wrapped:
    """A fitted model of somebody else's, over the columns that it was trained with.

    Parameters
    ----------
    estimator
        Has `predict_proba` (or `predict` for numbers).
    columns
        Names of the training columns, in order; empty for arrays.
    n_observed
        D: features of the training rows.
    task
        What its outputs are.
    numbers
        Those of the columns that hold numbers.
    """

    def __init__(
        self,
        estimator: Any,
        columns: Sequence[str],
        n_observed: int,
        task: Task,
        numbers: Sequence[str] = (),
    ) -> None:
        self.estimator, self.columns, self.numbers = estimator, list(columns), list(numbers)
        self.task: Task = task
        self._n_observed = n_observed

    @property
    def n_observed(self) -> int:
        """D."""
        return self._n_observed

    def outputs(self, table: Table, X: MultiHot, field_of: Fields, drop_new: bool) -> Floats:
        """Predictions (N, C) of the wrapped model; new features are not its business."""
        if not table.n_rows:
            return np.empty((0, self.n_outputs))
        rows = self._known_columns(table.native) if self.columns else used_part(table)
        missing = [name for name in self.columns if name not in table.columns]
        try:
            return self.predictions(rows)
        except Exception as error:
            if not missing:
                raise
            raise InputError(
                f"the wrapped model cannot predict without the column {missing[0]!r} ({error}): "
                "give it, or wrap a model that takes missing values."
            ) from None

    def predictions(self, rows: Any) -> Floats:
        """(N, C) of rows with the very columns that the model was trained with."""
        if self.task == "regression":
            numbers = np.asarray(self.estimator.predict(rows), np.float64)
            return numbers.reshape(len(numbers), -1)
        p = self.estimator.predict_proba(rows)
        if isinstance(p, list):  # one (N, 2) array for each label
            p = np.stack([part[:, 1] for part in p], axis=1)
        return np.asarray(p, np.float64)

    @property
    def n_outputs(self) -> int:
        """C."""
        if self.task == "regression":
            return 1
        classes = self.estimator.classes_
        return len(classes)

    def _known_columns(self, native: Any) -> Any:
        """The training columns of a frame, in their order; what is missing is empty."""
        frame = nw.from_native(native, eager_only=True)
        empty = [
            nw.lit(float("nan") if name in self.numbers else None).alias(name)
            for name in self.columns
            if name not in frame.columns
        ]
        frame = frame.with_columns(*empty)
        return frame.select(self.columns).to_native()

    def observe(self, X: MultiHot, only: NDArray[np.bool_] | None = None) -> None:
        """Nothing to learn: evidence is kept by the bank."""

    def copied(self) -> Wrapped:
        """Itself: it has no state."""
        return self

    def weights(self) -> Arrays:
        """None: its own file holds them."""
        return {}

    def state(self) -> Arrays:
        """None."""
        return {}

    def about(self) -> dict[str, Any]:
        """Task, columns, and the number of their features."""
        return {
            "task": self.task,
            "columns": self.columns,
            "numbers": self.numbers,
            "n_observed": self.n_observed,
        }
