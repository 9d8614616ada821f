"""Slow, obvious twins of evidence pooling: one row, one feature, one class at a time."""

import math

from openfate.openworld.evidence import TINY


def log(p):
    return math.log(max(p, TINY))


def pooled(X, P0, i, alpha):
    """Evidence of row i from the other rows, class by class."""
    N, C = P0.shape
    pi = P0.mean(0)
    e = [0.0] * C
    for j in (j for j in range(X.shape[1]) if X[i, j]):
        others = [r for r in range(N) if X[r, j] and r != i]
        for c in range(C):
            q = (sum(P0[r, c] for r in others) + alpha * pi[c]) / (len(others) + alpha)
            e[c] += log(q) - log(pi[c])
    return e


def pool_classes(X, P0, strength, alpha):
    """The whole batch, own vote left out."""
    P = []
    for i in range(len(P0)):
        e = pooled(X, P0, i, alpha)
        z = [log(p) + strength * v for p, v in zip(P0[i], e, strict=True)]
        w = [math.exp(v - max(z)) for v in z]
        P.append([v / sum(w) for v in w] if X[i].any() else list(P0[i]))
    return P


def pool_values(X, y0, strength, alpha):
    """Regression: the shrunken mean prediction over the other rows of each new feature."""
    mean, out = sum(y0) / len(y0), []
    for i in range(len(y0)):
        moved = y0[i]
        for j in (j for j in range(X.shape[1]) if X[i, j]):
            others = [y0[r] for r in range(len(y0)) if X[r, j] and r != i]
            if others:
                n = len(others)
                moved += strength * n / (n + alpha) * (sum(others) / n - mean)
        out.append(moved)
    return out


def cross_entropy(P, target, task):
    """Of all rows together."""
    loss = 0.0
    for p, t in zip(P.ravel(), target.ravel(), strict=True):
        loss -= t * log(p) + ((1 - t) * log(1 - p) if task == "multilabel" else 0)
    return loss


def weigh_boxes(boxes, expected):
    """The largest number of rows that boxes count for together, each at most its share of it."""
    count, total = boxes[:, 0], boxes[:, 1:]

    def kept(n):
        return [min(c, 2 + 3 * n * e) for c, e in zip(count, expected, strict=True)]

    low, high = 0.0, float(sum(count))
    if sum(kept(high)) < high:  # a number that is too large gives back less than itself
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(kept(middle)) >= middle else (low, middle)
    weights = [k / c if c else 1.0 for k, c in zip(kept(high), count, strict=True)]
    n = sum(w * c for w, c in zip(weights, count, strict=True))
    mean = sum(w * t for w, t in zip(weights, total, strict=True)) / n if n else 0 * total[0]
    return mean, weights
