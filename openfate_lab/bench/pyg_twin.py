"""The benchmark's peer: Algorithm 1 written straightforwardly, and fairly, with PyTorch Geometric.

`UciTwin` is one epoch with n-fold splits and a GCN on the whole training matrix; `CtrTwin` one
mini-batch of clicks with k-shot samples, a 2-layer GraphSAGE and dense embeddings.  DropEdge bits
are drawn on the device and Adam is torch's fused one.  Needs torch_geometric; imported by the
benchmark alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv


class UciTwin:
    """Algorithm 1 on the nonzero entries (row, feature) of X (N, D), with classes y (N,).

    As the paper's: 4 layers, 5 folds, half of the edges dropped.
    """

    def __init__(
        self,
        row: Tensor,
        feature: Tensor,
        shape: tuple[int, int],
        y: Tensor,
        n_classes: int,
        width: int = 8,
    ) -> None:
        self.n_rows, self.n_features = shape
        self.row, self.feature, self.y = row + self.n_features, feature, y
        entries = torch.ones(len(row), device=y.device)
        self.X = torch.zeros(shape, device=y.device).index_put_((row, feature), entries)
        self.W = nn.Parameter(torch.randn(self.n_features, width, device=y.device) * 0.1)
        self.net = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, n_classes),
        ).to(y.device)
        self.gnn = nn.ModuleList(GCNConv(width, width) for _ in range(4)).to(y.device)
        self.fast = torch.optim.Adam([self.W, *self.net.parameters()], lr=1e-2, fused=True)
        self.slow = torch.optim.Adam(self.gnn.parameters(), lr=1e-3, fused=True)

    def epoch(self) -> None:
        """One shuffle of the features: a step of the backbone per fold, one of the GCN."""
        self.slow.zero_grad()
        order = torch.randperm(self.n_features, device=self.y.device)
        for hidden in torch.tensor_split(order, 5):
            self.fast.zero_grad()
            kept = torch.ones(self.n_features, 1, device=self.y.device)
            kept[hidden] = 0
            edge = torch.rand(len(self.row), device=self.y.device) >= 0.5
            row, feature = self.row[edge], self.feature[edge]
            states = torch.cat([self.W * kept, self.W.new_zeros(self.n_rows, self.W.size(1))])
            states = _walk(self.gnn, states, row, feature)
            W_hat = self.W * kept + states[: self.n_features] * (1 - kept)
            loss = F.cross_entropy(self.net(self.X @ W_hat), self.y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.fast.step()
        self.slow.step()

    @torch.no_grad()
    def predict(self, row: Tensor, feature: Tensor, shape: tuple[int, int]) -> Tensor:
        """Logits of the rows of another table, whose features from D on are new."""
        n_rows, n_features = shape
        W = torch.cat([self.W, self.W.new_zeros(n_features - self.n_features, self.W.size(1))])
        states = torch.cat([W, W.new_zeros(n_rows, W.size(1))])
        states = _walk(self.gnn, states, row + n_features, feature)
        W[self.n_features :] = states[self.n_features : n_features]
        # WHY: a dense table, as in training, would have to be made of the later rows first.
        sums = W.new_zeros(n_rows, W.size(1)).index_add_(0, row, W[feature])
        logits: Tensor = self.net(sums)
        return logits


class CtrTwin:
    """Algorithm 1 on rows of one id for each field, `field_of` (D,) being the field of each id.

    The backbone is the network alone, DeepFM or the second deep and cross network.
    """

    def __init__(
        self,
        field_of: Tensor,
        *,
        width: int = 10,
        hidden: Sequence[int] = (400, 400),
        dropout: float = 0.5,
        drop_edge: float = 0.5,
        backbone: Literal["mlp", "deepfm", "dcn"] = "mlp",
    ) -> None:
        self.field_of, self.drop_edge, at = field_of, drop_edge, field_of.device
        self.W = nn.Parameter(torch.empty(len(field_of), width, device=at))
        nn.init.xavier_uniform_(self.W)
        self.net = click_network(width, hidden, dropout).to(at)
        self.beside: _Machine | _Crosses | None = None
        if backbone != "mlp":
            made = _Machine(len(field_of)) if backbone == "deepfm" else _Crosses(width)
            self.beside = made.to(at)
        own = [] if self.beside is None else self.beside.parameters()
        self.gnn = nn.ModuleList(SAGEConv(width, width, normalize=True) for _ in range(2)).to(at)
        self.fast = torch.optim.Adam([self.W, *self.net.parameters(), *own], lr=1e-4, fused=True)
        self.slow = torch.optim.Adam(self.gnn.parameters(), lr=1e-4, fused=True)

    def mini_batch(self, ids: Tensor, y: Tensor, masks: Tensor) -> None:
        """A step of the backbone for each mask, (S, d) of fields or (S, D), one of the GraphSAGE.

        ids (B, d) int64, y (B,) of 0 and 1.
        """
        self.net.train()
        self.slow.zero_grad()
        for kept in masks:
            self.fast.zero_grad()
            loss = F.binary_cross_entropy_with_logits(self._logits(ids, kept, self.drop_edge), y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.fast.step()
        self.slow.step()

    @torch.no_grad()
    def predict(self, ids: Tensor) -> Tensor:
        """Logits (B,) of rows (B, d) from their own graph, on the host."""
        self.net.eval()
        return self._logits(ids, torch.ones(ids.size(1), device=ids.device)).cpu()

    def _logits(self, ids: Tensor, kept: Tensor, drop_edge: float = 0.0) -> Tensor:
        n_rows, d = ids.shape
        kept = kept if len(kept) == len(self.W) else kept[self.field_of]
        states = self.W * kept[:, None]
        states = torch.cat([states, self.W.new_zeros(n_rows, self.W.size(1))])
        row = torch.arange(n_rows, device=ids.device).repeat_interleave(d) + len(self.W)
        feature = ids.reshape(-1)
        if drop_edge:
            edge = torch.rand(len(row), device=ids.device) >= drop_edge
            row, feature = row[edge], feature[edge]
        states = _walk(self.gnn, states, row, feature)
        cells = states[ids]  # (B, d, H)
        out: Tensor = self.net(cells.sum(1)).view(-1)
        return out if self.beside is None else out + self.beside(cells, ids, kept)


class _Machine(nn.Module):
    """DeepFM's pairs of features and their linear weights."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(n_features))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, cells: Tensor, ids: Tensor, kept: Tensor) -> Tensor:
        """(B,) of states (B, d, H), ids (B, d) and what is kept (D,)."""
        pairs = (cells.sum(1).square().sum(1) - cells.square().sum((1, 2))) / 2
        out: Tensor = (self.linear * kept)[ids].sum(1) + self.scale * pairs
        return out


class _Crosses(nn.Module):
    """The cross layers of DCN-v2 over the sum of a row's embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, cells: Tensor, ids: Tensor, kept: Tensor) -> Tensor:
        """(B,) of states (B, d, H)."""
        x = z = cells.sum(1)
        for layer in self.cross:
            x = z * layer(x) + x
        out: Tensor = self.out(x).view(-1)
        return out


def click_network(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """The paper's 10-400-400-1 with BatchNorm and Dropout, of torch's own layers."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _walk(layers: nn.ModuleList, states: Tensor, row: Tensor, feature: Tensor) -> Tensor:
    """States of all nodes after the layers, over edges in both directions."""
    edges = torch.stack([torch.cat([row, feature]), torch.cat([feature, row])])
    for layer in layers:
        states = layer(states, edges)
    return states
