"""Banks that observed apart are merged into what one bank would be that had observed it all."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_order import LABELS, LATER, QUERY, TASKS, N, made

from openfate.bank import FeatureBank
from openfate.errors import DataFileError, InputError
from openfate.openworld import evidence

# What one call observes: rows, and whether they have labels.
CALLS = st.lists(
    st.tuples(st.lists(st.integers(0, N - 1), min_size=1, max_size=40), st.booleans()),
    max_size=3,
)


def show(bank, calls, task):
    for rows, labelled in calls:
        bank.observe(LATER[rows], LABELS[task][rows] if labelled else None)
    return bank


def known(bank):
    """Sums by what features are: ids follow the order of arrival."""
    names = [bank.encoder.describe(j) for j in range(bank.encoder.n_features)]
    rows = dict(zip(names, bank.rows, strict=False))
    new = names[bank.n_observed :]
    state = bank.evidence.state
    count, total = state.at(np.arange(len(new)))
    sums = {name: (n, *t) for name, n, t in zip(new, count, total, strict=True)}
    return {name: n for name, n in rows.items() if n}, {k: v for k, v in sums.items() if v[0]}


def assert_same(found, expected):
    assert found.n_rows == expected.n_rows
    (rows, sums), (own_rows, own_sums) = known(found), known(expected)
    assert rows == own_rows
    assert sums.keys() == own_sums.keys()
    for name, numbers in sums.items():
        np.testing.assert_allclose(numbers, own_sums[name], rtol=0, atol=1e-12)
    assert np.array_equal(found.evidence.sample.key, expected.evidence.sample.key)
    assert found.mixture.n_labels == expected.mixture.n_labels
    np.testing.assert_allclose(found.mixture.weights, expected.mixture.weights, atol=1e-9)
    for graph in ("state", "batch"):
        ours, theirs = (bank.predict(QUERY, graph=graph) for bank in (found, expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "task"),
    [*zip(["network", "wrapped"] * 2, TASKS, strict=True), ("embeddings", "binary")],
)
@settings(max_examples=4, deadline=None)
@given(parts=st.lists(CALLS, min_size=1, max_size=4))
def test_merged_forks_are_one_bank_that_observed_the_parts_in_order(kind, task, parts):
    most, evidence.SAMPLE = evidence.SAMPLE, 30  # fewer than the rows: some of them are chosen
    try:
        base = show(made(kind, task).copy(), [(list(range(5)), False), ([7, 8] * 5, True)], task)
        forks = [show(base.fork(), calls, task) for calls in parts]
        whole = base.copy()
        for calls in parts:
            show(whole, calls, task)
        merged = FeatureBank.merge(forks)
        assert not merged.is_forked
        assert_same(merged, whole)
        assert_same(forks[0], show(base.copy(), parts[0], task))  # a fork is a bank like others
    finally:
        evidence.SAMPLE = most


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_forks_are_merged_after_they_were_saved_and_loaded(task, tmp_path):
    base = made("embeddings", task)
    calls = [
        [(range(20), False), (range(40, 70), True)],
        [(range(70, 100), True), (range(9), False)],
    ]
    for number, part in enumerate(calls):
        base.fork().save(tmp_path / str(number))
        fork = FeatureBank.load(tmp_path / str(number))
        show(fork, [(list(rows), labelled) for rows, labelled in part[:1]], task)
        fork.save(tmp_path / str(number), overwrite=True)
        fork = FeatureBank.load(tmp_path / str(number))
        show(fork, [(list(rows), labelled) for rows, labelled in part[1:]], task)
        fork.save(tmp_path / str(number), overwrite=True)
    merged = FeatureBank.merge([FeatureBank.load(tmp_path / str(n)) for n in range(2)])
    whole = base.copy()
    for rows, labelled in [*calls[0], *calls[1]]:
        show(whole, [(list(rows), labelled)], task)
    assert_same(merged, whole)


def test_banks_of_other_beginnings_are_not_merged():
    base = made("network", "binary")
    other = show(base.copy(), [([0, 1], False)], "binary")
    with pytest.raises(InputError, match="bank 2 was forked from another bank"):
        FeatureBank.merge([base.fork(), other.fork()])
    with pytest.raises(InputError, match="takes banks that were forked"):
        FeatureBank.merge([base.fork(), base.copy()])
    with pytest.raises(InputError, match="notes are of a bank that knew"):
        base.copy().add(other.note(LATER[:3]))


def test_a_new_column_that_two_forks_cut_into_other_buckets_is_refused():
    base = made("network", "binary")
    one, other = base.fork(), base.fork()
    one.observe(pl.DataFrame({"wage": [1.5, 3.25, 8.5] * 9}))
    other.observe(pl.DataFrame({"wage": [-50.5, 99.25, 7.5] * 9}))
    with pytest.raises(InputError, match=r"the column 'wage' is new, .* declare it"):
        FeatureBank.merge([one, other])


def test_a_bank_that_forgets_cannot_observe_apart():
    base = made("network", "binary")
    bank = FeatureBank(base.encoder, base.model, base.classes, max_new_features=3)
    with pytest.raises(InputError, match="max_new_features=3: what is known then follows time"):
        bank.fork()


def test_notes_that_do_not_fit_are_refused_when_a_bundle_is_read(tmp_path):
    fork = show(made("embeddings", "binary").fork(), [([1, 2], False), ([3, 4], True)], "binary")
    bundle = fork.to_bundle()
    good = dict(bundle.state)
    spoilt = {
        "fork.first": np.array([10**6]),
        "fork.0.ids": good["fork.0.ids"][::-1].copy(),
        "fork.1.ids": good["fork.1.ids"] + np.int32(10**6),
        "fork.0.0.messages": good["fork.0.0.messages"][:, :3].copy(),
        "fork.0.evidence.total": good["fork.0.evidence.total"] + 9,
        "fork.1.P0": good["fork.1.P0"] * 2,
        "fork.1.y": good["fork.1.y"] + 5,
        "fork.7.ids": good["fork.0.ids"],
    }
    for name, array in spoilt.items():
        bundle.state.clear()
        bundle.state.update(good | {name: array})
        with pytest.raises(DataFileError, match="do not fit together"):
            FeatureBank.from_bundle(bundle)
