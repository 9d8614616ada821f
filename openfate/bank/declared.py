"""What a bundle must hold: every array and every value of meta.json that something relies on.

An array has a type, a shape and bounds, and is finite; they stand here and are checked here, once,
before anything is made of them.  Letters of shapes:

    K  features of the vocabulary     C  outputs      Z  logits       G  gates of the mixture
    E  experts of the mixture         R  ridges       others: the same number within one part
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.openworld import Task
from openfate.records import Between, fault

Arrays = Mapping[str, NDArray[Any]]

# WHY: what comes of these is squared and summed, and must be a float still.
_LARGE = 1e100
_LARGE_TARGET = 1e60  # mean and deviation of a target
_LARGE_SUM = 1e30  # of messages
_LARGE_WEIGHT = 1e6  # of a network; a trained one has none near it
_LARGE_GAIN = 1e60  # of a network: how many times larger its output may be than its input
_MOST_FIELD_BUCKETS = 1_000_000


@dataclass(frozen=True)
class Array:
    """What one array is: numpy's names of types, a shape, the least and the largest number."""

    types: str
    shape: tuple[str, ...] | None
    low: float = -_LARGE
    high: float = _LARGE

    def fault(self, array: NDArray[Any], sizes: dict[str, int]) -> str | None:
        """What is wrong with it; letters that are not known yet take their number from it."""
        if array.dtype.str[1:] not in self.types.split():
            return f"has the type {array.dtype}, not {self.types}"
        if self.shape is not None:
            told = f"has the shape {array.shape}, not ({', '.join(self.shape)})"
            if array.ndim != len(self.shape):
                return told
            for size, letters in zip(array.shape, self.shape, strict=True):
                letter, _, more = letters.partition("+")
                wanted = int(letter) if letter.isdigit() else sizes.get(letter)
                if wanted is None:
                    wanted = sizes[letter] = size - int(more or 0)
                if size != wanted + int(more or 0) or wanted < 0:
                    return f"{told} with {letter} = {wanted}"
        if array.dtype.kind == "b" or not array.size:
            return None
        with np.errstate(invalid="ignore"):
            inside = bool((array >= self.low).all() and (array <= self.high).all())  # False for nan
        return None if inside else f"has numbers that are not from {self.low:g} to {self.high:g}"


_MEMBER = r"(?:retrained\.)?[0-9]+\."
_NOTE = r"fork\.[0-9]+\."
_STATE: dict[str, Array] = {
    "rows": Array("f8", ("N",), 0),
    "n_rows": Array("i8", ("1",), 0),
    "n_evicted": Array("i8", ("1",), 0),
    "n_counted": Array("i8", ("1",), 0),
    "newcomers": Array("b1", ("2", "B")),
    rf"(?:{_NOTE})?{_MEMBER}counts": Array("f8", ("M",), 0),
    rf"(?:{_NOTE})?{_MEMBER}messages": Array("f8", ("M", "H"), -_LARGE_SUM, _LARGE_SUM),
    rf"(?:{_NOTE})?evidence\.count": Array("f8", ("J",), 0),
    rf"(?:{_NOTE})?evidence\.total": Array("f8", ("J", "C")),
    rf"(?:{_NOTE})?evidence\.row_count": Array("f8", ("1",), 0),
    rf"(?:{_NOTE})?evidence\.row_total": Array("f8", ("C",)),
    rf"(?:{_NOTE})?evidence\.boxes": Array("f8", ("B", "C+1")),
    rf"(?:{_NOTE})?evidence\.expected": Array("f8", ("B",), 0, 1),
    rf"(?:{_NOTE})?evidence\.bounds": Array("f8", ("2",)),
    rf"(?:{_NOTE})?evidence\.sample_key": Array("u8", ("S",), 0),
    rf"(?:{_NOTE})?evidence\.sample_row_ptr": Array("i8", ("S+1",), 0),
    rf"(?:{_NOTE})?evidence\.sample_ids": Array("i4", ("I",), 0),
    rf"(?:{_NOTE})?evidence\.sample_votes": Array("f8", ("S", "C")),
    rf"(?:{_NOTE})?evidence\.sample_values": Array("f4", ("I",), -1e9, 1e9),
    rf"(?:{_NOTE})?evidence\.sample_voter": Array("u8", ("S",), 0),
    rf"(?:{_NOTE})?evidence\.source_key": Array("u8", ("P",), 0),
    rf"(?:{_NOTE})?evidence\.source_feature": Array("i4", ("P",), 0),
    rf"(?:{_NOTE})?evidence\.source_sums": Array("f8", ("P", "C+1")),
    rf"(?:{_NOTE})?evidence\.(?:labelled_\w+|outcome)": Array(
        "f8", None
    ),  # of format 1; nothing reads them
    r"mixture\.log_odds": Array("f8", ("G",)),
    r"mixture\.weights": Array("f8", ("G", "E"), 0, 1),
    r"mixture\.counts": Array("i8", ("2",), 0),
    r"mixture\.loss": Array("f8", ("2", "G")),
    r"mixture\.P0": Array("f8", ("N", "C")),
    r"mixture\.moved": Array("f8", ("N", "C")),
    r"mixture\.y": Array("f8 i8", None),
    r"mixture\.weight": Array("f8", ("N",), 0, 1),
    r"mixture\.counted": Array("b1", ("N",)),
    r"mixture\.voter": Array("u8", ("N",), 0),
    r"mixture\.row_ptr": Array("i8", ("N+1",), 0),
    r"mixture\.ids": Array("i4", ("I",), 0),
    r"mixture\.n_features": Array("i8", ("1",), 0),
    r"mixture\.values": Array("f4", ("I",), -1e9, 1e9),
    r"mixture\.corrections\.features": Array("i8", ("J",), 0),
    r"mixture\.corrections\.W": Array("f8", ("R", "J", "Z")),
    r"mixture\.corrections\.side": Array("f8", ("R", "2")),
    r"mixture\.corrections\.bias": Array("f8", ("R", "Z")),
    r"fork\.base": Array("u1", ("32",), 0),
    r"fork\.first": Array("i8", ("1",), 0),
    rf"{_NOTE}n_rows": Array("i8", ("1",), 0),
    rf"{_NOTE}ids": Array("i4", ("I",), 0),
    rf"{_NOTE}rows": Array("f8", ("I",), 0),
    rf"{_NOTE}seen": Array("b1", ("1",)),
    rf"{_NOTE}row_ptr": Array("i8", ("N+1",), 0),
    rf"{_NOTE}values": Array("f4", ("I",), -1e9, 1e9),
    rf"{_NOTE}(?:P0|again)": Array("f8", ("N", "C")),
    rf"{_NOTE}y": Array("f8 i8", None),
    rf"{_NOTE}weight": Array("f8", ("N",), 0, 1),
}
# A network's own shapes are its settings': torch compares them with every name.
_WEIGHTS: dict[str, Array] = {
    rf"{_MEMBER}.*\.running_var": Array("f4 f8", None, 0, _LARGE_WEIGHT),
    rf"{_MEMBER}.*\.num_batches_tracked": Array("i8", None, 0),
    rf"{_MEMBER}.*": Array("f4 f8", None, -_LARGE_WEIGHT, _LARGE_WEIGHT),
}
_PROBABILITIES = re.compile(
    rf"(?:{_NOTE})?evidence\.sample_votes|mixture\.(?:P0|moved)|{_NOTE}(?:P0|again)"
)


def check_weights(weights: Arrays) -> None:
    """Refuse an array that is none of a network's, and networks whose outputs would overflow."""
    _check(weights, _WEIGHTS, {})
    gain: dict[str, float] = {}
    for name, array in weights.items():
        member = re.match(_MEMBER, name)
        inputs = array.shape[-1] if array.ndim > 1 else 1
        size = inputs * float(np.abs(array).max(initial=0))
        if member is not None and not name.endswith(".num_batches_tracked"):
            gain[member[0]] = gain.get(member[0], 1.0) * max(1.0, size)
    if any(size > _LARGE_GAIN for size in gain.values()):
        raise InputError("the weights are so large that predictions would be no numbers")


def check_state(state: Arrays, task: Task, sizes: Mapping[str, int]) -> None:
    """Refuse an array that is unknown, or of another type, shape or size than it must be.

    Parameters
    ----------
    sizes
        Of the letters K, C, Z, G, E and R.
    """
    _check(state, _STATE, sizes)
    if task != "regression":
        for name in filter(_PROBABILITIES.fullmatch, state):
            if not _within(state[name], 0, 1 + 1e-6):
                raise InputError(f"the array {name} holds what is no probability")
    notes = {found[0] for name in state if (found := re.match(_NOTE, name))}
    for prefix in ("", *sorted(notes)):
        _check_evidence(state, task, prefix)
    _check_mixture(state, sizes["K"])
    for prefix in ("mixture.", *sorted(notes)):
        _check_labels(state, task, sizes["C"], prefix)


def _check(arrays: Arrays, declared: dict[str, Array], sizes: Mapping[str, int]) -> None:
    letters: dict[str, dict[str, int]] = {}
    for name, array in sorted(arrays.items()):
        found = next((one for key, one in declared.items() if re.fullmatch(key, name)), None)
        if found is None:
            raise InputError(f"the array {name!r} is not known")
        part = letters.setdefault(name.rpartition(".")[0], dict(sizes))
        if wrong := found.fault(array, part):
            raise InputError(f"the array {name} {wrong}")


def _check_evidence(state: Arrays, task: Task, prefix: str) -> None:
    """Refuse sums that no predictions have: means beyond what can be predicted."""
    most = _LARGE if task == "regression" else 1 + 1e-6
    sums = {name: state.get(f"{prefix}evidence.{name}") for name in ("count", "total", "boxes")}
    rows = [state.get(f"{prefix}evidence.{name}") for name in ("row_count", "row_total")]
    parts = {
        "total": (sums["count"], sums["total"]),
        "row_total": rows,
        "boxes": (None, None) if sums["boxes"] is None else np.split(sums["boxes"], [1], axis=1),
    }
    for name, (counts, totals) in parts.items():
        if counts is None or totals is None:
            continue
        counts = counts[:, None] if name == "total" else counts
        with np.errstate(all="ignore"):
            told = np.where(counts > 0, np.abs(totals) / np.maximum(counts, 1e-300), 0)
        if not _within(told, 0, most) or (counts < 0).any():
            raise InputError(f"the array {prefix}evidence.{name} has means that nothing predicts")


def _check_mixture(state: Arrays, n_features: int) -> None:
    if "mixture.counts" in state:
        n_labels, due = state["mixture.counts"]
        if due <= n_labels:  # WHY: rows are cut at `due`, which never comes then
            raise InputError(f"the mixture has {n_labels} labels and is due at {due}")
    if "mixture.n_features" in state and state["mixture.n_features"][0] > n_features:
        raise InputError("labelled rows have features that the vocabulary has not")
    features = state.get("mixture.corrections.features")
    if features is not None and len(features):
        if (np.diff(features) <= 0).any() or features[-1] >= n_features:
            raise InputError("corrections are of features that the vocabulary has not")


def _check_labels(state: Arrays, task: Task, n_outputs: int, prefix: str) -> None:
    """Refuse labels of another task, and labelled rows that count for nothing."""
    if (y := state.get(f"{prefix}y")) is None:
        return
    weight = state.get(f"{prefix}weight", np.empty(0))
    is_class = task in ("binary", "multiclass")
    shape = (len(weight),) if is_class else (len(weight), n_outputs)
    if y.shape != shape or y.dtype != (np.int64 if is_class else np.float64):
        raise InputError(f"the labels {prefix}y are {y.dtype} {y.shape}, of another task")
    low, high = _range_of_labels(task, n_outputs)
    if not _within(y, low, high):
        raise InputError(f"the labels {prefix}y have numbers outside {low} to {high}")
    if (weight <= 0).any():
        raise InputError(f"a labelled row of {prefix}weight has the weight 0")


def _range_of_labels(task: Task, n_outputs: int) -> tuple[float, float]:
    if task == "regression":
        return -_LARGE, _LARGE
    return (0, 1) if task == "multilabel" else (0, n_outputs - 1)


def _within(array: NDArray[Any], low: float, high: float) -> bool:
    return not array.size or bool(array.min() >= low and array.max() <= high)


# ---- meta.json -----------------------------------------------------------------------------------


def _any_number(content: Any) -> Any:
    """A number, also one that is none: metrics of a few rows may be nan."""
    odd = isinstance(content, float) and not math.isfinite(content)
    return object if odd else float


_SIZE = Between(1, 1e7)
_POOLING = {
    "strength": Between(0, 1e9),
    "alpha": Between(0, 1e12),
    "relative": (bool, None),
    "slope": (Between(0, 1e9), None),
    "n_sweeps": (Between(1, 100), None),
}
_BACKBONE = {
    "name": str,
    "width": _SIZE,
    "n_outputs": _SIZE,
    "hidden": ([_SIZE], None),
    "n_fields": (_SIZE, None),
}
_MODEL = {
    "task": get_args(Task),
    "target_scale": ([float, float], None),
    "backbone": (_BACKBONE, None),
    "extrapolator": (dict, None),
    "columns": ([str], None),
    "numbers": ([str], None),
    "n_observed": (Between(0, 2**31), None),
    "texts": ({str: int}, None),
    "estimator_format": (str, None),
    "format": object,
}
META = {
    **_MODEL,
    "format": (int, None),  # a file's; the reader asks for one that it knows
    "classes": [(str, bool, int, float)],
    "embeddings": (bool, Between(0, 1e6)),
    "policies": dict,
    "exclude": [str],
    "overrides": str,
    "pooling": (_POOLING, None),
    "batch_pooling": (_POOLING, None),
    "mixture": ({"trusts_evidence": bool, "bounds": [float, float]}, None),
    "retrained": ({**_MODEL, "format": (str, None)}, None),
    "kind": (str, None),
    "params": (dict, None),
    "n_features_in": (Between(0, 2**31), None),
    "classes_dtype": (str, None),
    "n_rows": (int, None),
    "data_hash": (str, None),
    "unkept": ([str], None),
    "settings": (dict, None),
    "max_new_features": (Between(0, 2**31), {str: Between(0, 2**31)}, None),
    "source": (str, None),
    "half_life": (Between(1, 2**62), None),
    "part": ([Between(1, 2**31), Between(1, 2**31)], None),
    "numeric": ("buckets", "value", "linear", "log", None),
    "metrics": ({str: _any_number}, None),
    "leans": ({str: Between(0)}, None),
    "decision": ({"chosen": str, "reason": str}, None),
    "table": (
        {
            "file": (str, None),
            "where": (str, None),
            "target": ([str], None),
            "nulls": ([str], None),
            "types": ({str: str}, None),
        },
        None,
    ),
}
_MOST_LAYERS = 64


def check_meta(meta: Mapping[str, Any]) -> None:
    """Refuse a meta.json whose values are of other types than those that are relied on."""
    wrong = fault(dict(meta), META)
    if wrong is None:
        for settings in (meta, meta.get("retrained") or {}):
            backbone = settings.get("backbone") or {}
            if len(backbone.get("hidden") or ()) > _MOST_LAYERS:
                wrong = f"backbone.hidden has more than {_MOST_LAYERS} layers"
            mean, deviation = settings.get("target_scale") or (0.0, 1.0)
            if max(abs(mean), abs(deviation)) > _LARGE_TARGET:
                wrong = "target_scale is too large"
        low, high = (meta.get("mixture") or {}).get("bounds", (0.0, 1.0))
        if not -_LARGE <= low <= high <= _LARGE:
            wrong = f"mixture.bounds are {low} and {high}"
    if wrong is not None:
        raise InputError(f"meta.json: {wrong}")


def check_fields(schema: Any) -> None:
    """Refuse a field whose buckets no memory would hold."""
    for field in schema:
        n_knots = field.n_knots + len(field.jumps or ())
        if max(field.n_buckets, n_knots) > _MOST_FIELD_BUCKETS:
            raise InputError(f"field {field.name!r} has {field.n_buckets} buckets")
