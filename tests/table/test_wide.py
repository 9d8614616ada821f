"""Many new columns of few rows, at once: what they become one by one, to the last bit."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.table import Encoder, Field, Schema, Table, read_table, schema, wide
from openfate.table.changes import Allowed
from openfate.table.fields import KINDS, Text

KNOWN = pl.DataFrame({"job": ["cook", None, "pilot"] * 9, "age": np.linspace(20, 60, 27)})
WHOLE = st.integers(-(2**62), 2**62) | st.integers(-3, 3)
CELLS = {
    pl.String: st.sampled_from(["a", "b", "", "é", "1", "true"]) | st.text(max_size=3),
    pl.Boolean: st.booleans(),
    pl.Int64: WHOLE,
    pl.Float64: st.floats() | WHOLE.map(float) | st.floats(0, 2**50).map(np.floor),
    pl.Float32: st.floats(width=32),  # not plain: all columns go one by one
}


@st.composite
def frames(draw):
    n_rows = draw(st.integers(1, 4) | st.just(40))
    plain = draw(st.booleans())
    types = draw(
        st.lists(st.sampled_from(list(CELLS)[: 4 if plain else 5]), min_size=1, max_size=6)
    )
    cells = [draw(st.lists(st.none() | CELLS[t], min_size=n_rows, max_size=n_rows)) for t in types]
    columns = [pl.Series(f"{'id ' if draw(st.booleans()) else ''}{at}", each, types[at])
               for at, each in enumerate(cells)]  # fmt: skip
    frame = pl.DataFrame(columns)
    if draw(st.booleans()):
        frame = frame.with_columns(age=pl.lit(41.5), job=pl.lit("judge"))
    return frame[draw(st.permutations(frame.columns))]


def fitted(missing):
    kinds = [Field("age", "numeric", numeric="linear", n_knots=4)]
    return Encoder(Schema.from_frame(KNOWN, kinds), missing).fit(KNOWN)


def grown(encoder, frame, least, lasting):
    """Grown from a frame, and its rows: at once where it has `least` columns."""
    table = read_table(frame)
    new = tuple(n for n in table.columns if n not in encoder.fields
                and table.columns[n].null_count() < table.n_rows)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "_WIDE", least)
        found = Allowed(new, None).grow(encoder, table, None, "linear", lasting=lasting)
        return found, found.encode(table)


def assert_same(one, other):
    """Two encoders that know the same."""
    assert one.fields == other.fields and one.schema == other.schema
    (header, vocabulary), (other_header, other_vocabulary) = one.to_parts(), other.to_parts()
    for each in (header, other_header):
        each.pop("hash_key")
    assert header == other_header and vocabulary.equals(other_vocabulary)
    assert one.has_values == other.has_values
    np.testing.assert_array_equal(one.is_knot, other.is_knot)


def assert_equal(X, Y):
    for name in ("row_ptr", "ids", "values"):
        np.testing.assert_array_equal(getattr(X, name), getattr(Y, name), strict=True)
    assert X.n_features == Y.n_features


@settings(max_examples=300, deadline=None)
@given(frames(), frames(), st.sampled_from(["feature", "none"]), st.booleans())
def test_columns_at_once_are_what_they_are_one_by_one(frame, later, missing, lasting):
    encoder = fitted(missing)
    one, X = grown(encoder, frame, 10**9, lasting)
    other, Y = grown(encoder, frame, 1, lasting)
    assert_equal(X, Y)
    assert one.has_values == other.has_values
    kept = pickle.loads(pickle.dumps(copy.deepcopy(other)))
    assert_same(one, other)
    assert_same(one, kept)
    alike = [n for n in later.columns if n in other.fields and n in frame]
    alike = later[[n for n in alike if later[n].dtype == frame[n].dtype]]
    assert_equal(one.encode(alike), other.encode(alike))
    assert_same(one.grow_copy(alike), kept.grow_copy(alike))


def test_many_columns_take_no_object_each(monkeypatch):
    encoder = fitted("feature")
    monkeypatch.setattr(Field, "unchecked", None)
    rows = pl.DataFrame({f"c{at}": [1.5, None] if at % 2 else ["a", "b"] for at in range(40)})
    found, X = grown(encoder, rows, wide._WIDE, lasting=False)
    # A text has a feature, a number the two around it; of a missing cell there is one.
    assert (X.n_features, X.nnz) == (found.n_features, 20 * 2 + 20 * (1 + 1))


class Shout(Text):
    """A kind of somebody else's: case makes no difference."""

    name = "shout"

    def keys_in(self, cell):
        return ((cell.upper(), 1.0),)

    def _read(self, table):
        name = self.field.name
        shouted = Table(table.n_rows, {name: table.columns[name].str.to_uppercase()})
        return Text(self.field)._read(shouted)


def forget_kinds():
    """Which kind takes a type is looked up once."""
    schema._kind_of.cache_clear()
    schema._kind_for.cache_clear()


@pytest.mark.parametrize("place", ["shout", "categorical"])
def test_a_kind_of_somebody_else_is_asked(place, monkeypatch, request):
    monkeypatch.setattr(Shout, "name", place)
    encoder = fitted("feature")
    monkeypatch.setitem(KINDS.data, place, Shout)
    request.addfinalizer(forget_kinds)
    forget_kinds()
    rows = pl.DataFrame({f"c{at}": ["a", "A"] for at in range(40)})
    found, X = grown(encoder, rows, wide._WIDE, lasting=False)
    assert X.nnz == 80 and found.n_features == encoder.n_features + 40
    assert found.decode(encoder.n_features) == ("c0", "A")
