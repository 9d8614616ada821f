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

from openfate.errors import InputError
from openfate.graph.aggregate import features_to_rows
from openfate.graph.bipartite import Bipartite, Edges

__all__ = ["FATE", "field_means"]


class FATE(nn.Module):
    """A backbone and the extrapolator that feeds it embeddings of features it was not trained on.

    Parameters
    ----------
    n_features
        D, the number of observed features.
    backbone
        Maps summed embeddings (N, H) to logits (N, C); its `width` is H, its `n_outputs` C.
    extrapolator
        Maps states (D, H) and edges to states; None for a model that drops what it does not know.
    recompose
        "masked": kept features use W itself, hidden and new ones the extrapolator's output
        (PAPER: Algorithm 1, n-fold); "all": every feature uses the output (PAPER: section 2.1,
        k-shot).
    init_features
        The number of features in the Xavier bound sqrt(6 / (features + H)); D by default.
        REFERENCE: the released code allocates, and counts, the unobserved features too.

    Examples
    --------
    >>> from openfate.data.multihot import MultiHot
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
        backbone: nn.Module,
        extrapolator: nn.Module | None = None,
        *,
        recompose: Literal["masked", "all"] = "masked",
        init_features: int | None = None,
    ) -> None:
        super().__init__()
        if n_features < 1:
            raise InputError(
                f"n_features is {n_features}: a model needs one observed feature or more."
            )
        if recompose not in ("masked", "all"):
            raise InputError(f"recompose={recompose!r} is unknown: choose 'masked' or 'all'.")
        width = int(backbone.width)  # type: ignore[arg-type]
        if extrapolator is not None and extrapolator.width != width:
            raise InputError(
                f"the backbone's width is {width}, the extrapolator's {extrapolator.width}: "
                "give both the same."
            )
        bound = (6 / ((init_features or n_features) + width)) ** 0.5
        self.W = nn.Parameter(torch.empty(n_features, width).uniform_(-bound, bound))
        self.backbone = backbone
        self.extrapolator = extrapolator
        self.recompose = recompose

    def forward(
        self, X: Bipartite, kept: Tensor, edges: Edges, ids: Tensor | None = None
    ) -> Tensor:
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
        ids
            (D,) the features behind the columns of X in a mini-batch that touches only some of
            them.

        Returns
        -------
        (N, C) or (N, S, C)
        """
        # WHY: backward of index_select is half as long as that of W[ids].
        W = self.W if ids is None else self.W.index_select(0, ids)
        if kept.dim() == 2:
            W = W[:, None]  # (D, 1, H)
        mask = kept[..., None].to(W.dtype)
        W_hat = W * mask
        if self.extrapolator is not None:
            W_hat = self._recompose(W_hat, self.extrapolator(W_hat, edges), mask)
        return self.predict(X, W_hat)

    @torch.no_grad()
    def extrapolate(self, graph: Bipartite, field_of: Tensor | None = None) -> Tensor:
        """Embeddings (D', H) of all features of a graph whose ids from D on are new.

        A new feature that has no row in the graph takes the mean embedding of its field's observed
        features (`field_of` (D',) tells the field of each), or zero.
        """
        n_new = graph.n_features - len(self.W)
        if n_new < 0:
            raise InputError(
                f"the graph has {graph.n_features} features, fewer than the model's {len(self.W)}."
            )
        if field_of is not None and len(field_of) != graph.n_features:
            raise InputError(
                f"field_of has {len(field_of)} entries, the graph {graph.n_features} features."
            )
        W = torch.cat([self.W, self.W.new_zeros(n_new, self.W.size(1))])
        if self.extrapolator is None:
            return W
        observed = (torch.arange(len(W), device=W.device) < len(self.W)).to(W.dtype)[:, None]
        W_hat = self._recompose(W, self.extrapolator(W, Edges.of(graph)), observed)
        alone = (graph.feature_degree == 0) & (observed[:, 0] == 0)
        W_hat[alone] = 0 if field_of is None else field_means(self.W, field_of)[alone]
        return W_hat

    def predict(self, X: Bipartite, W_hat: Tensor) -> Tensor:
        """Logits (N, C) of rows, given the embeddings (D', H) of their features."""
        logits: Tensor = self.backbone(features_to_rows(X, W_hat))
        return logits

    def _recompose(self, W: Tensor, out: Tensor, own: Tensor) -> Tensor:
        """`own` (D, .., 1) is one where a feature's own embedding is known; W is zero elsewhere."""
        return out if self.recompose == "all" else W + out * (1 - own)


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
