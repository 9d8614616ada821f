"""Triton kernels behind `sums`, and the random bits that all GPU kernels share.

Arguments without a type are pointers, numbers or None: Triton compiles for what it is given.  The
module loads without Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["jit", "keys", "random_bits", "tl", "triton"]  # Triton's names go on from here

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = tl = None


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit` where there is one; a size divisible by 16 is no reason to compile again."""
    if triton is None:
        return kernel
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    plain = [name for name in names if name == "threshold" or name.startswith("n_")]
    return triton.jit(kernel, do_not_specialize=plain)


@jit
def mix_bits(x):  # type: ignore[no-untyped-def]
    """32-bit finaliser of low bias (C. Wellons, 2018).

    WHY: all lanes that share an edge repeat it; Philox would take longer than the sums themselves.
    """
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@jit
def keys(seed, DROP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two 32-bit keys, each of all 64 bits: seeds 1 and 2 must have nothing in common."""
    if DROP:
        key = tl.load(seed)
        low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
        first = mix_bits(low ^ mix_bits(high ^ 0x9E3779B9)) | 1
        second = mix_bits(high ^ mix_bits(low ^ 0x85EBCA6B))
        return first, second
    else:
        return 0, 0


@jit
def random_bits(counter, first, second):  # type: ignore[no-untyped-def]
    """24 random bits.  The finaliser's last shift is left out: it would not change high bits."""
    x = counter.to(tl.uint32) * first + second
    x = (x ^ (x >> 16)) * 0x7FEB352D
    return (((x ^ (x >> 15)) * 0x846CA68B) >> 8).to(tl.int32)


@jit
def rows_kernel(  # type: ignore[no-untyped-def]
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
    first, second = keys(seed, DROP)
    for field in tl.range(0, N_FIELDS, loop_unroll_factor=UNROLL):
        feature = tl.load(local + field * n_rows + row, mask=row < n_rows, other=-1)
        carries = feature >= 0
        if DROP:
            carries &= random_bits(row * N_FIELDS + field, first, second) >= threshold
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


@jit
def features_kernel(  # type: ignore[no-untyped-def]
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
    first, second = keys(seed, DROP)
    wanted = stop > at
    if BY_FEATURE:
        wanted &= tl.load(features + feature, mask=mine, other=0).to(tl.int1)
    for turn in tl.range(0, tl.max((stop - at + step - 1) // step), loop_unroll_factor=UNROLL):
        place = at + turn * step
        edge = tl.load(edges + place, mask=place < stop, other=0)
        carries = place < stop
        if DROP:
            carries &= random_bits(edge, first, second) >= threshold
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


@jit
def slots_kernel(  # type: ignore[no-untyped-def]
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


@jit
def first_kernel(ordered, first, n_edges, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One at the first edge of each feature, zero elsewhere."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(ordered + place, mask=place < n_edges, other=-1)
    before = tl.load(ordered + place - 1, mask=(place > 0) & (place < n_edges), other=-1)
    tl.store(first + place, ((mine >= 0) & (mine != before)).to(tl.int32), mask=place < n_edges)


@jit
def number_kernel(  # type: ignore[no-untyped-def]
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


@jit
def chunks_of(ptr, feature, there, LIGHT: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many chunks a feature is cut into; none if it has few edges."""
    start = tl.load(ptr + feature, mask=there, other=0)
    degree = tl.load(ptr + feature + 1, mask=there, other=0) - start
    return tl.where(degree > LIGHT, tl.cdiv(degree, CHUNK), 0)


@jit
def pieces_kernel(  # type: ignore[no-untyped-def]
    ptr, packed, n_features, LIGHT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """For each feature its chunks, and 2^32 more if it is split."""
    feature = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pieces = chunks_of(ptr, feature, feature < n_features, LIGHT, CHUNK).to(tl.int64)
    more = (pieces > 1).to(tl.int64) << 32
    tl.store(packed + feature, pieces + more, mask=feature < n_features)


@jit
def chunk_kernel(  # type: ignore[no-untyped-def]
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
    pieces = chunks_of(ptr, low, there, LIGHT, CHUNK)
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
