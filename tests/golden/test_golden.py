"""Behaviour that moves of code must not change: every case of `record.py`, recomputed.

A case that was meant to change is recorded again with `record.py CASE --changed REASON`, and needs
a line in the changelog.
"""

from __future__ import annotations

import json

import pytest
import record  # noqa: F401  registers the cases
from frozen import CASES, SCORES, computed, differences, is_missing_data, machine

RECORDED = json.loads(SCORES.read_text())
IS_SAME_MACHINE = RECORDED["machine"] == machine()
RELEASED = {
    "fate": 0.836,
    "fate_drop_new": 0.838,
    "base": 0.657,
    "base_dropout": 0.827,
    "average": 0.487,
    "knn": 0.593,
    "pooling": 0.616,
    "inl": 0.638,
    "oracle": 0.710,
}
pytestmark = pytest.mark.filterwarnings("default")  # a user's warnings, not ours to judge


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_recorded(name):
    if is_missing_data(name):
        pytest.skip("OPENFATE_DATA is not set")
    found = list(
        differences(RECORDED["cases"][name]["scores"], computed(name), tight=IS_SAME_MACHINE)
    )
    assert not found, "\n".join(found[:20])


def test_no_case_was_lost():
    assert sorted(RECORDED["cases"]) == sorted(CASES)


def test_scores_are_compared_to_the_last_digits():
    if not IS_SAME_MACHINE:
        pytest.skip(f"compared to .05 only: recorded with {RECORDED['machine']}")


def test_digits_scores_are_those_of_the_last_release():
    """To within what other processors and versions of torch change."""
    scores = computed("uci-digits")
    found = {name: scores[f"digits 0.6 {name} accuracy"][0] for name in RELEASED}
    assert found == pytest.approx(RELEASED, abs=0.03)


def test_fate_learns_a_real_table():
    if is_missing_data("uci-gene"):
        pytest.skip("OPENFATE_DATA is not set")
    # The most frequent class has .52.
    assert computed("uci-gene")["gene 0.8 fate accuracy"][0] > 0.9
