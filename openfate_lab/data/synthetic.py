"""A synthetic click stream with a known answer, in the shape of Criteo's or Avazu's logs.

Row i draws a latent u, feature j has a latent v_j; field f takes value j with probability
proportional to base_j exp(u . v_j), and the click's logit is b + sum_j w_j, w_j = a . v_j + noise,
the noise being half of the variance.  So co-occurrence tells half of w_j, and what the other
features could add is computable (`SyntheticStream.ceiling`).
N rows, D features, d fields, K latents u, G latents v in a field.  Numpy alone: it runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openfate.errors import InputError
from openfate.seeds import checked_seed
from openfate.table import Batch, batches_of
from openfate_lab.data.alias import draw, make_alias
from openfate_lab.data.log_shapes import cardinalities, new_shares, pool_sizes

Floats = NDArray[np.float64]
BLOCK_ROWS = 1 << 15
_K, _G, _RANK = 256, 32, 8
_ZIPF = 1.1
# The share of the cells of each later day whose value was born after the first day (fields with
# more values have more of them, as in the logs), the spread of the true logits, the clicks.
_NEW_SHARE, _LOGIT_STD, _CLICK_RATE = 0.1, 2.0, 0.25
_SETUP, _BLOCK = 0, 1  # streams of random numbers that never meet


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the stream: (B, d) feature ids, (B,) labels 0 or 1, true logits and days."""

    ids: NDArray[np.int32]
    y: NDArray[np.float32]
    logit: NDArray[np.float32]
    day: NDArray[np.int64]
    u: NDArray[np.int64]


class SyntheticStream:
    """Rows of feature ids and clicks over `n_days` days, each block drawn on its own.

    Parameters
    ----------
    n_rows
        N; every day has the same number of rows.
    shape
        "criteo", "avazu", or the number of values of each field.
    n_features
        D, about half of it observed (born on the first day), half new (born on a later one).
    n_days
        The first is for training, the second for validation, the others are T1, T2, ...
    affinity
        The standard deviation of u . v_j: how much co-occurrence tells.
    seed
        The same seed gives the same stream.

    Notes
    -----
    The draw is exact and costs two table look-ups a cell, at any D.  u takes one of K values (drawn
    once, from a normal law) and v_j one of G values in each field, so that base_j exp(u . v_j)
    factors: first v given u, by one alias table for each (birth day, field, u); then j given v, in
    which u no longer occurs, by an alias table over the features with that v.  New values are
    drawn by the same law among those born on one day, chosen evenly from the later days so far.
    Block b depends on the seed, the settings and b alone.

    Examples
    --------
    >>> stream = SyntheticStream(100_000, "avazu", n_features=5000)
    >>> stream.parts[:3], len(stream.fields), stream.n_observed < stream.n_features
    (('train', 'validation', 'T1'), 22, True)
    >>> ids, y = next(stream.batches("T8", batch_rows=1000))
    >>> ids.shape, y.shape, bool(0.07 < (ids >= stream.n_observed).mean() < 0.13)
    ((1000, 22), (1000,), True)
    >>> bool((stream.block(2).ids == stream.block(2).ids).all())
    True
    """

    def __init__(
        self,
        n_rows: int,
        shape: Literal["criteo", "avazu"] | ArrayLike = "criteo",
        n_features: int = 1_000_000,
        *,
        n_days: int = 10,
        affinity: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.n_rows, self.n_days, self.seed = index(n_rows), index(n_days), checked_seed(seed)
        if self.n_rows < self.n_days or self.n_days < 2:
            raise InputError(
                f"{n_rows} rows over {n_days} days: give 2 days or more, each with a row."
            )
        if not 0 <= affinity <= 10:
            raise InputError(f"affinity={affinity}: choose a number from 0 to 10.")
        cardinality = cardinalities(shape)
        rng = np.random.default_rng([self.seed, _SETUP])
        self.fields = tuple(f"field_{f + 1}" for f in range(len(cardinality)))
        self.parts = ("train", "validation", *(f"T{t}" for t in range(1, self.n_days - 1)))
        self.new_share = new_shares(cardinality, _NEW_SHARE)  # (d,)
        sizes = pool_sizes(cardinality, index(n_features), self.n_days, self.new_share > 0)
        self.n_features = int(sizes.sum())
        self.n_observed = int(sizes[0].sum())
        self._lay_out(sizes, rng)
        self._link(affinity, rng)
        self._calibrate(rng)

    # ---- setting up ------------------------------------------------------------------------

    def _lay_out(self, sizes: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Give every feature its latent v, its base rate and its id."""
        days, d = sizes.shape
        # Ids go: observed by field; then new by field and day; inside, by latent v.
        pools = [(0, f) for f in range(d)] + [(t, f) for f in range(d) for t in range(1, days)]
        size = np.array([sizes[pool] for pool in pools])
        pool_of = np.repeat(np.arange(len(pools)), size)  # (D,)
        rank = np.arange(self.n_features) - np.repeat(np.cumsum(size) - size, size)
        v_of = rng.integers(_G, size=self.n_features)
        order = np.lexsort((rank, v_of, pool_of))
        self.base = ((1.0 + rank) ** -_ZIPF)[order]
        segment = (pool_of * _G + v_of)[order]  # (D,) ascending
        count = np.bincount(segment, minlength=len(pools) * _G)
        mass = np.bincount(segment, self.base, minlength=len(pools) * _G)
        self._value_prob, self._value_alias = make_alias(self.base / mass[segment], count)
        at = np.array([t * d + f for t, f in pools])  # WHY: tables go by (day, field), ids do not

        def by_day(table: NDArray[Any]) -> NDArray[Any]:
            ordered = np.empty((days * d, _G), table.dtype)
            ordered[at] = table.reshape(-1, _G)
            return ordered

        self._size, self._start = by_day(count), by_day(np.cumsum(count) - count)
        self._mass = by_day(mass)
        self.field_of = np.array([f for _, f in pools], np.int32)[pool_of]
        self._v_of = v_of[order].astype(np.int32)

    def _link(self, affinity: float, rng: np.random.Generator) -> None:
        """Draw u, v and a, and the probabilities of each v given each u."""
        d = len(self.fields)
        u = rng.standard_normal((_K, _RANK))
        v = rng.standard_normal((d, _G, _RANK)) * (affinity / np.sqrt(_RANK))
        self.tilt = np.exp(np.einsum("kr,fgr->fkg", u, v))  # (d, K, G) exp(u . v)
        p = self._mass.reshape(self.n_days, d, 1, _G) * self.tilt
        total = p.sum(-1, keepdims=True)
        p = np.divide(p, total, out=np.full_like(p, 1 / _G), where=total > 0)
        self._v_prob, self._v_alias = make_alias(p.ravel(), np.full(p.size // _G, _G))
        self._v_alias = (self._v_alias % _G).astype(np.int32)
        known = v @ rng.standard_normal(_RANK)  # a . v
        known *= np.sqrt(0.5) / known.std()
        noise = rng.standard_normal(self.n_features) * np.sqrt(0.5)
        self.w_known = known[self.field_of, self._v_of].astype(np.float32)  # (D,)
        self.w = self.w_known + noise.astype(np.float32)
        self._log_p = np.log(np.maximum(p[0], 1e-300)).astype(np.float32)  # (d, K, G)
        self._mean_known = np.einsum("tfkg,fg->tfk", p, known).astype(np.float32)

    def _calibrate(self, rng: np.random.Generator) -> None:
        """Scale w and set b, on rows of the first day."""
        self.intercept = 0.0
        ids, _ = self._draw(rng, np.zeros(20_000, np.int64))
        logit = self.w[ids].sum(1)
        scale = _LOGIT_STD / float(logit.std())
        for name in ("w", "w_known", "_mean_known"):
            setattr(self, name, getattr(self, name) * np.float32(scale))
        low, high = -30.0, 30.0
        for _ in range(50):
            self.intercept = (low + high) / 2
            rate = _sigmoid(logit * scale + self.intercept).mean()
            low, high = (self.intercept, high) if rate < _CLICK_RATE else (low, self.intercept)

    # ---- drawing rows ----------------------------------------------------------------------

    @property
    def n_blocks(self) -> int:
        """How many blocks the stream has."""
        return -(-self.n_rows // BLOCK_ROWS)

    def block(self, number: int) -> Block:
        """Draw rows number * BLOCK_ROWS to the next block, or to the end.

        Examples
        --------
        >>> SyntheticStream(1000, [5, 300], n_features=900).block(0).ids.shape
        (1000, 2)
        """
        if not 0 <= number < self.n_blocks:
            raise InputError(
                f"block {number} is outside 0..{self.n_blocks - 1}; choose one of these."
            )
        first = number * BLOCK_ROWS
        rows = np.arange(first, min(first + BLOCK_ROWS, self.n_rows))
        # WHY: one seed for each block, so that any block can be drawn alone and in any order.
        rng = np.random.Generator(np.random.SFC64([self.seed, _BLOCK, number]))
        day = rows * self.n_days // self.n_rows
        ids, u = self._draw(rng, day)
        logit = self.w[ids].sum(1) + np.float32(self.intercept)
        y = (rng.random(len(rows), np.float32) < _sigmoid(logit)).astype(np.float32)
        return Block(ids, y, logit, day, u)

    def _draw(
        self, rng: np.random.Generator, day: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        n, d = len(day), len(self.fields)
        u = rng.integers(_K, size=n)
        ids = np.empty((n, d), np.int32)
        for f in range(d):
            born: NDArray[np.int64] = np.zeros(1, np.int64)
            if self.new_share[f] and day[-1]:
                is_new = rng.random(n) < self.new_share[f]
                born = np.where(is_new & (day > 0), 1 + (rng.random(n) * day).astype(np.int64), 0)
            table = born * d + f  # (n,) or (1,)
            v = draw(rng, n, (table * _K + u) * _G, _G, self._v_prob, self._v_alias, _G)
            at = table * _G + v
            start, size = self._start.ravel()[at], self._size.ravel()[at]
            ids[:, f] = draw(rng, n, start, size, self._value_prob, self._value_alias)
        return ids, u

    def rows_of(self, part: str) -> range:
        """Give the row numbers of a part.

        Examples
        --------
        >>> SyntheticStream(1000, [5, 300], n_features=900).rows_of("validation")
        range(100, 200)
        """
        if part not in self.parts:
            raise InputError(f"unknown part {part!r} (parts: {', '.join(self.parts)}).")
        day = self.parts.index(part)
        # Row i belongs to day i * n_days // n_rows: the first such i is rounded up.
        first, last = (-(-t * self.n_rows // self.n_days) for t in (day, day + 1))
        return range(first, last)

    def batches(
        self,
        part: str,
        batch_rows: int = 100_000,
        *,
        seed: int | None = None,
    ) -> Iterator[Batch]:
        """Iterate over a part as (ids, y), as `PreparedData.batches` does.

        Parameters
        ----------
        part, batch_rows, seed
            As `PreparedData.batches` takes them, with blocks for its shards.

        Examples
        --------
        >>> stream = SyntheticStream(1000, [5, 300], n_features=900)
        >>> [len(y) for _, y in stream.batches("train", 60)]
        [60, 40]
        """
        rows = self.rows_of(part)
        first = rows.start // BLOCK_ROWS
        starts = [number * BLOCK_ROWS for number in range(first, -(-rows.stop // BLOCK_ROWS))]
        insides = [slice(max(rows.start - at, 0), min(rows.stop - at, BLOCK_ROWS)) for at in starts]

        def load(number: int) -> Batch:
            block, inside = self.block(first + number), insides[number]
            return block.ids[inside], block.y[inside]

        sizes = [inside.stop - inside.start for inside in insides]
        return batches_of(sizes, load, batch_rows, seed)

    # ---- the known answer ------------------------------------------------------------------

    def ceiling(
        self, part: str, observed: ArrayLike | None = None, max_rows: int = 100_000
    ) -> dict[str, float]:
        """Give the AUC that knowing more and more of w would reach, on rows of a part.

        Parameters
        ----------
        part
            E.g. "T1".
        observed
            (D,) which features a model was trained with; by default those born on the first day.
        max_rows
            How many rows, the first ones, to take.

        Returns
        -------
        dict
            `observed_plain`: w of observed features, 0 for the others.  `observed`: besides, the
            mean of w given all that the row's observed values tell of u: the best predictor that
            knows nothing of each new feature.  `extrapolated`: a . v_j of the new ones too, the
            most that co-occurrence can tell.  `all`: every w_j.  `new_cells`: their share.

        Notes
        -----
        Clicks are not drawn: each row counts as a click with its true probability, which leaves
        less noise.  Where part of the logit is unknown, its spread shrinks the score as the
        probit approximation has it, so that rows with many new cells rank by what is known.

        Examples
        --------
        >>> top = SyntheticStream(50_000, "avazu", n_features=5000).ceiling("T1")
        >>> top["observed_plain"] <= top["observed"] < top["extrapolated"] < top["all"]
        True
        """
        known = np.arange(self.n_features) < self.n_observed
        known = known if observed is None else np.asarray(observed, bool)
        n_rows, sums, cells = min(max_rows, len(self.rows_of(part))), [], 0.0
        blocks = self.batches(part, BLOCK_ROWS)
        for first in range(0, n_rows, BLOCK_ROWS):
            ids = next(blocks)[0][: n_rows - first]
            sums.append(self._scores(ids, known[ids]))
            cells += float((~known[ids]).sum())
        scores = {name: np.concatenate([part[name] for part in sums]) for name in sums[0]}
        p = _sigmoid(scores["all"])
        result = {name: _auc(score, p) for name, score in scores.items()}
        return {**result, "new_cells": cells / (n_rows * len(self.fields))}

    def _scores(self, ids: NDArray[np.int32], known: NDArray[np.bool_]) -> dict[str, Floats]:
        w, w_known = self.w[ids].astype(float), self.w_known[ids].astype(float)
        half = float((self.w - self.w_known).var())
        n_new = (~known).sum(1)
        plain = (w * known).sum(1) + self.intercept
        likely = np.zeros((len(ids), _K), np.float32)
        for f in range(ids.shape[1]):
            told = self._log_p[f].T[self._v_of[ids[:, f]]]  # (n, K)
            likely += np.where(known[:, f, None], told, 0)
        likely = np.exp(likely - likely.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        # WHY: the mean over later days' pools, whose mixture of v differs little between days.
        expected = likely @ self._mean_known[1:].mean(0).T  # (n, d)
        guessed = plain + (expected * ~known).sum(1)
        told = (np.where(known, w, w_known)).sum(1) + self.intercept
        return {
            "observed_plain": plain,
            "observed": guessed / np.sqrt(1 + np.pi / 8 * 2 * half * n_new),
            "extrapolated": told / np.sqrt(1 + np.pi / 8 * half * n_new),
            "all": w.sum(1) + self.intercept,
        }

    def training_counts(self) -> NDArray[np.int64]:
        """(D,) how many training rows hold each feature; costs one pass over them.

        Examples
        --------
        >>> int(SyntheticStream(1000, [5, 300], n_features=900).training_counts().sum())
        200
        """
        counts = np.zeros(self.n_features, np.int64)
        for ids, _ in self.batches("train", BLOCK_ROWS):
            counts += np.bincount(ids.ravel(), minlength=self.n_features)
        return counts


def _sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    p: NDArray[Any] = 1 / (1 + np.exp(-x))
    return p


def _auc(score: Floats, p: Floats) -> float:
    """Area under the curve where row i is a click with probability p[i]."""
    order = np.argsort(score, kind="stable")
    _, first = np.unique(score[order], return_index=True)
    up, down = (np.add.reduceat(a[order], first) for a in (p, 1 - p))
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / (up.sum() * down.sum()))
