"""GPU kernels for the two dual sums over a mini-batch of fixed width (see `openfate.graph`).

    B rows, d fields, E = B d edges, U features that the batch touches, H width

A batch numbers its features from 0 to U - 1, so that their table (U, H) fits the L2 cache, and
orders its edges by feature once; all steps on it share that.  Each kernel is the other's transpose
and so the other's backward; autograd takes no part.  Both sum in float32 (float64 for float64
tables) and use no atomics: equal inputs give equal bits.  DropEdge bits are a hash of (seed, edge):
both directions and the backward recompute them, nobody stores them.

The module loads without Triton, and nothing imports it unless asked to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import full_precision
from openfate.training.fused.kernels import (
    chunk_kernel,
    features_kernel,
    first_kernel,
    number_kernel,
    pieces_kernel,
    rows_kernel,
    slots_kernel,
    triton,
)

# Measured on an H200 at B = 100,000 and 1,000,000, d = 39, H = 10.
BLOCK = 32  # rows, features, or edges of one feature in a program
UNROLL = 4  # edges of each whose loads are in flight together
LIGHT = 32  # features of at most so many edges share a program; others have programs of their own
CHUNK = 1024  # edges of one such program
MAX_COLUMNS = 128  # of a tile; wider tables take several


# ---- a batch -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BatchGraph:
    """A mini-batch in which every row has d ids, with its own numbering of the features.

    An edge's name is ``row * d + field``.  A negative id is no edge.
    """

    n_rows: int
    local: Tensor  # (d, B) int32: the batch's number of the feature of each edge, -1 for no edge
    features: Tensor  # (U,) int32: the ids behind those numbers, ascending
    ptr: Tensor  # (U + 1,) int32: feature u has the edges edge[ptr[u]] .. edge[ptr[u + 1] - 1]
    edge: Tensor  # (E,) int32: names of the edges, ordered by feature
    # A feature of more than LIGHT edges is cut into chunks; one of several chunks is `split`, and
    # its chunks leave their sums in slots, which a second kernel adds up.
    chunk: Tensor  # (3, n_chunks) int32: feature, first place in `edge`, slot or -1
    split: Tensor  # (2, n_split) int32: feature, first slot; its slots are adjacent

    @classmethod
    def from_ids(cls, ids: Tensor) -> BatchGraph:
        """Build the graph of ids (B, d) below 2^31, on their GPU; a negative one is no edge.

        The host waits twice, to learn how long tables must be.
        """
        order = _order(ids)
        n_features = int(order[2][-1]) if ids.numel() else 0
        batch = cls.room(ids.size(0), ids.size(1), (n_features, 0, 0), ids.device)
        upto = batch._list_edges(*order)
        n_split, n_chunks = divmod(int(upto[-1]), 2**32) if n_features else (0, 0)
        batch = replace(
            batch, chunk=batch.ptr.new_empty(3, n_chunks), split=batch.ptr.new_empty(2, n_split)
        )
        batch._list_chunks(upto)
        return batch

    @classmethod
    def room(
        cls, n_rows: int, n_fields: int, size: tuple[int, int, int], device: torch.device
    ) -> BatchGraph:
        """A batch without edges, of a given `size`, which `fill_` can make any smaller batch.

        WHY: a CUDA graph replays a step without the host's work, but needs tensors that stay where
        they are.  Features beyond those of the batch have id -1 and no edges; sums there are zero.
        """
        n_features, n_chunks, n_split = size
        shapes = [(n_fields, n_rows), (n_features,), (n_features + 1,), (n_rows * n_fields,)]
        shapes += [(3, n_chunks), (2, n_split)]
        tensors = (torch.full(shape, -1, dtype=torch.int32, device=device) for shape in shapes)
        return cls(n_rows, *tensors)

    def fill_(self, ids: Tensor) -> Tensor:
        """Become the graph of other ids (B, d), without a wait of the host.

        Sums whose backward is still to come must not share the room.

        Returns
        -------
        (3,) int64, on the device: the `size` that the ids need.  Where it is larger than this
        batch's, some edges are missing.
        """
        shape = (self.n_rows, self.n_fields)
        if ids.shape != shape or not ids.numel() or not self.n_features:
            raise InputError(
                f"ids of shape {tuple(ids.shape)} do not fit a room for {shape} and "
                f"{self.n_features} features: give as many rows and fields, none of them zero."
            )
        order = _order(ids)
        upto = self._list_edges(*order)
        self._list_chunks(upto)
        return torch.stack([order[2][-1].long(), upto[-1] & 0xFFFFFFFF, upto[-1] >> 32])

    def cells(self) -> BatchGraph:
        """The same edges as B d rows of one field each: a sum at a cell is its feature's state.

        An edge keeps its name, which is now its row.
        """
        return replace(self, n_rows=self.n_rows * self.n_fields, local=self.local.T.reshape(1, -1))

    @property
    def size(self) -> tuple[int, int, int]:
        """U, chunks and split features: with (B, d) it fixes the shapes of all tensors."""
        return self.n_features, self.chunk.size(1), self.split.size(1)

    def _list_edges(self, ordered: Tensor, order: Tensor, number: Tensor) -> Tensor:
        """Write all but `chunk` and `split`; return the numbers of both up to each feature: (U,).

        Chunks are in the low, split features in the high 32 bits: one sum counts both.
        """
        n_edges, n_features = len(ordered), self.n_features
        self.ptr.fill_(n_edges)
        self.features.fill_(-1)
        if n_edges:
            number_kernel[(triton.cdiv(n_edges, 1024),)](
                ordered, order, number, self.features, self.ptr, self.local, self.edge,
                n_edges, self.n_rows, n_features, N_FIELDS=self.n_fields, BLOCK=1024,
            )  # fmt: skip
        upto = torch.empty(n_features, dtype=torch.int64, device=self.ptr.device)
        if n_features:
            grid = (triton.cdiv(n_features, 256),)
            pieces_kernel[grid](self.ptr, upto, n_features, LIGHT=LIGHT, CHUNK=CHUNK, BLOCK=256)
        return upto.cumsum_(0)

    def _list_chunks(self, upto: Tensor) -> None:
        """Write `chunk` and `split`."""
        n_features, n_chunks, n_split = self.size
        self.split.fill_(-1)
        if n_chunks:
            chunk_kernel[(triton.cdiv(n_chunks, 256),)](
                self.ptr, upto, self.chunk, self.split, n_features, n_features.bit_length(),
                n_chunks, n_split, LIGHT=LIGHT, CHUNK=CHUNK, BLOCK=256,
            )  # fmt: skip

    @property
    def n_fields(self) -> int:
        """The number of fields, d."""
        return self.local.size(0)

    @property
    def n_features(self) -> int:
        """The number of features that occur in the batch, U."""
        return self.features.numel()


def _order(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort ids (B, d) into (E,): ids, names of their edges, one more than each feature's number."""
    if ids.numel() >= 2**31:
        raise InputError(f"a batch of {ids.numel()} ids is too large: give fewer than 2^31.")
    # WHY a sort: atomic counters for each feature take as long (hot features wait in line), and
    # leave the edges of a feature in another order at every run.
    ordered, order = ids.to(torch.int32).reshape(-1).sort(stable=True)
    first = torch.empty_like(ordered)
    if len(first):
        grid = (triton.cdiv(len(first), 1024),)
        first_kernel[grid](ordered, first, len(first), BLOCK=1024)
    return ordered, order, first.cumsum_(0)


# ---- which edges carry a message ------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Keep:
    """Which edges carry a message; by default all.

    Degrees count the edges that DropEdge left.  A field or feature that is not kept adds nothing
    to a sum, but still counts: a hidden feature is a neighbour whose state is zero.
    """

    drop_edge: float = 0.0  # probability of removal, in steps of 2^-24
    seed: Tensor | None = None  # (1,) int64 on the device; needed where drop_edge > 0
    fields: Tensor | None = None  # (d,) bool
    features: Tensor | None = None  # (U,) bool, in the batch's numbering

    def __post_init__(self) -> None:
        if not 0 <= self.drop_edge <= 1:
            raise InputError(
                f"drop_edge={self.drop_edge} is not a probability: choose a number from 0 to 1."
            )
        if self.drop_edge > 0 and self.seed is None:
            raise InputError(f"drop_edge={self.drop_edge} needs a seed: give a (1,) int64 tensor.")

    @property
    def threshold(self) -> int:
        """Edges whose 24 random bits are below it are dropped."""
        return round(self.drop_edge * 2**24)


ALL = Keep()


# ---- sums ----------------------------------------------------------------------------------


def sum_at_rows(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> tuple[Tensor, Tensor]:
    """Sums (B, H) and degrees (B,) from a table (U, H)."""
    table, out, degree = _operands(table, batch.n_features, batch.n_rows)
    if out.numel() == 0 and degree.numel() == 0:
        return out, degree
    columns = _columns(table.size(1))
    grid = (triton.cdiv(batch.n_rows, BLOCK), max(1, triton.cdiv(table.size(1), columns)))
    rows_kernel[grid](
        table, batch.local, out, degree, *_masks(keep, batch), batch.n_rows, keep.threshold,
        N_FIELDS=batch.n_fields, **_constants(table, columns, keep),
        # Measured: fewer lanes repeat the random bits of an edge.
        num_warps=_warps(columns) * (1 if keep.threshold else 2),
    )  # fmt: skip
    return out, degree


def sum_at_features(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> tuple[Tensor, Tensor]:
    """Sums (U, H) and degrees (U,) from a table (B, H)."""
    table, out, degree = _operands(table, batch.n_rows, batch.n_features)
    if degree.numel() == 0:
        return out, degree
    columns, n_chunks, n_split = _columns(table.size(1)), batch.chunk.size(1), batch.split.size(1)
    across = max(1, triton.cdiv(table.size(1), columns))
    slots = out.new_empty(n_chunks if n_split else 0, table.size(1))
    slot_degree = degree.new_empty(len(slots))
    features_kernel[(n_chunks + triton.cdiv(batch.n_features, BLOCK), across)](
        table, batch.edge, batch.ptr, batch.chunk, out, degree, slots, slot_degree,
        *_masks(keep, batch), batch.n_features, n_chunks, keep.threshold,
        N_FIELDS=batch.n_fields, LIGHT=LIGHT, CHUNK=CHUNK,
        num_warps=_warps(columns), **_constants(table, columns, keep),
    )  # fmt: skip
    if n_split:
        slots_kernel[(n_split, across)](
            slots, slot_degree, batch.split, batch.ptr, out, degree, n_split,
            WIDTH=table.size(1), COLUMNS=columns, BLOCK=32, CHUNK=CHUNK,
        )  # fmt: skip
    return out, degree


def _operands(table: Tensor, n_in: int, n_out: int) -> tuple[Tensor, Tensor, Tensor]:
    """The table with adjacent columns, and room for sums (n_out, H) and degrees (n_out,)."""
    if table.dim() != 2 or len(table) != n_in:
        raise InputError(f"a table of shape {tuple(table.shape)} does not fit: give ({n_in}, H).")
    if table.stride(1) != 1 and table.size(1) > 1:
        table = table.contiguous()
    total = full_precision(table[:0]).dtype
    out = torch.empty(n_out, table.size(1), dtype=total, device=table.device)
    return table, out, torch.empty(n_out, dtype=torch.float32, device=table.device)


def _columns(width: int) -> int:
    """Columns of a tile: a power of two, as Triton wants them."""
    return min(max(4, int(triton.next_power_of_2(width))), MAX_COLUMNS)


def _warps(columns: int) -> int:
    """Of a program, so that a tile of BLOCK x columns fits its registers."""
    return max(1, columns // 32)


def _masks(keep: Keep, batch: BatchGraph) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The tensors of `keep` as kernels take them."""
    _check_mask("fields", keep.fields, batch.n_fields)
    _check_mask("features", keep.features, batch.n_features)
    seed = keep.seed if keep.threshold else None
    return seed, keep.fields, keep.features


def _check_mask(name: str, mask: Tensor | None, size: int) -> None:
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (size,)):
        given = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise InputError(f"keep.{name} is {given}: give ({size},) of torch.bool.")


def _constants(table: Tensor, columns: int, keep: Keep) -> dict[str, Any]:
    """What both kernels are compiled for."""
    return {
        "WIDTH": table.size(1),
        "STRIDE": table.stride(0),
        "COLUMNS": columns,
        "BLOCK": BLOCK,
        "UNROLL": UNROLL,
        "DROP": keep.threshold > 0,
        "BY_FIELD": keep.fields is not None,
        "BY_FEATURE": keep.features is not None,
    }
