"""An encoder's parts: what they hold, and that parts which do not fit together are refused."""

from __future__ import annotations

import datetime
import io
import json

import polars as pl
import pytest

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema

FRAME = pl.DataFrame(
    {
        "job": ["cook", None],
        "name": ["ann", "ann"],
        "age": [0.0, 10.0],
        "size": [1.0, 3.0],
        "seen": [datetime.time(7), datetime.time(8)],
    }
)
SCHEMA = Schema(
    [
        Field("job", "categorical"),
        Field("name", "categorical", hashed=True),
        Field("age", "numeric", n_buckets=2),
        Field("size", "numeric", numeric="value"),
        Field("seen", "datetime"),
    ]
)


@pytest.fixture
def parts():
    return Encoder(SCHEMA, hash_key=b"key").fit(FRAME).to_parts()


def test_the_parts_are_a_header_for_json_and_a_row_for_each_id(parts):
    header, vocabulary = parts
    assert json.loads(json.dumps(header)) == header
    assert header == {
        "schema": json.loads(SCHEMA.to_json()),
        "missing": "feature",
        "edges": {"age": [0.0, 5.0, 10.0]},
        "scales": {"size": [2.0, 1.0]},
        "hash_key": b"key".hex(),
        "fitted": True,
    }
    assert vocabulary.schema == {"field": pl.Int32, "value": pl.String, "bucket": pl.Int32}
    hashed = vocabulary["value"][2]
    assert vocabulary.rows() == [
        (0, "cook", None),
        (0, None, None),
        (1, hashed, None),
        (2, None, 0),
        (2, None, 1),
        (3, None, 0),
        (4, "hour 7", None),
        (4, "hour 8", None),
    ]


def test_the_parts_survive_json_and_parquet(parts):
    header, vocabulary = parts
    file = io.BytesIO()
    vocabulary.write_parquet(file)
    file.seek(0)
    again = Encoder.from_parts(json.loads(json.dumps(header)), pl.read_parquet(file))
    assert again.to_parts()[0] == header
    assert again.to_parts()[1].equals(vocabulary)
    assert again.encode(FRAME).ids.tolist() == [0, 2, 3, 5, 6, 1, 2, 4, 5, 7]


def test_ids_of_a_field_need_not_lie_together():
    encoder = Encoder(SCHEMA, hash_key=b"key").fit(FRAME)
    encoder = encoder.grow_copy(pl.DataFrame({"job": ["judge"], "age": [5.0], "city": ["Rome"]}))
    encoder = encoder.grow_copy(pl.DataFrame({"job": ["nurse"], "city": [None]}))
    again = Encoder.from_parts(*encoder.to_parts())
    everything = range(encoder.n_features)
    assert [again.decode(j) for j in everything] == [encoder.decode(j) for j in everything]


def test_an_encoder_that_has_seen_no_rows_has_parts_too():
    again = Encoder.from_parts(*Encoder(SCHEMA).to_parts())
    assert again.fit(FRAME).n_features == 8


def changed(header, vocabulary, **changes):
    return {**header, **changes}, vocabulary


def with_row(header, vocabulary, *row):
    extra = pl.DataFrame([row], schema=vocabulary.schema, orient="row")
    return header, pl.concat([vocabulary, extra])


@pytest.mark.parametrize(
    ("tamper", "what"),
    [
        (
            lambda h, v: ({}, v),
            "the header must hold schema, missing, edges, scales, hash_key, fitted",
        ),
        (
            lambda h, v: (None, v),
            "the header must hold schema, missing, edges, scales, hash_key, fitted",
        ),
        (lambda h, v: changed(h, v, missing="drop"), "missing or fitted is not what it must be"),
        (lambda h, v: changed(h, v, fitted=1), "missing or fitted is not what it must be"),
        (
            lambda h, v: (h, v.drop("bucket")),
            "the vocabulary must have the columns field, value and bucket",
        ),
        (
            lambda h, v: (h, v.cast({"field": pl.Int64})),
            "the vocabulary must have the columns field, value and bucket",
        ),
        (lambda h, v: (h, None), "the vocabulary must have the columns field, value and bucket"),
        (lambda h, v: with_row(h, v, None, "a", None), "a feature has no field"),
        (lambda h, v: with_row(h, v, 5, "a", None), "a feature belongs to none of the 5 fields"),
        (lambda h, v: with_row(h, v, -1, "a", None), "a feature belongs to none of the 5 fields"),
        (lambda h, v: changed(h, v, fitted=False), "it has features and is not fitted"),
        (lambda h, v: changed(h, v, hash_key=None), "a field is hashed and there is no hash_key"),
        (
            lambda h, v: changed(h, v, missing="none"),
            "field 'job' has a missing value where missing is 'none'",
        ),
        (lambda h, v: with_row(h, v, 0, "cook", None), "field 'job' has a feature twice"),
        (lambda h, v: with_row(h, v, 0, None, None), "field 'job' has a feature twice"),
        (lambda h, v: with_row(h, v, 2, None, 1), "field 'age' has a feature twice"),
        (
            lambda h, v: with_row(h, v, 0, "a", 1),
            "categorical field 'job' has a feature with a bucket",
        ),
        (
            lambda h, v: with_row(h, v, 2, "a", None),
            "numeric field 'age' has a feature with a value",
        ),
        (lambda h, v: with_row(h, v, 2, None, 2), "field 'age' cannot have the feature 2"),
        (lambda h, v: with_row(h, v, 2, None, -1), "field 'age' cannot have the feature -1"),
        (lambda h, v: with_row(h, v, 3, None, 1), "field 'size' cannot have the feature 1"),
        (
            lambda h, v: with_row(h, v, 4, "hour 24", None),
            "field 'seen' cannot have the feature 'hour 24'",
        ),
        (lambda h, v: with_row(h, v, 1, "ann", None), "field 'name' cannot have the feature 'ann'"),
        (
            lambda h, v: changed(h, v, edges={"age": [0.0, 20.0, 10.0]}),
            "field 'age' cannot have these edges",
        ),
        (
            lambda h, v: changed(h, v, edges={"age": [0.0, 1.0, 2.0, 3.0]}),
            "field 'age' cannot have these edges",
        ),
        (
            lambda h, v: changed(h, v, edges={"job": [0.0, 1.0]}),
            "field 'job' cannot have these edges",
        ),
        (lambda h, v: changed(h, v, edges={}), "field 'age' cannot have the feature 0"),
        (
            lambda h, v: changed(h, v, scales={"size": [0.0, 0.0]}),
            "field 'size' cannot have these scales",
        ),
        (
            lambda h, v: changed(h, v, scales={"age": [0.0, 1.0]}),
            "field 'age' cannot have these scales",
        ),
        (
            lambda h, v: changed(h, v, scales={"size": [1.0]}),
            "ValueError('not enough values to unpack (expected 2, got 1)')",
        ),
        (
            lambda h, v: changed(h, v, hash_key=7),
            "TypeError('fromhex() argument must be str, not int')",
        ),
        (
            lambda h, v: changed(h, v, edges=[1]),
            "AttributeError(\"'list' object has no attribute 'items'\")",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts, tamper, what):
    with pytest.raises(InputError) as error:
        Encoder.from_parts(*tamper(*parts))
    assert str(error.value) == f"these are not an encoder's parts: {what}."


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (
            lambda h, v: changed(h, v, schema={"fields": 1}),
            'the schema must be a JSON object with a list "fields".',
        ),
        (
            lambda h, v: changed(h, v, edges={"ages": [0.0, 1.0]}),
            "the schema has no field 'ages'; did you mean 'age'? "
            "(known: job, name, age, size, seen).",
        ),
        (
            lambda h, v: changed(h, v, hash_key=""),
            "hash_key must be 1 to 64 bytes, not 0 bytes; e.g. secrets.token_bytes(32).",
        ),
    ],
)
def test_faults_within_the_header_are_named(parts, tamper, message):
    with pytest.raises(InputError) as error:
        Encoder.from_parts(*tamper(*parts))
    assert str(error.value) == message
