"""Cells of any Python types: the same column in any order, from an array or from a frame."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate import FATEClassifier
from openfate.errors import InputError
from openfate.table import column_of, read_table, text_of

CELLS = [
    *(None, float("nan"), np.float64("nan"), pd.NA, pd.NaT, np.datetime64("NaT")),
    *(1, np.int64(1), 2.0, np.float32(2.5), True, np.True_, "a", np.str_("b"), "1"),
    *(datetime.date(2020, 1, 2), np.datetime64("2020-01-02", "ns")),
]


def texts(column) -> list[str | None]:
    return text_of(column, "x").to_list()


@given(st.lists(st.sampled_from(range(len(CELLS))), min_size=1, max_size=8), st.randoms())
def test_the_order_of_the_cells_does_not_matter(places, random):
    order = list(range(len(places)))
    random.shuffle(order)
    one = texts(column_of("x", [CELLS[at] for at in places]))
    other = texts(column_of("x", [CELLS[places[at]] for at in order]))
    assert [one[at] for at in order] == other


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[1], [2.5]], [[1.0], [2.5]]),
        ([["a"], [1, 2.0], None, []], [["a"], ["1", "2"], None, []]),
        ([{2.5}, (1,), np.array([3.0]), float("nan")], [[2.5], [1.0], [3.0], None]),
        ([[np.nan, "a"], ["b"]], [[None, "a"], ["b"]]),
    ],
)
def test_lists_of_any_elements_in_any_order(cells, expected, turn):
    step = -1 if turn else 1
    assert column_of("x", cells[::step]).to_list() == expected[::step]


@pytest.mark.parametrize("cells", [[[1], "a"], ["a", [1]], [{"a": 1}, 2]])
def test_lists_beside_other_values_are_named(cells):
    with pytest.raises(InputError, match=r"field 'x' mixes (list|dict) values with others"):
        column_of("x", cells)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1, "a", 2.0], ["1", "a", "2"]),
        ([np.nan, "home"], [None, "home"]),
        ([pd.NA, "home", pd.NaT], [None, "home", None]),
        ([2, True], ["2", "true"]),
        ([True, 2], ["true", "2"]),
        ([1, 2.5, None], ["1", "2.5", None]),
        ([2**53 + 1, 2**53, 1.5], ["9007199254740993", "9007199254740992", "1.5"]),
        ([np.datetime64("2020-01-02"), None], ["2020-01-02", None]),
        ([np.datetime64("2020-01-02T03", "ns"), None], ["2020-01-02 03:00:00.000000", None]),
    ],
)
def test_an_array_of_objects_reads_as_a_frame_does(cells, expected):
    assert texts(column_of("x", cells)) == expected
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    assert texts(read_table(frame).columns["x"]) == expected


def test_a_row_is_predicted_alike_behind_any_other():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    X = np.empty((120, 2), object)
    X[:, 0] = [np.nan if label else "home" for label in y]
    X[:, 1] = rng.choice(["p", "q"], 120)
    clf = FATEClassifier(epochs=3, n_members=1, n_draws=1).fit(X, y)
    known, missing = X[y == 0][:1], X[y == 1][:3]
    together = clf.predict_proba(np.vstack([known, missing]), graph="state")[1:]
    np.testing.assert_array_equal(together, clf.predict_proba(missing, graph="state"))
    numbered = pd.DataFrame(np.vstack([missing, known]))
    np.testing.assert_array_equal(together, clf.predict_proba(numbered, graph="state")[:3])
