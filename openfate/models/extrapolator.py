"""The extrapolator g(W, X; omega): embeddings of features from their neighbours (paper, Eq. 2).

Each takes initial states of the features (a hidden or new feature starts at zero; rows start at
zero) and the edges, and returns states after L rounds of messages.  No non-linearity between the
layers.

    D features, N rows, H width;  X (N, D), edge values in it where there are any
    c_j, r_i degrees: they count edges, whatever their values
    a_j = (c_j + 1)^-1/2,  b_i = (r_i + 1)^-1/2,  A = a^2,  B = b^2,  S = b X a

    GCN   F_l = (A F + S^T G) P_l + bias,  G_l = (S F + B G) P_l + bias
    SGC   the same walk with one P at its end
    SAGE  F_l = norm(mean of G over rows . N_l + bias + F . R_l), G_l likewise
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges, features_to_rows, rows_to_features
from openfate.models.walk import walk


class GCN(nn.Module):
    """An L-layer graph convolution with self-loops and symmetric normalisation.

    The graph operator acts from the left and the weights P_l from the right, so the whole network
    is one walk of L steps over the graph (2(L - 1) sparse products in L passes) followed by one
    product P_1 ... P_L; the biases add a term of rank L.  P_l stay separate parameters: Adam on
    their product would be a different algorithm.

    Parameters
    ----------
    width
        H.
    n_layers
        L; the paper's UCI experiment takes 4.
    bias
        PAPER: Eq. 2 has weights only.  REFERENCE: the released code adds a bias, and so do we.

    Shapes
    ------
    states (D, H) or (D, S, H) for S masks at once, output alike

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1], [1]], n_features=2))
    >>> GCN(width=8, n_layers=4)(torch.zeros(2, 8), Edges.of(graph)).shape
    torch.Size([2, 8])
    """

    def __init__(self, width: int, n_layers: int = 4, bias: bool = True) -> None:
        super().__init__()
        _check_layers(n_layers)
        self.width, self.n_layers = width, n_layers
        layers = [nn.init.xavier_uniform_(torch.empty(width, width)) for _ in range(n_layers)]
        self.P = nn.Parameter(torch.stack(layers))
        self.bias = nn.Parameter(torch.zeros(n_layers, width)) if bias else None
        self._product: Tensor | None = None  # within `unchanged`

    def forward(self, states: Tensor, edges: Edges, wanted: Tensor | None = None) -> Tensor:
        """States after L layers of all features, or of the `wanted` ones, increasing: (W, H)."""
        with _without_autocast(states.device.type):
            walked, signal = walk(
                states, edges, self.n_layers, constant=self.bias is not None, wanted=wanted
            )
            if walked.dim() > 2:  # alike for all masks
                ones = [1] * (walked.dim() - 2)
                signal = signal.view(signal.size(0), *ones, signal.size(1))
                signal = signal.expand(*walked.shape[:-1], -1)
            walks = torch.cat([walked, signal], -1)
            return walks @ (self._weights() if self._product is None else self._product)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """While P and bias stay as they are: their product is computed, and differentiated, once.

        `backward` belongs into the block; gradients arrive at its end.  WHY: on the paper's small
        tables, where a step is bound by the number of calls, a dozen of them for each mask count.

        Examples
        --------
        >>> gcn = GCN(width=8)
        >>> with gcn.unchanged():
        ...     pass  # several steps, and backward for each
        """
        with _without_autocast(self.P.device.type):
            weights = self._weights()
        self._product = product = weights.detach().requires_grad_(weights.requires_grad)
        try:
            yield
        finally:
            self._product = None
        if product.grad is not None:
            weights.backward(product.grad)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_product": None}  # a copy is not within the block

    def _weights(self) -> Tensor:
        """P_1 ... P_L, and below it in row l what bias_l meets, P_{l+1} ... P_L: (H + L, H)."""
        weights, *layers = self.P.unbind()
        if self.bias is None:
            for P in layers:
                weights = weights @ P
            return weights
        first, *biases = self.bias[:, None].unbind()
        weights = torch.cat([weights, first])
        for P, bias in zip(layers, biases, strict=True):
            weights = torch.cat([weights @ P, bias])
        return weights


class SGC(nn.Module):
    """Simplified graph convolution: the walk of a `GCN`, then a single weight.

    Shapes
    ------
    states (D, H) or (D, S, H), output alike

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1], [1]], n_features=2))
    >>> SGC(width=8)(torch.zeros(2, 8), Edges.of(graph)).shape
    torch.Size([2, 8])
    """

    def __init__(self, width: int, n_layers: int = 2, bias: bool = True) -> None:
        super().__init__()
        _check_layers(n_layers)
        self.width, self.n_layers = width, n_layers
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, states: Tensor, edges: Edges, wanted: Tensor | None = None) -> Tensor:
        """States after L steps of all features, or of the `wanted` ones, increasing: (W, H)."""
        walked, _ = walk(states, edges, self.n_layers, constant=False, wanted=wanted)
        out: Tensor = self.linear(walked)
        return out


class GraphSAGE(nn.Module):
    """An L-layer GraphSAGE with mean aggregation, a root and a neighbour weight.

    Parameters
    ----------
    width
        H.
    n_layers
        L; the paper's click experiment takes 2.
    normalize
        Scale every state to length one after each layer.  REFERENCE: the released code does.  It is
        a non-linearity, although the paper says that there is none.
    prior_rows
        Beyond the paper: a feature's mean over its n rows is taken as if there were so many more
        rows that say nothing, sum / (n + prior_rows), so that a feature of few rows says little.
        Learned from this start; None: a plain mean.

    Shapes
    ------
    states (D, H) or (D, S, H), output alike

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1], [1]], n_features=2))
    >>> states = GraphSAGE(width=8)(torch.zeros(2, 8), Edges.of(graph))
    >>> states.detach().norm(dim=1).round(decimals=3)
    tensor([1., 1.])
    """

    def __init__(
        self,
        width: int,
        n_layers: int = 2,
        normalize: bool = True,
        prior_rows: float | None = None,
    ) -> None:
        super().__init__()
        _check_layers(n_layers)
        if prior_rows is not None and not 0 < prior_rows < math.inf:
            raise InputError(f"prior_rows={prior_rows}: choose a number above 0, or None.")
        self.width, self.n_layers, self.normalize = width, n_layers, normalize
        self.log_prior: nn.Parameter | None = None
        if prior_rows is not None:
            self.log_prior = nn.Parameter(torch.tensor(math.log(prior_rows)))
        self.neighbour = nn.ModuleList(nn.Linear(width, width) for _ in range(n_layers))
        self.root = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n_layers))

    def forward(self, states: Tensor, edges: Edges, wanted: Tensor | None = None) -> Tensor:
        """States after L layers of all features, or of the `wanted` ones, increasing: (W, H)."""
        to_rows, to_features = edges.to_rows, edges.to_features
        features, rows = states, None  # rows start at zero
        for layer in range(self.n_layers):
            heard = None if rows is None else rows_to_features(to_features, rows)
            updated = self._update_features(layer, features, heard, to_features.feature_degree)
            if layer < self.n_layers - 1:  # the rows' last state is read by nobody
                heard = features_to_rows(to_rows, features)
                rows = self._update(layer, rows, heard, to_rows.row_degree)
            features = updated
        return features if wanted is None else features.index_select(0, wanted)

    def row_messages(self, features: Tensor, X: Bipartite) -> Tensor:
        """What each row sends to its features in layer 2: (D, H) -> (N, H).

        It depends on the row alone, so that the sums that `from_sums` takes can be kept while rows
        come and go.  2 layers only.
        """
        self._check_running()
        return self._update(0, None, features_to_rows(X, features), X.row_degree)

    def from_sums(self, features: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
        """States of the features after 2 layers, from running sums over their rows: (D, H).

        ``from_sums(states, rows_to_features(X, row_messages(states, X)), X.feature_degree)`` is
        `forward`.

        Parameters
        ----------
        features
            (D, H) initial states, zero for a feature that has none.
        sums
            (D, H) of `row_messages`, times edge value, over each feature's rows; float64 will do.
        counts
            (D,) the number of each feature's edges; zero will do.
        """
        self._check_running()
        first = self._update_features(0, features, None, counts)
        return self._update_features(1, first, sums, counts)

    def _update_features(
        self, layer: int, own: Tensor, heard: Tensor | None, degree: Tensor
    ) -> Tensor:
        """`_update` at features, whose mean may count rows that say nothing."""
        if self.log_prior is not None and heard is not None:
            degree = degree.to(heard.dtype) + self.log_prior.exp().to(heard.dtype)
        return self._update(layer, own, heard, degree)

    def _update(
        self, layer: int, own: Tensor | None, heard: Tensor | None, degree: Tensor
    ) -> Tensor:
        """One layer at nodes of one kind, from their state and the sum that they heard.

        None stands for zeros.  WHY: rows start at zero; a pass over the edges to sum zeros would be
        as dear as any other.
        """
        neighbour, root = self.neighbour[layer], self.root[layer]
        if heard is None:
            message = cast("Tensor", neighbour.bias)
        else:
            at_least_one = degree.clamp(min=1).to(heard.dtype)
            mean = heard / at_least_one.view(-1, *[1] * (heard.dim() - 1))
            message = neighbour(mean.to(cast("Tensor", neighbour.weight).dtype))
        states = message if own is None else message + root(own)
        return F.normalize(states, dim=-1) if self.normalize else states

    def options(self) -> dict[str, Any]:
        """What else than its width and two layers makes one again."""
        prior = self.log_prior  # what was learned, to start from; weights hold it exactly
        prior_rows = None if prior is None else float(prior.exp())
        return {"normalize": self.normalize, "prior_rows": prior_rows}

    def _check_running(self) -> None:
        if self.n_layers != 2:
            raise InputError(
                f"this GraphSAGE has n_layers={self.n_layers}: only 2 layers have a running form, "
                "because only there the message of a row depends on that row alone."
            )


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """WHY: the products of a GCN are small, and its walk is in float32 anyway."""
    mixed = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if mixed else nullcontext()


def _check_layers(n_layers: int) -> None:
    if n_layers < 1:
        raise InputError(f"n_layers={n_layers}: an extrapolator needs one layer or more.")
