"""The stream follows its law, block by block, and its ceiling orders what can be known."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.table import prepare
from openfate_lab.data import BLOCK_ROWS, SyntheticStream, write_raw_criteo
from openfate_lab.data.alias import draw, make_alias


@pytest.fixture(scope="module")
def stream():
    return SyntheticStream(3 * BLOCK_ROWS + 17, "avazu", n_features=20_000, seed=3)


@example([[1.0, 1.0, 0.875, 0.875]])  # a deficit that equals an excess
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=1, max_size=9))
def test_alias_tables_hold_their_laws(laws):
    laws = [np.array(law) + 1e-6 for law in laws]
    p = np.concatenate([law / law.sum() for law in laws])
    sizes = np.array([len(law) for law in laws])
    prob, alias = make_alias(p, sizes)
    law = np.repeat(np.arange(len(sizes)), sizes)
    held = prob / sizes[law]
    np.add.at(held, alias, (1 - prob) / sizes[law])
    assert np.array_equal(law[alias], law)  # no law takes from another
    np.testing.assert_allclose(held, p, atol=1e-6)


def test_draws_follow_the_law():
    p = np.array([0.5, 0.3, 0.2, 0.0])
    drawn = draw(np.random.default_rng(0), 100_000, 0, 4, *make_alias(p, np.array([4])))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 1e5, p, atol=0.006)


def test_a_value_is_drawn_as_its_base_times_the_tilt():
    """The two-stage draw equals the law it stands for: base_j exp(u . v_j) over the field."""
    stream = SyntheticStream(100, [40, 5], n_features=100, affinity=1.0, seed=1)
    n = 200_000
    ids, u = stream._draw(np.random.default_rng(0), np.zeros(n, np.int64))
    own = np.flatnonzero(
        (stream.field_of == 0) & (np.arange(stream.n_features) < stream.n_observed)
    )
    tilt = stream.tilt[0][:, stream._v_of[own]]  # (K, values)
    p = stream.base[own] * tilt
    p /= p.sum(1, keepdims=True)
    expected = np.bincount(u, minlength=len(p)) @ p
    found = np.bincount(ids[:, 0], minlength=own[-1] + 1)[own]
    chi2 = ((found - expected) ** 2 / expected).sum()
    assert chi2 < len(own) + 5 * np.sqrt(2 * len(own))
    # and given u: the commonest value of two u that differ most in it
    at = own[np.argmax(np.ptp(p, axis=0))]
    for k in (np.argmin(p[:, at - own[0]]), np.argmax(p[:, at - own[0]])):
        share = (ids[u == k, 0] == at).mean()
        assert abs(share - p[k, at - own[0]]) < 0.08


def test_a_block_is_the_same_whichever_was_drawn_before(stream):
    other = SyntheticStream(stream.n_rows, "avazu", n_features=20_000, seed=3)
    later, earlier = other.block(2), other.block(0)
    assert np.array_equal(stream.block(0).ids, earlier.ids)
    assert np.array_equal(stream.block(2).ids, later.ids)
    assert np.array_equal(stream.block(2).y, later.y)
    assert not np.array_equal(earlier.ids[:1000], later.ids[:1000])
    assert not np.array_equal(
        SyntheticStream(stream.n_rows, "avazu", 20_000).block(0).ids, earlier.ids
    )


def test_batches_of_all_parts_are_all_blocks(stream):
    found = [ids for part in stream.parts for ids, _ in stream.batches(part, 5000)]
    blocks = [stream.block(b).ids for b in range(stream.n_blocks)]
    assert np.array_equal(np.concatenate(found), np.concatenate(blocks))
    assert {len(ids) for ids, _ in stream.batches("T3", 1000)} <= {
        1000,
        len(stream.rows_of("T3")) % 1000,
    }


@pytest.mark.parametrize("part", ["train", "T2"])  # T2 lies in two blocks
def test_a_seed_mixes_a_part_and_another_mixes_it_otherwise(stream, part):
    """The same rows with their labels, in an order that the seed alone tells."""

    def rows(seed):
        ids, y = (
            np.concatenate(a) for a in zip(*stream.batches(part, 700, seed=seed), strict=True)
        )
        return np.column_stack([ids, y])

    plain, mixed = rows(None), rows(1)
    assert np.array_equal(mixed, rows(1))
    assert not np.array_equal(mixed, plain) and not np.array_equal(mixed, rows(2))
    assert np.array_equal(plain[np.lexsort(plain.T)], mixed[np.lexsort(mixed.T)])


def test_batches_that_cannot_be_made_are_named(stream):
    with pytest.raises(InputError, match="batch_rows=0: give 1 or more"):
        stream.batches("T3", 0)


@pytest.mark.parametrize("shape", ["criteo", "avazu"])
def test_later_days_have_a_tenth_of_new_cells_and_the_first_none(shape):
    stream = SyntheticStream(100_000, shape, n_features=100_000)
    for part in stream.parts:
        ids = np.concatenate([ids for ids, _ in stream.batches(part)])
        share = (ids >= stream.n_observed).mean()
        assert share == 0 if part == "train" else 0.095 < share < 0.105
        assert (stream.field_of[ids] == np.arange(ids.shape[1])).all()
    assert abs(stream.n_features - 100_000) < 1000
    assert 0.4 < stream.n_observed / stream.n_features < 0.6


def test_values_born_on_a_later_day_do_not_come_before_it(stream):
    seen = np.full(stream.n_features, 99)
    for b in range(stream.n_blocks):
        block = stream.block(b)
        np.minimum.at(seen, block.ids, block.day[:, None])
    born_last = stream.n_features - 1  # the last day's pool is the last of its field
    assert seen[born_last] in (9, 99)
    assert (seen[: stream.n_observed] == 0).mean() > 0.3


def test_half_of_the_variance_of_w_is_noise_and_the_rate_and_spread_are_as_asked():
    stream = SyntheticStream(100_000, n_features=100_000)
    noise = stream.w - stream.w_known
    assert 0.4 < noise.var() / stream.w.var() < 0.6
    assert abs(np.corrcoef(noise, stream.w_known)[0, 1]) < 0.02
    block = stream.block(0)
    assert abs(block.y.mean() - 0.25) < 0.02 and abs(block.logit.std() - 2) < 0.1
    np.testing.assert_allclose(
        block.logit, stream.w[block.ids].sum(1) + stream.intercept, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_ceiling_orders_what_can_be_known(seed):
    stream = SyntheticStream(150_000, n_features=100_000, seed=seed)
    top = stream.ceiling("T4", max_rows=15_000)
    assert top["observed_plain"] - 1e-3 < top["observed"] < top["extrapolated"] < top["all"] < 1
    gain = (top["extrapolated"] - top["observed"]) / (top["all"] - top["observed"])
    assert 0.3 < gain < 0.7  # half of the variance is told by co-occurrence
    assert 0.09 < top["new_cells"] < 0.11
    nothing = stream.ceiling("T4", np.zeros(stream.n_features, bool), max_rows=5000)
    assert abs(nothing["observed_plain"] - 0.5) < 1e-9 and nothing["new_cells"] == 1


def test_training_counts_are_those_of_the_training_rows(stream):
    counts = stream.training_counts()
    assert counts.sum() == len(stream.rows_of("train")) * len(stream.fields)
    assert not counts[stream.n_observed :].any()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shape": "movies"}, 'shape must be "criteo", "avazu" or a list, not \'movies\'.'),
        ({"affinity": 11}, "affinity=11: choose a number from 0 to 10."),
        ({"n_features": 100}, "n_features=100 is too few for 39 fields over 10 days; give 780"),
        ({"n_days": 1}, "1000 rows over 1 days: give 2 days or more, each with a row."),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, says):
    with pytest.raises(InputError) as error:
        SyntheticStream(1000, **arguments)
    assert str(error.value).startswith(says)


def test_the_raw_log_tells_the_stream_apart(tmp_path):
    """Prepared, the written log has the stream's features: cells are equal where ids are equal."""
    stream = write_raw_criteo(tmp_path / "a.txt", 2000, seed=1, n_features=5000)
    data = prepare(tmp_path / "a.txt", tmp_path / "out", "criteo", threshold=1)
    ids = np.concatenate([data.read(part)[0] for part in data.parts])
    y = np.concatenate([data.read(part)[1] for part in data.parts])
    block = stream.block(0)
    assert np.array_equal(y, block.y)
    for f in range(39):
        pairs = np.unique(np.stack([ids[:, f], block.ids[:, f]]), axis=1)
        assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]


def test_it_needs_numpy_alone():
    code = (
        "import sys, openfate_lab.data.synthetic_raw; "
        "print([m for m in ('polars', 'torch', 'narwhals', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
