"""A small stream of clicks and a model for it, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from openfate.models import FATE, MLP, Backbone, GraphSAGE
from openfate.training import Settings

N_FIELDS, SIZE, H, SEED = 4, 6, 3, 5
D = N_FIELDS * SIZE
FIELDS = torch.arange(D) // SIZE
# A bias before BatchNorm has no gradient but rounding's, which Adam scales up.
ROUNDING = 1e-5
BASE = Settings.clicks(n_kept=2, n_draws=3, lr=0.02, lr_extrapolator=0.01, epochs=3, n_ahead=0)


def rows(seed: int, n: int = 20, n_values: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, fields), of which those of the last field tell the label, and labels."""
    rng = np.random.default_rng(seed)
    value = rng.integers(0, n_values, (n, N_FIELDS))
    y = (value[:, -1] % 2 ^ (rng.random(n) < 0.1)).astype(np.int64)
    return (value + SIZE * np.arange(N_FIELDS)).astype(np.int32), y


def later(seed: int = 8, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which some ids are new: from D on."""
    ids, y = rows(seed, n)
    new = np.random.default_rng(seed).random(ids.shape) < 0.2
    return np.where(new, D + np.arange(N_FIELDS), ids).astype(np.int32), y


def plain() -> Backbone:
    return MLP(H, 1, (5,), batch_norm=True)


def make(kind: Callable[[], Backbone] = plain, extrapolator: bool = True) -> FATE:
    """In double precision, so that two algorithms that agree agree to many digits."""
    torch.manual_seed(0)
    backbone = kind()
    g = GraphSAGE(backbone.width) if extrapolator else None
    return FATE(D, backbone, g, recompose="all").double()


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
