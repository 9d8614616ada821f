"""Splits partition rows and features, repeat with their seed, and survive a file."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate_lab.data import (
    Split,
    split_features,
    split_fields,
    split_rows,
)

seeds = st.integers(0, 2**32)
observed_shares = st.floats(0.01, 0.99)


def together(*parts):
    return np.sort(np.concatenate(parts)).tolist()


@given(st.integers(5, 200), seeds)
def test_rows_are_parted_without_rest(n_rows, seed):
    parts = split_rows(n_rows, seed=seed)
    assert together(*parts) == list(range(n_rows))
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


@given(st.integers(2, 300), observed_shares, seeds)
def test_features_are_observed_or_new_and_never_both(n_features, observed, seed):
    seen, new = split_features(n_features, observed, seed=seed)
    assert together(seen, new) == list(range(n_features))
    assert len(seen) == min(max(1, int(n_features * observed)), n_features - 1)


@given(st.integers(2, 300), observed_shares, seeds)
def test_the_reference_rounding_leaves_out_one_feature_at_most(n_features, observed, seed):
    seen, new = split_features(n_features, observed, seed=seed, rounding="reference")
    assert len(np.intersect1d(seen, new)) == 0
    assert n_features - 1 <= len(seen) + len(new) <= n_features


def test_the_reference_rounding_gives_the_released_counts_for_robot():
    seen, new = split_features(237, 0.3, seed=0, rounding="reference")
    assert (len(seen), len(new)) == (71, 165)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), observed_shares, seeds)
def test_fields_stay_whole(field_of, observed, seed):
    field_of = np.array(field_of)
    if len(np.unique(field_of)) < 2:
        return
    seen, new = split_fields(field_of, observed, seed=seed)
    assert together(seen, new) == list(range(len(field_of)))
    assert not set(field_of[seen]) & set(field_of[new])
    assert len(seen) and len(new)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: split_rows(100, seed=seed),
        lambda seed: split_features(100, 0.5, seed=seed),
        lambda seed: split_fields(np.arange(100) // 2, 0.5, seed=seed),
    ],
    ids=["rows", "features", "fields"],
)
def test_a_seed_repeats_its_draw_and_another_differs(draw):
    assert all(np.array_equal(a, b) for a, b in zip(draw(3), draw(3), strict=True))
    assert not np.array_equal(draw(3)[0], draw(4)[0])


def test_rows_and_features_of_one_seed_are_drawn_independently():
    rows, _, _ = split_rows(100, seed=0)
    features, _ = split_features(100, 0.6, seed=0)
    assert not np.array_equal(rows, features)


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture
def split():
    rows = split_rows(20, seed=5)
    return Split(*rows, *split_features(9, 0.5, seed=5), seed=5, description="café, 50 %")


def test_a_saved_split_is_the_same_split(split, tmp_path):
    with np.load(split.save(tmp_path / "new" / "split.npz")) as file:
        saved = dict(file)
    assert (int(saved.pop("seed")), str(saved.pop("description"))) == (5, "café, 50 %")
    assert Split(**saved).sha256 == split.sha256
    assert os.listdir(tmp_path / "new") == ["split.npz"]


def test_the_hash_tells_splits_apart(split):
    moved = Split(split.train, split.test, split.validation, split.observed, split.new)
    assert moved.sha256 != split.sha256
    assert Split(
        split.train[::-1], split.validation, split.test, split.observed, split.new
    ).sha256 == (split.sha256)


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: split_features(10, 1.0, seed=0),
            "observed must be between 0 and 1, not 1.0; "
            "give the share of features that training may see, e.g. 0.5.",
        ),
        (
            lambda: split_fields([0, 1], -0.5, seed=0),
            "observed must be between 0 and 1, not -0.5; "
            "give the share of fields that training may see, e.g. 0.5.",
        ),
        (
            lambda: split_features(1, 0.5, seed=0),
            "1 feature cannot be split into observed and new; at least 2 are needed.",
        ),
        (
            lambda: split_fields([3, 3, 3], 0.5, seed=0),
            "1 field cannot be split into observed and new; at least 2 are needed.",
        ),
        (
            lambda: split_features(10, 0.5, seed=0, rounding="up"),
            'rounding must be "complement" or "reference", not \'up\'.',
        ),
        (
            lambda: split_rows(2, seed=0),
            "2 rows cannot be split 6:2:2: a part would be empty; give more.",
        ),
        (
            lambda: split_features(10, None, seed=0),
            "observed must be between 0 and 1, not None; "
            "give the share of features that training may see, e.g. 0.5.",
        ),
        (
            lambda: split_fields([0, 1], "x", seed=0),
            "observed must be between 0 and 1, not 'x'; "
            "give the share of fields that training may see, e.g. 0.5.",
        ),
        (
            lambda: Split([0, 1], [1], [2], [0], [1]),
            "row 1 is in the split twice; the parts must not overlap.",
        ),
        (
            lambda: Split([0], [1], [2], [0], [0]),
            "feature 0 is in the split twice; the parts must not overlap.",
        ),
        (lambda: Split([-1], [1], [2], [0], [1]), "row -1 is negative; give numbers from 0 up."),
    ],
)
def test_what_cannot_be_split_is_refused(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize("seed", [-1, 0.5, 1.0, True, None, "1", 2**63, np.nan, np.True_], ids=repr)
@pytest.mark.parametrize(
    "use",
    [
        lambda seed: split_rows(10, seed=seed),
        lambda seed: split_features(10, 0.5, seed=seed),
        lambda seed: split_fields([0, 1], 0.5, seed=seed),
        lambda seed: Split([0], [1], [2], [0], [1], seed=seed),
    ],
    ids=["rows", "features", "fields", "Split"],
)
def test_a_seed_that_is_no_integer_of_int64_is_refused(use, seed):
    """True was taken for 1, and a seed of 2**63 failed only when the split was saved."""
    with pytest.raises(InputError) as error:
        use(seed)
    assert str(error.value) == f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}."


def test_the_largest_seed_survives_a_file(tmp_path):
    split = Split([0], [1], [2], [0], [1], seed=np.uint64(2**63 - 1))
    with np.load(split.save(tmp_path / "split.npz")) as file:
        assert int(file["seed"]) == 2**63 - 1
