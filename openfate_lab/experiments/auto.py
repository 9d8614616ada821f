"""The networks of the method `fate_auto`, and what its probe may choose for new features.

    P0  = mean over the members of  softmax(FFN(z; phi)),   z_i the sum of a row's embeddings

The members (`members`) are FATE's backbone, wider, trained with feature dropout; a few of them,
each from a start of its own, make P0 the better calibrated vote that pooling needs.  What is done
with new features is the probe's choice.  The estimators' `strategy="auto"` trains the same members
and never embeds new features (`recipes`): that adds little to evidence (docs/openworld.md).

N rows, D features, H width, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite
from openfate.models import FATE, MLP
from openfate.openworld import Candidate, Floats, View, evidence_candidates
from openfate.table import MultiHot
from openfate.training import Settings, probabilities, train_ensemble
from openfate_lab.experiments.embed import learn_map, new_part

__all__ = ["AutoSettings", "Ensemble", "UseEmbeddings", "auto_candidates", "fit_auto"]

SCALES = (0.1, 0.25, 0.5)  # of embeddings that are only guessed


@dataclass(frozen=True)
class AutoSettings:
    """How the networks are made and trained; see `openfate.training.Settings.plain`."""

    width: int = 64
    hidden: tuple[int, ...] = (128,)
    dropout: float = 0.2
    n_members: int = 2
    epochs: int = 100
    patience: int = 8
    lr: float = 3e-3
    weight_decay: float = 1e-2
    batch_size: int = 256


class Ensemble:
    """Trained members; calling it gives P0 (N, C) of rows over the features they were trained on.

    Parameters
    ----------
    members
        Networks of the same features and outputs.
    maps
        M (H, H) of each one, by `embed.learn_map`: from a new feature's context to its embedding.
    best_epochs
        The epoch whose weights each one holds.
    """

    def __init__(self, members: list[FATE], maps: list[Floats], best_epochs: list[int]) -> None:
        self.members, self.maps, self.best_epochs = members, maps, best_epochs

    @torch.no_grad()
    def __call__(self, X: MultiHot) -> Floats:
        """Probabilities (N, C), two columns for a single output."""
        return _mean_probabilities([model.backbone(_sums(model, X)) for model in self.members])

    @torch.no_grad()
    def with_new(self, X_old: MultiHot, X_new: MultiHot, scale: float) -> Floats:
        """Probabilities (N, C) that use embeddings of new features, `scale` times as long.

        Parameters
        ----------
        X_old, X_new
            The same rows over the features of training and over new ones.
        """
        logits = []
        for model, M in zip(self.members, self.maps, strict=True):
            W = model.W.double().numpy()
            extra = torch.from_numpy(scale * new_part(W, M, X_old, X_new)).to(model.W.dtype)
            logits.append(model.backbone(_sums(model, X_old) + extra))
        return _mean_probabilities(logits)


@dataclass(frozen=True)
class UseEmbeddings:
    """A candidate for a probe whose `fit` gives an `Ensemble`: embeddings of new features."""

    scale: float

    def __call__(self, view: View) -> Floats:
        """Predictions (N, C); rows without new features keep theirs."""
        assert isinstance(view.model, Ensemble)
        P = view.model.with_new(view.X_old, view.X_new, self.scale)
        return np.where(view.X_new.row_degree[:, None] > 0, P, view.P0)


def auto_candidates(sweeps: Sequence[int] = (1, 2)) -> list[dict[str, Candidate]]:
    """What the probe of `fate_auto` chooses from: evidence, embeddings, both (or none).

    Examples
    --------
    >>> [name for name in auto_candidates()[1] if "evidence" not in name]
    ['embeddings(scale=0.1)', 'embeddings(scale=0.25)', 'embeddings(scale=0.5)']
    """
    embeddings: dict[str, Candidate] = {}
    for scale in SCALES:
        use = UseEmbeddings(scale)
        name = f"embeddings(scale={scale:g})"
        embeddings[name] = use
        embeddings |= evidence_candidates(alphas=(3.0,), base=use, prefix=f"{name} + ")
    return [evidence_candidates(sweeps=sweeps), embeddings]


def fit_auto(
    X: MultiHot,
    y: ArrayLike,
    n_classes: int,
    settings: AutoSettings | None = None,
    *,
    validation: tuple[MultiHot, ArrayLike] | None = None,
    epochs: list[int] | None = None,
    seed: int = 0,
) -> Ensemble:
    """Train the members on rows over the observed features.

    Parameters
    ----------
    X, y
        Rows (N, D) and class numbers (N,).
    n_classes
        C; two classes share one output.
    settings
        The defaults where not given.
    validation
        Rows and classes for early stopping.
    epochs
        Instead of it, the epochs of each member: `Ensemble.best_epochs` of a fit on more features,
        so that a probe scores validation rows that no training has looked at.
    seed
        Of starts, order and dropout.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0, 2], [1, 2], [0, 3], [1, 3]] * 8, n_features=4)
    >>> y = np.array([0, 1, 0, 1] * 8)
    >>> model = fit_auto(X, y, 2, AutoSettings(epochs=20, batch_size=8), validation=(X, y))
    >>> model(X).argmax(1)[:4]
    array([0, 1, 0, 1])
    """
    if X.n_rows != len(np.asarray(y)) or not X.n_rows:
        raise InputError(f"{X.n_rows} rows and {len(np.asarray(y))} labels: give as many.")
    n_outputs = 1 if n_classes == 2 else n_classes
    s = settings or AutoSettings()
    plain = {"epochs": s.epochs, "patience": s.patience, "lr": s.lr, "batch_size": s.batch_size}
    members, histories = train_ensemble(
        lambda: MLP(s.width, n_outputs, s.hidden),
        X,
        y,
        Settings.plain(cell_dropout=s.dropout, weight_decay=s.weight_decay, **plain),
        n_members=s.n_members,
        validation=validation,
        epochs=epochs,
        seed=seed,
    )
    maps = [learn_map(model.W.detach().double().numpy(), X) for model in members]
    return Ensemble(members, maps, [history.best for history in histories])


def _sums(model: FATE, X: MultiHot) -> Tensor:
    """Summed embeddings (N, H) of rows."""
    return model.backbone.sums(Bipartite.from_multihot(X), model.W)


def _mean_probabilities(logits: list[Tensor]) -> Floats:
    P = torch.stack([probabilities(member).double() for member in logits]).mean(0).numpy()
    return np.asarray(P / P.sum(1, keepdims=True))
