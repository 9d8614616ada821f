"""Numbers between knots: where knots lie, and which two a cell has."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import Encoder, Field, Schema
from openfate.table.fields import Knots, guess_knots
from openfate.table.frame import read_table

PAY = Field("pay", "numeric", numeric="linear")
NUMBERS = st.lists(
    st.floats(-1e300, 1e300) | st.integers(-3, 3).map(float), min_size=1, max_size=80
)


def fitted(numbers, field: Field = PAY, **settings) -> Encoder:
    return Encoder(Schema([field]), **settings).fit(pl.DataFrame({"pay": numbers}))


def dense(encoder: Encoder, numbers) -> np.ndarray:
    return encoder.encode(pl.DataFrame({"pay": numbers}, {"pay": pl.Float64})).to_dense()


def slow(knots: list[float], x: float) -> list[float]:
    """The twin: what a number gives each knot, by looking at every one."""
    if x <= knots[0] or x >= knots[-1]:
        return [float(knot == (knots[0] if x <= knots[0] else knots[-1])) for knot in knots]
    shares = [0.0] * len(knots)
    for k in range(len(knots) - 1):
        if knots[k] <= x < knots[k + 1]:
            t = (x - knots[k]) / (knots[k + 1] - knots[k])
            shares[k], shares[k + 1] = 1 - t, t
    return shares


@pytest.mark.parametrize("n_rows", [1, 5, 40, 900])
def test_a_cell_has_the_two_knots_around_its_number(n_rows):
    rng = np.random.default_rng(n_rows)
    encoder = fitted(np.exp(2 * rng.normal(size=n_rows)))
    knots = [encoder.decode(j)[1] for j in range(encoder.n_features)]
    later = np.exp(2.5 * rng.normal(size=200))
    expected = np.array([slow(knots, x) for x in later])
    np.testing.assert_allclose(dense(encoder, later), expected, atol=1e-6)


@given(NUMBERS, NUMBERS)
def test_shares_sum_to_one_and_follow_the_order_of_numbers(numbers, later):
    encoder = fitted(numbers)
    later = np.sort(later)
    shares = dense(encoder, later).astype(np.float64)
    assert ((shares >= 0) & ((shares > 0).sum(1) <= 2)[:, None]).all()
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    # A function that rises along the knots rises along the numbers.
    assert (np.diff(shares @ np.arange(encoder.n_features)) >= -1e-5).all()


@given(NUMBERS)
def test_knots_are_numbers_that_occur_at_most_so_many(numbers):
    knots = Knots.learn(PAY, np.array(numbers)).at
    assert set(knots) <= set(numbers) and (np.diff(knots) > 0).all()
    assert knots[0] == min(numbers) and knots[-1] == max(numbers)
    assert len(knots) <= min(PAY.n_knots, max(2, len(numbers) // 16), len(set(numbers)))


def test_a_number_that_fills_most_rows_leaves_the_others_their_knots():
    rng = np.random.default_rng(0)
    gains = np.where(rng.random(4000) < 0.9, 0.0, np.exp(rng.normal(8, 1, 4000)))
    knots = Knots.learn(PAY, gains).at
    assert knots[0] == 0 and len(knots) > 15
    shares = [np.mean((gains > a) & (gains <= b)) for a, b in itertools.pairwise(knots[1:])]
    assert max(shares) < 3 * min(shares)


def test_knots_are_found_described_and_kept_in_a_bundle_s_parts():
    encoder = fitted([0.0, 10.0, None] * 40)
    assert [encoder.describe(j)[1] for j in range(3)] == ["0", "10", "(missing)"]
    assert encoder.is_knot.tolist() == [True, True, False]
    found = [encoder.find("pay", value) for value in (-5, 4, 6, 10.0, 99, None)]
    assert found == [0, 0, 1, 1, 1, 2]
    again = Encoder.from_parts(*encoder.to_parts())
    assert again.decode(1) == ("pay", 10.0)
    np.testing.assert_array_equal(dense(again, [3.0, None]), dense(encoder, [3.0, None]))


def test_missing_and_infinite_numbers():
    encoder = fitted([1.0, 2.0, None, float("inf")] * 20)
    rows = dense(encoder, [1.5, None, float("inf"), float("-inf")])
    assert rows.tolist() == [[0.5, 0.5, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert not dense(fitted([1.0, 2.0], missing="none"), [None]).any()


def test_a_column_that_appears_later_takes_knots_from_its_first_rows():
    encoder = fitted([1.0, 2.0] * 30)
    rows = pl.DataFrame({"pay": [1.0, 2.0] * 60, "rent": [0.0, 8.0] * 60})
    schema = Schema.from_frame(rows, [PAY, Field("rent", "numeric", numeric="linear")])
    wider = encoder.grow_copy(rows, schema)
    later = wider.encode(pl.DataFrame({"rent": [2.0]}))
    assert later.ids.tolist() == [2, 3] and later.values.tolist() == [0.75, 0.25]
    assert wider.unseen(pl.DataFrame({"rent": [-7.0, 3.3]}))["rent"].n_new == 0


@pytest.mark.parametrize("first", [[100.0], [0.0], [-3.0, 5.0], [1e6, 1e6 + 1]])
def test_a_column_whose_first_rows_are_few_has_knots_around_them(first):
    rows = pl.DataFrame({"rent": first})
    schema = Schema([Field("rent", "numeric", numeric="linear")])
    wider = fitted([1.0, 2.0] * 30).grow_copy(rows, schema)
    around = np.linspace(min(first) * 0.9 - 1, max(first) * 1.1 + 1, 9)
    later = pl.DataFrame({"rent": around})
    X = wider.encode(later)
    assert wider.unseen(later)["rent"].n_new == 0  # numbers between known knots are nothing new
    cells = {tuple(X.select_rows([i]).to_dense()[0].tolist()) for i in range(len(around))}
    assert len(cells) >= 8  # and are told apart


@pytest.mark.parametrize("knots", [[], [1.0, 1.0], [2.0, 1.0], [float("nan")], [0.0] * 99, "x"])
def test_what_are_no_knots_is_refused(knots):
    header, vocabulary = fitted([0.0, 1.0] * 20).to_parts()
    with pytest.raises(InputError, match="these are not an encoder's parts"):
        Encoder.from_parts({**header, "knots": {"pay": knots}}, vocabulary)


def test_the_number_of_knots_is_checked_and_kept():
    with pytest.raises(InputError, match="n_knots must be an integer from 2 up, not 1"):
        Field("pay", "numeric", numeric="linear", n_knots=1)
    schema = Schema([Field("pay", "numeric", numeric="linear", n_knots=5)])
    assert Schema.from_json(schema.to_json()) == schema
    rng = np.random.default_rng(0)
    assert fitted(rng.normal(size=999), schema["pay"]).n_features == 5


def test_jumps_are_knots_besides_and_are_kept():
    field = Field("pay", "numeric", numeric="linear", n_knots=5, jumps=(0.25, 0.2625))
    schema = Schema([field])
    assert Schema.from_json(schema.to_json()) == schema
    numbers = np.random.default_rng(0).normal(size=999)
    encoder, plain = (
        fitted(numbers, field),
        fitted(numbers, Field("pay", "numeric", numeric="linear", n_knots=5)),
    )
    knots, others = ([e.decode(j)[1] for j in range(e.n_features)] for e in (encoder, plain))
    assert knots == sorted({*others, 0.25, 0.2625})
    again = Encoder.from_parts(*encoder.to_parts())
    assert np.array_equal(dense(again, numbers), dense(encoder, numbers))
    (declared,) = guess_knots([field], read_table(pl.DataFrame({"pay": [1.0, 2.0]})))
    assert {0.25, 0.2625} <= set(declared.knots)


@pytest.mark.parametrize("jumps", [(), (1.0, 1.0), (2.0, 1.0), (float("nan"),)])
def test_what_are_no_jumps_is_refused(jumps):
    with pytest.raises(InputError, match="field 'pay': jumps must be finite numbers, ascending"):
        Field("pay", "numeric", numeric="linear", jumps=jumps)


def slow_guess(numbers: list[float]) -> list[float] | None:
    """The twin: knots of one column that appears after training, number by number."""
    finite = np.array([x for x in numbers if x is not None and np.isfinite(x)])
    if not len(finite):
        return None
    few, n_knots = sorted(set(finite.tolist())), max(2, min(24, len(finite) // 8))
    found = Knots.of_quantiles(*np.unique(finite, return_counts=True), n_knots).at.tolist()
    size, middle = float(np.median(np.abs(few))) or 1.0, float(np.median(few))
    spread = few[-1] - few[0] or size / 16
    parts = [sign * 2.0**power for power in range(-3, 4) for sign in (1, -1)]
    steps = [sign * 2.0**power for power in range(-1, 3) for sign in (1, -1)]
    at = {*found[:: max(1, len(found) // 3)], 0.0}
    at |= {size * part for part in parts} | {middle + spread * step for step in steps}
    knots = sorted(knot for knot in at if np.isfinite(knot))
    places = np.linspace(0, len(knots) - 1, min(len(knots), 24)).round().astype(int)
    return [knots[place] for place in places]


@given(st.integers(1, 40), st.data())
def test_knots_of_new_columns_are_guessed_at_once_as_one_by_one(n_rows, data):
    number = st.floats(-1e300, 1e300) | st.integers(-3, 3).map(float) | st.none()
    column = st.lists(number, min_size=n_rows, max_size=n_rows)
    columns = dict(enumerate(data.draw(st.lists(column, min_size=1, max_size=5))))
    frame = pl.DataFrame({f"c{at}": cells for at, cells in columns.items()}, strict=False)
    frame = frame.cast(pl.Float64)
    fields = [Field(name, "numeric", numeric="linear") for name in frame.columns]
    for field, cells in zip(guess_knots(fields, read_table(frame)), columns.values(), strict=True):
        expected = slow_guess(cells)
        assert field.knots == (None if expected is None else pytest.approx(expected, rel=1e-12))
