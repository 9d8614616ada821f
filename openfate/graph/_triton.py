"""GPU kernels for the two dual sums over a mini-batch of fixed width (see `aggregate.py`).

    B rows, d fields, E = B d edges, U features that the batch touches, H width

A batch numbers its features from 0 to U - 1, so that their table (U, H) fits the L2 cache, and
orders its edges by feature once; all steps on it share that.  Each kernel is the other's transpose
and so the other's backward.  Both sum in float32 (float64 for float64 tables) and use no atomics:
equal inputs give equal bits.  DropEdge bits are a hash of (seed, edge): both directions and the
backward recompute them, nobody stores them.

The module loads without Triton (`available` tells), and nothing imports it unless asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph.aggregate import full_precision

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = tl = None

__all__ = [
    "ALL",
    "BatchGraph",
    "Keep",
    "available",
    "features_to_rows",
    "features_to_rows_with_degree",
    "kept_edges",
    "rows_to_features",
    "rows_to_features_with_degree",
    "sum_at_features",
    "sum_at_rows",
]

# Measured on an H200 at B = 100,000 and 1,000,000, d = 39, H = 10.
BLOCK = 32  # rows, features, or edges of one feature in a program
UNROLL = 4  # edges of each whose loads are in flight together
LIGHT = 32  # features of at most so many edges share a program; others have programs of their own
CHUNK = 1024  # edges of one such program
MAX_COLUMNS = 128  # of a tile; wider tables take several


def available() -> bool:
    """Whether Triton is installed and there is a GPU to run its kernels."""
    return triton is not None and torch.cuda.is_available()


def _jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit` where there is one; a size divisible by 16 is no reason to compile again."""
    if triton is None:
        return kernel
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    plain = [name for name in names if name == "threshold" or name.startswith("n_")]
    return triton.jit(kernel, do_not_specialize=plain)


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
            _number_kernel[(triton.cdiv(n_edges, 1024),)](
                ordered, order, number, self.features, self.ptr, self.local, self.edge,
                n_edges, self.n_rows, n_features, N_FIELDS=self.n_fields, BLOCK=1024,
            )  # fmt: skip
        upto = torch.empty(n_features, dtype=torch.int64, device=self.ptr.device)
        if n_features:
            grid = (triton.cdiv(n_features, 256),)
            _pieces_kernel[grid](self.ptr, upto, n_features, LIGHT=LIGHT, CHUNK=CHUNK, BLOCK=256)
        return upto.cumsum_(0)

    def _list_chunks(self, upto: Tensor) -> None:
        """Write `chunk` and `split`."""
        n_features, n_chunks, n_split = self.size
        self.split.fill_(-1)
        if n_chunks:
            _chunk_kernel[(triton.cdiv(n_chunks, 256),)](
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
        _first_kernel[grid](ordered, first, len(first), BLOCK=1024)
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


def kept_edges(batch: BatchGraph, keep: Keep) -> Tensor:
    """(B, d) bool: the edges that DropEdge leaves, as the kernels see them; in plain torch."""
    edge = torch.arange(batch.local.numel(), device=batch.local.device)
    there = batch.local.T >= 0
    if keep.seed is None or keep.threshold == 0:
        return there
    low, high = keep.seed & 0xFFFFFFFF, (keep.seed >> 32) & 0xFFFFFFFF
    first, second = _mix(low ^ _mix(high ^ 0x9E3779B9)), _mix(high ^ _mix(low ^ 0x85EBCA6B))
    x = (edge * (first | 1) + second) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = (((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF) >> 8
    return there & (bits >= keep.threshold).view_as(there)


def _mix(x: Tensor) -> Tensor:
    """32-bit finaliser in int64 arithmetic, as `_mix_bits`."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


# ---- sums ----------------------------------------------------------------------------------


def features_to_rows(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> Tensor:
    """Sum over the features of each row: (U, ...) -> (B, ...).  Differentiable.

    A table of half precision is summed, and handed on, in float32.
    """
    return features_to_rows_with_degree(batch, table, keep)[0]


def rows_to_features(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> Tensor:
    """Sum over the rows of each feature: (B, ...) -> (U, ...).  Differentiable.

    A table of half precision is summed, and handed on, in float32.
    """
    return rows_to_features_with_degree(batch, table, keep)[0]


def features_to_rows_with_degree(
    batch: BatchGraph, table: Tensor, keep: Keep = ALL
) -> tuple[Tensor, Tensor]:
    """The same sums, and the number of edges (B,) float32 that DropEdge left each row."""
    return _FeaturesToRows.apply(table, batch, keep)  # type: ignore[no-untyped-call, no-any-return]


def rows_to_features_with_degree(
    batch: BatchGraph, table: Tensor, keep: Keep = ALL
) -> tuple[Tensor, Tensor]:
    """The same sums, and the number of edges (U,) float32 that DropEdge left each feature."""
    return _RowsToFeatures.apply(table, batch, keep)  # type: ignore[no-untyped-call, no-any-return]


class _FeaturesToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, batch: BatchGraph, keep: Keep) -> tuple[Tensor, Tensor]:
        ctx.batch, ctx.keep, ctx.dtype = batch, keep, table.dtype
        sums, degree = sum_at_rows(batch, table.detach().flatten(1), keep)
        ctx.mark_non_differentiable(degree)
        return sums.view(batch.n_rows, *table.shape[1:]), degree

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return rows_to_features(ctx.batch, grads[0], ctx.keep).to(ctx.dtype), None, None


class _RowsToFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, batch: BatchGraph, keep: Keep) -> tuple[Tensor, Tensor]:
        ctx.batch, ctx.keep, ctx.dtype = batch, keep, table.dtype
        sums, degree = sum_at_features(batch, table.detach().flatten(1), keep)
        ctx.mark_non_differentiable(degree)
        return sums.view(batch.n_features, *table.shape[1:]), degree

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return features_to_rows(ctx.batch, grads[0], ctx.keep).to(ctx.dtype), None, None


def sum_at_rows(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> tuple[Tensor, Tensor]:
    """Sums (B, H) and degrees (B,) from a table (U, H), without autograd."""
    table, out, degree = _operands(table, batch.n_features, batch.n_rows)
    if out.numel() == 0 and degree.numel() == 0:
        return out, degree
    columns = _columns(table.size(1))
    grid = (triton.cdiv(batch.n_rows, BLOCK), max(1, triton.cdiv(table.size(1), columns)))
    _rows_kernel[grid](
        table, batch.local, out, degree, *_masks(keep, batch), batch.n_rows, keep.threshold,
        N_FIELDS=batch.n_fields, **_constants(table, columns, keep),
        # Measured: fewer lanes repeat the random bits of an edge.
        num_warps=_warps(columns) * (1 if keep.threshold else 2),
    )  # fmt: skip
    return out, degree


def sum_at_features(batch: BatchGraph, table: Tensor, keep: Keep = ALL) -> tuple[Tensor, Tensor]:
    """Sums (U, H) and degrees (U,) from a table (B, H), without autograd."""
    table, out, degree = _operands(table, batch.n_rows, batch.n_features)
    if degree.numel() == 0:
        return out, degree
    columns, n_chunks, n_split = _columns(table.size(1)), batch.chunk.size(1), batch.split.size(1)
    across = max(1, triton.cdiv(table.size(1), columns))
    slots = out.new_empty(n_chunks if n_split else 0, table.size(1))
    slot_degree = degree.new_empty(len(slots))
    _features_kernel[(n_chunks + triton.cdiv(batch.n_features, BLOCK), across)](
        table, batch.edge, batch.ptr, batch.chunk, out, degree, slots, slot_degree,
        *_masks(keep, batch), batch.n_features, n_chunks, keep.threshold,
        N_FIELDS=batch.n_fields, LIGHT=LIGHT, CHUNK=CHUNK,
        num_warps=_warps(columns), **_constants(table, columns, keep),
    )  # fmt: skip
    if n_split:
        _slots_kernel[(n_split, across)](
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


# ---- kernels -------------------------------------------------------------------------------
# Arguments without a type are pointers, numbers or None: Triton compiles for what it is given.


@_jit
def _mix_bits(x):  # type: ignore[no-untyped-def]
    """32-bit finaliser of low bias (C. Wellons, 2018).

    WHY: all lanes that share an edge repeat it; Philox would take longer than the sums themselves.
    """
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@_jit
def _keys(seed, DROP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two 32-bit keys, each of all 64 bits: seeds 1 and 2 must have nothing in common."""
    if DROP:
        key = tl.load(seed)
        low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
        first = _mix_bits(low ^ _mix_bits(high ^ 0x9E3779B9)) | 1
        second = _mix_bits(high ^ _mix_bits(low ^ 0x85EBCA6B))
        return first, second
    else:
        return 0, 0


@_jit
def _random(counter, first, second):  # type: ignore[no-untyped-def]
    """24 random bits.  The finaliser's last shift is left out: it would not change high bits."""
    x = counter.to(tl.uint32) * first + second
    x = (x ^ (x >> 16)) * 0x7FEB352D
    return (((x ^ (x >> 15)) * 0x846CA68B) >> 8).to(tl.int32)


@_jit
def _rows_kernel(  # type: ignore[no-untyped-def]
    table, local, out, degree, seed, fields, features,
    n_rows, threshold,
    N_FIELDS: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, DROP: tl.constexpr, BY_FIELD: tl.constexpr,
    BY_FEATURE: tl.constexpr,
):  # fmt: skip
    """Sums and degrees of BLOCK rows: field by field, each row adds the state of its feature."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((BLOCK, COLUMNS), out.dtype.element_ty)
    count = tl.zeros((BLOCK,), tl.int32)
    first, second = _keys(seed, DROP)
    for field in tl.range(0, N_FIELDS, loop_unroll_factor=UNROLL):
        feature = tl.load(local + field * n_rows + row, mask=row < n_rows, other=-1)
        carries = feature >= 0
        if DROP:
            carries &= _random(row * N_FIELDS + field, first, second) >= threshold
        count += carries.to(tl.int32)
        if BY_FIELD:
            carries &= tl.load(fields + field).to(tl.int1)
        if BY_FEATURE:
            carries &= tl.load(features + feature, mask=carries, other=0).to(tl.int1)
        place = feature.to(tl.int64)[:, None] * STRIDE + column[None, :]
        there = carries[:, None] & (column < WIDTH)[None, :]
        total += tl.load(table + place, mask=there, other=0.0).to(total.dtype)
    there = (row < n_rows)[:, None] & (column < WIDTH)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * WIDTH + column[None, :], total, mask=there)
    if tl.program_id(1) == 0:
        tl.store(degree + row, count.to(tl.float32), mask=row < n_rows)


@_jit
def _features_kernel(  # type: ignore[no-untyped-def]
    table, edges, ptr, chunk, out, degree, slots,
    slot_degree, seed, fields, features,
    n_features, n_chunks, threshold,
    N_FIELDS: tl.constexpr, LIGHT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    STRIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
    DROP: tl.constexpr, BY_FIELD: tl.constexpr, BY_FEATURE: tl.constexpr,
):  # fmt: skip
    """Sums and degrees of one chunk of a feature, or of BLOCK features of few edges each.

    A lane of the tile walks over edges `at`, `at + step`, ... below `stop`: in a chunk the lanes
    share one feature and its edges in turn; otherwise each lane has a feature of its own.
    """
    task = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_chunk = task < n_chunks
    if is_chunk:
        feature = tl.load(chunk + task) + tl.zeros((BLOCK,), tl.int32)
        mine = feature >= 0  # no chunk otherwise, but room for one
        start = tl.load(chunk + n_chunks + task)
        at = start + lane
        stop = tl.minimum(tl.load(ptr + feature + 1, mask=mine, other=-1), start + CHUNK)
    else:
        feature = (task - n_chunks) * BLOCK + lane
        at = tl.load(ptr + feature, mask=feature < n_features, other=0)
        stop = tl.load(ptr + feature + 1, mask=feature < n_features, other=0)
        mine = (feature < n_features) & (stop - at <= LIGHT)  # others have chunks
        stop = tl.where(mine, stop, at)
    step = 1 + (BLOCK - 1) * is_chunk.to(tl.int32)
    total = tl.zeros((BLOCK, COLUMNS), out.dtype.element_ty)
    count = tl.zeros((BLOCK,), tl.int32)
    first, second = _keys(seed, DROP)
    wanted = stop > at
    if BY_FEATURE:
        wanted &= tl.load(features + feature, mask=mine, other=0).to(tl.int1)
    for turn in tl.range(0, tl.max((stop - at + step - 1) // step), loop_unroll_factor=UNROLL):
        place = at + turn * step
        edge = tl.load(edges + place, mask=place < stop, other=0)
        carries = place < stop
        if DROP:
            carries &= _random(edge, first, second) >= threshold
        count += carries.to(tl.int32)
        carries &= wanted
        if BY_FIELD:
            carries &= tl.load(fields + edge % N_FIELDS, mask=carries, other=0).to(tl.int1)
        source = (edge // N_FIELDS).to(tl.int64)[:, None] * STRIDE + column[None, :]
        there = carries[:, None] & (column < WIDTH)[None, :]
        total += tl.load(table + source, mask=there, other=0.0).to(total.dtype)
    if is_chunk:
        one, n_edges = tl.sum(total, 0), tl.sum(count, 0).to(tl.float32)
        node, slot = tl.load(chunk + task), tl.load(chunk + 2 * n_chunks + task)
        if slot < 0:
            there = (column < WIDTH) & (node >= 0)
            tl.store(out + node.to(tl.int64) * WIDTH + column, one, mask=there)
            tl.store(degree + node, n_edges, mask=(tl.program_id(1) == 0) & (node >= 0))
        else:
            tl.store(slots + slot.to(tl.int64) * WIDTH + column, one, mask=column < WIDTH)
            tl.store(slot_degree + slot, n_edges, mask=tl.program_id(1) == 0)
    else:
        there = mine[:, None] & (column < WIDTH)[None, :]
        tl.store(out + feature.to(tl.int64)[:, None] * WIDTH + column[None, :], total, mask=there)
        tl.store(degree + feature, count.to(tl.float32), mask=mine & (tl.program_id(1) == 0))


@_jit
def _slots_kernel(  # type: ignore[no-untyped-def]
    slots, slot_degree, split, ptr, out, degree, n_split,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The sum and the degree of one split feature, from those of its chunks."""
    feature = tl.load(split + tl.program_id(0))
    if feature < 0:  # room for one
        return
    first = tl.load(split + n_split + tl.program_id(0))
    n_slots = tl.cdiv(tl.load(ptr + feature + 1) - tl.load(ptr + feature), CHUNK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((BLOCK, COLUMNS), out.dtype.element_ty)
    count = tl.zeros((BLOCK,), tl.float32)
    for turn in range(0, tl.cdiv(n_slots, BLOCK)):
        slot = turn * BLOCK + tl.arange(0, BLOCK)
        there = (slot < n_slots)[:, None] & (column < WIDTH)[None, :]
        source = (first + slot).to(tl.int64)[:, None] * WIDTH + column[None, :]
        total += tl.load(slots + source, mask=there, other=0.0)
        count += tl.load(slot_degree + first + slot, mask=slot < n_slots, other=0.0)
    sums = out + feature.to(tl.int64) * WIDTH + column
    tl.store(sums, tl.sum(total, 0), mask=column < WIDTH)
    tl.store(degree + feature, tl.sum(count, 0), mask=tl.program_id(1) == 0)


@_jit
def _first_kernel(ordered, first, n_edges, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One at the first edge of each feature, zero elsewhere."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(ordered + place, mask=place < n_edges, other=-1)
    before = tl.load(ordered + place - 1, mask=(place > 0) & (place < n_edges), other=-1)
    tl.store(first + place, ((mine >= 0) & (mine != before)).to(tl.int32), mask=place < n_edges)


@_jit
def _number_kernel(  # type: ignore[no-untyped-def]
    ordered, order, number, features, ptr, local, edges, n_edges, n_rows, n_features,
    N_FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write, for each place in the sorted list, the edge there and its feature's number.

    Features for which there is no room lose their edges.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < n_edges
    edge = tl.load(order + place, mask=there, other=0).to(tl.int32)
    mine = tl.load(number + place, mask=there, other=0)  # 0 while ids are negative
    before = tl.load(number + place - 1, mask=there & (place > 0), other=0)
    tl.store(edges + place, edge, mask=there)
    node = tl.where(mine <= n_features, mine - 1, -1)
    tl.store(local + (edge % N_FIELDS) * n_rows + edge // N_FIELDS, node, mask=there)
    first = there & (mine != before)
    tl.store(ptr + mine - 1, place, mask=first & (mine <= n_features + 1))
    first &= mine <= n_features
    tl.store(features + node, tl.load(ordered + place, mask=first, other=0), mask=first)


@_jit
def _pieces(ptr, feature, there, LIGHT: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many chunks a feature is cut into; none if it has few edges."""
    start = tl.load(ptr + feature, mask=there, other=0)
    degree = tl.load(ptr + feature + 1, mask=there, other=0) - start
    return tl.where(degree > LIGHT, tl.cdiv(degree, CHUNK), 0)


@_jit
def _pieces_kernel(  # type: ignore[no-untyped-def]
    ptr, packed, n_features, LIGHT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """For each feature its chunks, and 2^32 more if it is split."""
    feature = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pieces = _pieces(ptr, feature, feature < n_features, LIGHT, CHUNK).to(tl.int64)
    more = (pieces > 1).to(tl.int64) << 32
    tl.store(packed + feature, pieces + more, mask=feature < n_features)


@_jit
def _chunk_kernel(  # type: ignore[no-untyped-def]
    ptr, upto, chunk, split, n_features, n_halvings, n_chunks, n_split,
    LIGHT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find each chunk's feature by bisection, and where in its edges it begins."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n_chunks
    there = inside & (place < (tl.load(upto + n_features - 1) & 0xFFFFFFFF))
    low = tl.zeros((BLOCK,), tl.int32)
    high = low + (n_features - 1)
    for _ in range(n_halvings):
        middle = (low + high) // 2
        beyond = (tl.load(upto + middle) & 0xFFFFFFFF) > place
        high = tl.where(beyond, middle, high)
        low = tl.where(beyond, low, tl.minimum(middle + 1, high))
    total = tl.load(upto + low)  # of chunks and split features, this feature's included
    pieces = _pieces(ptr, low, there, LIGHT, CHUNK)
    rank = place - (total & 0xFFFFFFFF).to(tl.int32) + pieces
    tl.store(chunk + place, tl.where(there, low, -1), mask=inside)
    tl.store(chunk + n_chunks + place, tl.load(ptr + low) + rank * CHUNK, mask=inside)
    # A slot for every chunk, used or not: numbering the used ones would gain nothing.
    index = (total >> 32).to(tl.int32) - 1
    parts = (pieces > 1) & (index < n_split) & (place - rank + pieces <= n_chunks)
    tl.store(chunk + 2 * n_chunks + place, tl.where(parts, place, -1), mask=inside)
    head = there & parts & (rank == 0)
    tl.store(split + index, low, mask=head)
    tl.store(split + n_split + index, place, mask=head)
