"""Reading ahead changes nothing but the time, and leaves no thread behind."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.table import read_ahead


@given(items=st.lists(st.integers(), max_size=20), n_ahead=st.integers(1, 4))
def test_reading_ahead_changes_nothing(items, n_ahead):
    assert list(read_ahead(items, n_ahead)) == items


def wait_for(condition) -> bool:
    """True as soon as it holds; False after five seconds."""
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def test_items_are_fetched_before_they_are_asked_for_but_not_too_many():
    fetched = []
    items = read_ahead((fetched.append(i) or i for i in range(100)), n_ahead=2)
    assert next(items) == 0
    assert wait_for(lambda: len(fetched) >= 3)
    time.sleep(0.05)
    assert len(fetched) <= 5  # one handed out, two waiting, one in the hand


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("openfate-work-ahead")]


def test_the_thread_ends_when_the_reader_leaves_half_way():
    items = read_ahead(iter(range(10**9)))
    next(items)
    assert readers()
    items.close()
    assert wait_for(lambda: not readers())


def test_both_threads_end_when_the_reader_of_two_leaves_half_way():
    """As those that read a prepared log and make graphs of it."""
    items = read_ahead(i + 1 for i in read_ahead(iter(range(10**9))))
    assert next(items) == 1 and len(readers()) == 2
    items.close()
    del items
    assert wait_for(lambda: not readers())


def test_an_error_comes_where_its_item_would_have_come():
    def broken():
        yield 1
        raise OSError("disk")

    items = read_ahead(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match="disk"):
        next(items)
