"""Hashes: one key at a time and many at once, the same on every machine."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from openfate.table.hashes import hash_key, hash_keys


@given(st.lists(st.text(max_size=40)))
def test_one_text_is_hashed_as_many_are(texts):
    keys = pl.Series(texts, dtype=pl.String)
    assert hash_keys(keys).tolist() == [int(hash_key(text)) for text in texts]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_one_number_is_hashed_as_many_are(numbers):
    keys = pl.Series(numbers, dtype=pl.Int32)
    assert hash_keys(keys).tolist() == [int(hash_key(number)) for number in numbers]


def test_hashes_never_change():
    """Samples in bundles are ordered by them."""
    wanted = {
        "": 2558736989570252433,
        "Rome": 777641068143066169,
        "a text of more than eight bytes": 10238982493292164353,
        7: 7191089600892374487,
    }
    assert {key: int(hash_key(key)) for key in wanted} == wanted
