"""The encoder over frame libraries, growth, corners and bad input."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema

SCHEMA = Schema(
    [
        Field("job", "categorical"),
        Field("age", "numeric", n_buckets=4),
        Field("tags", "multivalued"),
    ]
)


NUMERIC = Schema([Field("x", "numeric")])
CATEGORICAL = Schema([Field("x", "categorical")])


def parts(encoder: Encoder) -> tuple:
    header, vocabulary = encoder.to_parts()
    return header, vocabulary.rows()


# ---- frames ------------------------------------------------------------------------------------

CELLS = {
    "job": ["cook", None, "pilot", "cook"],
    "floor": [1, 2, None, 10],
    "age": [20.5, 60.0, None, 33.0],
    "member": [True, None, False, True],
    "tags": [["a", "b"], None, [], ["b", "b"]],
}


@pytest.mark.parametrize("missing", ["feature", "none"])
@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_pandas_and_pyarrow_encode_as_polars_does(make, missing):
    kinds = Schema.from_frame(pl.DataFrame(CELLS))
    ours = Encoder(kinds, missing).fit(pl.DataFrame(CELLS))
    theirs = Encoder(kinds, missing).fit(make(CELLS))
    assert parts(ours) == parts(theirs)
    assert np.array_equal(
        ours.encode(make(CELLS)).to_dense(), theirs.encode(pl.DataFrame(CELLS)).to_dense()
    )


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 2, None]),
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series(["1", "2", None]),
        pd.Series(["1", "2", None], dtype=object),
        pd.Series(pd.Categorical([1, 2, None])),
        pd.Series(pd.Categorical([1.0, 2.0, None])),
        pd.Series([1, "2", None], dtype=object),
        pd.Series([1.0, "2", math.nan], dtype=object),
        pl.Series([1, 2, None], dtype=pl.Int8),
        pl.Series([1, 2, None], dtype=pl.Float32),
        pl.Series(["1", "2", None], dtype=pl.Categorical),
        pl.Series(["1", "2", None], dtype=pl.Enum(["2", "1"])),
        pa.array([1, 2, None]),
        pa.array([1, 2, None]).dictionary_encode(),
    ],
    ids=str,
)
def test_one_is_one_whatever_its_type(column):
    make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
    frame = make[type(column).__module__.split(".")[0]]({"x": column})
    encoder = Encoder(Schema([Field("x", "categorical")])).fit(frame)
    assert [encoder.decode(j)[1] for j in range(encoder.n_features)] == ["1", "2", None]
    assert encoder.encode(frame).ids.tolist() == [0, 1, 2]


def test_text_is_taken_as_it_is():
    frame = pl.DataFrame({"x": ["1", "1.0", "01", " 1", ""]})
    assert Encoder(Schema.from_frame(frame)).fit(frame).n_features == 5


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pl.Series([0.25, 1e300, -0.0]), ["0", "0.25", "1e+300"]),
        (pl.Series([datetime.date(2024, 1, 2)]), ["2024-01-02"]),
        (pl.Series([2**62 + 1]), ["4611686018427387905"]),
        (pl.Series([datetime.timedelta(seconds=1)]), ["1000000"]),
        (pd.Series(pd.period_range("2024-01", periods=1, freq="M")), ["2024-01"]),
        (pd.Series([2**70, None], dtype=object), [str(2**70)]),
        (pd.Series(pd.arrays.SparseArray([0, 1])), ["0", "1"]),
        (pl.Series([Decimal("1.00"), Decimal("-0.50"), Decimal(100)]), ["-0.5", "1", "100"]),
        (pl.Series([Decimal(10**17), Decimal(10**17 + 1)]), [str(10**17), str(10**17 + 1)]),
        (pd.Series([Decimal("1.00"), Decimal(10**45)], dtype=object), ["1", str(10**45)]),
        (pd.Series([Decimal("2.50"), "a"], dtype=object), ["2.5", "a"]),
        (pl.Series([1000, 1001, 1002]).cast(pl.Duration("ns")), ["1", "1001ns", "1002ns"]),
        (
            pl.Series([1000, 1001, None]).cast(pl.Datetime("ns")),
            ["1970-01-01 00:00:00.000001", "1970-01-01 00:00:00.000001001"],
        ),
    ],
    ids=str,
)
def test_categories_of_any_type_have_a_text(column, text):
    frame = (
        pd.DataFrame({"x": column})
        if isinstance(column, pd.Series)
        else pl.DataFrame({"x": column})
    )
    encoder = Encoder(Schema([Field("x", "categorical")]), "none").fit(frame)
    assert [encoder.decode(j)[1] for j in range(encoder.n_features)] == text


def test_times_in_nanoseconds_and_microseconds_are_the_same_value():
    moment = pl.DataFrame({"x": [datetime.datetime(2024, 1, 2, 3, 4, 5)]})
    encoder = Encoder(CATEGORICAL).fit(moment)
    assert encoder.encode(moment.cast(pl.Datetime("ns"))).ids.tolist() == [0]


def test_frames_are_not_changed():
    frame = pd.DataFrame(CELLS)
    copy = frame.copy(deep=True)
    Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    pd.testing.assert_frame_equal(frame, copy)


# ---- open world --------------------------------------------------------------------------------


@pytest.fixture
def encoder():
    frame = pl.DataFrame({"job": ["cook", "pilot", None], "age": [0.0, 10.0, None]})
    return Encoder(Schema([Field("job", "categorical"), Field("age", "numeric")])).fit(frame)


def test_unknown_and_missing_are_different(encoder):
    X = encoder.encode(pl.DataFrame({"job": ["judge", None, "cook"]}))
    assert [encoder.decode(j) for j in X.ids] == [("job", None), ("job", "cook")]
    assert X.row_degree.tolist() == [0, 1, 1]


def test_columns_may_be_absent_unknown_and_reordered(encoder):
    full = encoder.encode(pl.DataFrame({"age": [0.0], "city": ["Rome"], "job": ["cook"]}))
    assert (
        full.ids.tolist()
        == encoder.encode(pl.DataFrame({"job": ["cook"], "age": [0.0]})).ids.tolist()
    )
    assert encoder.encode(pl.DataFrame({"city": ["Rome", "Oslo"]})).row_degree.tolist() == [0, 0]
    assert encoder.encode(pd.DataFrame(index=range(3))).n_rows == 3


def test_numbers_beyond_the_range_are_clipped_even_infinite_ones(encoder):
    cells = [-5.0, 0.0, -math.inf, 99.0, 10.0, math.inf]
    ids = encoder.encode(pl.DataFrame({"age": cells})).ids.tolist()
    assert ids[:3] == [ids[0]] * 3
    assert ids[3:] == [ids[3]] * 3


def test_a_bucket_without_rows_has_no_feature_until_it_grows(encoder):
    between = pl.DataFrame({"age": [5.0]})
    assert encoder.encode(between).nnz == 0
    encoder = encoder.grow_copy(between)
    assert encoder.decode(6) == ("age", (5.0, 6.0))


def test_a_new_numeric_column_takes_its_edges_from_that_frame(encoder):
    encoder = encoder.grow_copy(pl.DataFrame({"size": [100.0, 200.0]}))
    assert encoder.fields == ("job", "age", "size")
    assert [encoder.decode(j)[1] for j in (6, 7)] == [(100.0, 110.0), (190.0, 200.0)]
    assert encoder.field_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_column_without_a_name_is_refused_and_changes_nothing(encoder):
    """Polars renamed it to "column_0", or failed where the frame had such a column already."""
    before = parts(encoder)
    with pytest.raises(InputError) as error:
        encoder = encoder.grow_copy(pl.DataFrame({"": [1], "column_0": [2], "column_1": [3]}))
    assert str(error.value) == "column 1 has the empty name ''; rename it or drop it."
    assert parts(encoder) == before


@pytest.mark.parametrize("use", [Encoder.grow_copy, Encoder.encode])
def test_text_in_a_column_that_began_without_values_says_what_to_declare(use):
    empty = pd.DataFrame({"x": [math.nan]})
    with pytest.raises(InputError) as error:
        use(Encoder(NUMERIC).fit(empty), pd.DataFrame({"x": ["a"]}))
    assert str(error.value) == (
        "numeric field 'x' holds 'a'; give numbers, or declare it categorical."
    )


def test_a_given_schema_says_what_a_new_column_is(encoder):
    later = pl.DataFrame({"floor": [1, 2], "id": [7, 8]})
    encoder = encoder.grow_copy(later, Schema([Field("floor", "numeric", n_buckets=2)]))
    assert encoder.fields == ("job", "age", "floor")
    assert encoder.decode(6) == ("floor", (1.0, 1.5))


def test_a_frame_that_is_refused_changes_nothing(encoder):
    before = parts(encoder)
    with pytest.raises(InputError):
        encoder = encoder.grow_copy(pl.DataFrame({"job": ["judge"], "size": [math.inf]}))
    assert parts(encoder) == before


def test_edges_come_with_the_first_number_that_is_seen():
    empty = pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float64})
    encoder = Encoder(NUMERIC, "none").fit(empty)
    assert encoder.encode(pl.DataFrame({"x": [1.0]})).nnz == 0
    encoder = encoder.grow_copy(pl.DataFrame({"x": [0.0, 1.0]}))
    assert [encoder.decode(j)[1] for j in (0, 1)] == [(0.0, 0.1), (0.9, 1.0)]


def test_bounds_are_taken_from_the_schema():
    encoder = Encoder(Schema([Field("x", "numeric", n_buckets=4, bounds=(0, 16))]))
    encoder.fit(pl.DataFrame({"x": [3, 4]}))
    assert [encoder.decode(j)[1] for j in (0, 1)] == [(0.0, 4.0), (4.0, 8.0)]


# ---- corners -----------------------------------------------------------------------------------


def test_a_constant_column_has_one_bucket():
    frame = pl.DataFrame({"x": [3.0, 3.0]})
    encoder = Encoder(Schema.from_frame(frame)).fit(frame)
    assert encoder.encode(pl.DataFrame({"x": [2.0, 3.0, 4.0]})).ids.tolist() == [0, 0, 0]
    assert encoder.decode(0) == ("x", (3.0, 3.0))


@pytest.mark.parametrize("n_rows", [0, 1])
def test_few_rows_are_enough(n_rows):
    frame = pl.DataFrame(CELLS).head(n_rows)
    encoder = Encoder(Schema.from_frame(frame)).fit(frame)
    assert encoder.encode(frame).n_rows == n_rows
    assert encoder.n_features == 6 * n_rows


@pytest.mark.parametrize(("missing", "n_features"), [("feature", 3), ("none", 0)])
def test_columns_of_nulls_are_missing_everywhere(missing, n_features):
    frame = pl.DataFrame({"job": [None], "age": [None], "tags": [None]})
    encoder = Encoder(SCHEMA, missing).fit(frame)
    assert encoder.n_features == encoder.encode(frame).nnz == n_features


def test_a_row_with_one_id_for_each_field_takes_the_fixed_width_path():
    frame = pl.DataFrame({"b": ["x", "y"], "a": ["u", "u"]})
    X = Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    assert X.width == 2
    assert X.ids.tolist() == [0, 2, 1, 2]


def test_a_value_repeated_in_a_cell_counts_once():
    frame = pl.DataFrame({"tags": [["a", "a", None], []]})
    X = Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    assert X.row_degree.tolist() == [1, 0]


def test_sets_and_arrays_are_lists_too():
    schema = Schema([Field("tags", "multivalued")])
    encoder = Encoder(schema).fit(pd.DataFrame({"tags": [{"a", "b"}, None]}))
    array = pl.DataFrame({"tags": [["b", "a"]]}, schema={"tags": pl.Array(pl.String, 2)})
    assert encoder.encode(array).ids.tolist() == [0, 1]


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "frame", "message"),
    [
        (
            NUMERIC,
            pl.DataFrame({"y": [1], "z": [1]}),
            "field 'x' is not a column of the frame; columns: y, z.",
        ),
        (
            NUMERIC,
            pl.DataFrame({"x": [1.0, -math.inf]}),
            "numeric field 'x' holds -inf, which leaves no edges for its buckets; "
            "make it finite or missing.",
        ),
        (
            NUMERIC,
            pl.DataFrame({"x": ["1", "two"]}),
            "numeric field 'x' holds 'two'; give numbers, or declare it categorical.",
        ),
        (
            NUMERIC,
            pl.DataFrame({"x": [[1]]}),
            "numeric field 'x' holds values of type List(Int64); give numbers, "
            "or declare it categorical.",
        ),
        (
            CATEGORICAL,
            pl.DataFrame({"x": [[1]]}),
            "field 'x' holds values of type List(Int64); give strings, numbers, dates or "
            "booleans, or declare it multivalued where every cell is a list of those.",
        ),
        (
            CATEGORICAL,
            pl.DataFrame({"x": [b"\xff"]}),
            "field 'x' holds values of type Binary that are not text; convert them to text first.",
        ),
        (
            CATEGORICAL,
            pd.DataFrame({"x": [{"a": 1}, 2]}),
            "field 'x' mixes dict values with others; give every cell one type.",
        ),
        *(
            (
                Schema([Field("x", kind)]),
                pd.DataFrame({"x": pd.Series(cells, dtype=object)}),
                "field 'x' holds 'a\\ud800', which is not valid Unicode; replace or drop it.",
            )
            for kind, cells in [
                ("categorical", ["a\ud800"]),
                ("categorical", [1, "a\ud800"]),
                ("multivalued", [["a\ud800"]]),
            ]
        ),
        (
            CATEGORICAL,
            pd.DataFrame([[1]], columns=pd.Index(["\ud800"], dtype=object)),
            "column name '\\ud800' is not valid Unicode; rename it.",
        ),
        (
            Schema([Field("x", "multivalued")]),
            pl.DataFrame({"x": ["a"]}),
            "multivalued field 'x' holds values of type String; give a list in every cell, "
            "or declare it categorical.",
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(schema, frame, message):
    with pytest.raises(InputError) as error:
        Encoder(schema).fit(frame)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda encoder: encoder.fit(pl.DataFrame()),
            "this encoder is fitted; ids never change: call grow_copy, or make another.",
        ),
        (lambda encoder: encoder.decode(6), "feature id 6 is outside 0..5."),
        (lambda encoder: encoder.decode(-1), "feature id -1 is outside 0..5."),
        (
            lambda encoder: Encoder(SCHEMA, "drop"),
            'missing must be "feature" or "none", not \'drop\'.',
        ),
        (
            lambda encoder: encoder.grow_copy(pl.DataFrame(), columns="city"),
            "columns must be a list of names, not the string 'city'.",
        ),
        (
            lambda encoder: encoder.find("jobs", "cook"),
            "the schema has no field 'jobs'; did you mean 'job'? (known: job, age).",
        ),
        (
            lambda encoder: encoder.find("age", "old"),
            "numeric field 'age' holds 'old'; give numbers, or declare it categorical.",
        ),
    ],
)
def test_wrong_use_is_refused(encoder, call, message):
    with pytest.raises(InputError) as error:
        call(encoder)
    assert str(error.value) == message


def test_a_known_field_cannot_change_its_kind(encoder):
    with pytest.raises(InputError, match=r"field 'age' is known as Field.*cannot become Field"):
        encoder = encoder.grow_copy(
            pl.DataFrame({"age": ["old"]}), Schema([Field("age", "categorical")])
        )


@pytest.mark.parametrize("use", [Encoder.grow_copy, Encoder.encode, Encoder.unseen])
def test_an_encoder_that_has_seen_no_rows_knows_nothing(use):
    with pytest.raises(InputError) as error:
        use(Encoder(CATEGORICAL), pl.DataFrame({"x": ["cook"]}))
    assert str(error.value) == "this encoder has seen no rows: call fit first."
