"""What is to be predicted: y in all its forms, and encoded rows that carry it.

N rows, C classes, K labels.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d

from openfate.bank import FeatureBank, Task
from openfate.errors import InputError
from openfate.table import MultiHot, class_numbers, read_labels, target_numbers

_LEAST = 40  # rows of a table from which some can be spared for validation


@dataclass(frozen=True)
class Target:
    """What is to be predicted, as training takes it.

    `y` is (N,) class numbers, (N, K) labels, or (N,) standardised numbers; `scale` is the mean and
    the deviation that did that.
    """

    task: Task
    y: NDArray[Any]
    classes: tuple[Any, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)

    @property
    def n_outputs(self) -> int:
        """Outputs of a network: one for two classes, and for numbers."""
        return len(self.classes) if self.task in ("multiclass", "multilabel") else 1

    @property
    def outcomes(self) -> NDArray[Any]:
        """`y` on the scale of predictions: numbers are not standardised."""
        if self.task != "regression":
            return self.y
        mean, deviation = self.scale
        return np.asarray(self.y * deviation + mean)

    @property
    def original(self) -> NDArray[Any]:
        """(N,) what the user gave: classes by their names, or numbers."""
        is_class = self.task in ("binary", "multiclass")
        return np.array(self.classes)[self.y] if is_class else self.outcomes

    def select(self, rows: NDArray[np.intp]) -> Target:
        """The targets of some rows."""
        return replace(self, y=self.y[rows])


def join_classes(parts: Sequence[NDArray[Any]]) -> Target:
    """Classes of any type, or a 0-1 matrix of labels, in parts as `read_labels` gives them.

    Examples
    --------
    >>> target = join_classes([np.array([3, 5]), np.array([5])])
    >>> target.task, target.y.tolist()
    ('binary', [0, 1, 1])
    """
    first = parts[0]
    if first.ndim > 1 and type_of_target(first) == "multilabel-indicator":
        labels = check_array(np.concatenate(parts), accept_sparse=False, dtype=np.int64)
        return Target("multilabel", labels, tuple(range(labels.shape[1])))
    for part in parts:
        kinds = sorted({type(value).__name__ for value in part}) if part.dtype.kind == "O" else []
        if len(kinds) > 1:
            raise InputError(
                f"the target mixes values of the types {', '.join(kinds)}: give it one type."
            )
        check_classification_targets(part)
    found = [np.unique(column_or_1d(part, warn=True), return_inverse=True) for part in parts]
    names = np.unique(np.concatenate([own for own, _ in found]))
    # WHY: as numbers within the parts: texts of all rows would fill the memory.
    y = np.concatenate([np.searchsorted(names, own)[codes] for own, codes in found])
    classes = tuple(names)
    if len(classes) < 2:
        raise InputError(
            f"the target has one class, {names.tolist()[0]!r}: "
            "a classifier needs two classes or more."
        )
    return Target(_class_task(classes), y.astype(np.int64), classes)


def read_known_classes(y: Any, n_rows: int, classes: Sequence[Any]) -> Target:
    """Classes of a model that is fitted, whichever of them these rows have."""
    codes = class_numbers(read_labels(y, n_rows), classes)
    return Target(_class_task(classes), codes, tuple(classes))


def read_known(y: Any, n_rows: int, bank: FeatureBank) -> Target:
    """What a bank's fit took, for labels that come later; an unknown class is refused."""
    return known_target(bank.read_labels(y, n_rows), bank)


def known_target(labels: NDArray[Any], bank: FeatureBank) -> Target:
    """The same, of labels as a bank has read them."""
    if bank.task == "regression":
        return _standardise(labels, bank.target_scale)
    return Target(bank.task, labels, tuple(bank.classes))


def join_numbers(parts: Sequence[NDArray[Any]]) -> Target:
    """Numbers, standardised, in parts as `read_labels` gives them."""
    numbers = np.concatenate([target_numbers(column_or_1d(part, warn=True)) for part in parts])
    deviation = float(numbers.std())
    return _standardise(numbers, (float(numbers.mean()), deviation if deviation > 0 else 1.0))


def _standardise(numbers: NDArray[np.float64], scale: tuple[float, float]) -> Target:
    return Target("regression", (numbers - scale[0]) / scale[1], scale=scale)


def _class_task(classes: Sequence[Any]) -> Task:
    return "binary" if len(classes) == 2 else "multiclass"


# ---- rows for training and validation ----------------------------------------------------------


@dataclass(frozen=True)
class LabelledRows:
    """Encoded rows with their targets and weights."""

    X: MultiHot
    target: Target
    weight: NDArray[np.float64] | None = None

    def select(self, rows: NDArray[np.intp]) -> LabelledRows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return LabelledRows(self.X.select_rows(rows), self.target.select(rows), weight)

    @staticmethod
    def stack(parts: Sequence[LabelledRows], n_features: int) -> LabelledRows:
        """The rows of all parts, over as many features."""
        X = MultiHot.stack([part.X for part in parts]).widen(n_features)
        y = np.concatenate([part.target.y for part in parts])
        weight = None
        if any(part.weight is not None for part in parts):
            ones = (
                np.ones(part.X.n_rows) if part.weight is None else part.weight for part in parts
            )
            weight = np.concatenate(list(ones))
        return LabelledRows(X, replace(parts[0].target, y=y), weight)

    def sample(self, most: int, rng: np.random.Generator) -> LabelledRows:
        """The rows, or `most` of them drawn at random, in their order; in memory."""
        n_rows = self.X.n_rows
        some = self if n_rows <= most else self.select(np.sort(rng.permutation(n_rows)[:most]))
        return replace(some, X=some.X.load())


def hash_rows(rows: LabelledRows) -> str:
    """What tells rows from others; not how they lie in memory or on disk."""
    digest, end = hashlib.sha256(np.zeros(1, np.int64).tobytes()), 0
    for part in rows.X.parts():
        digest.update((part.row_ptr[1:] + end).tobytes())
        end += part.nnz
    for part in rows.X.parts():
        digest.update(np.ascontiguousarray(part.ids).tobytes())
    digest.update(np.ascontiguousarray(rows.target.y).tobytes())
    return digest.hexdigest()


def find_rows(
    rows: LabelledRows, among: LabelledRows, n_features: int, *, each_once: bool = False
) -> NDArray[np.bool_]:
    """(N,) the rows that are among others too: the same labels and features below `n_features`.

    With `each_once` each of the others is found once, the rest of what looks like it is new.

    Examples
    --------
    >>> X = MultiHot.from_rows([[0], [1], [0, 2]], 3)
    >>> rows = LabelledRows(X, Target("binary", np.array([0, 1, 0])))
    >>> find_rows(rows, rows.select(np.array([0])), 2)
    array([ True, False,  True])
    """
    left = Counter(_row_keys(among, n_features))
    found = np.zeros(rows.X.n_rows, dtype=bool)
    for row, key in enumerate(_row_keys(rows, n_features)):
        found[row] = left[key] > 0
        left[key] -= each_once
    return found


def _row_keys(rows: LabelledRows, n_features: int) -> list[bytes]:
    X = rows.X.select_features(np.arange(min(n_features, rows.X.n_features)))
    ends = X.row_ptr
    values = X.ids if X.values is None else np.stack([X.ids, X.values], 1)
    cells = [values[a:b].tobytes() for a, b in itertools.pairwise(ends)]
    return [cell + y.tobytes() for cell, y in zip(cells, rows.target.y, strict=True)]


def split_rows(
    target: Target,
    share: float,
    seed: int,
    spare: NDArray[np.bool_] | None = None,
    times: NDArray[Any] | None = None,
    fold: int = 0,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of training and of validation rows: a share of the rows, of each class alike.

    Other folds have other validation rows, until there are none left and it starts again.

    A table of fewer than 40 rows, or a share of 0, spares none for validation but those that
    `spare` (N,) names, as long as rows of every class are left for training.  With `times` (N,) the
    share is the last rows in time.
    """
    if not 0 <= share < 1:
        raise InputError(f"validation_share={share}: choose a share from 0 to below 1.")
    n_rows = len(target.y)
    if n_rows < _LEAST:
        share = 0.0
    rng = np.random.default_rng([seed, 3])
    order = rng.permutation(n_rows)
    groups = [order]
    if target.task in ("binary", "multiclass"):
        groups = [order[target.y[order] == c] for c in range(len(target.classes))]
    spared = np.concatenate([_fold_of(group, int(len(group) * share), fold) for group in groups])
    if times is not None:
        spared = np.argsort(times, kind="stable")[n_rows - int(n_rows * share) :]
    kept = np.ones(n_rows, dtype=bool)
    kept[spared] = False
    if spare is not None and all((kept & ~spare)[group].any() for group in groups):
        kept &= ~spare
    return np.flatnonzero(kept), np.flatnonzero(~kept)


def _fold_of(group: NDArray[np.intp], size: int, fold: int) -> NDArray[np.intp]:
    n_folds = len(group) // size if size else 1
    start = fold % n_folds * size
    return group[start : start + size]
