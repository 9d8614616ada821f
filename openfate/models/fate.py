"""FATE: a backbone whose embeddings of new features come from an extrapolator (paper, section 2.1).

    y_hat = h(x; phi, W_hat),   W_hat = g(W, X; omega)

Features 0 .. D - 1 are observed and own a row of W; ids from D on are new.  `forward` is a training
step, where some observed features are hidden; `extrapolate` is inference, where new features are
there.  Without an extrapolator the model is the plain network of the paper's baselines.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from openfate.errors import InputError, check_choice
from openfate.graph import Bipartite, Edges
from openfate.models.backbone import Backbone


class FATE(nn.Module):
    """A backbone and the extrapolator that feeds it embeddings of features it was not trained on.

    Parameters
    ----------
    n_features
        D, the number of observed features.
    backbone
        Maps the embeddings of rows' features to logits (N, C); its `width` is H, its `n_outputs` C.
        Where its `n_own` is not zero, W has so many columns after the H of an embedding; nothing
        extrapolates them, and they start at zero.
    extrapolator
        Maps states (D, H) and edges to states; None for a model that drops what it does not know.
    recompose
        "masked": kept features use W itself, hidden and new ones the extrapolator's output
        (PAPER: Algorithm 1, n-fold); "all": every feature uses the output (PAPER: section 2.1,
        k-shot).
    init_features
        The number of features in the Xavier bound sqrt(6 / (features + H)); D by default.
        REFERENCE: the released code allocates, and counts, the unobserved features too.
    centred
        Beyond the paper: take from the embeddings of new features their mean over the cells of new
        features.  Extrapolated embeddings are much alike, and a row's new features come on top of
        those whose sum it had in training: what they have in common moves all sums to where the
        backbone was never trained.  What is left is in what new features differ; one alone says
        nothing.

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> from openfate.models.backbone import MLP
    >>> from openfate.models.extrapolator import GCN
    >>> model = FATE(2, MLP(8, n_outputs=3), GCN(8))
    >>> later = Bipartite.from_multihot(MultiHot.from_rows([[0, 2], [1, 2]], n_features=3))
    >>> W_hat = model.extrapolate(later)  # feature 2 is new
    >>> model.predict(later, W_hat).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        n_features: int,
        backbone: Backbone,
        extrapolator: nn.Module | None = None,
        *,
        recompose: Literal["masked", "all"] = "masked",
        init_features: int | None = None,
        centred: bool = False,
    ) -> None:
        super().__init__()
        if n_features < 1:
            raise InputError(
                f"n_features is {n_features}: a model needs one observed feature or more."
            )
        check_choice("recompose", recompose, ("masked", "all"))
        width = backbone.width
        if extrapolator is not None and extrapolator.width != width:
            raise InputError(
                f"the backbone's width is {width}, the extrapolator's {extrapolator.width}: "
                "give both the same."
            )
        bound = (6 / ((init_features or n_features) + width)) ** 0.5
        start = torch.empty(n_features, width).uniform_(-bound, bound)
        # WHY not `cat`: on the device "meta", where bundles are read, it imports torch's compiler.
        W = torch.zeros(n_features, width + backbone.n_own)
        W[:, :width] = start
        self.W = nn.Parameter(W)
        self.backbone = backbone
        self.extrapolator = extrapolator
        self.recompose, self.centred = recompose, centred

    def forward(self, X: Bipartite, kept: Tensor, edges: Edges, W: Tensor | None = None) -> Tensor:
        """Logits of a training step that pretends not to know the hidden features.

        Parameters
        ----------
        X
            The rows to predict.
        kept
            (D,) or, for S masks at once, (D, S): True where the step may use a feature's own
            embedding.
        edges
            The edges, after DropEdge, on which the extrapolator sends its messages.
        W
            (D, H + n_own) embeddings of the features behind the columns of X, in a mini-batch that
            touches only some of them; the model's W where not given.  With zeros in the rows of new
            features, and those not kept, the step is the prediction of a batch from its own graph.

        Returns
        -------
        (N, C) or (N, S, C)
        """
        logits: Tensor = self.backbone(self.sums(X, kept, edges, W))
        return logits

    def sums(self, X: Bipartite, kept: Tensor, edges: Edges, W: Tensor | None = None) -> Tensor:
        """What the backbone reads of each row in a training step; arguments as `forward`'s."""
        W = self.W if W is None else W
        if kept.dim() == 2:
            W = W[:, None]  # (D, 1, H)
        W_hat = self._complete(W, kept[..., None], edges)
        return self.backbone.sums(X, W_hat, W if self.backbone.reads_own else None)

    @torch.no_grad()
    def extrapolate(self, graph: Bipartite, field_of: Tensor | None = None) -> Tensor:
        """Embeddings (D', H + n_own) of all features of a graph whose ids from D on are new.

        A new feature that has no row in the graph takes the mean embedding of its field's observed
        features (`field_of` (D',) tells the field of each), or zero; its own columns are zero.
        """
        n_new = graph.n_features - len(self.W)
        if n_new < 0:
            raise InputError(
                f"the graph has {graph.n_features} features, fewer than the model's "
                f"{len(self.W)}: widen its rows."
            )
        if field_of is not None and len(field_of) != graph.n_features:
            raise InputError(
                f"field_of has {len(field_of)} entries, the graph {graph.n_features} features."
            )
        W = self._with_new(graph.n_features)
        if self.extrapolator is None:
            return W
        observed = torch.arange(len(W), device=W.device) < len(self.W)
        W_hat = self._complete(W, observed[:, None], Edges.of(graph))
        alone = (graph.feature_degree == 0) & ~observed
        W_hat[alone] = 0
        H = self.backbone.width
        if self.centred:
            there = ~(observed | alone)
            W_hat[there, :H] -= mean_of_cells(W_hat[there, :H], graph.feature_degree[there])
        if field_of is not None:
            W_hat[alone, :H] = field_means(self.W[:, :H], field_of)[alone]
        return W_hat

    def predict(self, X: Bipartite, W_hat: Tensor) -> Tensor:
        """Logits (N, C) of rows, given the embeddings (D', H + n_own) of their features."""
        W = self._with_new(len(W_hat)) if self.backbone.reads_own else None
        return self.backbone.logits(X, W_hat, W)

    def _with_new(self, n_features: int) -> Tensor:
        """W with zeros for new features: (D', H + n_own)."""
        return torch.cat([self.W, self.W.new_zeros(n_features - len(self.W), self.W.size(1))])

    def _complete(self, W: Tensor, own: Tensor, edges: Edges) -> Tensor:
        """W_hat; `own` (D, .., 1) is True where a feature's own embedding may be used."""
        W = W * own
        if self.extrapolator is None:
            return W
        H, n_own = self.backbone.width, self.backbone.n_own
        states = W[..., :H] if n_own else W
        if self.recompose == "all":
            W_hat: Tensor = self.extrapolator(states, edges)
        elif own.dim() == 2:  # only what is hidden has to be computed
            hidden = (~own[:, 0]).nonzero()[:, 0]
            W_hat = states.index_copy(0, hidden, self.extrapolator(states, edges, hidden))
        else:
            W_hat = torch.where(own, states, self.extrapolator(states, edges))
        return torch.cat([W_hat, W[..., H:]], -1) if n_own else W_hat


def mean_of_cells(W_hat: Tensor, counts: Tensor) -> Tensor:
    """(H,) the mean of embeddings (D, H), each as often as its feature has rows; zero of none."""
    counts = counts.to(W_hat.dtype)
    return counts @ W_hat / counts.sum().clamp(min=1)


def field_means(W: Tensor, field_of: Tensor) -> Tensor:
    """The mean over the rows of W of each feature's field: (D', H); zero for an unknown field.

    Parameters
    ----------
    W
        (D, H) embeddings of features 0 .. D - 1.
    field_of
        (D',) the field of each feature, D' >= D.
    """
    fields = field_of.long()
    n_fields = int(fields.max()) + 1 if len(fields) else 0
    known = fields[: len(W)]
    total = W.new_zeros(n_fields, W.size(1)).index_add_(0, known, W)
    count = torch.bincount(known, minlength=n_fields).clamp(min=1)[:, None]
    return (total / count)[fields]
