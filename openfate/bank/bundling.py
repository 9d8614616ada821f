"""A bundle's plain values -> the parts of a `FeatureBank`, checked against one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.bank.bases import Base, Network, Task, Wrapped
from openfate.bank.foreign import revive
from openfate.bank.persistence import Bundle
from openfate.errors import DataFileError, InputError
from openfate.openworld import Kind, LiveEvidence, Pooling
from openfate.table import Encoder, Policies, Schema

__all__ = ["EVIDENCE_KIND", "plain_classes", "unpacked"]

# What the sums of evidence are of, for each task.
EVIDENCE_KIND: dict[Task, Kind] = {
    "binary": "classes",
    "multiclass": "classes",
    "multilabel": "labels",
    "regression": "values",
}
_WRITTEN_BY_BUNDLE = {
    *("format", "openfate", "versions", "written", "files", "digest"),
    *("classes", "embeddings", "policies", "exclude", "overrides", "pooling"),
    *("task", "target_scale", "backbone", "extrapolator", "recompose"),
    *("n_observed", "numbers", "estimator_format"),
}


def unpacked(bundle: Bundle, source: str) -> tuple[dict[str, Any], NDArray[np.float64], int]:
    """The arguments of a `FeatureBank`, the rows (D',) of each feature, and the number of rows.

    Raises
    ------
    DataFileError
        Where the parts do not fit together; it names the `source`.
    """
    meta = bundle.meta
    try:
        encoder, base = Encoder.from_parts(bundle.schema, bundle.vocabulary), _base_from(bundle)
        arguments = {
            "encoder": encoder,
            "base": base,
            "classes": list(meta["classes"]),
            "embeddings": bool(meta["embeddings"]),
            "evidence": _evidence_from(bundle, base.task),
            "policies": Policies.from_dict(meta["policies"]),
            "exclude": tuple(meta["exclude"]),
            "overrides": Schema.from_json(meta["overrides"]),
            "meta": {k: v for k, v in meta.items() if k not in _WRITTEN_BY_BUNDLE},
        }
        rows = np.array(bundle.state["rows"], dtype=np.float64)
        n_rows = int(bundle.state["n_rows"][0])
    except (InputError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise DataFileError(
            f"{source}: the parts of the bundle do not fit together ({error})."
        ) from None
    if not base.n_observed <= len(rows) <= encoder.n_features:
        raise DataFileError(
            f"{source}: the vocabulary has {encoder.n_features} features, the weights "
            f"{base.n_observed} and the state {len(rows)}; it is damaged."
        )
    return arguments, rows, n_rows


def _base_from(bundle: Bundle) -> Base:
    meta = bundle.meta
    if bundle.estimator is None:
        return Network.from_arrays(bundle.weights, bundle.state, meta)
    estimator = revive(meta["estimator_format"], bundle.estimator, meta["classes"])
    columns, numbers, n_observed = meta["columns"], meta["numbers"], int(meta["n_observed"])
    return Wrapped(estimator, columns, n_observed, meta["task"], numbers)


def _evidence_from(bundle: Bundle, task: Task) -> LiveEvidence | None:
    if "pooling" not in bundle.meta:
        return None
    arrays = {
        name.removeprefix("evidence."): array
        for name, array in bundle.state.items()
        if name.startswith("evidence.")
    }
    pooling = Pooling(**bundle.meta["pooling"])
    return LiveEvidence.from_arrays(arrays, EVIDENCE_KIND[task], pooling)


def plain_classes(classes: Sequence[Any]) -> list[Any]:
    """Classes as values that JSON keeps; refuses others.

    Examples
    --------
    >>> plain_classes([np.int64(3), "a"])
    [3, 'a']
    """
    plain = [c.item() if isinstance(c, np.generic) else c for c in classes]
    for name in plain:
        if not isinstance(name, str | int | float | bool):
            raise InputError(
                f"class {name!r} of type {type(name).__name__} cannot be written: "
                "use text, whole numbers or truth values."
            )
    return plain
