"""Kinds are inferred alike from every frame library, and JSON gives the schema back."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Field, Schema

names = st.text(min_size=1, max_size=5)
fields = (
    st.builds(Field, names, st.sampled_from(["categorical", "multivalued"]), hashed=st.booleans())
    | st.builds(Field, names, st.just("datetime"))
    | st.builds(
        Field,
        names,
        st.just("numeric"),
        st.integers(1, 50),
        st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)),
        numeric=st.sampled_from(["buckets", "value"]),
    )
)
schemas = st.lists(fields, max_size=6, unique_by=lambda field: field.name).map(Schema)

MOMENT = datetime.datetime(2024, 3, 5, 7, 30)
COLUMNS = {
    "text": ["a", None],
    "real": [0.5, None],
    "whole": [1, 2],
    "tags": [["a"], None],
    "seen": [MOMENT, None],
    "born": [MOMENT.date(), None],
    "took": [datetime.timedelta(seconds=3), None],
}
KINDS = ["categorical", "numeric", "categorical", "multivalued", "datetime", "datetime", "numeric"]


@given(schemas)
def test_json_round_trip(schema):
    assert Schema.from_json(schema.to_json()) == schema


def test_json_from_before_there_were_hashed_fields_is_read():
    text = '{"fields": [{"name": "age", "kind": "numeric", "n_buckets": 4, "bounds": [0, 1]}]}'
    assert Schema.from_json(text) == Schema([Field("age", "numeric", 4, (0.0, 1.0))])


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
        (pl.Series([None], dtype=pl.Float64), "categorical"),
        (pl.Series([None], dtype=pl.Duration), "categorical"),
        (pl.Series([None], dtype=pl.List(pl.String)), "multivalued"),
        (pl.Series([None], dtype=pl.Date), "datetime"),
        (pl.Series([], dtype=pl.Float64), "numeric"),
        (pl.Series([datetime.time(7)]), "datetime"),
        (pl.Series([MOMENT], dtype=pl.Datetime("ns", "Asia/Tokyo")), "datetime"),
    ],
    ids=str,
)
def test_kind_follows_the_column_type(column, kind):
    assert Schema.from_frame(pl.DataFrame({"x": column}))["x"].kind == kind


def test_a_pandas_category_of_floats_is_categorical():
    assert Schema.from_frame(pd.DataFrame({"x": pd.Categorical([1.5, 2.5])}))["x"].kind == (
        "categorical"
    )


def test_a_pandas_category_of_dates_is_categorical():
    frame = pd.DataFrame({"x": pd.Categorical(pd.to_datetime(["2024-01-02", None]))})
    assert Schema.from_frame(frame)["x"].kind == "categorical"


# ---- integers ----------------------------------------------------------------------------------

SPREAD = np.arange(200) ** 2


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("age", [*range(32)] * 9, "categorical"),
        ("age", [*range(33)] * 9, "numeric"),
        ("age", range(99), "numeric"),
        ("row", range(100), "categorical"),
        ("row", range(5, 400, 2), "categorical"),
        ("row", [*range(100), 7], "numeric"),
        ("price", SPREAD, "numeric"),
        *(
            (name, SPREAD, "categorical")
            for name in ["id", "user_id", "userID", "UserId", "ZIPCode"]
        ),
        *(
            (name, SPREAD, "categorical")
            for name in ["order No", "key-2", "postcode", "phone_number"]
        ),
        *((name, SPREAD, "numeric") for name in ["paid", "monkey", "number_of_rooms", "volcano"]),
    ],
)
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_integers_are_labels_where_they_are_few_or_look_like_ids(make, name, cells, kind):
    assert Schema.from_frame(make({name: list(cells)}))[name].kind == kind


@pytest.mark.parametrize("cells", [[*range(33)], [1, 2], [2**60, *range(40)]])
def test_integers_with_missing_cells_are_the_same_in_pandas_and_polars(cells):
    cells = [*cells, None]
    kinds = {
        Schema.from_frame(frame)["x"].kind
        for frame in (
            pd.DataFrame({"x": cells}),
            pd.DataFrame({"x": pd.Series(cells, dtype="Int64")}),
            pl.DataFrame({"x": cells}),
            pa.table({"x": cells}),
        )
    }
    assert kinds == {"numeric" if len(cells) > 32 else "categorical"}


def test_whole_floats_without_missing_cells_are_numbers():
    assert Schema.from_frame(pl.DataFrame({"x": [1.0, 2.0]}))["x"].kind == "numeric"


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_any_integers_have_a_kind(cells):
    frame = pl.DataFrame({"x": pl.Series(cells, dtype=pl.Int64)})
    assert Schema.from_frame(frame)["x"].kind in ("categorical", "numeric")


# ---- what is known better ----------------------------------------------------------------------


def test_overrides_replace_what_is_guessed_and_others_are_left_alone():
    frame = pl.DataFrame({"job": ["a"], "floor": [1], "age": [0.5]})
    floor = Field("floor", "numeric", n_buckets=3)
    schema = Schema.from_frame(frame, [floor, Field("absent", "datetime")], numeric="value")
    assert list(schema) == [
        Field("job", "categorical"),
        floor,
        Field("age", "numeric", numeric="value"),
    ]
    assert Schema.from_frame(frame, schema) == schema


def test_a_schema_knows_its_fields():
    schema = Schema([Field("a", "numeric"), Field("b", "categorical")])
    assert (len(schema), schema["b"].kind) == (2, "categorical")
    assert "a" in schema and "c" not in schema
    assert Field("a", "numeric") in schema and Field("a", "categorical") not in schema


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Schema.from_frame(pl.DataFrame(), numeric="raw"),
            "numeric='raw' is unknown: choose 'buckets', 'value', 'linear' or 'log'.",
        ),
        (
            lambda: Schema([Field("a", "numeric"), Field("a", "categorical")]),
            "field 'a' appears twice; names must be unique.",
        ),
        (
            lambda: Schema(["a"]),
            "a schema is made of Field objects, not 'a'; give Field(name, kind).",
        ),
        (
            lambda: Schema([Field("age", "numeric")])["ages"],
            "the schema has no field 'ages'; did you mean 'age'? (known: age).",
        ),
        (
            lambda: Schema.from_json("{"),
            "the schema is not JSON (Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)); give what `to_json` wrote.",
        ),
        (
            lambda: Schema.from_json("[" * 100_000),
            "the schema is not JSON (maximum recursion depth exceeded while decoding a JSON array "
            "from a unicode string); give what `to_json` wrote.",
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
            "a field needs name and kind (and n_buckets, bounds, hashed, numeric, scale, n_knots, "
            "knots, jumps), not {'name': 'a'}.",
        ),
    ],
)
def test_what_cannot_be_a_schema_is_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message
