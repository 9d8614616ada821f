"""Ensembles: the same plain network trained from several starts, whose predictions are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import ArrayLike

from openfate.models import FATE, Backbone
from openfate.table import MultiHot
from openfate.training.history import History
from openfate.training.loop import LabelledRows, train
from openfate.training.settings import Settings


def train_ensemble(
    make: Callable[[], Backbone],
    X: MultiHot,
    y: ArrayLike,
    settings: Settings,
    *,
    n_members: int,
    validation: LabelledRows | None = None,
    epochs: Sequence[int] | None = None,
    start: Sequence[FATE] | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[list[FATE], list[History]]:
    """Train networks without an extrapolator.

    Parameters
    ----------
    make
        Makes the backbone of a member.
    X, y, settings, options
        As `train`'s; see `Settings.plain`.
    validation, epochs
        Rows for early stopping, or instead of them the epochs of each member.
    start
        Networks to go on from; features without a row keep their embeddings.

    Returns
    -------
    members, histories
        On the CPU, with the weights of their best epochs.

    Examples
    --------
    >>> from openfate.models import MLP
    >>> X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 8, n_features=4)
    >>> members, _ = train_ensemble(
    ...     lambda: MLP(8, 2), X, [0, 1, 0, 1] * 8, Settings.plain(epochs=3), n_members=2
    ... )
    >>> len(members)
    2
    """
    members, histories = [], []
    with torch.random.fork_rng(devices=[]):
        for number in range(n_members):
            own, own_settings = seed + 1000 * number, settings
            torch.manual_seed(own)
            model = FATE(X.n_features, make())
            with torch.no_grad():  # WHY: Xavier's bound shrinks with D and starts slowly
                model.W[:, : model.backbone.width].normal_(0, 0.1)
            if start is not None:
                model.load_state_dict(start[number].state_dict())
                own_settings = replace(own_settings, untrained="leave")
            if epochs is not None:
                own_settings, validation = replace(own_settings, epochs=epochs[number]), None
            options |= {"validation": validation, "seed": own}
            histories.append(train(model, X, y, own_settings, **options))
            members.append(model.cpu())
    return members, histories
