"""Jumps: where along a column of numbers the target changes at once.

Between knots at quantiles a network's sums are straight lines, which round a threshold off by as
much as the knots lie apart.  Two shallow trees propose thresholds, each on half of the rows; where
one holds up as a jump on the other half, its field gets a knot on either side of it
(`Field.jumps`).  The trees are then thrown away: they say where knots lie, and predict nothing.

n rows, d columns of numbers, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from openfate.bank import Floats
from openfate.estimators.target import Target
from openfate.table import Field, Schema, Table, numbers_in

# Rows that are looked at.  WHY the fewest: those near a threshold, on one side, must be a tenth of
# all or less, or what they tell of a jump is what all tell of a slope.
_LEAST, _MOST = 160, 4_000
_WORK = 4_000_000  # n d K: rows of wide tables are fewer
_MOST_FIELDS = 1_000  # d: of more, too few rows would be looked at to tell anything
_LEAVES, _LEAF = 64, 8  # of the tree, and the rows of one
_MOST_JUMPS = 8  # of a field
# How near rows must be to tell a jump from a slope: as far as knots lie apart, as `Knots` has them.
_NEAR_SHARE, _NEAR_ROWS = 1 / 24, 16
_FEWEST = 4  # rows on either side
# Of ln(rows), for each number that a jump takes to tell: half of one is the usual price (BIC); each
# tree offers very many thresholds though.  Chosen on tables of their own.
_PRICE = 1.0


def find_jumps(
    schema: Schema, table: Table, target: Target, learned: NDArray[np.intp], seed: int
) -> Schema:
    """The schema, with jumps in those fields of numbers between knots that have some.

    Parameters
    ----------
    schema
        Fields whose knots or jumps are declared stay as they are.
    table
        The first rows of the table, or all.
    target
        Of all rows.
    learned
        The rows that are learned from; those beyond `table` are not looked at.
    seed
        Of the choice among too many rows.

    Examples
    --------
    >>> import polars as pl
    >>> from openfate.estimators.target import join_classes
    >>> x = np.linspace(0, 1, 201)
    >>> schema = Schema([Field("x", "numeric", numeric="linear")])
    >>> table = Table(201, {"x": pl.Series(x)})
    >>> found = find_jumps(schema, table, join_classes([x > 0.3]), np.arange(201), seed=0)
    >>> np.round(found["x"].jumps, 3).tolist()
    [0.3, 0.305]
    """
    fields = [field for field in schema if _may_jump(field) and field.name in table.columns]
    rows = learned[learned < table.n_rows]
    if not 0 < len(fields) <= _MOST_FIELDS or len(rows) < _LEAST:
        return schema
    n_rows = min(len(rows), _MOST, max(_LEAST, _WORK // (len(fields) * target.n_outputs)))
    rows = rows[np.sort(np.random.default_rng([seed, 7]).permutation(len(rows))[:n_rows])]
    ranked = [_rank(numbers_in(table, field.name)[rows]) for field in fields]
    ranks = np.stack([rank for _, rank in ranked], axis=1)
    gains: dict[int, dict[int, float]] = {}  # by field, by the rank left of the jump
    for at, left, gain in _jumps(ranks, target.select(rows)):
        of_field = gains.setdefault(at, {})
        of_field[left] = max(gain, of_field.get(left, 0.0))
    jumps = {}
    for at, of_field in gains.items():
        best = sorted(of_field, key=lambda left: (-of_field[left], left))[:_MOST_JUMPS]
        values = ranked[at][0]
        around = {float(values[left + right]) for left in best for right in (0, 1)}
        jumps[fields[at].name] = tuple(sorted(around))
    return Schema(
        field.unchecked(jumps=jumps[field.name]) if field.name in jumps else field
        for field in schema
    )


def _may_jump(field: Field) -> bool:
    is_line = field.kind == "numeric" and field.numeric == "linear"
    return is_line and field.knots is None and field.jumps is None


def _rank(numbers: Floats) -> tuple[Floats, Floats]:
    """The distinct numbers, ascending, and (n,) the rank of each among them, NaN for none.

    WHY: a tree computes in float32, in which large numbers are alike; ranks are exact.
    """
    finite = np.isfinite(numbers)
    # A column without a number is one without a threshold.
    ranks = np.full(len(numbers), np.nan if finite.any() else 0.0)
    values, ranks[finite] = np.unique(numbers[finite], return_inverse=True)
    return values, ranks


def _jumps(ranks: Floats, target: Target) -> Iterator[tuple[int, int, float]]:
    """Thresholds that are jumps: the column, the rank left of it, what it gains near by.

    WHY two halves: on the rows for which a tree chose it, a threshold of a smooth table looks like
    a jump too.
    """
    is_first = np.arange(len(ranks)) % 2 == 0
    for half in (is_first, ~is_first):
        yield from _jumps_between(ranks, target.y, half, target.task == "regression")


def _jumps_between(
    ranks: Floats, y: NDArray[Any], half: NDArray[np.bool_], is_number: bool
) -> Iterator[tuple[int, int, float]]:
    """Those that a tree of one half of the rows proposes and the other half confirms."""
    kind = DecisionTreeRegressor if is_number else DecisionTreeClassifier
    tree = kind(min_samples_leaf=_LEAF, max_leaf_nodes=_LEAVES, random_state=0)
    tree.fit(ranks[half], y[half])
    reached = tree.decision_path(ranks).tocsc()
    split = tree.tree_

    @cache
    def ordered(column: int) -> Floats:
        return np.sort(ranks[np.isfinite(ranks[:, column]), column])

    for node in np.flatnonzero(split.feature >= 0):
        column, threshold = int(split.feature[node]), float(split.threshold[node])
        every = ordered(column)
        place = int(np.searchsorted(every, threshold, side="right"))
        reach = max(int(_NEAR_SHARE * len(every)), _NEAR_ROWS)
        low, high = every[max(0, place - reach)], every[min(len(every) - 1, place + reach)]
        rows = reached.indices[reached.indptr[node] : reached.indptr[node + 1]]
        rows = rows[(ranks[rows, column] >= low) & (ranks[rows, column] <= high)]
        others = rows[~half[rows]]
        is_left = ranks[others, column] <= threshold
        n_left = int(np.count_nonzero(is_left))
        if min(n_left, len(others) - n_left) < _FEWEST:
            continue
        gain, n_told = _gain(y[others], is_left, is_number)
        if gain > _PRICE * n_told * np.log(len(others)):
            own = ranks[rows[half[rows]], column]
            yield column, _place(ranks[rows, column], y[rows], own, threshold, is_number), gain


def _place(rank: Floats, y: NDArray[Any], own: Floats, threshold: float, is_number: bool) -> int:
    """The rank left of a jump: all rows say where, between two of those (`own`) that a tree saw."""
    low = own[own <= threshold].max(initial=-1)
    high = own[own > threshold].min(initial=np.inf)
    if low < 0 or high == np.inf:
        return int(np.floor(threshold))
    between = np.unique(rank[(rank >= low) & (rank <= high)])
    # WHY the middle: where rows of other nodes lie between two, none of these says more.
    places = (between[:-1] + between[1:]) / 2
    return int(max(places, key=lambda place: _gain(y, rank <= place, is_number)[0]))


def _gain(y: NDArray[Any], is_left: NDArray[np.bool_], is_number: bool) -> tuple[float, int]:
    """Twice the log-likelihood that two sides gain over one, and how many numbers tell a jump.

    These are the outcomes of one side; its place is known.
    """
    sides = y, y[is_left], y[~is_left]
    if is_number:
        whole, *parts = (float(((side - side.mean()) ** 2).sum()) for side in sides)
        if whole <= 1e-12 * len(y):  # numbers are standardised: these are alike but for rounding
            return 0.0, 2
        return len(y) * float(np.log(whole / max(sum(parts), 1e-12 * whole))), 2
    if y.ndim == 2:  # labels: each is told by itself
        told = [_gain(label, is_left, is_number) for label in y.T if label.min() < label.max()]
        return sum(gain for gain, _ in told), sum(n_told for _, n_told in told)
    n_classes = int(y.max()) + 1
    whole, *parts = (_entropy(np.bincount(side, minlength=n_classes)) for side in sides)
    return 2 * (whole - sum(parts)), len(np.unique(y))


def _entropy(counts: NDArray[np.int64]) -> float:
    """Of so many rows of each class, in all, in nats."""
    some = counts[counts > 0]
    return float(-(some * np.log(some / some.sum())).sum())
