"""Network: the trained networks of a fit, with their running sums.

N rows, C outputs.  Predictions are probabilities, or numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.errors import InputError
from openfate.models import FATE, ContextMap, GraphSAGE, RunningFATE, Sums, make_backbone
from openfate.openworld import Floats, Task
from openfate.table import MultiHot, Table

Arrays = dict[str, NDArray[Any]]
Fields = NDArray[np.integer] | None  # (D',) the field of each feature


class Network:
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
        return self.members[0].n_observed

    @property
    def n_outputs(self) -> int:
        """C: columns of predictions."""
        n_outputs = self.members[0].backbone.n_outputs
        return 2 if self.task == "binary" else n_outputs

    @property
    def n_fields(self) -> int | None:
        """Of networks that sum fields apart: how many they know; a new column is none of them."""
        return self.members[0].backbone.n_fields

    def predict(self, X: MultiHot, field_of: Fields = None, drop_new: bool = True) -> Floats:
        """Predictions (N, C): the mean over the members, from trained features or from all."""
        logits = [torch.from_numpy(m.logits(X, field_of, drop_new)) for m in self.members]
        parts = [finish(z, self.task, *self.target_scale) for z in logits]
        return np.asarray(torch.stack(parts).mean(0).numpy())

    def predict_both(
        self, table: Table, X: MultiHot, field_of: Fields, use_new: bool = False
    ) -> tuple[Floats, Floats]:
        """Predictions (N, C) without new features, and with them where `use_new`."""
        P0 = self.predict(X, field_of)
        return P0, self.predict(X, field_of, drop_new=False) if use_new else P0

    def observe(self, X: MultiHot, only: NDArray[np.bool_] | None = None) -> None:
        """Add rows to the sums of every member."""
        for member in self.members:
            member.observe(X, only)

    def copy(self) -> Network:
        """A copy with sums of its own."""
        return Network([m.copy() for m in self.members], self.task, self.target_scale)

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


def under(arrays: Arrays, prefix: str) -> Arrays:
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
    sums = Sums(state["counts"].copy(), state["messages"].copy())
    shape = (len(sums.counts), backbone.width)
    good = sums.messages.shape == shape and len(sums.counts) >= len(model.W)
    if not good or {sums.counts.dtype, sums.messages.dtype} != {np.dtype(np.float64)}:
        raise InputError(f"sums have the shape {sums.messages.shape} for the width {shape[1]}.")
    return RunningFATE(model, sums)


def _extrapolator(width: int, name: str = "sage", **options: Any) -> GraphSAGE | ContextMap:
    """What `options` of one told; bundles name an extrapolator since there are two."""
    return ContextMap(width, **options) if name == "context" else GraphSAGE(width, 2, **options)
