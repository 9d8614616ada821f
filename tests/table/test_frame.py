"""Frames of any library and cells of any Python types: the same columns, the same texts."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate import FATEClassifier
from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema, column_of, read_table, text_of

CELLS = {
    "job": ["cook", None, "pilot", "cook"],
    "floor": [1, 2, None, 10],
    "age": [20.5, 60.0, None, 33.0],
    "member": [True, None, False, True],
    "tags": [["a", "b"], None, [], ["b", "b"]],
}
ANY = [
    *(None, float("nan"), np.float64("nan"), pd.NA, pd.NaT, np.datetime64("NaT")),
    *(1, np.int64(1), 2.0, np.float32(2.5), True, np.True_, "a", np.str_("b"), "1"),
    *(datetime.date(2020, 1, 2), np.datetime64("2020-01-02", "ns")),
]


def texts(column) -> list[str | None]:
    return text_of(column, "x").to_list()


# ---- frames ----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["feature", "none"])
@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_pandas_and_pyarrow_encode_as_polars_does(make, missing):
    kinds = Schema.from_frame(pl.DataFrame(CELLS))
    ours = Encoder(kinds, missing).fit(pl.DataFrame(CELLS))
    theirs = Encoder(kinds, missing).fit(make(CELLS))
    (header, vocabulary), others = ours.to_parts(), theirs.to_parts()
    assert others[0] == header and others[1].equals(vocabulary)
    assert np.array_equal(
        ours.encode(make(CELLS)).to_dense(), theirs.encode(pl.DataFrame(CELLS)).to_dense()
    )


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 2, None]),
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series(["1", "2", None]),
        pd.Series(["1", "2", None], dtype=object),
        pd.Series(pd.Categorical([1, 2, None])),
        pd.Series(pd.Categorical([1.0, 2.0, None])),
        pd.Series([1, "2", None], dtype=object),
        pd.Series([1.0, "2", math.nan], dtype=object),
        pl.Series([1, 2, None], dtype=pl.Int8),
        pl.Series([1, 2, None], dtype=pl.Float32),
        pl.Series(["1", "2", None], dtype=pl.Categorical),
        pl.Series(["1", "2", None], dtype=pl.Enum(["2", "1"])),
        pa.array([1, 2, None]),
        pa.array([1, 2, None]).dictionary_encode(),
    ],
    ids=str,
)
def test_one_is_one_whatever_its_type(column):
    make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
    frame = make[type(column).__module__.split(".")[0]]({"x": column})
    encoder = Encoder(Schema([Field("x", "categorical")])).fit(frame)
    assert [encoder.decode(j)[1] for j in range(encoder.n_features)] == ["1", "2", None]
    assert encoder.encode(frame).ids.tolist() == [0, 1, 2]


def test_text_is_taken_as_it_is():
    frame = pl.DataFrame({"x": ["1", "1.0", "01", " 1", ""]})
    assert Encoder(Schema.from_frame(frame)).fit(frame).n_features == 5


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pl.Series([0.25, 1e300, -0.0]), ["0", "0.25", "1e+300"]),
        (pl.Series([datetime.date(2024, 1, 2)]), ["2024-01-02"]),
        (pl.Series([2**62 + 1]), ["4611686018427387905"]),
        (pl.Series([datetime.timedelta(seconds=1)]), ["1000000"]),
        (pd.Series(pd.period_range("2024-01", periods=1, freq="M")), ["2024-01"]),
        (pd.Series([2**70, None], dtype=object), [str(2**70)]),
        (pd.Series(pd.arrays.SparseArray([0, 1])), ["0", "1"]),
        (pl.Series([Decimal("1.00"), Decimal("-0.50"), Decimal(100)]), ["-0.5", "1", "100"]),
        (pl.Series([Decimal(10**17), Decimal(10**17 + 1)]), [str(10**17), str(10**17 + 1)]),
        (pd.Series([Decimal("1.00"), Decimal(10**45)], dtype=object), ["1", str(10**45)]),
        (pd.Series([Decimal("2.50"), "a"], dtype=object), ["2.5", "a"]),
        (pl.Series([1000, 1001, 1002]).cast(pl.Duration("ns")), ["1", "1001ns", "1002ns"]),
        (
            pl.Series([1000, 1001, None]).cast(pl.Datetime("ns")),
            ["1970-01-01 00:00:00.000001", "1970-01-01 00:00:00.000001001"],
        ),
    ],
    ids=str,
)
def test_categories_of_any_type_have_a_text(column, text):
    frame = (
        pd.DataFrame({"x": column})
        if isinstance(column, pd.Series)
        else pl.DataFrame({"x": column})
    )
    encoder = Encoder(Schema([Field("x", "categorical")]), "none").fit(frame)
    assert [encoder.decode(j)[1] for j in range(encoder.n_features)] == text


def test_times_in_nanoseconds_and_microseconds_are_the_same_value():
    moment = pl.DataFrame({"x": [datetime.datetime(2024, 1, 2, 3, 4, 5)]})
    encoder = Encoder(Schema([Field("x", "categorical")])).fit(moment)
    assert encoder.encode(moment.cast(pl.Datetime("ns"))).ids.tolist() == [0]


def test_frames_are_not_changed():
    frame = pd.DataFrame(CELLS)
    copy = frame.copy(deep=True)
    Encoder(Schema.from_frame(frame)).fit(frame).encode(frame)
    pd.testing.assert_frame_equal(frame, copy)


def test_a_table_is_taken_as_it_is():
    table = read_table(pl.DataFrame(CELLS))
    assert read_table(table) is table


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([[1]], "expected a pandas, polars or pyarrow frame, not list; give a frame."),
        (
            pl.LazyFrame({"a": [1]}),
            "expected a pandas, polars or pyarrow frame, not LazyFrame; call .collect() first.",
        ),
        (
            pd.DataFrame([[1, 2]]),
            "column name 0 is not a string; rename it, e.g. with "
            "frame.columns = frame.columns.map(str).",
        ),
        (
            pd.DataFrame([[1]], columns=pd.Index(["\ud800"], dtype=object)),
            "column name '\\ud800' is not valid Unicode; rename it.",
        ),
        (
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            "column names must be unique: Expected unique column names, got: - 'a' 2 times.",
        ),
        *(
            (
                pd.DataFrame({"x": pd.Series(cells, dtype=object)}),
                "field 'x' holds 'a\\ud800', which is not valid Unicode; replace or drop it.",
            )
            for cells in (["a\ud800"], [1, "a\ud800"], [["a\ud800"]])
        ),
    ],
)
def test_what_cannot_be_a_table_is_refused(frame, message):
    with pytest.raises(InputError) as error:
        read_table(frame)
    assert str(error.value) == message


# ---- Python values ---------------------------------------------------------------------------


@given(st.lists(st.sampled_from(range(len(ANY))), min_size=1, max_size=8), st.randoms())
def test_the_order_of_the_cells_does_not_matter(places, random):
    order = list(range(len(places)))
    random.shuffle(order)
    one = texts(column_of("x", [ANY[at] for at in places]))
    other = texts(column_of("x", [ANY[places[at]] for at in order]))
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
    alone = clf.predict_proba(missing, graph="state")
    np.testing.assert_allclose(together, alone, rtol=1e-12)  # products of more rows round otherwise
    numbered = pd.DataFrame(np.vstack([missing, known]))
    behind = clf.predict_proba(numbered, graph="state")[:3]
    np.testing.assert_allclose(together, behind, rtol=1e-12)
