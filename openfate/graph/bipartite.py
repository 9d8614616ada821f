"""The feature-data graph (paper, section 2.1): an edge joins row i and feature j where x_ij = 1.

Both CSR directions are built once.  N rows, D features, E edges.  An edge may carry a value, by
which every message along it is multiplied (after GRAPE, You et al. 2020: the number of a numeric
field sits on the edge of its one feature); degrees count edges, whatever their values.

Its two dual sums, features -> rows (X F) and rows -> features (X^T G), are each the other's
transpose, and so the other's backward.  A table may have any trailing shape: (D, H), or (D, S, H)
for S masks at once.  On a CPU both are embedding bags over the CSR direction whose segments are the
outputs: no atomics, and no (E, H) messages in memory.  Where edges have values, X holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from openfate import native
from openfate.errors import InputError
from openfate.table import MultiHot


@dataclass(frozen=True, eq=False)
class Bipartite:
    """Rows and features joined by edges, in both CSR directions.

    Examples
    --------
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 2], [2], []], n_features=3))
    >>> graph.row_degree, graph.feature_degree
    (tensor([2., 1., 0.]), tensor([1., 0., 2.]))
    """

    n_rows: int
    n_features: int
    row_ptr: Tensor  # (N + 1,) int32: row i has the edges row_ptr[i] .. row_ptr[i + 1] - 1
    feature: Tensor  # (E,) int32: the feature of each edge, ordered by row
    feature_ptr: Tensor  # (D + 1,) int32
    row: Tensor  # (E,) int32: the row of each edge, ordered by feature
    by_feature: Tensor | None  # (E,) int64, see `feature_order`; None where it was not worked out
    value: Tensor | None = None  # (E,) float32 of each edge, ordered by row; None: all are one
    value_by_feature: Tensor | None = None  # (E,) the same, ordered by feature
    field_of: Tensor | None = None  # (D,) int64 the field of each feature, where somebody asks

    is_listed: ClassVar[bool] = True  # False: edges are known to `sum_at_...` and degrees alone

    @classmethod
    def from_multihot(cls, X: MultiHot, device: torch.device | str = "cpu") -> Bipartite:
        """Build both directions of a multi-hot matrix."""
        to_rows = cls.to_rows(X, device)
        # WHY: torch sorts integers by radix: 0.4 ms for 60,000 edges; numpy takes 3.7 ms.
        by_feature = _shared(X.ids).int().sort(stable=True).indices
        row = np.repeat(np.arange(X.n_rows, dtype=np.int32), X.row_degree)
        value = None if X.values is None else _shared(X.values)
        return replace(
            to_rows,
            feature_ptr=_to(np.concatenate([[0], np.cumsum(X.feature_degree)]), device),
            row=_to(torch.from_numpy(row).index_select(0, by_feature), device),
            by_feature=_to(by_feature, device, torch.int64),
            value_by_feature=None
            if value is None
            else _to(value.index_select(0, by_feature), device, torch.float32),
        )

    @classmethod
    def to_rows(cls, X: MultiHot, device: torch.device | str = "cpu") -> Bipartite:
        """The one direction that sums at rows need; `row` and `feature_ptr` are empty.

        Examples
        --------
        >>> graph = Bipartite.to_rows(MultiHot.from_rows([[0, 1], [1]], n_features=2))
        >>> features_to_rows(graph, torch.tensor([[1.0], [10.0]]))[:, 0]
        tensor([11., 10.])
        """
        _check_edges(X.nnz)
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        return cls(
            n_rows=X.n_rows,
            n_features=X.n_features,
            row_ptr=_to(X.row_ptr, device),
            feature=_to(X.ids, device),
            feature_ptr=nothing,
            row=nothing,
            by_feature=None,
            value=None if X.values is None else _to(X.values, device, torch.float32),
        )

    @classmethod
    def from_fixed(cls, ids: Tensor) -> tuple[Bipartite, Tensor]:
        """Rows (N, d) of one id for each of d fields, over only the features that occur in them.

        Ids are numbered by field: one never stands in two columns.  Returns the graph, and the ids
        (D,) behind its features in increasing order.

        Examples
        --------
        >>> graph, ids = Bipartite.from_fixed(torch.tensor([[7, 900], [5, 900]]))
        >>> ids, graph.field_of, graph.feature_degree
        (tensor([  5,   7, 900]), tensor([0, 0, 1]), tensor([1., 1., 2.]))
        """
        (n_rows, d), at = ids.shape, ids.device
        _check_edges(ids.numel())
        # WHY: one sort finds the features, their order and their edges: 10 ms for 390,000 ids in
        # all, where numpy's `unique` alone takes 29.
        ordered, by_feature = ids.reshape(-1).sort(stable=True)
        starts = torch.ones_like(ordered, dtype=torch.bool)
        starts[1:] = ordered[1:] != ordered[:-1]
        first = starts.nonzero()[:, 0]  # (D,) where each feature's edges begin
        end = torch.tensor([ordered.numel()], device=at)
        feature = torch.empty_like(ordered, dtype=torch.int32)
        feature[by_feature] = starts.cumsum(0, dtype=torch.int32).sub_(1)
        graph = cls(
            n_rows=n_rows,
            n_features=len(first),
            row_ptr=torch.arange(n_rows + 1, device=at).mul(d).int(),
            feature=feature,
            feature_ptr=torch.cat([first, end]).int(),
            row=(by_feature // max(d, 1)).int(),
            by_feature=by_feature,
            field_of=by_feature.index_select(0, first) % max(d, 1),
        )
        return graph, ordered.index_select(0, first)

    @property
    def n_edges(self) -> int:
        """E."""
        return self.feature.numel()

    @cached_property
    def row_degree(self) -> Tensor:
        """(N,) float32: the number of edges of each row."""
        return self.row_ptr.diff().float()

    @cached_property
    def feature_degree(self) -> Tensor:
        """(D,) float32: the number of edges of each feature."""
        return self.feature_ptr.diff().float()

    # WHY methods: a graph on a GPU sums by kernels of its own, and every model sums through these.

    def sum_at_rows(self, table: Tensor) -> Tensor:
        """X table, without autograd: (D, H) -> (N, H)."""
        return segment_sums(table, self.feature, self.row_ptr, self.value)

    def sum_at_features(self, table: Tensor) -> Tensor:
        """X^T table, without autograd: (N, H) -> (D, H)."""
        return segment_sums(table, self.row, self.feature_ptr, self.value_by_feature)

    def sum_at_cells(self, table: Tensor, n_fields: int) -> Tensor:
        """`features_to_cells`, with autograd: (D, ...) -> (N, F, ...)."""
        return _FeaturesToCells.apply(table, self, n_fields)  # type: ignore[no-untyped-call, no-any-return]

    def keep_edges(self, keep: Tensor) -> Bipartite:
        """Drop the edges where `keep` (E,), ordered by row, is False.

        Examples
        --------
        >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1], [1]], n_features=2))
        >>> left = graph.keep_edges(torch.tensor([True, False, True]))
        >>> left.n_edges, left.row_degree, left.feature_degree
        (2, tensor([1., 1.]), tensor([1., 1.]))
        """
        keep = keep.bool().contiguous()
        if keep.numel() != self.n_edges:
            raise InputError(
                f"keep has {keep.numel()} entries, the graph {self.n_edges} edges: "
                "give one for each edge."
            )
        by_feature = self.feature_ptr, self.row, self.value_by_feature
        row_ptr, feature, value = _left(keep, None, self.row_ptr, self.feature, self.value)
        feature_ptr, row, value_by_feature = _left(keep, self.feature_order(), *by_feature)
        return Bipartite(
            n_rows=self.n_rows,
            n_features=self.n_features,
            row_ptr=row_ptr,
            feature=feature,
            feature_ptr=feature_ptr,
            row=row,
            by_feature=None,
            value=value,
            value_by_feature=value_by_feature,
            field_of=self.field_of,
        )

    def feature_order(self) -> Tensor:
        """(E,) int64: place in row order of each edge in feature order."""
        # WHY: who drops edges at every step never asks.
        if self.by_feature is None:
            return self.feature.sort(stable=True).indices
        return self.by_feature

    def keep_features(self, kept: Tensor) -> Bipartite:
        """Drop every edge of the features where `kept` (D,) is False."""
        return self.keep_edges(kept.index_select(0, self.feature))

    def with_fields(self, field_of: Tensor) -> Bipartite:
        """The same graph, which knows the field (D,) of each feature."""
        return replace(self, field_of=field_of.long())

    def with_values(self, value: Tensor) -> Bipartite:
        """The same edges, each with the value that (E,), ordered by row, tells."""
        return replace(
            self, value=value, value_by_feature=value.index_select(0, self.feature_order())
        )

    def with_squared_values(self) -> Bipartite:
        """The same edges, each with the square of its value."""
        # WHY: in double, so that the squares of float32 values are exact.
        values = (self.value, self.value_by_feature)
        squares = [None if value is None else value.double().square() for value in values]
        return replace(self, value=squares[0], value_by_feature=squares[1])

    def without_values(self) -> Bipartite:
        """The same edges, each of value one."""
        return replace(self, value=None, value_by_feature=None)


def _to(
    array: NDArray[Any] | Tensor, device: torch.device | str, dtype: torch.dtype = torch.int32
) -> Tensor:
    return _shared(array).to(device, dtype)


def _shared(array: NDArray[Any] | Tensor) -> Tensor:
    """The same numbers, in the same memory where torch takes it: not where it is read-only."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_edges(n_edges: int) -> None:
    """Refuse more edges than integers of 32 bits can count."""
    if n_edges >= 2**31:
        raise InputError(f"{n_edges} edges in one graph are too many: give mini-batches.")


def _left(
    keep: Tensor, order: Tensor | None, ptr: Tensor, index: Tensor, value: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One direction, `ptr`, `index` and `value`, without the edges that `keep` (E,) is False for.

    `order` (E,) is the place in `keep` of each edge of the direction; None: one after the other.
    """
    if native.takes((ptr, index), value):
        return native.keep_edges(keep, order, ptr, index, value)
    if order is not None:
        keep = keep.index_select(0, order)
    at = _places(keep)
    new_value = None if value is None else value.index_select(0, at)
    return _new_ptr(ptr, keep, at), index.index_select(0, at), new_value


def _new_ptr(ptr: Tensor, keep: Tensor, places: Tensor) -> Tensor:
    """Where segments begin and end when only the edges at `places`, where `keep`, are left."""
    # WHY: looking few segments up is ten times as fast as counting all edges; many are slower.
    if 32 * len(ptr) < len(keep):
        return torch.searchsorted(places, ptr, out_int32=True)
    if keep.device.type == "cpu":  # WHY: numpy adds up in two thirds of the time
        sums = np.empty(len(keep) + 1, np.int32)
        sums[0] = 0
        np.cumsum(keep.numpy().view(np.int8), dtype=np.int32, out=sums[1:])
        return torch.from_numpy(sums.take(ptr.numpy()))
    upto = torch.zeros(len(keep) + 1, dtype=torch.int32, device=keep.device)
    torch.cumsum(keep, 0, dtype=torch.int32, out=upto[1:])
    return upto.index_select(0, ptr)


def _places(keep: Tensor) -> Tensor:
    """Where `keep` (E,) is True: int64."""
    # WHY: numpy finds the places in 0.5 ns an edge, `nonzero` of torch takes 2 to 5.
    if keep.device.type == "cpu":
        return torch.from_numpy(keep.numpy().nonzero()[0])
    return keep.nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges on which messages travel in each direction: one graph, or two of the same shape.

    REFERENCE: the released code drops j -> i and i -> j independently, so the directions differ.
    """

    to_rows: Bipartite
    to_features: Bipartite

    @classmethod
    def of(cls, graph: Bipartite) -> Edges:
        """Both directions of one graph."""
        return cls(graph, graph)

    def degrees(self) -> Tensor:
        """(D + N,) of the features, then of the rows."""
        # WHY: all at once; on a small table a call takes longer than what it computes.
        return torch.cat([self.to_features.feature_ptr.diff(), self.to_rows.row_ptr.diff()])


# ---- the two sums -------------------------------------------------------------------------------


def features_to_rows(graph: Bipartite, table: Tensor) -> Tensor:
    """Sum over the features of each row, times edge values: (D, ...) -> (N, ...).  Differentiable.

    A table of half precision is summed, and handed on, in float32.

    Examples
    --------
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
    sums = graph.sum_at_features(flat) if turned else graph.sum_at_rows(flat)
    return sums.view(n, *table.shape[1:])


def features_to_cells(graph: Bipartite, table: Tensor, n_fields: int) -> Tensor:
    """Sum over the features of each field of each row: (D, ...) -> (N, F, ...).  Differentiable.

    A feature of a field from `n_fields` on is in no cell.  Added up over fields the cells are
    `features_to_rows`.

    Examples
    --------
    >>> graph = Bipartite.from_multihot(MultiHot.from_rows([[0, 1, 2]], n_features=3))
    >>> graph = graph.with_fields(torch.tensor([1, 0, 1]))
    >>> features_to_cells(graph, torch.tensor([[1.0], [10.0], [100.0]]), n_fields=2)
    tensor([[[ 10.],
             [101.]]])
    """
    return graph.sum_at_cells(full_precision(table), n_fields)


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


def segment_sums(table: Tensor, index: Tensor, ptr: Tensor, values: Tensor | None = None) -> Tensor:
    """Sum of ``table[index]`` over each segment of a CSR direction: (n, H) -> (segments, H).

    With `values` (E,) each term is multiplied by its own.
    """
    if index.numel() == 0 or table.size(1) == 0:
        return table.new_zeros(ptr.numel() - 1, table.size(1))
    # WHY: an embedding bag writes each sum once, in order; `index_add` takes 20 times as long.  It
    # takes five times as long too where the columns of a row do not lie side by side.
    if table.stride(1) != 1:
        on_cpu = table.device.type == "cpu"  # WHY: where numpy transposes in half the time
        table = torch.from_numpy(table.numpy().copy("C")) if on_cpu else table.contiguous()
    weights = None if values is None else values.to(table.dtype)
    if table.size(1) % 8 == 0 and native.takes((index, ptr), table, weights):
        return native.segment_sums(table, index, ptr, weights)
    return torch.embedding_bag(
        table, index, ptr, mode=0, per_sample_weights=weights, include_last_offset=True
    )[0]
