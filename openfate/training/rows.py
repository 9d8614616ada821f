"""What a run is trained or validated with: rows, targets and weights, checked against the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from openfate.errors import InputError
from openfate.models import FATE
from openfate.table import MultiHot
from openfate.training.metrics import Loss


@dataclass(frozen=True)
class Rows:
    """Rows with their targets, and weights unless all are equal."""

    X: MultiHot
    y: NDArray[Any]  # (N,) int64 classes, (N, K) float64 labels or (N,) float64 numbers
    weight: NDArray[np.float64] | None  # (N,), the largest is one

    def select(self, at: NDArray[np.intp]) -> Rows:
        """The rows at these places."""
        weight = None if self.weight is None else self.weight[at]
        return Rows(self.X.select_rows(at), self.y[at], weight)

    def cut(self, start: int, end: int) -> Rows:
        """The rows from `start` to before `end`."""
        weight = None if self.weight is None else self.weight[start:end]
        return Rows(self.X.cut(start, end), self.y[start:end], weight)


def check_rows(
    model: FATE, loss: Loss, name: str, X: MultiHot, y: ArrayLike, weight: ArrayLike | None = None
) -> Rows:
    """Rows that the model can be trained or validated with; `name` says which they are."""
    target = np.asarray(y)
    n_axes, kinds, remedy = _WANTED[loss]
    if target.ndim != n_axes or target.dtype.kind not in kinds:
        raise InputError(
            f"{name} labels have the type {target.dtype} and the shape {target.shape}: {remedy}"
        )
    if X.n_features != len(model.W):
        raise InputError(
            f"{name} rows have {X.n_features} features, the model {len(model.W)}: give rows over "
            "the features that the model was made for."
        )
    if X.n_rows != len(target):
        raise InputError(
            f"{name}: {X.n_rows} rows but {len(target)} labels; give one label for each row."
        )
    if X.n_rows == 0:
        raise InputError(f"there are no {name} rows; give one or more.")
    weights = None if weight is None else _check_weight(name, np.asarray(weight), X.n_rows)
    n_outputs = model.backbone.n_outputs
    if loss == "log_loss":
        return Rows(X, _classes(name, target, weights, n_outputs), weights)
    if loss == "multilabel":
        return Rows(X, _labels(name, target, n_outputs), weights)
    if n_outputs != 1:
        raise InputError(f"loss={loss!r} needs a model of one output, not of {n_outputs}.")
    return Rows(X, _numbers(name, target, model.W.dtype), weights)


def check_fields(model: FATE, field_of: NDArray[np.integer] | None) -> Tensor | None:
    """(D,) int64 the field of each feature; None where it is not given, nor needed."""
    backbone, n_features = model.backbone, len(model.W)
    if field_of is None:
        if backbone.n_fields is not None:
            raise InputError(
                f"this {backbone.name} sums fields apart: give field_of, the field of each feature."
            )
        return None
    if len(field_of) != n_features:
        raise InputError(
            f"field_of has {len(field_of)} entries for {n_features} features; give one for each."
        )
    if np.min(field_of, initial=0) < 0:
        raise InputError(f"field_of has {np.min(field_of)}: fields are numbered from 0.")
    return torch.tensor(np.asarray(field_of, np.int64))


_WANTED: dict[Loss, tuple[int, str, str]] = {
    "log_loss": (1, "iub", "give one class number, from 0, for each row."),
    "multilabel": (2, "iubf", "give a table (rows, labels) of 0 and 1."),
    "squared_error": (1, "iubf", "give one number for each row."),
    "absolute_error": (1, "iubf", "give one number for each row."),
}


def _classes(
    name: str, target: NDArray[Any], weight: NDArray[np.float64] | None, n_outputs: int
) -> NDArray[np.int64]:
    """(N,) class numbers; of the training rows that have weight, two or more."""
    labels = target.astype(np.int64)
    n_classes = max(2, n_outputs)
    if not 0 <= labels.min() <= labels.max() < n_classes:
        raise InputError(
            f"{name} labels run from {labels.min()} to {labels.max()}, "
            f"but the model's classes from 0 to {n_classes - 1}."
        )
    counted = labels if weight is None else labels[weight > 0]
    if name == "training" and counted.min() == counted.max():
        raise InputError(
            f"all training labels are {counted[0]}: a classifier needs two classes or more."
        )
    return labels


def _labels(name: str, target: NDArray[Any], n_outputs: int) -> NDArray[np.float64]:
    """(N, K) of 0 and 1."""
    if target.shape[1] != n_outputs:
        raise InputError(
            f"{name} labels have {target.shape[1]} columns, the model {n_outputs} outputs: "
            "give it one for each label."
        )
    wrong = (target != 0) & (target != 1)
    if wrong.any():
        row, label = np.argwhere(wrong)[0]
        raise InputError(
            f"{name} label {label} of row {row} is {target[row, label]}: "
            "every label must be 0 or 1."
        )
    return target.astype(np.float64)


def _numbers(name: str, target: NDArray[Any], dtype: torch.dtype) -> NDArray[np.float64]:
    """(N,) numbers that the model's precision can hold."""
    numbers = target.astype(np.float64)
    wrong = ~(np.abs(numbers) <= torch.finfo(dtype).max)  # also true of nan
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"the {name} label of row {row} is {numbers[row]:g}: labels must be finite numbers "
            f"within {dtype}; leave the row out, or scale the labels."
        )
    return numbers


def _check_weight(name: str, weight: NDArray[Any], n_rows: int) -> NDArray[np.float64] | None:
    """(N,) weights, the largest one; None where all are equal, which is as good as none."""
    if weight.shape != (n_rows,) or weight.dtype.kind not in "iubf":
        raise InputError(
            f"{name} sample_weight has the type {weight.dtype} and the shape {weight.shape}: "
            f"give one number for each of the {n_rows} rows."
        )
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"the {name} sample_weight of row {row} is {weight[row]}: "
            "weights must be finite and not negative."
        )
    if not weight.any():
        raise InputError(
            f"every {name} sample_weight is zero: nothing is left to learn from; give one above 0."
        )
    if weight.min() == weight.max():
        return None
    # WHY: only ratios matter; sums of very large or small weights would leave float32.
    ratio = weight.astype(np.float64) / float(weight.max())
    return np.where(ratio < np.finfo(np.float32).tiny, 0.0, ratio)
