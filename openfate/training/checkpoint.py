"""A training run as a plain dict of tensors, from which it goes on exactly.

Names are flat ("model.W", "rows.m", "theta.0.exp_avg"), so that safetensors can hold them; text is
JSON in a tensor of bytes.  Files are the caller's business.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.training.optim import Optimizer

Checkpoint = dict[str, Tensor]


def to_text(about: dict[str, Any]) -> Tensor:
    """JSON as bytes: (n,) uint8.

    Examples
    --------
    >>> from_text(to_text({"seed": 1}))
    {'seed': 1}
    """
    return torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)


def from_text(data: Tensor) -> dict[str, Any]:
    """What `to_text` was given."""
    about: dict[str, Any] = json.loads(bytes(data.tolist()))
    return about


def part(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """The entries of one part, without its name.

    Examples
    --------
    >>> part({"model.W": torch.zeros(1), "rows.m": torch.ones(1)}, "rows")
    {'m': tensor([1.])}
    """
    prefix = f"{name}."
    return {key[len(prefix) :]: v for key, v in checkpoint.items() if key.startswith(prefix)}


def optimizer_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Moments and step counts of all parameters; empty before the first step."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{key}": value for i, entries in state.items() for key, value in entries.items()}


def load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Go on from what `optimizer_state` returned, for the same parameters in the same order."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        # WHY: a clone; torch would go on in the caller's own tensor, and so change the checkpoint.
        state.setdefault(int(index), {})[key] = value.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with anything that would make it another run."""
    for name, value in now.items():
        if saved.get(name) != value:
            raise InputError(
                f"the checkpoint was made with {name}={saved.get(name)!r}, this run has {value!r}: "
                "go on with the same, or start anew without resume."
            )
