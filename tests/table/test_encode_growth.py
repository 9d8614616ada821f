"""Growing: copies that share, limits, large vocabularies, tables that are read once."""

from __future__ import annotations

import copy
import datetime
import pickle
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.table import Encoder, Field, Schema, fields, read_table
from openfate.table import encoder as encoder_module
from openfate.table.encoder import Unseen

SCHEMA = Schema(
    [
        Field("job", "categorical"),
        Field("name", "categorical", hashed=True),
        Field("age", "numeric", n_buckets=4),
        Field("size", "numeric", numeric="value"),
        Field("tags", "multivalued"),
        Field("seen", "datetime"),
    ]
)
DTYPES = {
    "job": pl.String,
    "name": pl.String,
    "age": pl.Float64,
    "size": pl.Float64,
    "tags": pl.List(pl.String),
    "seen": pl.Datetime("us"),
}
texts = st.sampled_from(["a", "b", "c", "d", ""])
numbers = st.floats(-1e6, 1e6)
cells = {
    "job": texts,
    "name": texts,
    "age": numbers,
    "size": numbers,
    "tags": st.lists(texts | st.none(), max_size=3),
    "seen": st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2040, 1, 1)),
}
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | cell for name, cell in cells.items()}), max_size=6
)
missing = st.sampled_from(["feature", "none"])
subsets = st.none() | st.sets(st.sampled_from([*DTYPES, "city"]))


def frame_of(records: list[dict]) -> pl.DataFrame:
    return pl.DataFrame({n: [r[n] for r in records] for n in DTYPES}, schema=DTYPES)


def parts(encoder: Encoder) -> tuple:
    header, words = encoder.to_parts()
    return header, words.rows()


def same(X, Y) -> bool:
    arrays = [(X.row_ptr, Y.row_ptr), (X.ids, Y.ids)]
    if X.values is not None or Y.values is not None:
        arrays.append((X.values, Y.values))
    return all(np.array_equal(a, b) for a, b in arrays)


def encoder_of(records: list[dict], missing: str = "feature") -> Encoder:
    return Encoder(SCHEMA, missing, b"key").fit(frame_of(records))


# ---- properties --------------------------------------------------------------------------------


@given(rows, rows, missing, subsets, subsets)
def test_a_grown_copy_equals_growing_in_place(first, later, missing, columns, values):
    encoder = encoder_of(first, missing)
    before = parts(encoder)
    frame = frame_of(later).with_columns(city=pl.lit("Rome"))
    grown = encoder.grow_copy(frame, columns=columns, values=values)
    assert parts(encoder) == before


@given(rows, st.lists(rows, max_size=4), missing)
def test_ids_of_every_kind_never_change(first, later, missing):
    encoder = encoder_of(first, missing)
    for records in later:
        grown = encoder.grow_copy(frame_of(records))
        old = [encoder.decode(j) for j in range(encoder.n_features)]
        new = [grown.decode(j) for j in range(grown.n_features)]
        assert new[: len(old)] == old
        assert len(set(new)) == len(new)
        assert [grown.find(*feature) for feature in new] == list(range(len(new)))
        encoder = grown
        assert encoder.grow_copy(frame_of(records)) is encoder


@given(rows, st.lists(rows, max_size=4), missing, rows)
def test_an_encoder_made_of_its_parts_is_the_same_encoder(first, later, missing, records):
    encoder = encoder_of(first, missing)
    for batch in later:
        encoder = encoder.grow_copy(frame_of(batch))
    again = Encoder.from_parts(*encoder.to_parts())
    assert parts(again) == parts(encoder)
    assert same(again.encode(frame_of(records)), encoder.encode(frame_of(records)))
    assert parts(again.grow_copy(frame_of(records))) == parts(encoder.grow_copy(frame_of(records)))


@given(rows, rows, missing)
def test_nothing_is_unseen_after_growing_and_what_was_unseen_has_grown(first, later, missing):
    encoder, frame = encoder_of(first, missing), frame_of(later)
    grown = encoder.grow_copy(frame)
    found = encoder.unseen(frame)
    assert set(grown.unseen(frame).values()) == {Unseen(0.0, 0, (), False)}
    n_new = sum(unseen.n_values + unseen.missing for unseen in found.values())
    assert n_new == grown.n_features - encoder.n_features
    for name, unseen in found.items():
        assert all(encoder.find(name, value) is None for value in unseen.examples)
        assert all(grown.find(name, value) is not None for value in unseen.examples)


@given(rows.filter(len), st.randoms())
def test_nothing_that_is_learned_depends_on_the_order_of_the_rows(first, random):
    shuffled = random.sample(first, len(first))
    assert parts(encoder_of(shuffled)) == parts(encoder_of(first))


@settings(max_examples=30)  # pandas and pyarrow take their time
@given(rows, rows)
def test_every_frame_library_grows_and_encodes_alike(first, later):
    encoder, frame = encoder_of(first), frame_of(later)
    grown = encoder.grow_copy(frame)
    for other in (frame.to_pandas(), frame.to_arrow(), read_table(frame)):
        assert parts(encoder.grow_copy(other)) == parts(grown)
        assert same(grown.encode(other), grown.encode(frame))


@given(st.lists(st.lists(texts | st.none(), max_size=9), max_size=5), st.integers(0, 4))
def test_few_and_many_cells_take_ways_that_agree(batches, small):
    """Few cells are looked up by Python, many by polars."""
    field = Schema([Field("x", "categorical")])
    frames = [pl.DataFrame({"x": pl.Series(batch, dtype=pl.String)}) for batch in batches]
    usual, other = (Encoder(field).fit(frames[0] if frames else empty("x")) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for frame in frames:
            usual = usual.grow_copy(frame)
        expected = [usual.encode(frame).ids.tolist() for frame in frames]
        patch.setattr(fields, "SMALL", small)
        patch.setattr(encoder_module, "SMALL", small)
        for frame in frames:
            other = other.grow_copy(frame)
        assert parts(other) == parts(usual)
        assert [other.encode(frame).ids.tolist() for frame in frames] == expected


def empty(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema={name: pl.String})


# ---- limits ------------------------------------------------------------------------------------


@pytest.fixture
def encoder():
    frame = pl.DataFrame({"job": ["cook"], "city": ["Rome"]})
    return Encoder(Schema.from_frame(frame)).fit(frame)


LATER = pl.DataFrame({"job": ["judge"], "city": ["Oslo"], "shift": ["day"], "floor": ["1"]})


@pytest.mark.parametrize(
    ("columns", "values", "new"),
    [
        (None, None, ["judge", "Oslo", "day", "1"]),
        ((), (), []),
        (["floor"], {"city": 0}, ["Oslo", "1"]),
        (["absent"], ["absent"], []),
    ],
)
def test_only_what_may_grow_does(encoder, columns, values, new):
    grown = encoder.grow_copy(LATER, columns=columns, values=values)
    assert [grown.decode(j)[1] for j in range(2, grown.n_features)] == new


def test_a_schema_names_the_new_columns_and_the_limits_hold_too(encoder):
    schema = Schema([Field("shift", "categorical"), Field("floor", "numeric")])
    assert encoder.grow_copy(LATER, schema).fields == ("job", "city", "shift", "floor")
    assert encoder.grow_copy(LATER, schema, columns=["floor"]).fields == ("job", "city", "floor")


def test_a_field_that_may_not_grow_takes_no_edges_either():
    encoder = Encoder(Schema([Field("x", "numeric")]), "none").fit(pl.DataFrame({"x": [None]}))
    later = pl.DataFrame({"x": [1.0, 2.0]})
    assert encoder.grow_copy(later, values=()) is encoder
    assert encoder.grow_copy(later).n_features == 2


@pytest.mark.parametrize("column", [[None, None], []])
def test_a_new_column_without_a_value_stays_new_until_one_comes(encoder, column):
    """Its kind was guessed from nothing, and temperatures became categories for good."""
    nothing = pl.DataFrame({"degrees": pl.Series(column, dtype=pl.Float64)})
    assert encoder.grow_copy(nothing) is encoder
    assert (
        encoder.grow_copy(pl.DataFrame({"degrees": [20.5, 21.5]})).schema["degrees"].kind
        == "numeric"
    )
    declared = encoder.grow_copy(nothing, Schema([Field("degrees", "numeric")]))
    assert declared.fields == ("job", "city", "degrees")


def test_a_column_without_a_name_is_refused_only_where_it_would_be_added(encoder):
    frame = pl.DataFrame({"job": ["judge"], "": [1]})
    assert encoder.grow_copy(frame, columns=()).n_features == 3
    with pytest.raises(
        ValueError, match=r"^column 2 has the empty name ''; rename it or drop it\.$"
    ):
        encoder.grow_copy(frame)


# ---- sharing -----------------------------------------------------------------------------------


def test_a_copy_shares_the_fields_that_did_not_change(encoder):
    grown = encoder.grow_copy(pl.DataFrame({"job": ["judge"], "city": ["Rome"]}))
    assert grown._codecs["city"] is encoder._codecs["city"]
    assert grown._codecs["job"] is not encoder._codecs["job"]
    assert encoder.grow_copy(LATER) is not encoder.grow_copy(LATER)


def test_the_array_of_fields_is_the_callers_own(encoder):
    encoder.field_of[:] = 9
    assert encoder.field_of.tolist() == [0, 1]


def test_copies_of_one_encoder_grow_apart(encoder):
    one, other = (encoder.grow_copy(pl.DataFrame({"job": [job]})) for job in ("judge", "nurse"))
    assert one.decode(2) == ("job", "judge") and other.decode(2) == ("job", "nurse")
    assert one.find("job", "nurse") is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_encoder_can_be_copied_and_pickled(encoder, copied):
    other = copied(encoder)
    other = other.grow_copy(LATER)
    assert parts(other) == parts(encoder.grow_copy(LATER))
    assert encoder.n_features == 2


def test_layers_stay_few_over_many_growths():
    encoder = Encoder(Schema([Field("x", "categorical")])).fit(pl.DataFrame({"x": ["0"]}))
    for i in range(1, 300):
        encoder = encoder.grow_copy(pl.DataFrame({"x": [str(i)]}))
    assert len(encoder._codecs["x"].vocabulary.layers) < 10
    assert [encoder.find("x", str(i)) for i in range(300)] == list(range(300))


# ---- size --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def million():
    order = np.random.default_rng(0).permutation(1_000_000)
    return pl.DataFrame({"user": pl.Series("user", order).cast(pl.String) + "@example.org"})


def seconds_of(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_a_million_values_fit_encode_and_grow(million):
    encoder = Encoder(Schema.from_frame(million)).fit(million)
    ids = encoder.encode(million).ids
    assert encoder.n_features == len(np.unique(ids)) == 1_000_000
    assert encoder.decode(int(ids[7])) == ("user", million["user"][7])
    later = pl.DataFrame({"user": [f"new {i}" for i in range(10)]})
    encoder.grow_copy(later)  # the first small look-up makes a dict
    grown = encoder.grow_copy(later)
    whole = seconds_of(lambda: encoder.encode(million))
    few = min(seconds_of(lambda: encoder.grow_copy(later)) for _ in range(5))
    assert 20 * few < whole  # 300 times on a quiet core: what is known is not gone through
    assert grown.n_features == 1_000_010
    assert grown.encode(later).ids.tolist() == list(range(1_000_000, 1_000_010))


def test_a_million_values_go_through_parts(million):
    encoder = Encoder(Schema.from_frame(million)).fit(million)
    again = Encoder.from_parts(*encoder.to_parts())
    some = million.head(5000)
    assert again.encode(some).ids.tolist() == encoder.encode(some).ids.tolist()


# ---- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_table_is_taken_wherever_a_frame_is(make):
    table = read_table(make({"job": ["cook", None], "age": [0.5, 1.5]}))
    assert read_table(table) is table
    encoder = Encoder(Schema.from_frame(table)).fit(table)
    assert encoder.encode(table).ids.tolist() == [0, 2, 1, 3]
    assert encoder.grow_copy(table) is encoder
    assert encoder.unseen(table)["job"] == Unseen(0.0, 0, (), False)


def test_a_table_reads_a_column_once(encoder):
    table = read_table(LATER)
    encoder.unseen(table)
    before = dict(table.memo)
    assert {name for name, _ in before} == {"job", "city"}
    encoder.grow_copy(table).encode(table)
    assert all(table.memo[key] is cells for key, cells in before.items())
    assert {name for name, _ in table.select(["job"]).memo} == {"job"}


# ---- what is unseen ----------------------------------------------------------------------------


def test_unseen_counts_elements_parts_and_buckets():
    frame = pl.DataFrame(
        {"tags": [["a"]], "age": [0.0], "seen": [datetime.date(2024, 3, 5)], "job": ["cook"]}
    )
    schema = Schema.from_frame(frame, [Field("age", "numeric", bounds=(0, 10))])
    encoder = Encoder(schema).fit(frame)
    later = pl.DataFrame(
        {
            "tags": [["a", "b", None], ["c"], None],
            "age": [0.5, 7.5, 7.9],
            "seen": [datetime.date(2024, 3, 5), datetime.date(2024, 4, 2), None],
            "job": ["cook", "cook", "cook"],
        }
    )
    assert encoder.unseen(later) == {
        "tags": Unseen(2 / 3, 2, ("b", "c"), True),
        "age": Unseen(2 / 3, 1, ((7.0, 8.0),), False),
        "seen": Unseen(1 / 4, 1, ("month 4",), True),
        "job": Unseen(0.0, 0, (), False),
    }


def test_unseen_looks_at_new_fields_as_growing_would(encoder):
    shift = Field("shift", "categorical")
    assert encoder.unseen(LATER, [shift]) == {"shift": Unseen(1.0, 1, ("day",), False)}
    hidden = encoder.unseen(LATER, [Field("floor", "categorical", hashed=True)])["floor"]
    assert len(hidden.examples[0]) == 32
    assert encoder.fields == ("job", "city") and encoder.to_parts()[0]["hash_key"] is None
