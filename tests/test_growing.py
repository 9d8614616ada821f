"""Versions of a paged array are what copies of a plain one would be, whoever made others."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.growing import PagedArray

changes = st.tuples(
    st.integers(0, 5), st.lists(st.integers(0, 199), max_size=40), st.integers(0, 200)
)


def plus(array, ids, n_rows):
    """The slow twin: a copy of everything."""
    later = np.zeros((max(n_rows, len(array), *(i + 1 for i in ids)), *array.shape[1:]))
    later[: len(array)] = array
    np.add.at(later, ids, 1.5)
    return later


@given(st.lists(changes, max_size=25), st.sampled_from([(), (3,)]), st.integers(0, 70))
def test_every_version_stays_what_it_was(changes, width, n_rows):
    plain = [np.random.default_rng(0).random((n_rows, *width))]
    paged = [PagedArray(plain[0])]
    for number, ids, n in changes:  # versions branch: each is made from any of the earlier ones
        at = number % len(paged)
        plain.append(plus(plain[at], ids, n))
        wanted = np.array(ids, dtype=np.int32)
        later, rows, places = paged[at].open(wanted, len(plain[-1]))
        np.add.at(rows, places, 1.5)
        paged.append(later)
    for one, array in zip(paged, plain, strict=True):
        assert len(one) == len(array) and one.width == array.shape[1:]
        assert np.array_equal(one.to_array(), array)
        ids = np.arange(220, dtype=np.int32)[::-3]
        wide = np.zeros((220, *width))
        wide[: len(array)] = array
        assert np.array_equal(one.take(ids), wide[ids])
        assert np.array_equal(pickle.loads(pickle.dumps(one)).to_array(), array)
        assert copy.deepcopy(one) is one


def test_threads_that_go_on_from_one_version_do_not_meet():
    start = PagedArray(np.zeros(500))

    def go_on(seed):
        rng, version, plain = np.random.default_rng(seed), start, np.zeros(500)
        for _ in range(300):
            ids = rng.integers(0, 500, 3)
            version, rows, places = version.open(ids)
            np.add.at(rows, places, 1.0)
            np.add.at(plain, ids, 1.0)
        return np.array_equal(version.to_array(), plain)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(go_on, range(16)))
    assert not start.to_array().any()


@pytest.mark.parametrize("width", [(), (2,)])
def test_one_row_is_taken_as_many_are_and_is_a_copy(width):
    rows = PagedArray(np.random.default_rng(0).random((70, *width)))
    rows, pages, places = rows.open(np.array([40]))
    pages[places] = 9.0
    every = rows.take(np.arange(80))
    for at in range(80):
        one = rows.take(np.array([at], np.int32))
        assert np.array_equal(one, every[at : at + 1])
        one += 1  # nobody else sees it
    assert np.array_equal(rows.take(np.arange(80)), every)


@pytest.mark.parametrize("width", [(), (8,)])
def test_a_change_copies_a_few_pages_whatever_the_length(width):
    n_rows, n_calls = 200_000, 200
    version = PagedArray(np.zeros((n_rows, *width)))
    first = version._pool
    for at in range(n_calls):
        version = version.open(np.array([at * 997, at * 31]))[0]
    assert version._pool is first  # no page of the others was copied
    assert next(first._free) <= n_rows // 32 + 2 + 2 * n_calls
