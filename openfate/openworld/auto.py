"""The network behind `strategy="auto"`: FATE's backbone, wider, trained with feature dropout.

    z_i = sum over the features j of row i of  b_ij w_j / (1 - dropout),   b_ij = 1 or, dropped, 0
    P0  = mean over the members of  softmax(FFN(z; phi))

A row without some of its features is what the network will meet, so it trains on such rows; and a
few members, each from a start of its own, make P0 the better calibrated vote that pooling needs.
What is done with new features is `probe`'s choice.  N rows, D features, H width, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from openfate.data.multihot import MultiHot
from openfate.errors import InputError, OpenFATEError
from openfate.models.backbone import MLP
from openfate.models.fate import FATE
from openfate.openworld.candidates import Candidate, View, evidence_candidates
from openfate.openworld.embed import learn_map, new_part
from openfate.openworld.evidence import Floats
from openfate.training.metrics import log_loss, probabilities

__all__ = ["AutoSettings", "Ensemble", "UseEmbeddings", "auto_candidates", "fit_auto"]

SCALES = (0.1, 0.25, 0.5)  # of embeddings that are only guessed


@dataclass(frozen=True)
class AutoSettings:
    """How the network is made and trained; the defaults were chosen on splits of their own.

    Parameters
    ----------
    width, hidden
        H, and the widths of the hidden layers behind the sum.
    dropout
        The probability that a cell of a training row is dropped.
    n_members
        Networks whose predictions are averaged.
    epochs, patience
        The most epochs, and how many without a lower validation loss are waited for.
    lr, weight_decay, batch_size
        Of AdamW.
    """

    width: int = 64
    hidden: tuple[int, ...] = (128,)
    dropout: float = 0.2
    n_members: int = 2
    epochs: int = 100
    patience: int = 8
    lr: float = 3e-3
    weight_decay: float = 1e-2
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("width", "n_members", "epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: choose a whole number from 1 up.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: choose a number from 0 to below 1.")


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
        return _mean_probabilities([_logits(model, X) for model in self.members])

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
    """What the probe of `strategy="auto"` chooses from: evidence, embeddings, both (or none).

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
    settings = settings or AutoSettings()
    classes = np.asarray(y, dtype=np.int64)
    if X.n_rows != len(classes) or not X.n_rows:
        raise InputError(f"{X.n_rows} rows and {len(classes)} labels: give as many, at least one.")
    members, best = [], []
    with torch.random.fork_rng(devices=[]):
        for member in range(settings.n_members):
            n_epochs = settings.epochs if epochs is None else epochs[member]
            run = _Member(X, classes, n_classes, settings, seed + 1000 * member)
            best.append(run.train(n_epochs, validation if epochs is None else None))
            members.append(run.model)
    maps = [learn_map(model.W.detach().double().numpy(), X) for model in members]
    return Ensemble(members, maps, best)


class _Member:
    """One network and its training."""

    def __init__(
        self,
        X: MultiHot,
        y: NDArray[np.int64],
        n_classes: int,
        settings: AutoSettings,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        n_outputs = 1 if n_classes == 2 else n_classes
        self.model = FATE(X.n_features, MLP(settings.width, n_outputs, settings.hidden))
        with torch.no_grad():
            self.model.W.normal_(0, 0.1)  # WHY: Xavier's bound shrinks with D and starts slowly
            self.model.W[torch.from_numpy(X.feature_degree == 0)] = 0  # nothing will train these
        self.X, self.y, self.settings = X, torch.from_numpy(y), settings
        self.rows = np.random.default_rng([seed, 4])
        self.dropped = torch.Generator().manual_seed(seed)

    def train(self, epochs: int, validation: tuple[MultiHot, ArrayLike] | None) -> int:
        """Train, keep the weights of the best epoch (the last without validation), return it."""
        s = self.settings
        step = torch.optim.AdamW(self.model.parameters(), s.lr, weight_decay=s.weight_decay,
                                 fused=True)  # fmt: skip
        best_loss, best_epoch, best_state = math.inf, epochs, None
        for epoch in range(1, epochs + 1):
            self._epoch(step)
            if validation is None:
                continue
            loss = self._loss(*validation)
            if loss < best_loss:
                best_loss, best_epoch = loss, epoch
                best_state = {k: v.clone() for k, v in self.model.state_dict().items()}
            elif epoch - best_epoch >= s.patience:
                break
        if best_state is not None:
            self.model.load_state_dict(best_state)
        return best_epoch

    def _epoch(self, step: torch.optim.Optimizer) -> None:
        order = self.rows.permutation(self.X.n_rows)
        for start in range(0, len(order), self.settings.batch_size):
            rows = order[start : start + self.settings.batch_size]
            logits = _logits(
                self.model, self.X.select_rows(rows), self.settings.dropout, self.dropped
            )
            step.zero_grad()
            log_loss(logits, self.y[rows]).backward()  # type: ignore[no-untyped-call]
            step.step()

    @torch.no_grad()
    def _loss(self, X: MultiHot, y: ArrayLike) -> float:
        loss = float(log_loss(_logits(self.model, X), torch.from_numpy(np.asarray(y, np.int64))))
        if not math.isfinite(loss):
            raise OpenFATEError(
                f"training diverged: the validation loss is {loss}. Lower lr={self.settings.lr}."
            )
        return loss


def _logits(
    model: FATE, X: MultiHot, dropout: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Logits (N, C') of rows, cells dropped at random where asked."""
    logits: Tensor = model.backbone(_sums(model, X, dropout, generator))
    return logits


def _sums(
    model: FATE, X: MultiHot, dropout: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Summed embeddings (N, H)."""
    ids = torch.from_numpy(X.ids.astype(np.int64))
    weights = None
    if dropout:
        kept = torch.rand(len(ids), generator=generator) >= dropout
        weights = kept.to(model.W.dtype) / (1 - dropout)
    # WHY: embedding_bag and not our own sums: a mini-batch needs no second direction.
    starts = torch.from_numpy(X.row_ptr[:-1])
    return F.embedding_bag(ids, model.W, starts, mode="sum", per_sample_weights=weights)


def _mean_probabilities(logits: list[Tensor]) -> Floats:
    P = torch.stack([probabilities(member).double() for member in logits]).mean(0).numpy()
    return np.asarray(P / P.sum(1, keepdims=True))
