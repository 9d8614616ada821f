"""An encoder as plain parts, a JSON-able header and a frame of its vocabulary, and back.

The frame has one row for each id, in order: the index of the field, and the value's text (or hash)
or the bucket's number; neither for a missing cell.  Parts that do not fit together are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.table.buckets import Edges, Scale
from openfate.table.codec import Codec
from openfate.table.dates import PARTS
from openfate.table.hashing import HASH_LENGTH, checked_key
from openfate.table.schema import Field, Schema
from openfate.table.vocabulary import Layer, Vocabulary

__all__ = ["State", "state_of", "to_parts"]

COLUMNS = {"field": pl.Int32(), "value": pl.String(), "bucket": pl.Int32()}
_HEADER = ("schema", "missing", "edges", "scales", "hash_key", "fitted")
_HASH = re.compile(rf"[0-9a-f]{{{HASH_LENGTH}}}")


@dataclass(frozen=True, eq=False)
class State:
    """All that an encoder is."""

    schema: Schema
    missing: Literal["feature", "none"]
    hash_key: bytes | None
    codecs: dict[str, Codec]
    field_of: NDArray[np.int32]  # (D,)
    fitted: bool


def to_parts(state: State) -> tuple[dict[str, Any], pl.DataFrame]:
    """Take an encoder's state apart."""
    measures = {name: c.measure for name, c in state.codecs.items() if c.measure is not None}
    scales = {n: [m.mean, m.std] for n, m in measures.items() if isinstance(m, Scale)}
    edges = {n: m.tolist() for n, m in measures.items() if not isinstance(m, Scale)}
    header = {
        "schema": json.loads(state.schema.to_json()),
        "missing": state.missing,
        "edges": edges,
        "scales": scales,
        "hash_key": None if state.hash_key is None else state.hash_key.hex(),
        "fitted": state.fitted,
    }
    return header, _vocabulary_frame(state)


def _vocabulary_frame(state: State) -> pl.DataFrame:
    ids, texts, buckets = [np.empty(0, np.int32)], [], []
    for codec in state.codecs.values():
        vocabulary = codec.vocabulary
        for layer in vocabulary.layers:
            ids.append(layer.ids)
            is_text = layer.values.dtype == pl.String
            nothing = pl.Series([None], dtype=pl.Null).new_from_index(0, len(layer.ids))
            texts.append(layer.values if is_text else nothing.cast(pl.String))
            buckets.append(nothing.cast(pl.Int32) if is_text else layer.values)
        if vocabulary.missing >= 0:
            ids.append(np.array([vocabulary.missing], np.int32))
            texts.append(pl.Series([None], dtype=pl.String))
            buckets.append(pl.Series([None], dtype=pl.Int32))
    order = pl.Series(np.argsort(np.concatenate(ids), kind="stable"))
    value = pl.concat([pl.Series([], dtype=pl.String), *texts])[order]
    bucket = pl.concat([pl.Series([], dtype=pl.Int32), *buckets])[order]
    return pl.DataFrame({"field": state.field_of, "value": value, "bucket": bucket}, COLUMNS)


# ---- back --------------------------------------------------------------------------------------


def state_of(header: Mapping[str, Any], vocabulary: pl.DataFrame) -> State:
    """Put the parts together; raises InputError where they cannot be an encoder's."""
    try:
        return _state_of(header, vocabulary)
    except InputError:
        raise
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(f"these are not an encoder's parts: {error!r}.") from None


def _state_of(header: Mapping[str, Any], vocabulary: pl.DataFrame) -> State:
    _check_shape(header, vocabulary)
    schema = Schema.from_json(json.dumps(header["schema"]))
    key = None if header["hash_key"] is None else checked_key(bytes.fromhex(header["hash_key"]))
    if key is None and any(field.hashed for field in schema):
        raise _refusal("a field is hashed and there is no hash_key")
    measures = _measures(header, schema)
    field_of = vocabulary["field"].to_numpy()
    if len(field_of) and not (0 <= field_of.min() and field_of.max() < len(schema)):
        raise _refusal(f"a feature belongs to none of the {len(schema)} fields")
    if len(field_of) and not header["fitted"]:
        raise _refusal("it has features and is not fitted")
    codecs = {}
    for field, ids in zip(schema, _ids_by_field(field_of, len(schema)), strict=True):
        words = _vocabulary(field, measures.get(field.name), ids, vocabulary[ids])
        if words.missing >= 0 and header["missing"] == "none":
            raise _refusal(f"field {field.name!r} has a missing value where missing is 'none'")
        codecs[field.name] = Codec(
            field,
            header["missing"] == "feature",
            key if field.hashed else None,
            words,
            measures.get(field.name),
        )
    return State(schema, header["missing"], key, codecs, field_of.copy(), header["fitted"])


def _check_shape(header: Mapping[str, Any], vocabulary: pl.DataFrame) -> None:
    if not isinstance(header, Mapping) or set(header) != set(_HEADER):
        raise _refusal(f"the header must hold {', '.join(_HEADER)}")
    if header["missing"] not in ("feature", "none") or not isinstance(header["fitted"], bool):
        raise _refusal("missing or fitted is not what it must be")
    if not isinstance(vocabulary, pl.DataFrame) or dict(vocabulary.schema) != COLUMNS:
        raise _refusal("the vocabulary must have the columns field, value and bucket")
    if vocabulary["field"].null_count():
        raise _refusal("a feature has no field")


def _measures(header: Mapping[str, Any], schema: Schema) -> dict[str, Edges | Scale]:
    measures: dict[str, Edges | Scale] = {}
    for name, numbers in header["edges"].items():
        edges, field = np.array(numbers, dtype=np.float64), schema[name]
        is_right = (field.kind, field.numeric) == ("numeric", "buckets") and edges.ndim == 1
        is_right = is_right and len(edges) in (2, field.n_buckets + 1)
        if not (is_right and np.isfinite(edges).all() and (edges[1:] >= edges[:-1]).all()):
            raise _refusal(f"field {name!r} cannot have these edges")
        measures[name] = edges
    for name, numbers in header["scales"].items():
        mean, std = (float(number) for number in numbers)
        is_right = schema[name].numeric == "value" and std > 0
        if not (is_right and np.isfinite([mean, std]).all()):
            raise _refusal(f"field {name!r} cannot have this scale")
        measures[name] = Scale(mean, std)
    return measures


def _ids_by_field(field_of: NDArray[np.int32], n_fields: int) -> list[NDArray[np.int64]]:
    order = np.argsort(field_of, kind="stable")
    ends = np.cumsum(np.bincount(field_of, minlength=n_fields))
    return np.split(order, ends[:-1]) if n_fields else []


def _vocabulary(
    field: Field, measure: Edges | Scale | None, ids: NDArray[np.int64], rows: pl.DataFrame
) -> Vocabulary:
    kept, other = ("bucket", "value") if field.kind == "numeric" else ("value", "bucket")
    if rows[other].null_count() < len(rows):
        raise _refusal(f"{field.kind} field {field.name!r} has a feature with a {other}")
    is_missing = rows[kept].is_null().to_numpy()
    values, missing = rows[kept].drop_nulls(), ids[is_missing]
    if len(missing) > 1 or values.n_unique() < len(values):
        raise _refusal(f"field {field.name!r} has a feature twice")
    _check_values(field, measure, values)
    layer = Layer(values, ids[~is_missing].astype(np.int32))
    return Vocabulary((layer,) if len(values) else (), int(missing[0]) if len(missing) else -1)


def _check_values(field: Field, measure: Edges | Scale | None, values: pl.Series) -> None:
    odd: object = None
    if field.kind == "numeric" and len(values):
        n_buckets = 0 if measure is None else 1 if isinstance(measure, Scale) else len(measure) - 1
        odd = next((b for b in values if not 0 <= b < n_buckets), None)
    elif field.kind == "datetime":
        odd = next((text for text in values if text not in PARTS), None)
    elif field.hashed:
        odd = next((text for text in values if not _HASH.fullmatch(text)), None)
    if odd is not None:
        raise _refusal(f"field {field.name!r} cannot have the feature {odd!r}")


def _refusal(what: str) -> InputError:
    return InputError(f"these are not an encoder's parts: {what}.")
