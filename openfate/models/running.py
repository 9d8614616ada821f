"""RunningFATE: a trained FATE and the sums from which it extrapolates, exact in a stream.

A 2-layer GraphSAGE computes the embedding of a new feature j from the sum over its rows of

    g_i = norm(N_1 . mean of W over the features of row i + b_1)

and from their number.  Rows never influence one another before that sum, so it can be kept as it
runs: the result is that of the whole graph of all rows ever seen, in one pass and without keeping a
row.

`ContextMap` is an extrapolator of one such round, rows -> features, in closed form.  The context of
a feature is the mean, over its n_j rows, of the rows' summed embeddings z_i:

    c_j     = sum over rows i of j of (z_i - mean z) / (n_j + prior_rows)
    w_hat_j = scale c_j M

For observed features both w_j and the context without w_j itself are known; ridge regression
between them gives M.  It is the paper's extrapolator with one mean-aggregating layer, whose weights
are solved for instead of trained, so that a probe can afford to fit it in every draw.

N rows, D observed features, D' known ones (observed and new), H width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges, features_to_rows, rows_to_features
from openfate.growing import Floats, PagedArray
from openfate.models.extrapolator import GraphSAGE
from openfate.models.fate import FATE
from openfate.table import MultiHot

_CHUNK = 1 << 16  # rows at a time: bounds the memory of messages
_PREDICTED = 1 << 13


class Fields(Protocol):
    """(D',) the field of each feature: an array, or what can be asked like one."""

    def __getitem__(self, at: Any, /) -> NDArray[np.integer]:
        """The fields of some features."""


class Sums:
    """Of every known feature the number of its rows and the sum of what they send; never changed.

    Sums are float64: a float32 sum stops growing after some ten million rows.

    Parameters
    ----------
    counts
        (D',)
    messages
        (D', H), or (D', 0) for a model without an extrapolator, to which nothing is sent.
    """

    def __init__(self, counts: Floats, messages: Floats) -> None:
        self._both = PagedArray(np.concatenate([counts[:, None], messages], axis=1))

    @classmethod
    def zeros(cls, n_features: int, width: int) -> Sums:
        """Sums over no rows."""
        return cls(np.zeros(n_features), np.zeros((n_features, width)))

    @property
    def n_features(self) -> int:
        """D'."""
        return len(self._both)

    @property
    def width(self) -> int:
        """H."""
        return self._both.width[0] - 1

    @property
    def counts(self) -> Floats:
        """(D',) the rows of each feature."""
        return self._both.to_array()[:, 0]

    @property
    def messages(self) -> Floats:
        """(D', H) the sum of what they send."""
        return self._both.to_array()[:, 1:]

    def plus(self, more: More, n_features: int) -> Sums:
        """The sums of further rows too, of at least `n_features` features."""
        later = copy.copy(self)
        later._both, both, places = self._both.open(more.ids, n_features)
        both[places, 0] += more.counts
        both[places, 1:] += more.messages
        return later

    def scale(self, first: int, factor: float) -> Sums:
        """The sums of which those of features from `first` on are multiplied by a factor."""
        both = self._both.to_array()
        both[first:] *= factor
        return Sums(both[:, 0], both[:, 1:])

    def at(self, ids: NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Counts and messages of some features; of no rows for ids that are not known."""
        both = self._both.take(ids)
        return both[:, 0], both[:, 1:]


class More(NamedTuple):
    """What rows add to the sums of the features that they have, each of them once."""

    ids: NDArray[np.int32]  # (n,) ascending
    counts: Floats  # (n,)
    messages: Floats  # (n, H)

    @classmethod
    def stack(cls, parts: Sequence[More], width: int) -> More:
        """What rows in several parts add."""
        if len(parts) == 1:
            return parts[0]
        every = np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)])
        ids = np.unique(every)
        counts, messages = np.zeros(len(ids)), np.zeros((len(ids), width))
        for part in parts:
            places = np.searchsorted(ids, part.ids)
            counts[places] += part.counts
            messages[places] += part.messages
        return cls(ids, counts, messages)

    def at(self, ids: NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Counts and messages of some features, zero for others than these."""
        place = np.minimum(np.searchsorted(self.ids, ids), max(len(self.ids) - 1, 0))
        there = self.ids[place] == ids if len(self.ids) else np.zeros(len(ids), dtype=bool)
        counts, messages = np.zeros(len(ids)), np.zeros((len(ids), self.messages.shape[1]))
        counts[there], messages[there] = self.counts[place[there]], self.messages[place[there]]
        return counts, messages


@dataclass(frozen=True, eq=False)
class Touched:
    """Rows over only the features that they have."""

    X: MultiHot  # (N, n)
    ids: NDArray[np.int32]  # (n,) ascending

    @classmethod
    def cut(cls, X: MultiHot) -> list[Touched]:
        """The rows in parts that messages of fit into memory.

        Examples
        --------
        >>> (part,) = Touched.cut(MultiHot.from_rows([[900], [7, 900]], n_features=1000))
        >>> part.ids.tolist(), part.counts.tolist()
        ([7, 900], [1.0, 2.0])
        """
        return [cls(*part.touched_features()) for part in _cut_rows(X)]

    @cached_property
    def counts(self) -> Floats:
        """(n,) the rows of each feature."""
        return self.X.feature_degree.astype(np.float64)

    @cached_property
    def graph(self) -> Bipartite:
        """The same as a graph."""
        return Bipartite.from_multihot(self.X)


class RunningFATE:
    """Predicts with a trained FATE from running sums instead of a graph.

    Parameters
    ----------
    model
        A trained model with a 2-layer `GraphSAGE`, a `ContextMap`, or without an extrapolator.  It
        is not changed.
    sums
        The state; of no rows where not given.

    Notes
    -----
    It computes in float64, so that a row's prediction is the same alone and in any batch.

    Examples
    --------
    >>> from openfate.models.backbone import MLP
    >>> model = FATE(2, MLP(8, n_outputs=1), GraphSAGE(8))
    >>> running = RunningFATE(model)
    >>> running.observe(MultiHot.from_rows([[0, 2], [1, 2]], n_features=3))  # feature 2 is new
    >>> running.logits(MultiHot.from_rows([[2]], n_features=3)).shape
    (1, 1)
    """

    def __init__(self, model: FATE, sums: Sums | None = None) -> None:
        extrapolator = copy.deepcopy(model.extrapolator)
        is_sage = isinstance(extrapolator, GraphSAGE) and len(extrapolator.root) == 2
        if not (extrapolator is None or is_sage or isinstance(extrapolator, ContextMap)):
            raise InputError(
                "running sums are exact for a 2-layer GraphSAGE and a ContextMap alone, not for "
                f"{type(extrapolator).__name__}: use FATE.extrapolate on a whole graph."
            )
        self.W = model.W.detach()
        self.backbone = copy.deepcopy(model.backbone).double().eval().requires_grad_(False)
        self.extrapolator: GraphSAGE | ContextMap | None = None
        if isinstance(extrapolator, GraphSAGE | ContextMap):
            self.extrapolator = extrapolator.double().eval().requires_grad_(False)
        self.recompose, self.centred = model.recompose, model.centred
        heard = 0 if self.extrapolator is None else self.backbone.width
        self.sums = sums or Sums.zeros(len(self.W), heard)
        self._more: More | None = None  # on top of the sums, in a copy that looked ahead
        # What the embeddings of new features have in common: their sum over cells, and the cells.
        self._common = self.W.new_zeros(self.backbone.width, dtype=torch.float64), 0.0
        if self.sums.n_features > self.n_observed:
            every = np.arange(self.n_observed, self.sums.n_features, dtype=np.int32)
            self._common = self._common_of(every)

    @property
    def n_observed(self) -> int:
        """D: ids below it have an embedding of their own."""
        return self.W.size(0)  # WHY not len: torch asks around first

    def observe(self, X: MultiHot, only: NDArray[np.integer] | None = None) -> None:
        """Add rows to the sums, of all features or of those whose ids `only` has.

        Ids beyond the known ones are new features.
        """
        self.add(Touched.cut(X), X.n_features, only)

    def add(
        self, parts: Sequence[Touched], n_features: int, only: NDArray[np.integer] | None = None
    ) -> None:
        """As `observe`, of rows that several models are to observe."""
        self.merge(self.hear(parts, only), n_features)

    def merge(self, more: More, n_features: int) -> None:
        """Add what rows, of this process or another, add to the sums: see `hear`."""
        later = copy.copy(self)
        later.sums = self.sums.plus(more, n_features)
        new = more.ids[more.ids >= self.n_observed]
        later._move_common(self._common_of(new), later._common_of(new))
        self.sums, self._common = later.sums, later._common

    def ahead(self, parts: Sequence[Touched], only: NDArray[np.integer]) -> RunningFATE:
        """A model that has observed rows, for features whose ids `only` has, and shares the rest.

        It costs as much as the rows have cells, whatever the number of known features.
        """
        other, more = copy.copy(self), self.hear(parts, only)
        other._more = more
        new = more.ids[more.ids >= self.n_observed]
        other._move_common(self._common_of(new), other._common_of(new))
        return other

    def select(self, kept: NDArray[np.integer]) -> RunningFATE:
        """A model that knows some features alone, ascending, numbered 0, 1, ... anew."""
        other = copy.copy(self)
        other.W = self.W[torch.from_numpy(kept[kept < self.n_observed]).long()]
        if self.extrapolator is not None:
            other.sums = Sums(*self.sums.at(kept.astype(np.int32)))
            new = np.arange(other.n_observed, len(kept), dtype=np.int32)
            other._common = other._common_of(new)
        return other

    def decay(self, factor: float) -> None:
        """Let all rows so far count less for new features."""
        later = copy.copy(self)
        later.sums = self.sums.scale(self.n_observed, factor)
        new = np.arange(self.n_observed, later.sums.n_features, dtype=np.int32)
        self.sums, self._common = later.sums, later._common_of(new)

    def copy(self) -> RunningFATE:
        """A copy that goes on by itself, with the same network; sums are replaced, not changed."""
        return copy.copy(self)

    @torch.no_grad()
    def hear(self, parts: Sequence[Touched], only: NDArray[np.integer] | None = None) -> More:
        """What rows add to the sums of features, of all or of those whose ids `only` has."""
        H = self.sums.width
        found = []
        for part in parts:
            messages = np.zeros((len(part.ids), H))
            if self.extrapolator is not None and len(part.ids):
                own, at = self._own(part.ids)[:, :H], self.W.device
                graph = part.graph if at.type == "cpu" else Bipartite.from_multihot(part.X, at)
                rows = self.extrapolator.row_messages(own, graph)  # (N, H)
                messages = rows_to_features(graph, rows).cpu().numpy()
            more = More(part.ids, part.counts, messages)
            if only is not None:
                chosen = np.isin(part.ids, only)
                more = More(part.ids[chosen], part.counts[chosen], messages[chosen])
            found.append(more)
        return More.stack(found, H)

    @torch.no_grad()
    def _common_of(self, ids: NDArray[np.int32]) -> tuple[Tensor, float]:
        """What new features add to the sum of embeddings over cells (H,), and their cells."""
        H = self.backbone.width
        if not (self.centred and len(ids) and self.extrapolator is not None):
            return self.W.new_zeros(H, dtype=torch.float64), 0.0
        ids = ids[self._state_of(ids)[0] > 0]
        if not len(ids):
            return self.W.new_zeros(H, dtype=torch.float64), 0.0
        W_hat, counts = self._extrapolated(ids, self._own(ids)[:, :H])
        return counts.to(W_hat.dtype) @ W_hat, float(counts.sum())

    def _move_common(self, before: tuple[Tensor, float], after: tuple[Tensor, float]) -> None:
        total, n_cells = self._common
        self._common = total + (after[0] - before[0]), n_cells + (after[1] - before[1])

    def _own(self, ids: NDArray[np.int32]) -> Tensor:
        """(len(ids), H + n_own) learned embeddings; new features start at zero."""
        own = self.W.new_zeros(len(ids), self.W.size(1), dtype=torch.float64)
        observed = ids < self.n_observed
        own[torch.from_numpy(observed)] = self.W[torch.from_numpy(ids[observed]).long()].double()
        return own

    @torch.no_grad()
    def embeddings(
        self,
        ids: NDArray[np.int32],
        field_of: Fields | None = None,
        drop_new: bool = False,
    ) -> Tensor:
        """W_hat (len(ids), H + n_own) of the given features.

        Parameters
        ----------
        field_of
            (D',) the field of each feature: a new one without rows takes the mean embedding of its
            field's observed features, or zero, and no linear weight; with a `ContextMap` zero.
        drop_new
            Zero for every new feature: what the network knew at the end of training.
        """
        own = self._own(ids)
        if self.extrapolator is None:
            return own
        at, H = own.device, self.backbone.width
        out, counts = self._extrapolated(ids, own[:, :H])
        out = torch.cat([out, own[:, H:]], 1)  # what no extrapolator computes is a feature's own
        new = torch.from_numpy(ids >= self.n_observed).to(at)
        W_hat = torch.where(new[:, None], out, own) if self.recompose == "masked" else out
        alone = new & (counts == 0)
        is_sage = isinstance(self.extrapolator, GraphSAGE)
        if self.centred and not drop_new and bool(new.any()):
            W_hat[new, :H] -= self._mean_of_new()
        W_hat[alone] = 0
        if drop_new:
            W_hat[new] = 0
        elif field_of is not None and is_sage and bool(alone.any()):
            W_hat[alone, :H] = self._field_means(field_of, ids[alone.cpu().numpy()])
        return W_hat

    def _extrapolated(self, ids: NDArray[np.int32], own: Tensor) -> tuple[Tensor, Tensor]:
        """What the extrapolator computes of features (len(ids), H), and the rows of each."""
        assert self.extrapolator is not None
        counts, messages = (torch.from_numpy(a).to(own.device) for a in self._state_of(ids))
        return self.extrapolator.from_sums(own, messages, counts), counts

    def _mean_of_new(self) -> Tensor:
        """(H,) what the embeddings of all new features that have rows have in common."""
        total, n_cells = self._common
        return total / max(n_cells, 1.0)

    def _state_of(self, ids: NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Counts and sums of some features; of no rows for ids that the state does not hold."""
        counts, messages = self.sums.at(ids)
        if self._more is not None:
            more = self._more.at(ids)
            counts, messages = counts + more[0], messages + more[1]
        return counts, messages

    def _field_means(self, field_of: Fields, ids: NDArray[np.int32]) -> Tensor:
        H = self.backbone.width
        means = self.W.new_zeros(len(ids), H, dtype=torch.float64)
        for field in np.unique(field_of[ids]):
            members = np.flatnonzero(field_of[: self.n_observed] == field)
            if len(members):
                mean = self.W[torch.from_numpy(members), :H].double().mean(0)
                means[torch.from_numpy(field_of[ids] == field)] = mean
        return means

    @torch.no_grad()
    def logits(
        self,
        X: MultiHot,
        field_of: Fields | None = None,
        drop_new: bool = False,
    ) -> NDArray[np.float64]:
        """What the backbone says of rows, from the sums alone: (N, C)."""
        # WHY fewer rows at a time: what the layers of a network hand on stays in a cache.
        cut = _cut_rows(X, _PREDICTED)
        parts = [self._logits(chunk, field_of, drop_new) for chunk in cut]
        return np.concatenate([np.empty((0, self.backbone.n_outputs)), *parts])

    def _logits(self, X: MultiHot, field_of: Fields | None, drop_new: bool) -> NDArray[np.float64]:
        local, ids = X.touched_features()
        W_hat = self.embeddings(ids, field_of, drop_new)
        graph = Bipartite.to_rows(local, self.W.device)
        if field_of is not None:
            graph = graph.with_fields(torch.from_numpy(field_of[ids]).to(self.W.device))
        own = self._own(ids) if self.backbone.reads_own else None
        return self.backbone.logits(graph, W_hat, own).cpu().numpy()


class ContextMap(nn.Module):
    """Embeddings of new features by a linear map of their contexts.

    Parameters
    ----------
    width
        H.
    prior_rows
        Rows of no context at all that a feature starts with, so that one of few rows says little.
    scale
        How much of the guessed embeddings is used.

    Shapes
    ------
    states (D, H), output alike

    Examples
    --------
    >>> X = MultiHot.from_rows([[0, 2], [1, 3]] * 4, 4)
    >>> W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> ContextMap.solve(W, X).M.round(decimals=2)  # what stands together looks alike
    tensor([[ 0.5800, -0.5800],
            [-0.5800,  0.5800]])
    """

    M: Tensor
    mean: Tensor

    def __init__(self, width: int, prior_rows: float = 3.0, scale: float = 1.0) -> None:
        super().__init__()
        self.width, self.prior_rows, self.scale = width, prior_rows, scale
        self.register_buffer("M", torch.zeros(width, width))
        self.register_buffer("mean", torch.zeros(width))  # of z over the training rows

    @classmethod
    def solve(cls, W: Tensor, X: MultiHot, scale: float = 1.0, ridge: float = 1.0) -> ContextMap:
        """The map that gives the observed features' embeddings best from their contexts.

        Parameters
        ----------
        W
            (D, H) learned embeddings.
        X
            (N, D) training rows; a feature counts by the number of its rows.
        ridge
            Times the mean eigenvalue of the contexts.
        """
        W = W.detach().double()
        extrapolator = cls(W.size(1), scale=scale).double()
        total, squares = (torch.from_numpy(X.feature_sums(power)) for power in (1, 2))
        extrapolator.mean = total @ W / max(X.n_rows, 1)
        n = torch.from_numpy(X.feature_degree).double()[:, None]
        share = n / n.sum().clamp(min=1)
        centred = W - (share * W).sum(0)
        sums = -squares[:, None] * centred  # WHY: a feature is no part of its own context
        for part in _cut_rows(X):
            local, ids = part.touched_features()
            at, graph = torch.from_numpy(ids).long(), Bipartite.from_multihot(local)
            sums[at] += rows_to_features(graph, extrapolator.row_messages(W[at], graph))
        context = sums / (n + extrapolator.prior_rows)
        context = context - (share * context).sum(0)
        gram = context.T @ (n * context)
        size = gram.trace() / len(gram)
        if size > 0:
            target = context.T @ (n * centred)
            gram = gram + ridge * size * torch.eye(len(gram), dtype=gram.dtype)
            # WHY: as it is read from a file: by another layout the last bits would differ.
            extrapolator.M = torch.linalg.solve(gram, target).contiguous()
        return extrapolator.float()

    def forward(self, states: Tensor, edges: Edges, wanted: Tensor | None = None) -> Tensor:
        """Embeddings of all features, or of the `wanted` ones: (W, H)."""
        to_features = edges.to_features
        sums = rows_to_features(to_features, self.row_messages(states, edges.to_rows))
        out = self.from_sums(states, sums, to_features.feature_degree)
        return out if wanted is None else out.index_select(0, wanted)

    def row_messages(self, features: Tensor, X: Bipartite) -> Tensor:
        """What each row sends to its features: (D, H) -> (N, H)."""
        return features_to_rows(X, features) - self.mean

    def from_sums(self, features: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
        """Embeddings (D, H) from running sums of messages and the number of rows, (D, H), (D,)."""
        context = sums / (counts.to(sums.dtype) + self.prior_rows)[:, None]
        return self.scale * (context @ self.M)

    def rescale(self, scale: float) -> ContextMap:
        """A copy that uses another part of the embeddings."""
        other = ContextMap(self.width, self.prior_rows, scale)
        other.M, other.mean = self.M, self.mean
        return other

    def options(self) -> dict[str, Any]:
        """What else than its width makes one again."""
        return {"name": "context", "prior_rows": self.prior_rows, "scale": self.scale}


def _cut_rows(X: MultiHot, n_rows: int = _CHUNK) -> Iterator[MultiHot]:
    """The rows in parts that messages of fit into memory."""
    yield from [X] if X.n_rows <= n_rows else X.parts(n_rows)
