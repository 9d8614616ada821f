"""MultiHot against plain dense arrays: fixed width, ragged, empty rows, no rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import MultiHot

D = 6
ragged = st.lists(st.lists(st.integers(0, D - 1), max_size=5), max_size=7)
fixed = st.integers(0, 3).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, D - 1), min_size=width, max_size=width, unique=True), max_size=7
    )
)
any_rows = st.one_of(ragged, fixed)


def dense_of(rows: list[list[int]]) -> np.ndarray:
    dense = np.zeros((len(rows), D), dtype=np.int8)
    for i, row in enumerate(rows):
        for j in row:
            dense[i, j] = 1
    return dense


@given(any_rows)
def test_from_rows_equals_the_dense_matrix(rows):
    X = MultiHot.from_rows(rows, D)
    assert np.array_equal(X.to_dense(), dense_of(rows))
    assert (X.n_rows, X.nnz) == (len(rows), dense_of(rows).sum())


@given(any_rows, st.data())
def test_selecting_rows_equals_dense_indexing(rows, data):
    at = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    found = MultiHot.from_rows(rows, D).select_rows(at).to_dense()
    assert np.array_equal(found, dense_of(rows)[np.array(at, dtype=int)])


@given(any_rows, st.data())
def test_a_mask_selects_the_same_rows_as_its_positions(rows, data):
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), bool
    )
    found = MultiHot.from_rows(rows, D).select_rows(mask).to_dense()
    assert np.array_equal(found, dense_of(rows)[mask])


@given(any_rows, st.lists(st.integers(0, D - 1), unique=True))
def test_selecting_features_equals_dense_columns(rows, features):
    X = MultiHot.from_rows(rows, D).select_features(features)
    assert np.array_equal(X.to_dense(), dense_of(rows)[:, np.array(features, dtype=int)])


@given(any_rows)
def test_degrees_are_dense_sums(rows):
    X = MultiHot.from_rows(rows, D)
    assert np.array_equal(X.row_degree, dense_of(rows).sum(axis=1))
    assert np.array_equal(X.feature_degree, dense_of(rows).sum(axis=0))


@given(any_rows, st.randoms())
def test_entries_in_any_order_and_repeated_give_the_same_matrix(rows, random):
    entries = [(i, j) for i, row in enumerate(rows) for j in row] * 2
    random.shuffle(entries)
    row, feature = np.array(entries, dtype=np.int64).reshape(-1, 2).T
    X = MultiHot.from_entries(row, feature, len(rows), D)
    assert np.array_equal(X.to_dense(), dense_of(rows))


@given(st.lists(any_rows, min_size=1, max_size=4))
def test_stacking_equals_dense_concatenation(parts):
    stacked = MultiHot.stack([MultiHot.from_rows(part, D) for part in parts])
    assert np.array_equal(stacked.to_dense(), np.concatenate([dense_of(part) for part in parts]))


# ---- values --------------------------------------------------------------------------------


@st.composite
def valued_rows(draw) -> tuple[list[list[int]], list[list[float]]]:
    """Rows of ids, and a value for each id; zero and repeated ids among them."""
    rows = draw(any_rows)
    numbers = st.floats(-100, 100, width=32)
    return rows, [draw(st.lists(numbers, min_size=len(r), max_size=len(r))) for r in rows]


def dense_values(rows: list[list[int]], values: list[list[float]]) -> np.ndarray:
    """(N, D) values, the last of a repeated id."""
    dense = np.zeros((len(rows), D), dtype=np.float32)
    for i, (row, numbers) in enumerate(zip(rows, values, strict=True)):
        for j, number in zip(row, numbers, strict=True):
            dense[i, j] = number
    return dense


def assert_is(X: MultiHot, dense: np.ndarray, entries: np.ndarray) -> None:
    """Values and entries, among them those of value zero, are those of the dense matrices."""
    assert X.values is not None and X.values.dtype == np.float32
    assert X.to_dense().dtype == np.float32
    assert np.array_equal(X.to_dense(), dense)
    ones = MultiHot(X.row_ptr, X.ids, X.n_features)
    assert np.array_equal(ones.to_dense(), entries)


def of_values(rows: list[list[int]], values: list[list[float]]) -> MultiHot:
    """A value for each id of each row."""
    entries = [(i, j) for i, row in enumerate(rows) for j in row]
    row, feature = np.array(entries, dtype=np.int64).reshape(-1, 2).T
    numbers = [number for row_values in values for number in row_values]
    return MultiHot.from_entries(row, feature, len(rows), D, values=numbers)


@given(valued_rows())
def test_from_entries_keeps_the_last_value_of_a_repeated_entry(table):
    assert_is(of_values(*table), dense_values(*table), dense_of(table[0]))


@given(valued_rows(), st.data())
def test_values_follow_selected_rows(table, data):
    n_rows = len(table[0])
    at = data.draw(st.lists(st.integers(0, n_rows - 1), max_size=9)) if n_rows else []
    at = np.array(at, dtype=int)
    X = of_values(*table).select_rows(at)
    assert_is(X, dense_values(*table)[at], dense_of(table[0])[at])


@given(valued_rows(), st.lists(st.integers(0, D - 1), unique=True))
def test_values_follow_selected_features_and_widening(table, features):
    at = np.array(features, dtype=int)
    dense, entries = dense_values(*table)[:, at], dense_of(table[0])[:, at]
    X = of_values(*table).select_features(features)
    assert_is(X, dense, entries)
    wider = (0, 0), (0, D - len(at))
    assert_is(X.widen(D), np.pad(dense, wider), np.pad(entries, wider))


@given(st.lists(st.tuples(valued_rows(), st.booleans()), min_size=1, max_size=4))
def test_stacking_gives_ones_to_parts_without_values(parts):
    stacked = MultiHot.stack(
        [of_values(*table) if has else MultiHot.from_rows(table[0], D) for table, has in parts]
    )
    entries = np.concatenate([dense_of(table[0]) for table, _ in parts])
    dense = [dense_values(*table) if has else dense_of(table[0]) for table, has in parts]
    if any(has for _, has in parts):
        assert_is(stacked, np.concatenate(dense), entries)
    else:
        assert stacked.values is None


def test_a_matrix_without_values_stays_one_of_bytes():
    X = MultiHot.from_rows([[0, 2], [1]], D)
    for part in (X, X.select_rows([1]), X.select_features([1]), X.widen(9), MultiHot.stack([X, X])):
        assert part.values is None and part.to_dense().dtype == np.int8


# ---- shapes and refusals -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "width"), [([], None), ([[], []], 0), ([[1, 2], [0, 3]], 2), ([[1], [0, 3]], None)]
)
def test_width_is_known_where_rows_are_equally_long(rows, width):
    assert MultiHot.from_rows(rows, D).width == width


def test_rows_without_features_can_be_selected():
    """Rows of width 0 could not be reshaped: `reshape(-1, 0)` is an error."""
    assert MultiHot.from_rows([[], [], []], D).select_rows([2, 0]).n_rows == 2


def test_an_empty_list_selects_nothing():
    """numpy takes an empty list for floats, which cannot index."""
    X = MultiHot.from_rows([[0], [1, 2]], D)
    assert X.select_rows([]).n_rows == 0
    assert X.select_features([]).n_features == 0


def test_widening_adds_empty_columns():
    X = MultiHot.from_rows([[1]], 2).widen(4)
    assert X.to_dense().tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHot.from_rows([[6]], 6), "feature id 6 is outside 0..5; give one of these."),
        (
            lambda: MultiHot.from_rows([[-1]], 6),
            "feature id -1 is outside 0..5; give one of these.",
        ),
        (
            lambda: MultiHot.from_rows([[1]], 6).widen(2),
            "cannot widen 6 features to 2; `below` gives the first ones.",
        ),
        (
            lambda: MultiHot.from_entries([0], [5], 2, 3),
            "feature id 5 is outside 0..2; give one of these.",
        ),
        (
            lambda: MultiHot.from_entries([1], [-1], 2, 3),
            "feature id -1 is outside 0..2; give one of these.",
        ),
        (
            lambda: MultiHot.from_entries([4], [0], 2, 3),
            "row 4 is outside 0..1; give one of these.",
        ),
        (
            lambda: MultiHot.from_entries([-1], [0], 2, 3),
            "row -1 is outside 0..1; give one of these.",
        ),
        (
            lambda: MultiHot.from_entries([0, 1], [0], 2, 3),
            "row and feature must have the same shape (entries,), not (2,) and (1,).",
        ),
        (
            lambda: MultiHot.from_rows([[2**32]], 3),
            "feature id 4294967296 is outside 0..2; give one of these.",
        ),
        (
            lambda: MultiHot.from_rows([[1.7]], 3),
            "feature ids must be integers, not float64 (the first is 1.7); "
            "convert them with astype(int).",
        ),
        (
            lambda: MultiHot.from_rows([[0], [True]], 3),
            "feature ids must be integers, not bool (the first is True); "
            "convert them with astype(int).",
        ),
        (
            lambda: MultiHot.from_rows([[1]], 3).select_features([0, 2, 2]),
            "feature id 2 is selected twice; give each id once.",
        ),
        (
            lambda: MultiHot.from_rows([[1]], 3).select_features([-1]),
            "feature id -1 is outside 0..2; give one of these.",
        ),
        (
            lambda: MultiHot.from_rows([[1]], 3).select_features([True]),
            "a mask of feature ids must have the length 3, not 1.",
        ),
        (
            lambda: MultiHot.from_rows([[1], [2]], 3).select_rows([True, False, True]),
            "a mask of rows must have the length 2, not 3.",
        ),
        (
            lambda: MultiHot.from_rows([[1], [2]], 3).select_rows([0, 2]),
            "row 2 is outside 0..1; give one of these.",
        ),
        (
            lambda: MultiHot.from_rows([[1], [2]], 3).select_rows([[0]]),
            "rows must have one axis, not the shape (1, 1).",
        ),
        (
            lambda: MultiHot(np.array([0, 1]), np.array([1.7]), 6),
            "row_ptr and ids must be integers, not int64 and float64; "
            "convert them with astype(int).",
        ),
        (
            lambda: MultiHot(np.array([0, 2, 1, 2]), np.array([0, 1], np.int32), 6),
            "row_ptr must not decrease: give where rows begin, in order.",
        ),
        (
            lambda: MultiHot(np.array([0, 1]), np.array([0, 1], np.int32), 6),
            "row_ptr must run from 0 to 2 (the number of ids).",
        ),
        (
            lambda: MultiHot.from_entries([0, 0, 1], [0, 1, 1], 2, 3, values=[1.0, 2.0, np.nan]),
            "the value of feature id 1 is nan (entry 2): "
            "values must be finite in float32; leave out what is missing.",
        ),
        (
            lambda: MultiHot.from_entries([0], [2], 1, 3, values=[1e39]),
            "the value of feature id 2 is inf (entry 0): "
            "values must be finite in float32; leave out what is missing.",
        ),
        (
            lambda: MultiHot.from_entries([0, 0], [1, 2], 1, 3, values=[1.0]),
            "values must have the shape of the ids, (2,), not (1,): one for each.",
        ),
        (
            lambda: MultiHot(np.array([0, 1]), np.array([1], np.int32), 3, np.ones(1)),
            "values must be float32 of the shape (1,), one for each id, "
            "not float64 of the shape (1,).",
        ),
    ],
)
def test_malformed_matrices_are_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message
