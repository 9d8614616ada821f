"""A mini-batch on the GPU as a graph that every model can sum over.

`FATE` and its parts ask a `Bipartite` for sums and degrees alone.  This one has the kernels of
`sums` do them, with DropEdge's bits recomputed and never stored; autograd goes through it as
through any other, since each sum is the other's backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate.graph import Bipartite, Edges, features_to_rows
from openfate.training.fused.sums import ALL, BatchGraph, Keep, sum_at_features, sum_at_rows


@dataclass(frozen=True, eq=False)
class KernelGraph(Bipartite):
    """The edges of a batch that `keep` leaves; there are no lists of them to look at or change.

    The edges of a feature that it does not keep are no edges, and count in no degree.
    """

    batch: BatchGraph = field(kw_only=True)
    keep: Keep = field(kw_only=True)

    is_listed: ClassVar[bool] = False

    @classmethod
    def of(cls, batch: BatchGraph, keep: Keep = ALL) -> KernelGraph:
        """A batch, maybe without the edges that DropEdge removes, or those of some features."""
        none = batch.edge[:0]
        lists = {name: none for name in ("row_ptr", "feature", "feature_ptr", "row")}
        return cls(batch.n_rows, batch.n_features, **lists, by_feature=None, batch=batch, keep=keep)

    def sum_at_rows(self, table: Tensor) -> Tensor:
        """X table, without autograd: (U, H) -> (B, H)."""
        sums, degree = sum_at_rows(self.batch, table, self.keep)
        if self.keep.features is None:  # the kernel counts anyway, those that are hidden too
            self.__dict__["row_degree"] = degree  # what the property caches
        return sums

    def sum_at_features(self, table: Tensor) -> Tensor:
        """X^T table, without autograd: (B, H) -> (U, H)."""
        sums, degree = sum_at_features(self.batch, table, self.keep)
        if self.keep.features is None:
            self.__dict__["feature_degree"] = degree
        return sums

    def sum_at_cells(self, table: Tensor, n_fields: int) -> Tensor:
        """The state of each row's feature in each field, with autograd: (U, ...) -> (B, F, ...).

        As sums over B d rows of one field; a batch's columns are its fields.
        """
        d = self.batch.n_fields
        kept = Keep(features=self.keep.features)
        cells = features_to_rows(KernelGraph.of(self.batch.cells(), kept), table)
        cells = cells.view(self.n_rows, d, *table.shape[1:])
        if n_fields > d:
            return F.pad(cells, (*[0, 0] * (table.dim() - 1), 0, n_fields - d))
        return cells[:, :n_fields]

    @cached_property
    def row_degree(self) -> Tensor:
        """(B,) float32: the number of edges of each row."""
        return sum_at_rows(self.batch, self._ones(self.n_features), self.keep)[0][:, 0]

    @cached_property
    def feature_degree(self) -> Tensor:
        """(U,) float32: the number of edges of each feature."""
        return sum_at_features(self.batch, self._ones(self.n_rows), self.keep)[0][:, 0]

    def _ones(self, n: int) -> Tensor:
        return torch.ones(n, 1, device=self.batch.ptr.device)


class KernelEdges(Edges):
    """The edges of a batch on which messages travel."""

    @classmethod
    def left_by(cls, batch: BatchGraph, to_rows: Keep, to_features: Keep) -> KernelEdges:
        """Those that DropEdge leaves in each direction."""
        at_rows = KernelGraph.of(batch, to_rows)
        return cls(
            at_rows, at_rows if to_features is to_rows else KernelGraph.of(batch, to_features)
        )

    def degrees(self) -> Tensor:
        """(U + B,) of the features, then of the rows."""
        return torch.cat([self.to_features.feature_degree, self.to_rows.row_degree])
