"""Folds, k-shot draws and the fixed share: sizes, partitions, seeds, messages."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openfate.errors import InputError
from openfate.training import k_shot, n_fold
from openfate.training.masking import leave_out

seeds = st.integers(0, 2**16)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def times_hidden(kept: Tensor) -> list[int]:
    return (~kept).sum(0).tolist()


@given(st.integers(1, 60), st.integers(2, 12), seeds)
def test_folds_hide_every_feature_exactly_once(n_features, n_folds, seed):
    kept = n_fold(n_features, n_folds, rng(seed))
    assert kept.shape == (n_folds, n_features)
    assert times_hidden(kept) == [1] * n_features
    sizes = (~kept).sum(1)
    assert int(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize(("n_folds", "n_masks"), [(2, 2), (5, 6), (10, 11)])
@given(n_features=st.integers(1, 300), seed=seeds)
def test_reference_folds_round_up_and_still_partition(n_folds, n_masks, n_features, seed):
    kept = n_fold(n_features, n_folds, rng(seed), reference=True)
    assert kept.shape == (n_masks, n_features)
    assert times_hidden(kept) == [1] * n_features


def test_the_stray_reference_fold_hides_one_feature():
    hidden = (~n_fold(237, 5, rng(), reference=True)).sum(1).tolist()
    assert hidden == [47, 47, 48, 47, 47, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data(), seeds)
def test_k_shot_keeps_exactly_k_whole_fields(fields, data, seed):
    unit_of = torch.tensor(fields)
    n_kept = data.draw(st.integers(1, len(set(fields))))
    for kept in k_shot(unit_of, n_kept, 4, rng(seed)):
        kept_fields = set(unit_of[kept].tolist())
        assert len(kept_fields) == n_kept
        assert kept_fields.isdisjoint(unit_of[~kept].tolist())


@given(st.integers(1, 30), st.data(), seeds)
def test_k_shot_over_features_has_exact_size(n_features, data, seed):
    n_kept = data.draw(st.integers(1, n_features))
    kept = k_shot(torch.arange(n_features), n_kept, 5, rng(seed))
    assert kept.shape == (5, n_features)
    assert kept.sum(1).tolist() == [n_kept] * 5


def test_k_shot_draws_anew_for_every_step():
    assert len({tuple(kept.tolist()) for kept in k_shot(torch.arange(40), 20, 5, rng())}) == 5


def test_k_shot_keeps_every_field_equally_often():
    share = k_shot(torch.arange(10), 3, 4000, rng()).double().mean(0)
    assert float((share - 0.3).abs().max()) < 5 * (0.3 * 0.7 / 4000) ** 0.5


@given(st.integers(1, 60), st.sampled_from([0.0, 0.07, 0.1, 0.2, 0.5, 0.7, 0.9, 1.0]), seeds)
def test_leave_out_keeps_the_rest_of_its_share(n_features, share, seed):
    kept = leave_out(n_features, share, rng(seed))
    assert kept.shape == (1, n_features)
    assert int(kept.sum()) == math.floor((1 - Fraction(str(share))) * n_features)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: n_fold(50, 5, g),
        lambda g: n_fold(50, 5, g, reference=True),
        lambda g: k_shot(torch.arange(50), 25, 3, g),
        lambda g: leave_out(50, 0.5, g),
    ],
)
def test_a_seed_repeats_its_masks_and_another_differs(draw):
    assert torch.equal(draw(rng(1)), draw(rng(1)))
    assert not torch.equal(draw(rng(1)), draw(rng(2)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: n_fold(6, 1, rng()),
            "n_folds=1: choose 2 or more, or nothing is kept to learn from.",
        ),
        (
            lambda: k_shot(torch.arange(6), 7, 1, rng()),
            "n_kept=7: there are 6 to sample from, choose 1..6.",
        ),
        (
            lambda: k_shot(torch.tensor([0, 0, 1]), 0, 1, rng()),
            "n_kept=0: there are 2 to sample from, choose 1..2.",
        ),
        (lambda: k_shot(torch.arange(6), 3, 0, rng()), "n_draws=0: choose 1 or more."),
        (
            lambda: leave_out(6, 1.5, rng()),
            "left_out=1.5 is not a share of the features: choose from 0 to 1.",
        ),
    ],
)
def test_bad_values_are_named(draw, message):
    with pytest.raises(InputError) as error:
        draw()
    assert str(error.value) == message
