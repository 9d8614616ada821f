"""Network: the trained networks of a fit, with their running sums.

N rows, C outputs.  Predictions are probabilities, or numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate._lazy import ComputesOnce
from openfate.errors import InputError
from openfate.models import (
    FATE,
    ContextMap,
    Fields,
    GraphSAGE,
    More,
    RunningFATE,
    StackedMLP,
    Sums,
    Touched,
    make_backbone,
    stack_embeddings,
)
from openfate.openworld import Floats, Task
from openfate.table import MultiHot, Table
from openfate.threads import ONE_THREAD

Arrays = dict[str, NDArray[Any]]


class Network(ComputesOnce):
    """FATE models of one fit, whose predictions are averaged, with their running sums.

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
        return self.members[0].W.size(0)  # WHY not len: torch asks around first

    @property
    def n_outputs(self) -> int:
        """C: columns of predictions."""
        n_outputs = self.members[0].backbone.n_outputs
        return 2 if self.task == "binary" else n_outputs

    @property
    def n_fields(self) -> int | None:
        """Of networks that sum fields apart: how many they know; a new column is none of them."""
        return self.members[0].backbone.n_fields

    @property
    def computes_new(self) -> bool:
        """Whether it has embeddings of new features."""
        return self.members[0].extrapolator is not None

    @cached_property
    def _stacked(self) -> StackedMLP | None:
        """The members as one, where they are of a kind that can be."""
        backbones = [member.backbone for member in self.members]
        return StackedMLP(backbones) if StackedMLP.takes(backbones) else None

    def predict(self, X: MultiHot, field_of: Fields | None = None, drop_new: bool = True) -> Floats:
        """Predictions (N, C): the mean over the members, from trained features or from all."""
        if self._stacked is None:
            logits = np.stack([m.logits(X, field_of, drop_new) for m in self.members])
        elif X.n_rows == 1:  # WHY: a row has each feature once, and is all that a request waits for
            table = self._embeddings(X.ids, field_of, drop_new)
            z = table.sum(0) if X.values is None else X.values.astype(np.float64) @ table
            logits = np.asarray(self._stacked.forward(z[None]), np.float64)
        else:
            # WHY: blocks of rows have a thread each; products that start threads of their own, too
            # small for them, take ten times as long on a busy machine.
            X = X.below(self.n_observed) if drop_new else X  # of a wide table most may be new
            with ONE_THREAD:
                parts = [
                    self._stacked.logits(local, self._embeddings(ids, field_of, drop_new))
                    for local, ids in (part.touched_features() for part in X.parts())
                ]
            nothing = np.empty((len(self.members), 0, self.members[0].backbone.n_outputs))
            logits = np.concatenate([nothing, *parts], axis=1)
        return np.asarray(_finish(logits, self.task, *self.target_scale).mean(0))

    def _embeddings(
        self, ids: NDArray[np.int32], field_of: Fields | None, drop_new: bool
    ) -> Floats:
        """(n, M H) of features, those of the members side by side."""
        first = self.members[0]
        if first.extrapolator is None or (drop_new and first.recompose == "masked"):
            # Observed features have embeddings of their own, and new ones none.
            return stack_embeddings([m.W.numpy() for m in self.members], ids)
        tables = [m.embeddings(ids, field_of, drop_new).numpy() for m in self.members]
        return np.concatenate(tables, axis=1)

    def predict_both(
        self, table: Table, X: MultiHot, field_of: Fields, use_new: bool = False
    ) -> tuple[Floats, Floats]:
        """Predictions (N, C) without new features, and with them where `use_new`."""
        P0 = self.predict(X, field_of)
        if not use_new or not self.computes_new:
            return P0, P0
        # WHY: a row without new features is predicted already.
        is_new = np.concatenate([[0], np.cumsum(X.ids >= self.n_observed)])[X.row_ptr]
        rows = np.flatnonzero(np.diff(is_new))
        if not len(rows):
            return P0, P0
        P = P0.copy()
        P[rows] = self.predict(X.select_rows(rows), field_of, drop_new=False)
        return P0, P

    def observe(self, X: MultiHot, only: NDArray[np.integer] | None = None) -> None:
        """Add rows to the sums of every member, of all features or those whose ids `only` has."""
        if not self.computes_new:  # nothing would ever ask for the sums
            return
        parts = Touched.cut(X)
        for member in self.members:
            member.add(parts, X.n_features, only)

    def decay(self, factor: float) -> None:
        """Let all rows so far count less for new features."""
        for member in self.members if self.computes_new else ():
            member.decay(factor)

    def sums(self) -> list[Sums]:
        """Those of each member; none where nothing would ask for them."""
        return [member.sums for member in self.members] if self.computes_new else []

    def hear(self, X: MultiHot) -> tuple[More, ...]:
        """What rows would add to the sums of each member; it is not changed."""
        parts = Touched.cut(X) if self.computes_new else []
        return tuple(member.hear(parts) for member in self.members) if parts else ()

    def merge(self, sums: Sequence[More], n_features: int) -> None:
        """Add what `hear` gave, of this process or another."""
        for member, more in zip(self.members, sums, strict=False):
            member.merge(more, n_features)

    def ahead(self, X: MultiHot, only: NDArray[np.integer]) -> Network:
        """A network that has observed rows, for some features; it shares the rest with this one."""
        parts = Touched.cut(X)
        return self._with([member.ahead(parts, only) for member in self.members])

    def copy(self) -> Network:
        """A copy that goes on by itself."""
        if not self.computes_new:  # no sums that could go on
            return self
        return self._with([member.copy() for member in self.members])

    def single(self) -> Network:
        """The same, computing many rows in float32 where its members are stacked."""
        other = copy.copy(self)
        if self._stacked is not None:
            stacked = StackedMLP([member.backbone for member in self.members], single=True)
            vars(other)["_stacked"] = stacked
        return other

    def select(self, kept: NDArray[np.integer]) -> Network:
        """A network that knows some features alone, ascending, numbered 0, 1, ... anew."""
        return self._with([member.select(kept) for member in self.members])

    def _with(self, members: list[RunningFATE]) -> Network:
        """The same networks with other sums."""
        _ = self._stacked  # WHY: a copy has it too, and need not make it anew
        other = copy.copy(self)
        other.members = members
        return other

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
        """The counts and sums of each member."""
        state: Arrays = {}
        for at, member in enumerate(self.members if self.computes_new else ()):
            state[f"{at}.counts"] = member.sums.counts
            state[f"{at}.messages"] = member.sums.messages
        return state

    def settings(self) -> dict[str, Any]:
        """What a bundle's meta keeps to make it again."""
        extrapolator = self.members[0].extrapolator
        return {
            "task": self.task,
            "target_scale": list(self.target_scale),
            "backbone": self.members[0].backbone.about(),
            "extrapolator": None if extrapolator is None else extrapolator.options(),
            "recompose": self.members[0].recompose,
            "centred": self.members[0].centred,
        }

    @classmethod
    def from_arrays(cls, weights: Arrays, state: Arrays, settings: dict[str, Any]) -> Network:
        """The networks that were taken apart; raises where the parts do not fit together."""
        # WHY digits: the weights of a network that was trained again lie beside, `retrained.0.W`.
        n_members = sum(name.removesuffix(".W").isdigit() for name in weights)
        members = [
            _member(under(weights, f"{at}."), under(state, f"{at}."), settings)
            for at in range(n_members)
        ]
        if not members or len({m.n_observed for m in members}) > 1:
            raise InputError("the members of the network have different features, or are none.")
        mean, deviation = settings["target_scale"]
        return cls(members, settings["task"], (float(mean), float(deviation)))


def finish(logits: Tensor, task: Task, mean: float, deviation: float) -> Tensor:
    """Logits (N, C) -> what the task predicts: probabilities, or numbers on the target's scale."""
    if task == "regression":
        return logits * deviation + mean
    if task == "multiclass":
        return logits.softmax(1)
    p = logits.sigmoid()
    return p if task == "multilabel" else torch.cat([1 - p, p], 1)


def _finish(logits: Floats, task: Task, mean: float, deviation: float) -> Floats:
    """`finish` for arrays (M, N, C): of one row, torch's calls would be most of the time."""
    if task == "regression":
        return logits * deviation + mean
    if task == "multiclass":
        return np.asarray(scipy.special.softmax(logits, axis=2))
    p = scipy.special.expit(logits)
    return np.asarray(p if task == "multilabel" else np.concatenate([1 - p, p], axis=2))


def under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """The arrays whose names start so, by the rest of their names."""
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}


def _member(weights: Arrays, state: Arrays, settings: dict[str, Any]) -> RunningFATE:
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    options = settings["extrapolator"]
    with torch.device("meta"):  # WHY: sizes that the file tells allocate nothing before they fit
        backbone = make_backbone(**settings["backbone"])
        extrapolator = None if options is None else _extrapolator(backbone.width, **options)
        model = FATE(
            len(tensors["W"]),
            backbone,
            extrapolator,
            recompose=settings["recompose"],
            centred=bool(settings.get("centred", False)),  # not in bundles from before it
        )
    model.load_state_dict(tensors, assign=True)
    if extrapolator is None:  # bundles from before it have sums that nothing asks for
        return RunningFATE(model)
    counts, messages = state["counts"], state["messages"]
    good = messages.shape == (len(counts), backbone.width) and len(counts) >= len(model.W)
    if not good or {counts.dtype, messages.dtype} != {np.dtype(np.float64)}:
        raise InputError(f"sums have the shape {messages.shape} for the width {backbone.width}.")
    return RunningFATE(model, Sums(counts, messages))


def _extrapolator(width: int, name: str = "sage", **options: Any) -> GraphSAGE | ContextMap:
    """What `options` of one told; bundles name an extrapolator since there are two."""
    return ContextMap(width, **options) if name == "context" else GraphSAGE(width, 2, **options)
