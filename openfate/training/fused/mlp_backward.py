"""Triton kernels of the network on the way back; words and shapes as in `mlp_forward`."""

from __future__ import annotations

from openfate.training.fused.kernels import jit, tl
from openfate.training.fused.mlp_forward import centred, drop, pair, tf32


@jit
def _behind(  # type: ignore[no-untyped-def]
    x, i, c, A2, c2, slopes, seed, threshold, scale, n_rows, h: tl.constexpr, DROP: tl.constexpr
):
    """The slope behind ReLU and Dropout at elements x of y, before w3: (BLOCK, COLS)."""
    a = tl.load(A2 + c, mask=c < h, other=0.0)[None, :] * x
    on = a + tl.load(c2 + c, mask=c < h, other=0.0)[None, :] > 0
    slope = tl.load(slopes + i, mask=i < n_rows, other=0.0)
    if DROP:
        on &= drop(i, c, seed + 1, threshold, h)
        slope *= scale
    return tl.where(on, slope[:, None], 0.0)


@jit
def last_sums(  # type: ignore[no-untyped-def]
    y, A2, c2, slopes, losses, parts, sums, seed, threshold, scale, n_rows,
    h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Over rows: sums of the slope g and of g y for each column; of losses and slopes."""
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    one, two = tl.zeros((BLOCK, COLS), tl.float32), tl.zeros((BLOCK, COLS), tl.float32)
    loss, bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK), tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        there = (i < n_rows)[:, None] & (c < h)[None, :]
        at = i.to(tl.int64)[:, None] * h + c[None, :]
        x = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
        g = _behind(x, i, c, A2, c2, slopes, seed, threshold, scale, n_rows, h, DROP)
        one += g
        two += g * x
        if tl.program_id(1) == 0:
            loss += tl.load(losses + i, mask=i < n_rows, other=0.0)
            bias += tl.load(slopes + i, mask=i < n_rows, other=0.0)
    shard = tl.program_id(0)
    tl.store(parts + shard * 2 * h + c, tl.sum(one, 0), mask=c < h)
    tl.store(parts + shard * 2 * h + h + c, tl.sum(two, 0), mask=c < h)
    if tl.program_id(1) == 0:
        tl.store(sums + shard * 2, tl.sum(loss, 0))
        tl.store(sums + shard * 2 + 1, tl.sum(bias, 0))


@jit
def fold_last(  # type: ignore[no-untyped-def]
    parts, sums, w3, exact, c2, dgamma2, dbeta2, dw3, db3, coefficients, total, n_rows,
    SHARDS: tl.constexpr, SPAN: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the last layer and BN2, and what `last_backward` multiplies by."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = c < h
    n = n_rows.to(tl.float64)
    one, two = pair(parts, c, here, h, SHARDS, SPAN)
    mean = tl.load(exact + c, mask=here, other=0.0)
    inverse = tl.load(exact + h + c, mask=here, other=0.0)
    A = tl.load(exact + 2 * h + c, mask=here, other=0.0)
    weight = tl.load(w3 + c, mask=here, other=0.0).to(tl.float64)
    dbeta, dgamma = weight * one, weight * inverse * (two - mean * one)
    dweight = A * two + tl.load(c2 + c, mask=here, other=0.0).to(tl.float64) * one
    tl.store(dbeta2 + c, dbeta.to(tl.float32), mask=here)
    tl.store(dgamma2 + c, dgamma.to(tl.float32), mask=here)
    tl.store(dw3 + c, dweight.to(tl.float32), mask=here)
    slope = -A * inverse * dgamma / n
    tl.store(coefficients + c, (A * weight).to(tl.float32), mask=here)
    tl.store(coefficients + h + c, slope.to(tl.float32), mask=here)
    constant = -A / n * dbeta - slope * mean
    tl.store(coefficients + 2 * h + c, constant.to(tl.float32), mask=here)
    if tl.program_id(0) == 0:
        s = tl.arange(0, SPAN)
        loss = tl.load(sums + 2 * s, mask=s < SHARDS, other=0.0).to(tl.float64)
        bias = tl.load(sums + 2 * s + 1, mask=s < SHARDS, other=0.0).to(tl.float64)
        tl.store(total, tl.load(total) + tl.sum(loss, 0) / n)
        tl.store(db3, tl.sum(bias, 0).to(tl.float32))


@jit
def last_backward(  # type: ignore[no-untyped-def]
    y, A2, c2, slopes, coefficients, seed, threshold, scale, n_rows,
    h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Turn y into its gradient: per column alpha g + slope y + constant, g behind ReLU."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    there = (i < n_rows)[:, None] & (c < h)[None, :]
    at = y + i.to(tl.int64)[:, None] * h + c[None, :]
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    g = _behind(x, i, c, A2, c2, slopes, seed, threshold, scale, n_rows, h, DROP)
    alpha = tl.load(coefficients + c, mask=c < h, other=0.0)[None, :]
    slope = tl.load(coefficients + h + c, mask=c < h, other=0.0)[None, :]
    constant = tl.load(coefficients + 2 * h + c, mask=c < h, other=0.0)[None, :]
    tl.store(at, alpha * g + slope * x + constant, mask=there)


@jit
def first_backward(  # type: ignore[no-untyped-def]
    dx1, x1, z, mean, V1, dz, parts, scale, n_rows,
    P: tl.constexpr, K: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The product da V1 (B, P) and, over rows, da^T [z - mean, 1]; da is dx1 where x1 > 0."""
    k, c = tl.arange(0, K), tl.arange(0, COLS)
    inside = (c < h)[:, None] & (k < P)[None, :]
    w = tf32(tl.load(V1 + c[:, None] * P + k[None, :], mask=inside, other=0.0), PRECISION)
    total = tl.zeros((COLS, K), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK), tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        there = (i < n_rows)[:, None] & (c < h)[None, :]
        at = i.to(tl.int64)[:, None] * h + c[None, :]
        on = tl.load(x1 + at, mask=there, other=0.0) > 0
        da = tl.load(dx1 + at, mask=there, other=0.0).to(tl.float32) * scale
        da = tf32(tl.where(on, da, 0.0), PRECISION)
        x = tf32(centred(z, mean, i, i < n_rows, P, K), PRECISION)
        x = tl.where((k == K - 1)[None, :], 1.0, x)
        at = i.to(tl.int64)[:, None] * P + k[None, :]
        mine = (i < n_rows)[:, None] & (k < P)[None, :]
        tl.store(dz + at, tl.dot(da, w, input_precision=PRECISION), mask=mine)
        total += tl.dot(tl.trans(da), x, input_precision=PRECISION)
    at = parts + tl.program_id(0) * h * K + c[:, None] * K + k[None, :]
    tl.store(at, total, mask=(c < h)[:, None])


@jit
def fold_first_backward(  # type: ignore[no-untyped-def]
    parts, mean, centre, exact, spread, W1, dW1, dgamma1, dbeta1, pulls, n_shards, n_rows,
    H: tl.constexpr, P: tl.constexpr, K: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of one column of the first layer, and how hard its BN1 pulls at z: (2, h)."""
    c, k = tl.program_id(0), tl.arange(0, K)
    total = tl.zeros((BLOCK, K), tl.float64)
    for start in range(0, n_shards, BLOCK):
        s = start + tl.arange(0, BLOCK)
        at = (s * h + c)[:, None] * K + k[None, :]
        total += tl.load(parts + at, mask=(s < n_shards)[:, None], other=0.0).to(tl.float64)
    sums = tl.sum(total, 0)
    bias = tl.sum(tl.where(k == K - 1, sums, 0.0), 0)
    off = tl.load(mean + k).to(tl.float64) - tl.load(centre + k)
    centred = tl.where(k < H, sums + bias * off, 0.0)  # sum of da (z - its mean)
    w = tl.load(W1 + c * H + k, mask=k < H, other=0.0).to(tl.float64)
    inverse, A = tl.load(exact + c), tl.load(exact + h + c)
    dgamma = inverse * tl.sum(w * centred, 0)
    dw = A * (centred - dgamma * inverse * tl.load(spread + c * K + k))
    tl.store(dW1 + c * H + k, dw.to(tl.float32), mask=k < H)
    tl.store(dgamma1 + c, dgamma.to(tl.float32))
    tl.store(dbeta1 + c, bias.to(tl.float32))
    tl.store(pulls + c, (A * dgamma * inverse / n_rows).to(tl.float32))
    tl.store(pulls + h + c, (A * bias / n_rows).to(tl.float32))


@jit
def pull_kernel(  # type: ignore[no-untyped-def]
    W1, pulls, M, v, H: tl.constexpr, K: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr
):
    """What BN1 of all columns takes off a row's gradient: (z - mean) M + v."""
    k, j = tl.arange(0, K), tl.arange(0, K)
    matrix, vector = tl.zeros((K, K), tl.float32), tl.zeros((BLOCK, K), tl.float32)
    for start in range(0, h, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = (c < h)[:, None] & (k < H)[None, :]
        w = tl.load(W1 + c[:, None] * H + k[None, :], mask=inside, other=0.0)
        pull = tl.load(pulls + c, mask=c < h, other=0.0)
        matrix += tl.dot(tl.trans(w * pull[:, None]), w, input_precision="ieee")
        vector += w * tl.load(pulls + h + c, mask=c < h, other=0.0)[:, None]
    tl.store(M + j[:, None] * K + k[None, :], matrix)
    tl.store(v + k, tl.sum(vector, 0))


@jit
def add_pull(  # type: ignore[no-untyped-def]
    dz, z, mean, M, v, n_rows, P: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Take (z - mean) M + v off dz."""
    i, k, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, K), tl.arange(0, K)
    x = centred(z, mean, i, i < n_rows, P, K)
    matrix = tl.load(M + j[:, None] * K + k[None, :])
    inside = (i < n_rows)[:, None] & (k < P)[None, :]
    at = dz + i.to(tl.int64)[:, None] * P + k[None, :]
    pull = tl.dot(x, matrix, input_precision="tf32x3") + tl.load(v + k)[None, :]
    tl.store(at, tl.load(at, mask=inside, other=0.0) - pull, mask=inside)
