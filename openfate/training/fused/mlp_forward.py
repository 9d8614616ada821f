"""Triton kernels of the network behind `mlp`, on the way forward.

z (B, P); h columns of a layer; K columns hold z and, in the last one, ones.  Kernels whose names
begin with `fold` do in float64, once, what torch would do in some forty small kernels.
"""

from __future__ import annotations

from openfate.training.fused.kernels import jit, keys, random_bits, tl


@jit
def drop(i, c, seed, threshold, h: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether Dropout leaves element (i, c): (BLOCK, COLS)."""
    first, second = keys(seed, True)
    element = i.to(tl.uint32)[:, None] * h + c.to(tl.uint32)[None, :]
    return random_bits(element, first, second) >= threshold


@jit
def centred(z, mean, i, there, P: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of z less their mean: (BLOCK, K)."""
    k = tl.arange(0, K)
    at = i.to(tl.int64)[:, None] * P + k[None, :]
    x = tl.load(z + at, mask=there[:, None] & (k < P)[None, :], other=0.0)
    return x - tl.load(mean + k, mask=k < P, other=0.0)[None, :]


@jit
def moments(z, parts, n_rows, P: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over rows of [z - z0, 1]^T [z - z0, 1], where z0 is the first row: (SHARDS, K, K).

    WHY z0: the mean of z can be a thousand times its spread, and squares would lose the latter.
    """
    k, j = tl.arange(0, K), tl.arange(0, K)
    total = tl.zeros((K, K), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK), tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        x = centred(z, z, i, i < n_rows, P, K)
        x = tl.where((k == K - 1)[None, :], 1.0, x)
        x = tl.where((i < n_rows)[:, None], x, 0.0)
        total += tl.dot(tl.trans(x), x, input_precision="ieee")
    tl.store(parts + tl.program_id(0) * K * K + j[:, None] * K + k[None, :], total)


@jit
def fold_first(  # type: ignore[no-untyped-def]
    sums, z, W1, b1, gamma1, beta1, V1, c1, mean_out, centre_out, exact, spread,
    running_mean, running_var, n_rows, eps, momentum,
    H: tl.constexpr, P: tl.constexpr, K: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BN1 of BLOCK columns, folded into their weights."""
    c, k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, K)
    here = c < h
    n = n_rows.to(tl.float64)
    shifted = tl.load(sums + (K - 1) * K + k, mask=k < H, other=0.0) / n
    centre = shifted + tl.load(z + k, mask=k < H, other=0.0).to(tl.float64)
    rounded = centre.to(tl.float32)
    inside = here[:, None] & (k < H)[None, :]
    w = tl.load(W1 + c[:, None] * H + k[None, :], mask=inside, other=0.0).to(tl.float64)
    heard = tl.zeros((BLOCK, K), tl.float64)  # W1 times the covariance of z
    for row in range(H):
        covariance = tl.load(sums + row * K + k, mask=k < H, other=0.0) / n
        covariance -= tl.load(sums + (K - 1) * K + row) / n * shifted
        column = tl.load(W1 + c * H + row, mask=here, other=0.0).to(tl.float64)
        heard += column[:, None] * covariance[None, :]
    mean = tl.sum(w * centre[None, :], 1)
    variance = tl.maximum(tl.sum(heard * w, 1), 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    A = tl.load(gamma1 + c, mask=here, other=0.0).to(tl.float64) * inverse
    # WHY: the layer takes off the mean as float32 holds it; the rest is in its constant.
    rest = tl.sum(w * (rounded.to(tl.float64) - centre)[None, :], 1)
    constant = tl.load(beta1 + c, mask=here, other=0.0) + A * rest
    tl.store(c1 + c, constant.to(tl.float32), mask=here)
    inside = here[:, None] & (k < P)[None, :]
    tl.store(V1 + c[:, None] * P + k[None, :], (w * A[:, None]).to(tl.float32), mask=inside)
    tl.store(exact + c, inverse, mask=here)
    tl.store(exact + h + c, A, mask=here)
    tl.store(spread + c[:, None] * K + k[None, :], heard, mask=here[:, None])
    if tl.program_id(0) == 0:
        tl.store(mean_out + k, rounded)
        tl.store(centre_out + k, centre)
    mean += tl.load(b1 + c, mask=here, other=0.0)
    _move(running_mean + c, mean, momentum, here)
    _move(running_var + c, variance * n / (n - 1.0), momentum, here)


@jit
def _move(running, value, momentum, here):  # type: ignore[no-untyped-def]
    old = tl.load(running, mask=here, other=0.0)
    tl.store(running, old + momentum * (value.to(tl.float32) - old), mask=here)


@jit
def first_layer(  # type: ignore[no-untyped-def]
    z, mean, V1, c1, x1, seed, threshold, scale, n_rows,
    P: tl.constexpr, K: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
    DROP: tl.constexpr,
):  # fmt: skip
    """drop(relu((z - mean) V1^T + c1)): (BLOCK, COLS) of it."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k, c = tl.arange(0, K), tl.program_id(1) * COLS + tl.arange(0, COLS)
    x = centred(z, mean, i, i < n_rows, P, K)
    inside = (c < h)[None, :] & (k < P)[:, None]
    w = tl.load(V1 + c[None, :] * P + k[:, None], mask=inside, other=0.0)
    a = tl.dot(x, w, input_precision="tf32x3")
    a = tl.maximum(a + tl.load(c1 + c, mask=c < h, other=0.0)[None, :], 0.0)
    if DROP:
        a = tl.where(drop(i, c, seed, threshold, h), a * scale, 0.0)
    at = i.to(tl.int64)[:, None] * h + c[None, :]
    tl.store(x1 + at, a, mask=(i < n_rows)[:, None] & (c < h)[None, :])


@jit
def column_moments(  # type: ignore[no-untyped-def]
    y, parts, n_rows, h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr
):
    """Sums over rows of y - y0 and its square, where y0 is the first row: (SHARDS, 2, h)."""
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    shift = tl.load(y + c, mask=c < h, other=0.0).to(tl.float32)
    one, two = tl.zeros((BLOCK, COLS), tl.float32), tl.zeros((BLOCK, COLS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK), tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        there = (i < n_rows)[:, None] & (c < h)[None, :]
        at = i.to(tl.int64)[:, None] * h + c[None, :]
        x = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
        x = tl.where(there, x - shift[None, :], 0.0)
        one += x
        two += x * x
    tl.store(parts + tl.program_id(0) * 2 * h + c, tl.sum(one, 0), mask=c < h)
    tl.store(parts + tl.program_id(0) * 2 * h + h + c, tl.sum(two, 0), mask=c < h)


@jit
def pair(parts, c, here, h: tl.constexpr, SHARDS: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both sums (SHARDS, 2, h) of the columns c over all shards, in float64."""
    s = tl.arange(0, SPAN)
    inside = (s < SHARDS)[:, None] & here[None, :]
    at = parts + s[:, None] * 2 * h + c[None, :]
    one = tl.load(at, mask=inside, other=0.0).to(tl.float64)
    two = tl.load(at + h, mask=inside, other=0.0).to(tl.float64)
    return tl.sum(one, 0), tl.sum(two, 0)


@jit
def fold_second(  # type: ignore[no-untyped-def]
    parts, y, gamma2, beta2, b2, exact, A2, c2, running_mean, running_var,
    n_rows, eps, momentum,
    SHARDS: tl.constexpr, SPAN: tl.constexpr, h: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BN2 of BLOCK columns as A2 y + c2; `exact` (3, h) is mean, 1 / deviation and A2."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = c < h
    n = n_rows.to(tl.float64)
    one, two = pair(parts, c, here, h, SHARDS, SPAN)
    one, two = one / n, two / n
    mean = one + tl.load(y + c, mask=here, other=0.0).to(tl.float64)
    variance = tl.maximum(two - one * one, 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    A = tl.load(gamma2 + c, mask=here, other=0.0).to(tl.float64) * inverse
    tl.store(exact + c, mean, mask=here)
    tl.store(exact + h + c, inverse, mask=here)
    tl.store(exact + 2 * h + c, A, mask=here)
    tl.store(A2 + c, A.to(tl.float32), mask=here)
    constant = tl.load(beta2 + c, mask=here, other=0.0) - A * mean
    tl.store(c2 + c, constant.to(tl.float32), mask=here)
    mean += tl.load(b2 + c, mask=here, other=0.0)
    _move(running_mean + c, mean, momentum, here)
    _move(running_var + c, variance * n / (n - 1.0), momentum, here)


@jit
def last_layer(  # type: ignore[no-untyped-def]
    y, A2, c2, w3, b3, labels, beside, slopes, losses, seed, threshold, scale, n_rows,
    h: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, DROP: tl.constexpr,
    BESIDE: tl.constexpr,
):  # fmt: skip
    """Log-loss of BLOCK rows, and the slope of the mean one at each row's logit."""
    i, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, COLS)
    there = (i < n_rows)[:, None] & (c < h)[None, :]
    at = i.to(tl.int64)[:, None] * h + c[None, :]
    x = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
    target = tl.load(labels + i, mask=i < n_rows, other=0.0)
    a = tl.load(A2 + c, mask=c < h, other=0.0)[None, :] * x
    a = tl.maximum(a + tl.load(c2 + c, mask=c < h, other=0.0)[None, :], 0.0)
    if DROP:
        a = tl.where(drop(i, c, seed + 1, threshold, h), a * scale, 0.0)
    weight = tl.load(w3 + c, mask=c < h, other=0.0)
    logit = tl.sum(a * weight[None, :], 1) + tl.load(b3)
    if BESIDE:
        logit += tl.load(beside + i, mask=i < n_rows, other=0.0)
    decay = tl.exp(-tl.abs(logit))
    p = tl.where(logit >= 0, 1.0, decay) / (1.0 + decay)
    loss = tl.maximum(logit, 0.0) - logit * target + tl.log(1.0 + decay)
    tl.store(slopes + i, (p - target) / n_rows, mask=i < n_rows)
    tl.store(losses + i, loss, mask=i < n_rows)


@jit
def tf32(x, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Up by half of tf32's last bit, where a product is in tf32.

    WHY: tensor cores cut an operand's other 13 bits off; now they round, as cuBLAS has them do.
    """
    if PRECISION == "tf32":
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x


@jit
def predict(  # type: ignore[no-untyped-def]
    z, centre, V1, c1, V2, c2, w3, b3, logits, n_rows,
    P: tl.constexpr, K: tl.constexpr, h1: tl.constexpr, h2: tl.constexpr,
    BLOCK: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """relu(relu((z - centre) V1^T + c1) V2^T + c2) w3 + b3 of BLOCK rows; no layer is stored.

    COLS columns of the second layer at a time; STEP columns of the first, computed anew for each.
    Weights come as `tf32` has them.
    """
    i, k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, K)
    inside = (i < n_rows)[:, None] & (k < P)[None, :]
    x = tl.load(z + i.to(tl.int64)[:, None] * P + k[None, :], mask=inside, other=0.0)
    x = tf32(x - tl.load(centre + k, mask=k < P, other=0.0)[None, :], PRECISION)
    out = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, h2, COLS):
        n = start + tl.arange(0, COLS)
        total = tl.zeros((BLOCK, COLS), tl.float32)
        for first in tl.range(0, h1, STEP, num_stages=2):
            c = first + tl.arange(0, STEP)
            mine = (c < h1)[None, :] & (k < P)[:, None]
            v = tl.load(V1 + c[None, :] * P + k[:, None], mask=mine, other=0.0)
            here = (n < h2)[None, :] & (c < h1)[:, None]
            w = tl.load(V2 + n[None, :] * h1 + c[:, None], mask=here, other=0.0)
            a = tl.dot(x, v, input_precision=PRECISION)
            a = tl.maximum(a + tl.load(c1 + c, mask=c < h1, other=0.0)[None, :], 0.0)
            total = tl.dot(tf32(a, PRECISION), w, total, input_precision=PRECISION)
        total = tl.maximum(total + tl.load(c2 + n, mask=n < h2, other=0.0)[None, :], 0.0)
        out += tl.sum(total * tl.load(w3 + n, mask=n < h2, other=0.0)[None, :], 1)
    tl.store(logits + i, out + tl.load(b3), mask=i < n_rows)
