import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from openfate_lab.report.differences import compare, difference, signed_ranks

SCORES = st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=2, max_size=9)


@given(SCORES, SCORES)
def test_a_paired_test_is_scipys(one, other):
    n = min(len(one), len(other))
    found = compare(dict(enumerate(one)), dict(enumerate(other)))
    differences = [a - b for a, b in zip(one, other, strict=False)]
    assert found.n == n
    assert math.isclose(found.mean, sum(differences) / n, abs_tol=1e-12)
    if max(differences) - min(differences) > 1e-9:
        wanted = stats.ttest_rel(one[:n], other[:n])
        interval = wanted.confidence_interval(0.95)
        assert math.isclose(found.p, wanted.pvalue, rel_tol=1e-9)
        assert found.interval == pytest.approx((interval.low, interval.high))


def test_only_seeds_of_both_are_pairs():
    assert compare({0: 1.0, 1: 0.5}, {1: 0.25, 2: 0.0}).mean == 0.25
    assert compare({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("values", "sign"),
    [([0.1], 0), ([0.1, 0.1], 1), ([0.0, 0.0], 0), ([-0.2, -0.21, -0.19], -1), ([0.1, -0.1], 0)],
)
def test_a_difference_is_significant_only_against_its_spread(values, sign):
    assert difference(values).sign == sign


def test_five_pairs_never_reach_five_percent_by_ranks():
    assert signed_ranks([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(1 / 16)
    assert difference([0.1, 0.2, 0.3, 0.4, 0.5]).sign == 1
