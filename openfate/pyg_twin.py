"""The benchmark's peer: Algorithm 1 written straightforwardly, and fairly, with PyTorch Geometric.

One epoch with n-fold splits and a GCN on the whole training matrix; DropEdge bits are drawn on the
device and Adam is torch's fused one.  Needs torch_geometric; imported by the benchmark alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

__all__ = ["UciTwin"]


class UciTwin:
    """Algorithm 1 on the nonzero entries (row, feature) of X (N, D), with classes y (N,)."""

    def __init__(
        self,
        row: Tensor,
        feature: Tensor,
        shape: tuple[int, int],
        y: Tensor,
        n_classes: int,
        *,
        width: int = 8,
        n_layers: int = 4,
        n_folds: int = 5,
        drop_edge: float = 0.5,
    ) -> None:
        self.n_rows, self.n_features = shape
        self.row, self.feature, self.y = row + self.n_features, feature, y
        self.n_folds, self.drop_edge = n_folds, drop_edge
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
        self.gnn = nn.ModuleList(GCNConv(width, width) for _ in range(n_layers)).to(y.device)
        self.fast = torch.optim.Adam([self.W, *self.net.parameters()], lr=1e-2, fused=True)
        self.slow = torch.optim.Adam(self.gnn.parameters(), lr=1e-3, fused=True)

    def epoch(self) -> None:
        """One shuffle of the features: a step of the backbone per fold, one of the GCN."""
        self.slow.zero_grad()
        order = torch.randperm(self.n_features, device=self.y.device)
        for hidden in torch.tensor_split(order, self.n_folds):
            self.fast.zero_grad()
            kept = torch.ones(self.n_features, 1, device=self.y.device)
            kept[hidden] = 0
            edge = torch.rand(len(self.row), device=self.y.device) >= self.drop_edge
            row, feature = self.row[edge], self.feature[edge]
            edges = torch.stack([torch.cat([row, feature]), torch.cat([feature, row])])
            states = torch.cat([self.W * kept, self.W.new_zeros(self.n_rows, self.W.size(1))])
            for conv in self.gnn:
                states = conv(states, edges)
            W_hat = self.W * kept + states[: self.n_features] * (1 - kept)
            loss = F.cross_entropy(self.net(self.X @ W_hat), self.y)
            loss.backward()  # type: ignore[no-untyped-call]
            self.fast.step()
        self.slow.step()
