"""The encoder against a naive twin; growth, sharing, size; its parts and what is refused."""

from __future__ import annotations

import copy
import datetime
import hashlib
import io
import json
import math
import pickle
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema, fields, read_table
from openfate.table.encoder import Unseen, Vocabulary

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


# ---- properties ------------------------------------------------------------------------------


def naive_bucket(value: float, low: float, high: float, n: int) -> int:
    edges = np.linspace(low, high, n + 1)
    return sum(value >= edge for edge in edges[1:-1]) if len(set(edges)) > n else 0


def naive_values(record: dict, known: list, ages: list[float]) -> list[tuple]:
    """The values of one row, as `decode` gives them, one cell at a time."""
    name, age, seen = record["name"], record["age"], record["seen"]
    values = [("job", record["job"])]
    values += [("tags", tag) for tag in record["tags"] or [] if tag is not None]
    values += [("tags", None)] if record["tags"] is None else []
    if name is not None:
        name = hashlib.blake2b(name.encode(), digest_size=16, key=b"key").hexdigest()
    values.append(("name", name))
    values += [("seen", None)] if seen is None else []
    if seen is not None:
        parts = f"hour {seen.hour}", f"weekday {seen:%a}", f"month {seen.month}"
        values += [("seen", part) for part in parts]
    is_missing = record["size"] is None
    values += [(f, v) for f, v in known if f == "size" and (v is None) == is_missing]
    if age is None:
        return [*values, ("age", None)]
    middles = {v: sum(v) / 2 for f, v in known if f == "age" and v is not None}
    places = {v: naive_bucket(middle, min(ages), max(ages), 4) for v, middle in middles.items()}
    here = naive_bucket(age, min(ages), max(ages), 4) if ages else None
    return [*values, *(("age", v) for v, place in places.items() if place == here)]


@given(rows, rows, missing)
def test_encoding_equals_the_naive_twin(first, records, missing):
    encoder = encoder_of(first, missing)
    before, X = parts(encoder), encoder.encode(frame_of(records))
    ids = [set(X.ids[a:b].tolist()) for a, b in pairwise(X.row_ptr)]
    known = [encoder.decode(j) for j in range(encoder.n_features)]
    ages = [record["age"] for record in first if record["age"] is not None]
    values = [naive_values(record, known, ages) for record in records]
    assert ids == [{known.index(v) for v in row if v in known} for row in values]
    assert parts(encoder) == before


@given(rows, rows, missing, subsets, subsets)
def test_a_copy_grows_where_it_may_and_the_encoder_stays(first, later, missing, columns, values):
    encoder = encoder_of(first, missing)
    before = parts(encoder)
    frame = frame_of(later).with_columns(city=pl.lit("Rome"))
    grown = encoder.grow_copy(frame, columns=columns, values=values)
    assert parts(encoder) == before
    new = {grown.decode(j)[0] for j in range(encoder.n_features, grown.n_features)}
    assert new & {"city"} <= ({"city"} if columns is None else columns)
    assert new - {"city"} <= (DTYPES.keys() if values is None else values)


NOTHING = dict.fromkeys(DTYPES)


@given(rows, st.lists(rows, max_size=4), missing)
@example([NOTHING | {"age": age} for age in (0.0, 5e-324)], [[NOTHING | {"age": -1.0}]], "feature")
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
        for frame in frames:
            other = other.grow_copy(frame)
        assert parts(other) == parts(usual)
        assert [other.encode(frame).ids.tolist() for frame in frames] == expected


@given(rows, st.lists(rows, max_size=3), missing)
def test_few_rows_are_read_cell_by_cell_as_polars_reads_columns(first, later, missing):
    frames = [frame_of(first), *map(frame_of, later)]
    wide = [f.with_columns(new=f["age"], city=f["job"], floor=f["age"].round()) for f in frames]

    def grow() -> list:
        encoder = encoder_of(first, missing)
        for frame in wide:
            kinds = Schema.from_frame(frame.select("new", "city", "floor"), numeric="linear")
            encoder = encoder.grow_copy(frame, kinds if "new" not in encoder.fields else None)
        return [parts(encoder), *(encoder.encode(frame) for frame in wide)]

    few = grow()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "FEW_ROWS", 0)
        many = grow()
    assert few[0] == many[0]
    assert all(same(X, Y) for X, Y in zip(few[1:], many[1:], strict=True))


@given(
    st.lists(st.lists(st.text("ab", max_size=4), unique=True), max_size=4),
    st.lists(st.text("ab", max_size=4) | st.none()),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_look_up_of_many_keys_is_a_dict(parts_of_keys, asked, small, collide):
    """By an index of hashes, also where keys share one."""
    twin: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "SMALL", small)
        if collide:
            patch.setattr(fields, "hash", lambda key: len(key or ""), raising=False)
        vocabulary = Vocabulary()
        for keys in parts_of_keys:
            new = [key for key in keys if key not in twin]
            twin |= {key: len(twin) + at for at, key in enumerate(new)}
            vocabulary = vocabulary.add(pl.Series(new, dtype=pl.String), len(twin) - len(new))
        found = vocabulary.find(pl.Series(asked, dtype=pl.String))
        assert found.tolist() == [twin.get(key, -1) for key in asked]
        assert [vocabulary.get(key) for key in twin] == list(twin.values())
        assert vocabulary.get("c") == -1
        assert [vocabulary.key_of(at) for at in twin.values()] == list(twin)


@given(rows, st.lists(rows, max_size=3), missing, st.randoms())
def test_some_features_alone_are_known_by_their_new_numbers(first, later, missing, random):
    encoder = encoder_of(first, missing)
    for batch in later:
        encoder = encoder.grow_copy(frame_of(batch))
    kept = np.array([j for j in range(encoder.n_features) if random.random() < 0.6], dtype=int)
    some = encoder.select(kept)
    assert [some.decode(j) for j in range(some.n_features)] == [encoder.decode(j) for j in kept]
    for frame in map(frame_of, [first, *later]):
        assert same(some.encode(frame), encoder.encode(frame).select_features(kept))
    assert parts(Encoder.from_parts(*some.to_parts())) == parts(some)


def empty(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema={name: pl.String})


# ---- open world ------------------------------------------------------------------------------


@pytest.fixture
def aged():
    frame = pl.DataFrame({"job": ["cook", "pilot", None], "age": [0.0, 10.0, None]})
    return Encoder(Schema([Field("job", "categorical"), Field("age", "numeric")])).fit(frame)


def test_unknown_and_missing_are_different(aged):
    X = aged.encode(pl.DataFrame({"job": ["judge", None, "cook"]}))
    assert [aged.decode(j) for j in X.ids] == [("job", None), ("job", "cook")]
    assert X.row_degree.tolist() == [0, 1, 1]


def test_columns_may_be_absent_unknown_and_reordered(aged):
    full = aged.encode(pl.DataFrame({"age": [0.0], "city": ["Rome"], "job": ["cook"]}))
    assert (
        full.ids.tolist() == aged.encode(pl.DataFrame({"job": ["cook"], "age": [0.0]})).ids.tolist()
    )
    assert aged.encode(pl.DataFrame({"city": ["Rome", "Oslo"]})).row_degree.tolist() == [0, 0]
    assert aged.encode(pd.DataFrame(index=range(3))).n_rows == 3


def test_numbers_beyond_the_range_are_clipped_even_infinite_ones(aged):
    cells = [-5.0, 0.0, -math.inf, 99.0, 10.0, math.inf]
    ids = aged.encode(pl.DataFrame({"age": cells})).ids.tolist()
    assert ids[:3] == [ids[0]] * 3
    assert ids[3:] == [ids[3]] * 3


def test_a_bucket_without_rows_has_no_feature_until_it_grows(aged):
    between = pl.DataFrame({"age": [5.0]})
    assert aged.encode(between).nnz == 0
    aged = aged.grow_copy(between)
    assert aged.decode(6) == ("age", (5.0, 6.0))


def test_a_new_numeric_column_takes_its_edges_from_that_frame(aged):
    aged = aged.grow_copy(pl.DataFrame({"size": [100.0, 200.0]}))
    assert aged.fields == ("job", "age", "size")
    assert [aged.decode(j)[1] for j in (6, 7)] == [(100.0, 110.0), (190.0, 200.0)]
    assert aged.field_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_given_schema_says_what_a_new_column_is(aged):
    later = pl.DataFrame({"floor": [1, 2], "id": [7, 8]})
    aged = aged.grow_copy(later, Schema([Field("floor", "numeric", n_buckets=2)]))
    assert aged.fields == ("job", "age", "floor")
    assert aged.decode(6) == ("floor", (1.0, 1.5))


def test_a_known_field_cannot_change_its_kind(aged):
    with pytest.raises(InputError, match=r"field 'age' is known as Field.*cannot become Field"):
        aged = aged.grow_copy(pl.DataFrame({"age": ["old"]}), Schema([Field("age", "categorical")]))


# ---- limits of growth ------------------------------------------------------------------------


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


# ---- sharing ---------------------------------------------------------------------------------


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


# ---- size ------------------------------------------------------------------------------------


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


# ---- what is unseen --------------------------------------------------------------------------


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


# ---- parts -----------------------------------------------------------------------------------


FRAME = pl.DataFrame(
    {
        "job": ["cook", None],
        "name": ["ann", "ann"],
        "age": [0.0, 10.0],
        "size": [1.0, 3.0],
        "seen": [datetime.time(7), datetime.time(8)],
    }
)
PARTED = Schema(
    [
        Field("job", "categorical"),
        Field("name", "categorical", hashed=True),
        Field("age", "numeric", n_buckets=2),
        Field("size", "numeric", numeric="value"),
        Field("seen", "datetime"),
    ]
)


@pytest.fixture
def apart():
    return Encoder(PARTED, hash_key=b"key").fit(FRAME).to_parts()


def test_the_parts_are_a_header_for_json_and_a_row_for_each_id(apart):
    header, vocabulary = apart
    assert json.loads(json.dumps(header)) == header
    assert header == {
        "schema": json.loads(PARTED.to_json()),
        "missing": "feature",
        "edges": {"age": [0.0, 5.0, 10.0]},
        "scales": {"size": [2.0, 1.0]},
        "knots": {},
        "logs": {},
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


def test_the_parts_survive_json_and_parquet(apart):
    header, vocabulary = apart
    file = io.BytesIO()
    vocabulary.write_parquet(file)
    file.seek(0)
    again = Encoder.from_parts(json.loads(json.dumps(header)), pl.read_parquet(file))
    assert again.to_parts()[0] == header
    assert again.to_parts()[1].equals(vocabulary)
    assert again.encode(FRAME).ids.tolist() == [0, 2, 3, 5, 6, 1, 2, 4, 5, 7]


def test_ids_of_a_field_need_not_lie_together():
    encoder = Encoder(PARTED, hash_key=b"key").fit(FRAME)
    encoder = encoder.grow_copy(pl.DataFrame({"job": ["judge"], "age": [5.0], "city": ["Rome"]}))
    encoder = encoder.grow_copy(pl.DataFrame({"job": ["nurse"], "city": [None]}))
    again = Encoder.from_parts(*encoder.to_parts())
    everything = range(encoder.n_features)
    assert [again.decode(j) for j in everything] == [encoder.decode(j) for j in everything]


def test_an_encoder_that_has_seen_no_rows_has_parts_too():
    again = Encoder.from_parts(*Encoder(PARTED).to_parts())
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
            "the header must hold schema, missing, edges, scales, knots, logs, hash_key, fitted",
        ),
        (
            lambda h, v: (None, v),
            "the header must hold schema, missing, edges, scales, knots, logs, hash_key, fitted",
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
def test_parts_that_do_not_fit_together_are_refused(apart, tamper, what):
    with pytest.raises(InputError) as error:
        Encoder.from_parts(*tamper(*apart))
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
def test_faults_within_the_header_are_named(apart, tamper, message):
    with pytest.raises(InputError) as error:
        Encoder.from_parts(*tamper(*apart))
    assert str(error.value) == message


# ---- corners and wrong use -------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [0, 1])
def test_few_rows_are_enough(n_rows):
    encoder = Encoder(PARTED).fit(FRAME.head(n_rows))
    assert encoder.encode(FRAME.head(n_rows)).n_rows == n_rows
    assert encoder.n_features == 5 * n_rows


@pytest.mark.parametrize(("missing", "n_features"), [("feature", 6), ("none", 0)])
def test_columns_of_nulls_are_missing_everywhere(missing, n_features):
    frame = pl.DataFrame({name: [None] for name in DTYPES})
    encoder = Encoder(SCHEMA, missing).fit(frame)
    assert encoder.n_features == encoder.encode(frame).nnz == n_features


def test_a_row_with_one_id_for_each_field_takes_the_fixed_width_path():
    frame = pl.DataFrame({"b": ["x", "y"], "a": ["u", "u"]})
    X = Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    assert X.width == 2
    assert X.ids.tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda aged: aged.fit(pl.DataFrame()),
            "this encoder is fitted; ids never change: call grow_copy, or make another.",
        ),
        (lambda aged: aged.decode(6), "feature id 6 is outside 0..5; give one of these."),
        (lambda aged: aged.decode(-1), "feature id -1 is outside 0..5; give one of these."),
        (
            lambda aged: Encoder(SCHEMA).fit(pl.DataFrame({"y": [1], "z": [1]})),
            "field 'job' is not a column of the frame; columns: y, z.",
        ),
        (
            lambda aged: Encoder(SCHEMA, "drop"),
            "missing='drop' is unknown: choose 'feature' or 'none'.",
        ),
        (
            lambda aged: aged.grow_copy(pl.DataFrame(), columns="city"),
            "columns must be a list of names, not the string 'city'.",
        ),
        (
            lambda aged: aged.find("jobs", "cook"),
            "the schema has no field 'jobs'; did you mean 'job'? (known: job, age).",
        ),
        (
            lambda aged: aged.find("age", "old"),
            "numeric field 'age' holds 'old'; give numbers, or declare it categorical.",
        ),
    ],
)
def test_wrong_use_is_refused(aged, call, message):
    with pytest.raises(InputError) as error:
        call(aged)
    assert str(error.value) == message


@pytest.mark.parametrize("use", [Encoder.grow_copy, Encoder.encode, Encoder.unseen])
def test_an_encoder_that_has_seen_no_rows_knows_nothing(use):
    with pytest.raises(InputError) as error:
        use(Encoder(Schema([Field("x", "categorical")])), pl.DataFrame({"x": ["cook"]}))
    assert str(error.value) == "this encoder has seen no rows: call fit first."
