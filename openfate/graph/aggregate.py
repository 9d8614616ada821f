"""The two dual sums over the graph: features -> rows (X F) and rows -> features (X^T G).

Each is the other's transpose, and so the other's backward.  A table may have any trailing shape:
(D, H), or (D, S, H) for S masks at once.  On a CPU both are embedding bags over the CSR direction
whose segments are the outputs: no atomics, and no (E, H) messages in memory.  Where edges have
values, X holds them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate.errors import InputError
from openfate.graph.bipartite import Bipartite, segment_sums


def features_to_rows(graph: Bipartite, table: Tensor) -> Tensor:
    """Sum over the features of each row, times edge values: (D, ...) -> (N, ...).  Differentiable.

    A table of half precision is summed, and handed on, in float32.

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1], []], n_features=2))
    >>> features_to_rows(graph, torch.tensor([[1.0], [10.0]]))
    tensor([[11.],
            [ 0.]])
    """
    return _Sums.apply(full_precision(table), graph, False)  # type: ignore[no-untyped-call, no-any-return]


def rows_to_features(graph: Bipartite, table: Tensor) -> Tensor:
    """Sum over the rows of each feature, times edge values: (N, ...) -> (D, ...).  Differentiable.

    A table of half precision is summed, and handed on, in float32.
    """
    return _Sums.apply(full_precision(table), graph, True)  # type: ignore[no-untyped-call, no-any-return]


class _Sums(torch.autograd.Function):
    """X table, or X^T table where it is `turned`: each is the other's backward."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, graph: Bipartite, turned: bool) -> Tensor:
        ctx.graph, ctx.turned = graph, turned
        return _sums(table.detach(), graph, turned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # WHY: who does not differentiate twice saves a call.
        sums = _Sums.apply if torch.is_grad_enabled() else _sums
        return sums(grads[0], ctx.graph, not ctx.turned), None, None


def _sums(table: Tensor, graph: Bipartite, turned: bool) -> Tensor:
    """As `_Sums`, of a table of any trailing shape, without autograd."""
    flat, n = table.flatten(1), graph.n_features if turned else graph.n_rows
    sums = sum_at_features(graph, flat) if turned else sum_at_rows(graph, flat)
    return sums.view(n, *table.shape[1:])


def features_to_cells(graph: Bipartite, table: Tensor, n_fields: int) -> Tensor:
    """Sum over the features of each field of each row: (D, ...) -> (N, F, ...).  Differentiable.

    A feature of a field from `n_fields` on is in no cell.  Added up over fields the cells are
    `features_to_rows`.

    Examples
    --------
    >>> from openfate.table import MultiHot
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1, 2]], n_features=3))
    >>> graph = graph.with_fields(torch.tensor([1, 0, 1]))
    >>> features_to_cells(graph, torch.tensor([[1.0], [10.0], [100.0]]), n_fields=2)
    tensor([[[ 10.],
             [101.]]])
    """
    return _FeaturesToCells.apply(full_precision(table), graph, n_fields)  # type: ignore[no-untyped-call, no-any-return]


class _FeaturesToCells(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, graph: Bipartite, n_fields: int) -> Tensor:
        if graph.field_of is None:
            raise InputError(
                "sums of fields need a graph with field_of: see Bipartite.with_fields."
            )
        field, rows = graph.field_of.index_select(0, graph.feature), graph.row_ptr.diff()
        row = torch.arange(graph.n_rows, device=field.device).repeat_interleave(rows)
        # (E,) cells row by row and field by field; N F for an edge in none.
        cell = torch.where(field < n_fields, row * n_fields + field, graph.n_rows * n_fields)
        ctx.graph, ctx.cell, ctx.shape = graph, cell, table.shape
        ordered, order = cell.sort(stable=True)
        steps = torch.arange(graph.n_rows * n_fields + 1, device=cell.device)
        ptr = torch.searchsorted(ordered, steps).int()
        n_edges = int(ptr[-1])  # those in a cell
        order = order[:n_edges]
        value = None if graph.value is None else graph.value[order]
        sums = segment_sums(table.detach().flatten(1), graph.feature[order], ptr, value)
        return sums.view(graph.n_rows, n_fields, *table.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        graph = ctx.graph
        heard = F.pad(grads[0].flatten(0, 1).flatten(1), (0, 0, 0, 1))  # (N F + 1, ...)
        index = ctx.cell.index_select(0, graph.feature_order()).int()
        sums = segment_sums(heard, index, graph.feature_ptr, graph.value_by_feature)
        return sums.view(ctx.shape), None, None


def full_precision(table: Tensor) -> Tensor:
    """Half precision as float32, everything else as it is.

    WHY: under autocast a layer hands on bfloat16, whose sums over many edges lose their last terms.
    """
    return table.float() if table.dtype in (torch.bfloat16, torch.float16) else table


def sum_at_rows(graph: Bipartite, table: Tensor) -> Tensor:
    """X table, without autograd: (D, H) -> (N, H)."""
    return segment_sums(table, graph.feature, graph.row_ptr, graph.value)


def sum_at_features(graph: Bipartite, table: Tensor) -> Tensor:
    """X^T table, without autograd: (N, H) -> (D, H)."""
    return segment_sums(table, graph.row, graph.feature_ptr, graph.value_by_feature)
