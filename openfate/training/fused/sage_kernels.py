"""Triton kernels behind `sage`."""

from __future__ import annotations

from openfate.training.fused.kernels import jit, keys, random_bits, tl


@jit
def gather_kernel(  # type: ignore[no-untyped-def]
    W, features, ptr, edge, may_use, F0, kept, n_features, n_observed,
    N_FIELDS: tl.constexpr, H: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    BY_FEATURE: tl.constexpr,
):  # fmt: skip
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, C)
    there = u < n_features
    id_ = tl.load(features + u, mask=there, other=-1)  # -1: room without a feature
    real = (id_ >= 0) & (id_ < n_observed)
    if BY_FEATURE:
        keep = tl.load(may_use + u, mask=real, other=0).to(tl.int1)
    else:
        first = tl.load(ptr + u, mask=real, other=0)
        field = tl.load(edge + first, mask=real, other=0) % N_FIELDS
        keep = tl.load(may_use + field, mask=real, other=0).to(tl.int1)
    tl.store(kept + u, keep, mask=there)
    at = id_.to(tl.int64)[:, None] * H + c[None, :]
    w = tl.load(W + at, mask=keep[:, None] & (c < H)[None, :], other=0.0)
    at = u.to(tl.int64)[:, None] * P + c[None, :]
    tl.store(F0 + at, w, mask=there[:, None] & (c < P)[None, :])


@jit
def _weight(w, H: tl.constexpr, C: tl.constexpr, TURN: tl.constexpr):  # type: ignore[no-untyped-def]
    """(C, C) tile of a (H, H) weight, zero outside; turned it is [in, out]."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    at = j * H + i if TURN else i * H + j
    return tl.load(w + at, mask=(i < H) & (j < H), other=0.0)


@jit
def _dot(a, b):  # type: ignore[no-untyped-def]
    """With float32's accuracy, on tensor cores."""
    return tl.dot(a, b, input_precision="tf32x3")


@jit
def _norm(x, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """The states, scaled to length one as F.normalize does, and 1 / length."""
    if NORM:
        inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), 1e-12)
        return x * inverse[:, None], inverse
    else:
        return x, tl.sum(x * 0.0, 1) + 1.0


@jit
def _norm_backward(dy, y, inverse, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    if NORM:
        return (dy - y * tl.sum(y * dy, 1)[:, None]) * inverse[:, None]
    else:
        return dy


@jit
def _sum_rows(  # type: ignore[no-untyped-def]
    table, local, row, first, second, fields, n_rows, threshold,
    N_FIELDS: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    UNROLL: tl.constexpr, DROP: tl.constexpr, BY_FIELD: tl.constexpr,
):  # fmt: skip
    """Sums and degrees of BLOCK rows, as `rows_kernel`."""
    c = tl.arange(0, C)
    total = tl.zeros((BLOCK, C), tl.float32)
    count = tl.zeros((BLOCK,), tl.int32)
    for field in tl.range(0, N_FIELDS, loop_unroll_factor=UNROLL):
        feature = tl.load(local + field * n_rows + row, mask=row < n_rows, other=-1)
        carries = feature >= 0
        if DROP:
            carries &= random_bits(row * N_FIELDS + field, first, second) >= threshold
        count += carries.to(tl.int32)
        if BY_FIELD:
            carries &= tl.load(fields + field).to(tl.int1)
        at = feature.to(tl.int64)[:, None] * P + c[None, :]
        total += tl.load(table + at, mask=carries[:, None] & (c < P)[None, :], other=0.0)
    return total, count


@jit
def rows_forward(  # type: ignore[no-untyped-def]
    F0, local, mean_out, G_out, degree_out, N1, b1, seed, fields, n_rows, threshold,
    BY_FIELD: tl.constexpr, N_FIELDS: tl.constexpr, UNROLL: tl.constexpr, DROP: tl.constexpr,
    H: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, C)
    first, second = keys(seed, DROP)
    total, count = _sum_rows(
        F0, local, row, first, second, fields, n_rows, threshold,
        N_FIELDS, P, C, BLOCK, UNROLL, DROP, BY_FIELD,
    )  # fmt: skip
    degree = tl.maximum(count, 1).to(tl.float32)
    mean = total / degree[:, None]
    bias = tl.load(b1 + c, mask=c < H, other=0.0)
    G, _ = _norm(_dot(mean, _weight(N1, H, C, True)) + bias[None, :], NORM)
    at = row.to(tl.int64)[:, None] * P + c[None, :]
    there = (row < n_rows)[:, None] & (c < P)[None, :]
    tl.store(mean_out + at, mean, mask=there)
    tl.store(G_out + at, G, mask=there)
    tl.store(degree_out + row, degree, mask=row < n_rows)


@jit
def rows_backward(  # type: ignore[no-untyped-def]
    message, local, mean_in, degree_in, dS_out, parts, N1, b1, seed, n_rows, threshold,
    N_FIELDS: tl.constexpr, UNROLL: tl.constexpr, DROP: tl.constexpr,
    H: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, C)
    first, second = keys(seed, DROP)
    bias = tl.load(b1 + c, mask=c < H, other=0.0)
    dN1, db1 = tl.zeros((C, C), tl.float32), tl.zeros((C,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK), tl.num_programs(0)):
        row = block * BLOCK + tl.arange(0, BLOCK)
        dG, _ = _sum_rows(
            message, local, row, first, second, seed, n_rows, threshold,
            N_FIELDS, P, C, BLOCK, UNROLL, DROP, False,
        )  # fmt: skip
        at = row.to(tl.int64)[:, None] * P + c[None, :]
        there = (row < n_rows)[:, None] & (c < P)[None, :]
        mean = tl.load(mean_in + at, mask=there, other=0.0)
        degree = tl.load(degree_in + row, mask=row < n_rows, other=1.0)
        G, inverse = _norm(_dot(mean, _weight(N1, H, C, True)) + bias[None, :], NORM)
        dpre = tl.where(there, _norm_backward(dG, G, inverse, NORM), 0.0)
        dS = _dot(dpre, _weight(N1, H, C, False)) / degree[:, None]
        tl.store(dS_out + at, dS, mask=there)
        dN1 += _dot(tl.trans(dpre), mean)
        db1 += tl.sum(dpre, 0)
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    part = parts + tl.program_id(0) * (2 * C * C)
    tl.store(part + i * C + j, dN1)
    tl.store(part + C * C + c, db1)


@jit
def _update(  # type: ignore[no-untyped-def]
    F0, heard, b1, R1, N2, b2, R2, H: tl.constexpr, C: tl.constexpr, NORM: tl.constexpr
):
    c = tl.arange(0, C)
    bias1 = tl.load(b1 + c, mask=c < H, other=0.0)[None, :]
    bias2 = tl.load(b2 + c, mask=c < H, other=0.0)[None, :]
    F1, inverse1 = _norm(_dot(F0, _weight(R1, H, C, True)) + bias1, NORM)
    message = _dot(heard, _weight(N2, H, C, True)) + bias2
    F2, inverse2 = _norm(message + _dot(F1, _weight(R2, H, C, True)), NORM)
    return F1, inverse1, F2, inverse2


@jit
def update_forward(  # type: ignore[no-untyped-def]
    F0_in, heard_in, degree_in, F2_out, b1, R1, N2, b2, R2, n_features,
    H: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    u, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, C)
    at = u.to(tl.int64)[:, None] * P + c[None, :]
    there = (u < n_features)[:, None] & (c < P)[None, :]
    degree = tl.maximum(tl.load(degree_in + u, mask=u < n_features, other=1.0), 1.0)
    heard = tl.load(heard_in + at, mask=there, other=0.0) / degree[:, None]
    F0 = tl.load(F0_in + at, mask=there, other=0.0)
    _, _, F2, _ = _update(F0, heard, b1, R1, N2, b2, R2, H, C, NORM)
    tl.store(F2_out + at, F2, mask=there)


@jit
def update_backward(  # type: ignore[no-untyped-def]
    dF2_in, F0_in, heard_in, degree_in, kept_in, message_out, own_out, parts,
    b1, R1, N2, b2, R2, n_features,
    H: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, C)
    dR1, dN2 = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    dR2 = tl.zeros((C, C), tl.float32)
    db1, db2 = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_features, BLOCK), tl.num_programs(0)):
        u = block * BLOCK + tl.arange(0, BLOCK)
        at = u.to(tl.int64)[:, None] * P + c[None, :]
        there = (u < n_features)[:, None] & (c < P)[None, :]
        degree = tl.maximum(tl.load(degree_in + u, mask=u < n_features, other=1.0), 1.0)
        heard = tl.load(heard_in + at, mask=there, other=0.0) / degree[:, None]
        F0 = tl.load(F0_in + at, mask=there, other=0.0)
        F1, inverse1, F2, inverse2 = _update(F0, heard, b1, R1, N2, b2, R2, H, C, NORM)
        dF2 = tl.load(dF2_in + at, mask=there, other=0.0)
        d2 = tl.where(there, _norm_backward(dF2, F2, inverse2, NORM), 0.0)
        d1 = _norm_backward(_dot(d2, _weight(R2, H, C, False)), F1, inverse1, NORM)
        d1 = tl.where(there, d1, 0.0)
        message = _dot(d2, _weight(N2, H, C, False)) / degree[:, None]
        tl.store(message_out + at, message, mask=there)
        kept = tl.load(kept_in + u, mask=u < n_features, other=0).to(tl.int1)
        own = tl.where(kept[:, None], _dot(d1, _weight(R1, H, C, False)), 0.0)
        tl.store(own_out + at, own, mask=there)
        dR1 += _dot(tl.trans(d1), F0)
        dN2 += _dot(tl.trans(d2), heard)
        dR2 += _dot(tl.trans(d2), F1)
        db1 += tl.sum(d1, 0)
        db2 += tl.sum(d2, 0)
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    part = parts + tl.program_id(0) * (4 * C * C) + i * C + j
    tl.store(part, dR1)
    tl.store(part + C * C, dN2)
    tl.store(part + 2 * C * C, dR2)
    vectors = parts + tl.program_id(0) * (4 * C * C) + 3 * C * C
    tl.store(vectors + c, db1)
    tl.store(vectors + C + c, db2)


@jit
def collect_kernel(  # type: ignore[no-untyped-def]
    parts, one, two, three, bias_one, bias_two, n_shards,
    N: tl.constexpr, H: tl.constexpr, C: tl.constexpr, TWO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Row i of matrix m, summed over shards and added to the gradient that it belongs to."""
    m, i, c = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    n_vectors = 2 if TWO else 1
    if ((m < N - 1) & (i < H)) | ((m == N - 1) & (i < n_vectors)):
        total = tl.zeros((BLOCK, C), tl.float32)
        for start in range(0, n_shards, BLOCK):
            s = start + tl.arange(0, BLOCK)
            at = s.to(tl.int64)[:, None] * (N * C * C) + (m * C + i) * C + c[None, :]
            total += tl.load(parts + at, mask=(s < n_shards)[:, None], other=0.0)
        sums = tl.sum(total, 0)
        out = one + i * H + c
        if N == 4:
            if m == 1:
                out = two + i * H + c
            if m == 2:
                out = three + i * H + c
        if m == N - 1:
            out = bias_one + c
            if TWO:
                if i == 1:
                    out = bias_two + c
        tl.store(out, tl.load(out, mask=c < H) + sums, mask=c < H)
