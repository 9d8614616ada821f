"""The encoder against a naive twin, over frame libraries, missing cells and growth."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from openfate.table import Encoder, Field, Schema

SCHEMA = Schema(
    [
        Field("job", "categorical"),
        Field("age", "numeric", n_buckets=4),
        Field("tags", "multivalued"),
    ]
)
words = st.sampled_from(["a", "b", "c", "d"])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "job": st.none() | words,
            "age": st.none() | st.floats(-1e6, 1e6),
            "tags": st.none() | st.lists(words | st.none(), max_size=4),
        }
    ),
    max_size=8,
)
policies = st.sampled_from(["feature", "none"])
DTYPES = {"job": pl.String, "age": pl.Float64, "tags": pl.List(pl.String)}


def frame_of(records: list[dict]) -> pl.DataFrame:
    return pl.DataFrame(
        {name: [record[name] for record in records] for name in DTYPES}, schema=DTYPES
    )


def naive_bucket(value: float, low: float, high: float, n: int) -> int:
    if low == high:
        return 0
    return sum(value >= edge for edge in np.linspace(low, high, n + 1)[1:-1])


def naive_rows(encoder: Encoder, fitted: list[dict], records: list[dict]) -> list[set[int]]:
    """Which ids each row has, one cell and one feature at a time."""
    ages = [r["age"] for r in fitted if r["age"] is not None]
    known = {encoder.decode(j): j for j in range(encoder.n_features)}
    result = []
    for record in records:
        keys = [("job", record["job"])]
        keys += [("tags", tag) for tag in record["tags"] or [] if tag is not None]
        keys += [("tags", None)] if record["tags"] is None else []
        found = {known[key] for key in keys if key in known}
        if record["age"] is None:
            found |= {known["age", None]} if ("age", None) in known else set()
        elif ages:
            bucket = naive_bucket(record["age"], min(ages), max(ages), 4)
            for (field, value), j in known.items():
                if field == "age" and value is not None:
                    middle = (value[0] + value[1]) / 2
                    if naive_bucket(middle, min(ages), max(ages), 4) == bucket:
                        found.add(j)
        result.append(found)
    return result


def parts(encoder: Encoder) -> tuple:
    header, vocabulary = encoder.to_parts()
    return header, vocabulary.rows()


def sets_of(X) -> list[set[int]]:
    return [set(X.ids[a:b].tolist()) for a, b in zip(X.row_ptr[:-1], X.row_ptr[1:], strict=True)]


# ---- properties --------------------------------------------------------------------------------


@given(rows, rows, policies)
def test_encoding_equals_the_naive_twin(fitted, records, missing):
    encoder = Encoder(SCHEMA, missing).fit(frame_of(fitted))
    X = encoder.encode(frame_of(records))
    assert X.n_rows == len(records)
    assert sets_of(X) == naive_rows(encoder, fitted, records)


@given(rows, st.lists(rows, max_size=3), policies)
def test_ids_never_change_once_given(fitted, later, missing):
    encoder = Encoder(SCHEMA, missing).fit(frame_of(fitted))
    for records in later:
        before = [encoder.decode(j) for j in range(encoder.n_features)]
        encoder = encoder.grow_copy(frame_of(records))
        after = [encoder.decode(j) for j in range(encoder.n_features)]
        assert after[: len(before)] == before
        assert len(set(after)) == len(after)


@given(rows, policies)
def test_growing_with_known_rows_adds_nothing(fitted, missing):
    encoder = Encoder(SCHEMA, missing).fit(frame_of(fitted))
    assert encoder.grow_copy(frame_of(fitted)) is encoder


@given(rows, rows)
def test_encoding_never_changes_the_encoder(fitted, records):
    encoder = Encoder(SCHEMA).fit(frame_of(fitted))
    before = parts(encoder)
    encoder.encode(frame_of(records))
    assert parts(encoder) == before


@given(rows)
def test_encoding_what_was_decoded_gives_the_id_back(fitted):
    encoder = Encoder(SCHEMA).fit(frame_of(fitted))
    for j in range(encoder.n_features):
        field, value = encoder.decode(j)
        if field == "age" and value is not None:
            value = value[0]
        cell = [value] if field == "tags" and value is not None else value
        frame = pl.DataFrame({field: [cell]}, schema={field: DTYPES[field]})
        assert encoder.encode(frame).ids.tolist() == [j]


@given(rows, rows, policies)
def test_an_encoder_made_of_its_parts_encodes_alike(fitted, records, missing):
    encoder = Encoder(SCHEMA, missing).fit(frame_of(fitted))
    again = Encoder.from_parts(*encoder.to_parts())
    assert parts(again) == parts(encoder)
    assert sets_of(again.encode(frame_of(records))) == sets_of(encoder.encode(frame_of(records)))


@given(rows.filter(len), st.randoms())
def test_ids_do_not_depend_on_the_order_of_the_rows(fitted, random):
    shuffled = random.sample(fitted, len(fitted))
    one, other = (Encoder(SCHEMA).fit(frame_of(records)) for records in (fitted, shuffled))
    assert parts(one) == parts(other)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 12))
def test_every_number_lies_in_the_bucket_it_is_given(values, n_buckets):
    frame = pl.DataFrame({"x": values})
    encoder = Encoder(Schema([Field("x", "numeric", n_buckets)])).fit(frame)
    for value, j in zip(values, encoder.encode(frame).ids, strict=True):
        low, high = encoder.decode(int(j))[1]
        assert low <= value < high or value == high == max(values)
