"""Evidence in a stream depends neither on the order of rows nor on how they were cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.openworld import Evidence, LiveEvidence, Pooling, pooled_evidence, reference_strength
from openfate.openworld import live as module
from openfate.table import MultiHot

RELATIVE = Pooling(strength=0.7, alpha=3.0, relative=True)


def rows(seed: int, n: int = 60, n_features: int = 7, n_outputs: int = 3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_outputs, n)
    told = rng.random((n, n_features)) < np.where(np.arange(n_features) % 3 == y[:, None], 0.5, 0.1)
    votes = rng.dirichlet(np.ones(n_outputs), n) + 2 * np.eye(n_outputs)[y]
    X = MultiHot.from_entries(*np.nonzero(told), n, n_features)
    return X, votes / votes.sum(1, keepdims=True), y


@given(st.integers(0, 30), st.lists(st.integers(1, 59), max_size=4), st.booleans())
def test_order_and_cuts_do_not_matter(seed, cuts, labelled):
    X, votes, y = rows(seed)
    whole = LiveEvidence(3, pooling=RELATIVE)
    whole.observe(X, votes, y if labelled else None)
    order = np.random.default_rng(seed).permutation(60)
    parts = LiveEvidence(3, pooling=RELATIVE)
    for part in np.split(order, sorted(set(cuts))):
        parts.observe(X.select_rows(part), votes[part], y[part] if labelled else None)
    assert parts.strength == pytest.approx(whole.strength, abs=1e-12)
    np.testing.assert_allclose(parts.evidence(X), whole.evidence(X), atol=1e-9)


def test_the_strength_is_that_of_all_rows_while_they_fit_the_sample():
    X, votes, _ = rows(0)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    state = Evidence(3).add(X, votes)
    e = pooled_evidence(state, X, votes, RELATIVE.alpha)
    assert live.strength == pytest.approx(0.7 * reference_strength(e, votes))
    assert live.strength > 0


def test_the_sample_stays_small_and_is_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 10)
    X, votes, _ = rows(1)
    one, other = LiveEvidence(3, pooling=RELATIVE), LiveEvidence(3, pooling=RELATIVE)
    one.observe(X, votes)
    for at in np.random.default_rng(0).permutation(60):
        other.observe(X.select_rows([at]), votes[[at]])
    ours, theirs = one.to_arrays(), other.to_arrays()
    assert len(ours["sample_key"]) == 10
    for name in ("sample_key", "sample_row_ptr", "sample_ids", "sample_votes"):
        assert np.array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1.0, 1e6, 1e15])
def test_a_sample_of_predicted_numbers_does_not_depend_on_their_unit(scale):
    """They were rounded to a millionth: of tiny and of huge ones a single row was left."""
    X = MultiHot.from_rows([[0]] * 50, 1)
    values = np.random.default_rng(0).normal(size=(50, 1))
    near = values * (1 + 1e-12)  # as other rows beside it would make them
    live = LiveEvidence(1, "values", RELATIVE)
    live.observe(X, values * scale)
    live.observe(X, near * scale)
    assert len(live.to_arrays()["sample_key"]) == 50


def test_predicted_numbers_on_both_sides_of_a_power_of_two_are_one_row():
    X = MultiHot.from_rows([[0]] * 4, 1)
    live = LiveEvidence(1, "values", RELATIVE)
    live.observe(X, np.array([[np.nextafter(4, 0)], [np.nextafter(4, 9)], [0.0], [-0.0]]))
    assert len(live.to_arrays()["sample_key"]) == 2


def test_labels_that_come_later_change_no_unlabelled_sum():
    X, votes, y = rows(2)
    at_once, later = LiveEvidence(3, pooling=RELATIVE), LiveEvidence(3, pooling=RELATIVE)
    at_once.observe(X, votes, y)
    later.observe(X, votes)
    later.observe(X, votes, y, seen=True)
    for name, array in at_once.to_arrays().items():
        np.testing.assert_allclose(later.to_arrays()[name], array, atol=1e-9)


def test_arrays_bring_it_back_and_a_copy_is_independent():
    X, votes, y = rows(3)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes, y)
    before = live.evidence(X)
    again = LiveEvidence.from_arrays(live.to_arrays(), "classes", RELATIVE)
    assert np.array_equal(again.evidence(X), before)
    live.copied().observe(X, votes)
    assert np.array_equal(live.evidence(X), before)


def test_arrays_that_do_not_fit_are_refused():
    X, votes, _ = rows(4)
    live = LiveEvidence(3, pooling=RELATIVE)
    live.observe(X, votes)
    arrays = live.to_arrays()
    with pytest.raises(InputError, match="sample_ids"):
        LiveEvidence.from_arrays(
            {n: a for n, a in arrays.items() if n != "sample_ids"}, "classes", RELATIVE
        )
    with pytest.raises(InputError, match="outside"):
        LiveEvidence.from_arrays(
            {**arrays, "sample_ids": arrays["sample_ids"] + 100}, "classes", RELATIVE
        )


def test_nothing_observed_says_nothing():
    X, _, _ = rows(5)
    live = LiveEvidence(3, pooling=RELATIVE)
    assert live.strength == 0 and not live.evidence(X).any()
