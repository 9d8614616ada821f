"""From counted texts to feature ids: which values of a log are observed, rare or new.

PAPER: appendix, dataset information; values seen fewer than 4 times share one feature of their
field.  Ids of observed features come first, by field; then those of new ones, by field.  Inside a
field the commonest comes first, equal counts go by value, and the rare values' shared feature is
last: no order of rows or threads matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table.blocks import Blocks, Codes, Parts
from openfate.table.logs import Log, Meaning, values_of

CountOn = Literal["train", "all"]
Progress = Callable[[str, int, int | None], None]
Counts = NDArray[np.uint32]  # (3, codes): in training, validation and test rows

_COUNTED_ROWS = 1 << 20  # rows whose codes are counted together
_COUNTS = ("train", "validation", "test")
# WHY: later rows must not order the observed features; they order the new ones alone.
_LATER = pl.when(pl.col("train") == 0).then(pl.col("count"))


@dataclass(frozen=True)
class FieldIds:
    """The features of one field: a place among its observed (from 0 up) or new ones (-1 down).

    Parameters
    ----------
    name, meaning
        The field, and what its texts stand for.
    values
        Columns value, kind ("observed", "rare", "new"), place, count, train, validation, test.
    lookup
        (codes,) the place of each text of the column.
    n_observed, n_new
        How many features, the shared one of rare values counted once.
    n_new_in_validation
        How many of the new ones occur in validation rows.
    rare
        The place of the rare values' shared feature, or None.
    first_observed, first_new
        The ids of its first observed and of its first new feature.
    """

    name: str
    meaning: Meaning
    values: pl.DataFrame
    lookup: NDArray[np.int32]
    n_observed: int
    n_new: int
    n_new_in_validation: int
    rare: int | None
    first_observed: int = 0
    first_new: int = 0

    def ids(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """Turn places into feature ids."""
        ids = np.where(places >= 0, places + self.first_observed, self.first_new - 1 - places)
        return ids.astype(np.int32)

    def entry(self) -> dict[str, Any]:
        """What the manifest says of the field: the first id and the number of its features."""
        rare = None if self.rare is None else int(self.ids(np.array([self.rare]))[0])
        return {
            "name": self.name,
            "kind": self.meaning,
            "observed": [self.first_observed, self.n_observed],
            "new": [self.first_new, self.n_new],
            "rare": rare,
        }


def number_fields(
    log: Log, blocks: Blocks, parts: Parts, threshold: int, count_on: CountOn, on_progress: Progress
) -> list[FieldIds]:
    """Count the codes of all rows, and give every value of every field its id.

    Parameters
    ----------
    threshold
        Values counted fewer times than this share the field's rare feature.
    count_on
        "train": counted on training rows; a value that they do not hold is new, from its first
        row.  "all": counted on all rows.
    """
    counts = _count_codes(blocks, parts, on_progress)
    fields = [
        number_field(
            name, blocks.texts(c), counts[c], log.meaning.get(name, "text"), threshold, count_on
        )
        for c, name in enumerate(log.fields, start=1)  # column 0 is the target
    ]
    observed = [*accumulate((field.n_observed for field in fields), initial=0)]
    new = [*accumulate((field.n_new for field in fields), initial=observed[-1])]
    if new[-1] >= 2**31:
        raise DataFileError(
            f"{log.path}: {new[-1]} features do not fit in 32 bits; raise the threshold, or drop a "
            "column."
        )
    return [
        replace(field, first_observed=first_observed, first_new=first_new)
        for field, first_observed, first_new in zip(fields, observed, new, strict=False)
    ]


def _count_codes(blocks: Blocks, parts: Parts, on_progress: Progress) -> list[Counts]:
    """For each column, (3, codes): how often each code is in training, validation, test rows."""
    counts = [np.zeros((3, n), np.uint32) for n in blocks.n_texts]
    waiting: list[list[Codes]] = [[], [], []]

    def count(kind: int) -> None:
        for c, n in enumerate(blocks.n_texts):
            codes = np.concatenate([block[c] for block in waiting[kind]])
            counts[c][kind] += np.bincount(codes, minlength=n).astype(np.uint32)
        waiting[kind].clear()

    done = 0
    for number in range(len(blocks.blocks)):
        codes, kinds = blocks.read(number), np.minimum(parts.of_block(number), 2)
        for kind in np.unique(kinds):
            waiting[kind].append(codes if (kinds == kind).all() else codes[:, kinds == kind])
            # WHY: bincount walks over all codes each time, so that few great steps cost less.
            if sum(block.shape[1] for block in waiting[kind]) > _COUNTED_ROWS:
                count(kind)
        done += codes.shape[1]
        on_progress("counting", done, blocks.n_rows)
    for kind in range(3):
        if waiting[kind]:
            count(kind)
    return counts


def number_field(
    name: str,
    texts: pl.Series,
    counts: Counts,
    meaning: Meaning = "text",
    threshold: int = 4,
    count_on: CountOn = "train",
) -> FieldIds:
    """Number the values of one field.

    Parameters
    ----------
    texts
        (codes,) the distinct texts of the column.
    counts
        (3, codes) how often each occurs in training, validation and test rows.
    meaning
        What the texts stand for.
    threshold, count_on
        As in `number_fields`.

    Examples
    --------
    >>> counts = np.array([[9, 1, 2, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.uint32)
    >>> ids = number_field("city", pl.Series(["a", "b", "c", "d"]), counts)
    >>> ids.lookup.tolist(), ids.n_observed, ids.n_new, ids.rare
    ([0, 1, 1, -1], 2, 1, 1)
    """
    seen = pl.DataFrame(
        {
            "code": np.arange(len(texts), dtype=np.uint32),
            "value": values_of(texts, meaning),
            **{part: counts[i].astype(np.int64) for i, part in enumerate(_COUNTS)},
        }
    ).filter(pl.sum_horizontal(_COUNTS) > 0)
    values = (
        seen.group_by("value")
        .agg(pl.col(_COUNTS).sum())
        .with_columns(count=pl.sum_horizontal(_COUNTS))
        .with_columns(kind=_kind(threshold, count_on))
        .sort("train", _LATER, "value", descending=[True, True, False], nulls_last=True)
    )
    kind = values["kind"].to_numpy()
    is_observed, is_new, is_rare = (kind == name for name in ("observed", "new", "rare"))
    n_observed, n_new = int(is_observed.sum()), int(is_new.sum())
    place = np.zeros(len(values), np.int32)
    place[is_observed] = np.arange(n_observed)
    place[is_new] = -1 - np.arange(n_new)
    rare = None
    if is_rare.any():
        # Counted on all rows, the rare values of a field may all be later than training.
        in_training = bool((values["train"].to_numpy()[is_rare] > 0).any())
        rare = n_observed if in_training else -1 - n_new
        place[is_rare] = rare
        n_observed, n_new = n_observed + in_training, n_new + (not in_training)
    values = values.with_columns(place=pl.Series(place))
    fresh = values.filter((pl.col("place") < 0) & (pl.col("validation") > 0))
    placed = seen.join(values.select("value", "place"), on="value", nulls_equal=True)
    lookup = np.zeros(len(texts), np.int32)
    lookup[placed["code"].to_numpy()] = placed["place"].to_numpy()
    n_fresh = fresh["place"].n_unique()
    return FieldIds(name, meaning, values, lookup, n_observed, n_new, n_fresh, rare)


def _kind(threshold: int, count_on: CountOn) -> pl.Expr:
    train, count = pl.col("train"), pl.col("count")
    if count_on == "train":
        kind = pl.when(train == 0).then(pl.lit("new"))
        return kind.when(train < threshold).then(pl.lit("rare")).otherwise(pl.lit("observed"))
    # REFERENCE: the released code counts on the whole file, so that a test row decides whether
    # a value of the training rows is rare; test_prepare.py shows the difference.
    kind = pl.when(count < threshold).then(pl.lit("rare"))
    return kind.when(train == 0).then(pl.lit("new")).otherwise(pl.lit("observed"))
