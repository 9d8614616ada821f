"""Each kind of field: how cells become features, and which cells it refuses."""

from __future__ import annotations

import datetime
import hashlib
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema
from openfate.table.fields import Scale

TEXT, LIST = Field("x", "categorical"), Field("x", "multivalued")
NUMBER, VALUE = Field("x", "numeric"), Field("x", "numeric", numeric="value")
WHEN = Field("x", "datetime")


def decoded(encoder: Encoder) -> list:
    return [encoder.decode(j)[1] for j in range(encoder.n_features)]


def fitted(frame, field: Field, **settings) -> Encoder:
    return Encoder(Schema([field]), **settings).fit(frame)


# ---- a field ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field("", "numeric"), "a field's name must be a non-empty string, not ''."),
        (
            lambda: Field("age", "numerical"),
            "field 'age': unknown kind 'numerical'; did you mean 'numeric'? "
            "(known: categorical, numeric, multivalued, datetime).",
        ),
        (
            lambda: Field("age", ["numeric"]),
            "field 'age': unknown kind ['numeric']; did you mean 'numeric'? "
            "(known: categorical, numeric, multivalued, datetime).",
        ),
        (
            lambda: Field("age", "numeric", n_buckets=0),
            "field 'age': n_buckets must be an integer from 1 up, not 0.",
        ),
        (
            lambda: Field("age", "numeric", bounds=(2, 1)),
            "field 'age': bounds must be two finite numbers, the lower first, not (2, 1).",
        ),
        (
            lambda: Field("age", "numeric", hashed=True),
            "field 'age': a numeric field holds no values that could be hashed; "
            "declare it categorical or multivalued.",
        ),
        (
            lambda: Field("job", "categorical", hashed=1),
            "field 'job': hashed must be True or False, not 1.",
        ),
        (
            lambda: Field("age", "numeric", numeric="raw"),
            'field \'age\': numeric must be "buckets", "value", "linear" or "log", not \'raw\'.',
        ),
        (
            lambda: Field("job", "categorical", numeric="value"),
            "field 'job': a categorical field cannot have numeric=\"value\"; declare it numeric.",
        ),
    ],
)
def test_what_cannot_be_a_field_is_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message


def test_a_scale_can_be_given_and_survives_json():
    field = Field("age", "numeric", numeric="value", scale=(40, 10))
    assert Schema.from_json(Schema([field]).to_json())["age"].scale == (40.0, 10.0)
    for scale in ((1, 0), (1, float("nan")), (1,), "ab"):
        with pytest.raises(InputError, match="a finite mean and a deviation above 0"):
            Field("age", "numeric", numeric="value", scale=scale)


@pytest.mark.parametrize(
    ("field", "frame", "message"),
    [
        (
            NUMBER,
            pl.DataFrame({"x": [1.0, -math.inf]}),
            "numeric field 'x' holds -inf, which leaves no edges for its buckets; "
            "make it finite or missing.",
        ),
        (
            NUMBER,
            pl.DataFrame({"x": ["1", "two"]}),
            "numeric field 'x' holds 'two'; give numbers, or declare it categorical.",
        ),
        (
            NUMBER,
            pl.DataFrame({"x": [[1]]}),
            "numeric field 'x' holds values of type List(Int64); give numbers, "
            "or declare it categorical.",
        ),
        (
            TEXT,
            pl.DataFrame({"x": [[1]]}),
            "field 'x' holds values of type List(Int64); give strings, numbers, dates or "
            "booleans, or declare it multivalued where every cell is a list of those.",
        ),
        (
            TEXT,
            pl.DataFrame({"x": [b"\xff"]}),
            "field 'x' holds values of type Binary that are not text; convert them to text first.",
        ),
        (
            TEXT,
            pd.DataFrame({"x": [{"a": 1}, 2]}),
            "field 'x' mixes dict values with others; give every cell one type.",
        ),
        (
            LIST,
            pl.DataFrame({"x": ["a"]}),
            "multivalued field 'x' holds values of type String; give a list in every cell, "
            "or declare it categorical.",
        ),
        (
            WHEN,
            pl.DataFrame({"x": ["2024-03-05", "yesterday"]}),
            "datetime field 'x' holds 'yesterday'; give dates and times in ISO form, "
            "e.g. 2024-03-05 or 2024-03-05T07:30, or declare it categorical.",
        ),
        (
            WHEN,
            pl.DataFrame({"x": ["2024-02-30"]}),
            "datetime field 'x' holds '2024-02-30'; give dates and times in ISO form, "
            "e.g. 2024-03-05 or 2024-03-05T07:30, or declare it categorical.",
        ),
        (
            WHEN,
            pl.DataFrame({"x": [1709623800]}),
            "datetime field 'x' holds values of type Int64; give dates, times or ISO text, "
            "or declare it numeric.",
        ),
    ],
)
def test_cells_that_do_not_fit_are_refused(field, frame, message):
    with pytest.raises(InputError) as error:
        fitted(frame, field)
    assert str(error.value) == message


# ---- hashed ----------------------------------------------------------------------------------


PEOPLE = pl.DataFrame({"x": ["ann", "bob", "cy", "bob", None]})
HASHED = Field("x", "categorical", hashed=True)


def test_a_hashed_vocabulary_holds_keyed_hashes_and_no_text():
    encoder = fitted(PEOPLE, HASHED, hash_key=b"secret")
    hashes = {
        hashlib.blake2b(name.encode(), digest_size=16, key=b"secret").hexdigest()
        for name in ("ann", "bob", "cy")
    }
    assert {*decoded(encoder)} == {*hashes, None}
    assert "ann" not in str(encoder.to_parts())


def test_hashed_ids_depend_neither_on_the_key_nor_on_the_order_of_the_rows():
    one, other = fitted(PEOPLE, HASHED), fitted(PEOPLE.reverse(), HASHED)
    assert decoded(one)[:3] != decoded(other)[:3]
    assert one.encode(PEOPLE).ids.tolist() == other.encode(PEOPLE).ids.tolist() == [2, 0, 1, 0, 3]
    later = pl.DataFrame({"x": ["dan", "eve", "ann"]})
    one, other = one.grow_copy(later), other.grow_copy(later)
    assert one.encode(later).ids.tolist() == other.encode(later).ids.tolist()


def test_a_hashed_field_encodes_as_a_plain_one_but_for_the_order():
    plain, hidden = fitted(PEOPLE, Field("x", "categorical")), fitted(PEOPLE, HASHED)
    pairs = set(zip(plain.encode(PEOPLE).ids, hidden.encode(PEOPLE).ids, strict=True))
    assert len(pairs) == 4
    assert hidden.encode(pl.DataFrame({"x": ["zoe"]})).nnz == 0


def test_lists_can_be_hashed():
    frame = pl.DataFrame({"x": [["ann", "bob"], ["bob", None], None]})
    encoder = fitted(frame, Field("x", "multivalued", hashed=True))
    assert encoder.encode(frame).row_degree.tolist() == [2, 1, 1]
    assert [len(value) for value in decoded(encoder)[:2]] == [32, 32]


def test_a_random_key_is_kept_with_the_encoder():
    encoder = fitted(PEOPLE, HASHED)
    again = Encoder.from_parts(*encoder.to_parts())
    assert again.encode(PEOPLE).ids.tolist() == encoder.encode(PEOPLE).ids.tolist()
    assert encoder.to_parts()[0]["hash_key"] != fitted(PEOPLE, HASHED).to_parts()[0]["hash_key"]


def test_there_is_no_key_until_a_field_needs_one():
    frame = pl.DataFrame({"x": ["ann"]})
    encoder = fitted(frame, Field("x", "categorical"))
    assert encoder.to_parts()[0]["hash_key"] is None
    encoder = encoder.grow_copy(
        pl.DataFrame({"y": ["bob"]}), Schema([Field("y", "categorical", hashed=True)])
    )
    assert len(bytes.fromhex(encoder.to_parts()[0]["hash_key"])) == 32


def test_a_hashed_value_is_found_by_its_text_and_by_its_hash():
    encoder = fitted(PEOPLE, HASHED)
    assert encoder.find("x", "ann") == encoder.find("x", encoder.decode(2)[1]) == 2
    assert encoder.unseen(pl.DataFrame({"x": ["zoe"]}))["x"].examples != ("zoe",)


@pytest.mark.parametrize(
    ("key", "what"), [(b"", "0 bytes"), (bytes(65), "65 bytes"), ("secret", "str")]
)
def test_a_key_that_cannot_hash_is_refused(key, what):
    with pytest.raises(InputError) as error:
        Encoder(Schema([]), hash_key=key)
    assert str(error.value) == (
        f"hash_key must be 1 to 64 bytes, not {what}; e.g. secrets.token_bytes(32)."
    )


# ---- several values --------------------------------------------------------------------------


def test_a_value_repeated_in_a_cell_counts_once():
    frame = pl.DataFrame({"tags": [["a", "a", None], []]})
    X = Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    assert X.row_degree.tolist() == [1, 0]


def test_sets_and_arrays_are_lists_too():
    schema = Schema([Field("tags", "multivalued")])
    encoder = Encoder(schema).fit(pd.DataFrame({"tags": [{"a", "b"}, None]}))
    array = pl.DataFrame({"tags": [["b", "a"]]}, schema={"tags": pl.Array(pl.String, 2)})
    assert encoder.encode(array).ids.tolist() == [0, 1]


def test_a_multivalued_column_may_be_all_missing_in_any_library():
    encoder = fitted(pl.DataFrame({"x": [["a"], None]}), Field("x", "multivalued"))
    assert encoder.encode(pd.DataFrame({"x": [math.nan, math.nan]})).ids.tolist() == [1, 1]


# ---- numbers in buckets ----------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 12))
def test_every_number_lies_in_the_bucket_it_is_given(values, n_buckets):
    frame = pl.DataFrame({"x": values})
    encoder = Encoder(Schema([Field("x", "numeric", n_buckets)])).fit(frame)
    for value, j in zip(values, encoder.encode(frame).ids, strict=True):
        low, high = encoder.decode(int(j))[1]
        assert low <= value < high or value == high == max(values)


def test_a_constant_column_has_one_bucket():
    frame = pl.DataFrame({"x": [3.0, 3.0]})
    encoder = Encoder(Schema.from_frame(frame)).fit(frame)
    assert encoder.encode(pl.DataFrame({"x": [2.0, 3.0, 4.0]})).ids.tolist() == [0, 0, 0]
    assert encoder.decode(0) == ("x", (3.0, 3.0))


def test_bounds_are_taken_from_the_schema():
    encoder = fitted(
        pl.DataFrame({"x": [3, 4]}), Field("x", "numeric", n_buckets=4, bounds=(0, 16))
    )
    assert [encoder.decode(j)[1] for j in (0, 1)] == [(0.0, 4.0), (4.0, 8.0)]


def test_edges_come_with_the_first_number_that_is_seen():
    empty = pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float64})
    encoder = fitted(empty, NUMBER, missing="none")
    assert encoder.encode(pl.DataFrame({"x": [1.0]})).nnz == 0
    encoder = encoder.grow_copy(pl.DataFrame({"x": [0.0, 1.0]}))
    assert [encoder.decode(j)[1] for j in (0, 1)] == [(0.0, 0.1), (0.9, 1.0)]


@pytest.mark.parametrize("use", [Encoder.grow_copy, Encoder.encode])
def test_text_in_a_column_that_began_without_values_says_what_to_declare(use):
    empty = pd.DataFrame({"x": [math.nan]})
    with pytest.raises(InputError) as error:
        use(fitted(empty, NUMBER), pd.DataFrame({"x": ["a"]}))
    assert str(error.value) == (
        "numeric field 'x' holds 'a'; give numbers, or declare it categorical."
    )


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_durations_and_moments_are_seconds_whatever_their_unit(unit):
    numeric = Field("x", "numeric", bounds=(0, 100), n_buckets=10)
    for dtype, cell in [
        (pl.Duration(unit), datetime.timedelta(seconds=15)),
        (pl.Datetime(unit), datetime.datetime(1970, 1, 1, 0, 0, 15)),
    ]:
        frame = pl.DataFrame({"x": pl.Series([cell], dtype=dtype)})
        assert decoded(fitted(frame, numeric)) == [(10.0, 20.0)]


# ---- numbers as values -----------------------------------------------------------------------


def test_a_number_is_one_feature_that_carries_its_standardised_value():
    frame = pl.DataFrame({"x": [1.0, 3.0, None, 2.0]})
    encoder = fitted(frame, VALUE)
    assert decoded(encoder) == [Scale(2.0, pytest.approx((2 / 3) ** 0.5)), None]
    X = encoder.encode(frame)
    step = (3 / 2) ** 0.5
    assert X.ids.tolist() == [0, 0, 1, 0]
    assert X.values.tolist() == pytest.approx([-step, step, 1.0, 0.0])


@pytest.mark.parametrize("cells", [[3.0, 3.0], [0.1, 0.1, 0.1], [7.0]])
def test_a_constant_number_has_the_deviation_one(cells):
    encoder = fitted(pl.DataFrame({"x": cells}), VALUE)
    later = pl.DataFrame({"x": [cells[0], cells[0] + 1, cells[0] - 100]})
    assert encoder.encode(later).values.tolist() == pytest.approx([0.0, 1.0, -5.0])


def test_numbers_far_away_are_clipped_even_infinite_ones():
    frame = pl.DataFrame({"x": [-1.0, 1.0, math.inf]})
    encoder = fitted(frame, VALUE)
    assert encoder.decode(0) == ("x", Scale(0.0, 1.0))
    later = pl.DataFrame({"x": [1e300, -math.inf, math.inf, 4.5]})
    assert encoder.encode(later).values.tolist() == [5.0, -5.0, 5.0, 4.5]


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.lists(st.floats()))
def test_any_number_has_a_finite_value(first, later):
    encoder = fitted(pl.DataFrame({"x": first}), VALUE)
    X = encoder.encode(pl.DataFrame({"x": pl.Series(later, dtype=pl.Float64)}))
    assert np.isfinite(X.values).all() and (np.abs(X.values) <= 5).all()


def test_the_scale_stays_that_of_the_rows_it_was_learned_from():
    encoder = fitted(pl.DataFrame({"x": [-1.0, 1.0]}), VALUE, missing="none")
    assert encoder.grow_copy(pl.DataFrame({"x": [50.0, 70.0, None]})) is encoder
    assert encoder.decode(0) == ("x", Scale(0.0, 1.0))


def test_a_scale_comes_with_the_first_number_that_is_seen():
    encoder = fitted(pl.DataFrame({"x": [None]}), VALUE, missing="none")
    assert encoder.encode(pl.DataFrame({"x": [1.0]})).nnz == 0
    encoder = encoder.grow_copy(pl.DataFrame({"x": [4.0, 6.0]}))
    assert encoder.decode(0) == ("x", Scale(5.0, 1.0))


def test_other_fields_have_the_value_one_beside_it():
    frame = pl.DataFrame({"x": [1.0, 3.0], "tags": [["a", "b"], []], "job": ["cook", "cook"]})
    encoder = Encoder(Schema.from_frame(frame, numeric="value")).fit(frame)
    assert encoder.encode(frame).to_dense().tolist() == [[-1, 1, 1, 1], [1, 0, 0, 1]]
    narrow = frame.drop("tags")
    assert encoder.encode(narrow).to_dense().tolist() == [[-1, 0, 0, 1], [1, 0, 0, 1]]
    assert encoder.encode(narrow).width == 2


def test_rows_have_values_only_where_a_field_needs_them():
    frame = pl.DataFrame({"x": [1.0, 3.0], "job": ["cook", "cook"]})
    bucketed = Encoder(Schema.from_frame(frame)).fit(frame)
    valued = Encoder(Schema.from_frame(frame, numeric="value")).fit(frame)
    assert bucketed.encode(frame).values is None
    assert valued.encode(frame.drop("x")).values.tolist() == [1.0, 1.0]


# ---- dates -----------------------------------------------------------------------------------


MOMENT = datetime.datetime(2024, 3, 5, 7, 30)  # a Tuesday


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        (MOMENT, ["hour 7", "weekday Tue", "month 3"]),
        (MOMENT.date(), ["weekday Tue", "month 3"]),
        (MOMENT.time(), ["hour 7"]),
        ("2024-03-05T07:30:00", ["hour 7", "weekday Tue", "month 3"]),
        ("2024-03-05 07:30", ["hour 7", "weekday Tue", "month 3"]),
        ("2024-03-05T07:30:15.123456Z", ["hour 7", "weekday Tue", "month 3"]),
        ("2024-03-05T07:30+09:00", ["hour 7", "weekday Tue", "month 3"]),
        ("2024-03-05 07:30:00-0800", ["hour 7", "weekday Tue", "month 3"]),
        (" 2024-03-05 ", ["weekday Tue", "month 3"]),
        ("07:30", ["hour 7"]),
        ("23:59:59", ["hour 23"]),
    ],
    ids=str,
)
def test_a_date_is_its_hour_its_weekday_and_its_month(cell, parts):
    frame = pl.DataFrame({"x": [cell]})
    encoder = fitted(frame, WHEN)
    assert decoded(encoder) == parts
    assert encoder.encode(frame).ids.tolist() == list(range(len(parts)))


def test_a_new_timestamp_is_no_new_value():
    hours = pl.datetime_range(MOMENT, MOMENT + datetime.timedelta(days=400), "1h", eager=True)
    frame = pl.DataFrame({"x": hours})
    encoder = fitted(frame, WHEN)
    assert encoder.n_features == 24 + 7 + 12
    assert decoded(encoder)[:3] == ["hour 0", "hour 1", "hour 2"]
    assert decoded(encoder)[24:32] == [
        *(f"weekday {day}" for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")),
        "month 1",
    ]
    later = frame.with_columns(pl.col("x") + pl.duration(weeks=520, minutes=7))
    assert encoder.grow_copy(later) is encoder
    assert encoder.encode(later).width == 3


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_clock_is_that_of_the_own_zone(zone):
    local = pl.Series([MOMENT]).dt.replace_time_zone(zone)
    frame = pl.DataFrame({"x": local})
    assert decoded(fitted(frame, WHEN))[0] == "hour 7"
    assert decoded(fitted(frame.to_pandas(), WHEN))[0] == "hour 7"


def test_pandas_pyarrow_and_text_give_the_same_features():
    cells = [MOMENT, None, MOMENT + datetime.timedelta(hours=100)]
    texts = [None if cell is None else cell.isoformat() for cell in cells]
    ours = fitted(pl.DataFrame({"x": cells}), WHEN)
    for frame in (
        pd.DataFrame({"x": pd.to_datetime(pd.Series(cells))}),
        pa.table({"x": cells}),
        pd.DataFrame({"x": texts}),
        pl.DataFrame({"x": pl.Series(texts, dtype=pl.Categorical)}),
    ):
        assert decoded(fitted(frame, WHEN)) == decoded(ours)
        assert ours.encode(frame).ids.tolist() == [0, 2, 4, 5, 1, 3, 4]


@pytest.mark.parametrize("empty", [[None], [math.nan]])
def test_a_column_of_missing_dates_is_missing(empty):
    encoder = fitted(pl.DataFrame({"x": [MOMENT, None]}), WHEN)
    assert [encoder.decode(j)[1] for j in encoder.encode(pd.DataFrame({"x": empty})).ids] == [None]
