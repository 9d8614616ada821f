"""Encoder.fit over pieces: how rows are cut, and which are spared, changes nothing."""

from __future__ import annotations

import itertools
import math
from statistics import pstdev

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema
from openfate.table.tally import Tally

NUMBERS = st.one_of(st.none(), st.integers(-5, 5).map(float), st.floats(-1e9, 1e9))
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", None]),
        NUMBERS,
        st.lists(st.sampled_from(["x", "y", "z"]), max_size=3),
        st.sampled_from(["2024-03-05", "2024-04-05T07:30", None]),
        st.booleans(),  # whether the row is spared
    ),
    min_size=1,
    max_size=30,
)
SCHEMA = Schema(
    [
        Field("job", "categorical"),
        Field("mail", "categorical", hashed=True),
        *(Field(f"n_{how}", "numeric", numeric=how) for how in ("buckets", "value", "linear")),
        Field("given", "numeric", bounds=(-3.0, 3.0)),
        Field("tags", "multivalued"),
        Field("seen", "datetime"),
    ]
)
TYPES = {field.name: pl.Float64 if field.kind == "numeric" else pl.String for field in SCHEMA}
TYPES["tags"] = pl.List(pl.String)


def frame_of(rows):
    columns = [(job, job, n, n, n, n, tags, seen) for job, n, tags, seen, _ in rows]
    return pl.DataFrame(columns, schema=TYPES, orient="row")


def parts_of(encoder):
    header, vocabulary = encoder.to_parts()
    return header, vocabulary.rows()


def cut_at(frame, cuts):
    ends = sorted({0, len(frame), *(cut % (len(frame) + 1) for cut in cuts)})
    return [frame[a:b] for a, b in itertools.pairwise(ends)]


@given(ROWS, st.lists(st.integers(0, 100), max_size=5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_pieces_cut_anywhere_give_the_same_encoders(rows, cuts, min_count):
    frame, spared = frame_of(rows), np.array([row[-1] for row in rows])
    whole, pieces = (Encoder(SCHEMA, hash_key=b"key") for _ in range(2))
    grown = whole.fit_sparing(frame, spared, min_count=min_count)
    again = pieces.fit_sparing(cut_at(frame, cuts), spared, min_count=min_count)
    assert parts_of(whole) == parts_of(pieces)
    assert parts_of(grown) == parts_of(again)


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_to_spare_rows_is_to_fit_without_them_and_to_grow(rows):
    frame, spared = frame_of(rows), np.array([row[-1] for row in rows])
    one = Encoder(SCHEMA, hash_key=b"key")
    grown = one.fit_sparing(frame, spared)
    other = Encoder(SCHEMA, hash_key=b"key").fit(frame.filter(~pl.Series(spared)))
    assert parts_of(one) == parts_of(other)
    assert parts_of(grown) == parts_of(other.grow_copy(frame, SCHEMA))
    X, slow = grown.encode(frame).below(one.n_features), other.encode(frame)
    assert X.row_ptr.tolist() == slow.row_ptr.tolist()
    assert X.ids.tolist() == slow.ids.tolist()
    assert X.values.tolist() == slow.values.tolist()


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=40), st.integers(1, 6))
def test_rare_values_get_no_id(jobs, least):
    frame = pl.DataFrame({"job": jobs})
    encoder = Encoder(Schema([Field("job", "categorical")])).fit(frame, min_count=least)
    found = [encoder.decode(j)[1] for j in range(encoder.n_features)]
    assert found == sorted({job for job in jobs if jobs.count(job) >= least})


def test_frames_that_can_be_read_once_alone_are_refused():
    with pytest.raises(InputError, match="gone through only once"):
        Encoder(SCHEMA).fit(iter([frame_of([])]))


# ---- numbers -------------------------------------------------------------------------------------


def test_a_sample_of_many_numbers_goes_by_rows_not_by_pieces():
    numbers = np.random.default_rng(0).normal(size=5000)
    samples = []
    for size in (1, 7, 900, 5000):
        tally = Tally(sampled=300)
        for start in range(0, 5000, size):
            rows = np.arange(start, min(start + size, 5000))
            tally.add(numbers[rows], rows)
        samples.append(sorted(tally.sample))
    assert all(sample == samples[0] for sample in samples)
    assert 75 < len(samples[0]) <= 300
    assert abs(np.mean(samples[0])) < 0.2  # it is no special part of them


@given(st.lists(st.floats(-1e150, 1e150), min_size=1, max_size=40), st.integers(0, 40))
def test_mean_and_deviation_are_exact_and_do_not_depend_on_pieces_or_order(numbers, cut):
    one, two = Tally(sums=True), Tally(sums=True)
    one.add(np.array(numbers), np.arange(len(numbers)))
    for part in (numbers[cut:], numbers[:cut][::-1]):
        two.add(np.array(part), np.arange(len(part)))
    assert one.mean_and_std() == two.mean_and_std()
    mean, std = one.mean_and_std()
    assert math.isclose(mean, math.fsum(numbers) / len(numbers), rel_tol=1e-15, abs_tol=1e-300)
    if min(numbers) < max(numbers) and pstdev(numbers) > 1e-150:
        assert math.isclose(std, pstdev(numbers), rel_tol=1e-12)
