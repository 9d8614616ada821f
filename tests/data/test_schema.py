"""Kinds are inferred alike from every frame library, and JSON gives the schema back."""

from __future__ import annotations

import decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.data.schema import Field, Schema
from openfate.errors import InputError

names = st.text(min_size=1, max_size=5)
fields = st.builds(
    Field,
    names,
    st.sampled_from(["categorical", "multivalued"]),
) | st.builds(
    Field,
    names,
    st.just("numeric"),
    st.integers(1, 50),
    st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)),
)
schemas = st.lists(fields, max_size=6, unique_by=lambda field: field.name).map(Schema)

COLUMNS = {"text": ["a", None], "real": [0.5, None], "whole": [1, 2], "tags": [["a"], None]}
KINDS = ["categorical", "numeric", "categorical", "multivalued"]


@given(schemas)
def test_json_round_trip(schema):
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_kinds_are_inferred_alike_from_every_frame(make):
    schema = Schema.from_frame(make(COLUMNS))
    assert schema.names == tuple(COLUMNS)
    assert [field.kind for field in schema] == KINDS


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series([True]), "categorical"),
        (pl.Series(["a"], dtype=pl.Categorical), "categorical"),
        (pl.Series(["a"], dtype=pl.Enum(["a"])), "categorical"),
        (pl.Series([decimal.Decimal("1.5")]), "numeric"),
        (pl.Series([1.5], dtype=pl.Float32), "numeric"),
        (pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), "multivalued"),
        (pl.Series([None]), "categorical"),
    ],
)
def test_kind_follows_the_column_type(column, kind):
    assert Schema.from_frame(pl.DataFrame({"x": column}))["x"].kind == kind


def test_a_pandas_category_of_floats_is_categorical():
    assert Schema.from_frame(pd.DataFrame({"x": pd.Categorical([1.5, 2.5])}))["x"].kind == (
        "categorical"
    )


def test_a_schema_knows_its_fields():
    schema = Schema([Field("a", "numeric"), Field("b", "categorical")])
    assert (len(schema), schema["b"].kind) == (2, "categorical")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field("", "numeric"), "a field's name must be text that is not empty, not ''."),
        (
            lambda: Field("age", "numerical"),
            "field 'age': unknown kind 'numerical'; did you mean 'numeric'? "
            "(known: categorical, numeric, multivalued).",
        ),
        (
            lambda: Field("age", "numeric", n_buckets=0),
            "field 'age': n_buckets must be a whole number from 1 up, not 0.",
        ),
        (
            lambda: Field("age", "numeric", bounds=(2, 1)),
            "field 'age': bounds must be two finite numbers, the lower first, not (2, 1).",
        ),
        (
            lambda: Schema([Field("a", "numeric"), Field("a", "categorical")]),
            "field 'a' appears twice; names must be unique.",
        ),
        (lambda: Schema(["a"]), "a schema is made of Field objects, not 'a'."),
        (
            lambda: Schema([Field("age", "numeric")])["ages"],
            "the schema has no field 'ages'; did you mean 'age'? (known: age).",
        ),
        (
            lambda: Schema.from_json("{"),
            "the schema is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1).",
        ),
        (
            lambda: Schema.from_json("[" * 100_000),
            "the schema is not JSON: maximum recursion depth exceeded while decoding a JSON array "
            "from a unicode string.",
        ),
        (
            lambda: Schema.from_frame(pl.DataFrame({"a": [1], "": [2]})),
            "column 2 has the empty name ''; rename it or drop it.",
        ),
        (
            lambda: Schema.from_json("[]"),
            'the schema must be a JSON object with a list "fields".',
        ),
        (
            lambda: Schema.from_json('{"fields": [{"name": "a"}]}'),
            "a field needs name and kind (and n_buckets, bounds), not {'name': 'a'}.",
        ),
        (
            lambda: Schema.from_frame([[1]]),
            "expected a pandas, polars or pyarrow frame, not list; give a frame.",
        ),
        (
            lambda: Schema.from_frame(pl.LazyFrame({"a": [1]})),
            "expected a pandas, polars or pyarrow frame, not LazyFrame; call .collect() first.",
        ),
        (
            lambda: Schema.from_frame(pd.DataFrame([[1, 2]])),
            "column name 0 is not text; rename it, e.g. with "
            "frame.columns = frame.columns.map(str).",
        ),
        (
            lambda: Schema.from_frame(pd.DataFrame([[1, 2]], columns=["a", "a"])),
            "column names must be unique: Expected unique column names, got: - 'a' 2 times.",
        ),
    ],
)
def test_what_cannot_be_a_schema_is_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message
