import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openfate.errors import InputError
from openfate.openworld import Evidence
from openfate.table import MultiHot

SUMS = ("count", "total", "labelled_count", "labelled_total", "outcome", "mean")
TASKS = ("multiclass", "multilabel", "regression")


def rows(seed, n_rows=6, n_features=5, task="multiclass"):
    """New features, predictions and labels of a few rows."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n_rows, n_features)) < 0.4
    X = MultiHot.from_entries(*np.nonzero(dense), n_rows, n_features)
    P0 = rng.dirichlet(np.ones(3), n_rows)
    if task == "multiclass":
        return X, P0, rng.integers(3, size=n_rows)
    return X, P0, rng.integers(2, size=(n_rows, 3)).astype(float)


def scratch(history, task, n_features):
    """The state recomputed from (rows, labelled, weight) of everything that is still in it."""
    state = Evidence(3, task)
    state.add(MultiHot.from_rows([], n_features), np.zeros((0, 3)))
    for (X, P0, y), labelled, weight in history:
        if labelled:
            state.add_labelled(X, P0, y, weight=weight)
        else:
            state.add(X, P0, weight=weight)
    return state


def assert_same(one, other, tolerance=1e-9):
    for name in SUMS:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=tolerance)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "label", "remove", "decay", "merge", "reload"]),
        st.integers(0, 50),
        st.integers(1, 9),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.sampled_from(TASKS))
def test_any_sequence_of_changes_equals_recomputation_from_scratch(steps, task):
    state, history = Evidence(3, task), []
    for what, seed, n_features in steps:
        batch = rows(seed, n_features=n_features, task=task)
        if what == "add":
            state.add(*batch[:2])
            history.append((batch, False, 1.0))
        elif what == "label":
            state.add_labelled(*batch)
            history.append((batch, True, 1.0))
        elif what == "remove" and history:
            (X, P0, y), labelled, weight = history.pop(seed % len(history))
            gone = (X, P0, y) if labelled else (X, P0)
            (state.remove_labelled if labelled else state.remove)(*gone, weight=weight)
        elif what == "decay":
            state.decay(0.5 + seed / 100)
            history = [(b, labelled, w * (0.5 + seed / 100)) for b, labelled, w in history]
        elif what == "merge":
            state.merge(Evidence(3, task).add_labelled(*batch))
            history.append((batch, True, 1.0))
        elif what == "reload":
            state = Evidence.from_arrays(state.to_arrays(), task)
    assert_same(state, scratch(history, task, state.n_features))


def test_labels_that_come_later_equal_labels_that_came_at_once():
    X, P0, y = rows(1)
    late = Evidence(3).add(X, P0).add_labelled(X, P0, y, seen=True)
    assert_same(late, Evidence(3).add_labelled(X, P0, y))
    assert late.count.tolist() == X.feature_degree.tolist()  # counted once


def test_removing_labels_leaves_what_was_seen_without_them():
    X, P0, y = rows(2)
    state = Evidence(3).add(X, P0).add_labelled(X, P0, y, seen=True)
    assert_same(state.remove_labelled(X, P0, y, seen=True), Evidence(3).add(X, P0))


def test_growing_by_one_feature_at_a_time_keeps_the_sums():
    state = Evidence(2)
    for j in range(40):
        state.add(MultiHot.from_rows([[j]], j + 1), [[0.25, 0.75]])
    assert state.count.tolist() == [1.0] * 40
    assert state.total.sum(0).tolist() == [10.0, 30.0]


def test_a_copy_does_not_follow_its_original():
    X, P0, _ = rows(3)
    state = Evidence(3).add(X, P0)
    copy = state.copy()
    state.decay(0)
    assert copy.count.sum() == X.nnz
    assert state.count.sum() == 0


def test_arrays_of_a_state_do_not_follow_it():
    X, P0, _ = rows(3)
    state = Evidence(3).add(X, P0)
    arrays = state.to_arrays()
    state.decay(0)
    assert arrays["row_total"].sum() == pytest.approx(X.n_rows)


X3, P3, Y3 = rows(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Evidence(1), "n_outputs=1: a multiclass task has 2 or more."),
        (lambda: Evidence(2, "class"), "task='class' is unknown"),
        (lambda: Evidence(2).add(X3, P3), "the shape (6, 3), not (6, 2)"),
        (lambda: Evidence(3).add(X3, P3 * np.nan), "row 0 is predicted as [nan, nan, nan]"),
        (lambda: Evidence(3).add(X3, P3 + 1), "give probabilities from 0 to 1."),
        (lambda: Evidence(3, "regression").add(X3, P3 / 0), "give finite numbers."),
        (lambda: Evidence(3).add_labelled(X3, P3, Y3[1:]), "6 rows but 5 labels: give"),
        (lambda: Evidence(3).add_labelled(X3, P3, Y3 + 3), "is outside 0..2: give the place"),
        (lambda: Evidence(3).add_labelled(X3, P3, Y3 + 0.5), "give a class number each."),
        (
            lambda: Evidence(3, "multilabel").add_labelled(X3, P3, Y3),
            "give 3 finite numbers a row.",
        ),
        (lambda: Evidence(3).decay(1.5), "factor=1.5: choose a number from 0 to 1."),
        (
            lambda: Evidence(3).merge(Evidence(2)),
            "with 2 outputs cannot be merged into that of a multiclass task with 3",
        ),
        (lambda: Evidence.from_arrays({}), "lacks the arrays count, total"),
        (
            lambda: Evidence.from_arrays(Evidence(3).to_arrays() | {"total": np.zeros((1, 3))}),
            "the array total of a state of evidence has the shape (1, 3), not (0, 3).",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as caught, np.errstate(all="ignore"):
        call()
    assert message in str(caught.value)


def test_a_refused_batch_changes_nothing():
    state = Evidence(3).add(X3, P3)
    before = state.to_arrays()
    with pytest.raises(InputError):
        state.add_labelled(X3, P3, Y3 + 3)
    after = state.to_arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def observe_stream(n_rows, n_features, chunk=100_000):
    """Seconds to observe rows of five new cells each; the rows are made outside the clock."""
    rng, state, seconds = np.random.default_rng(0), Evidence(2), 0.0
    for _ in range(n_rows // chunk):
        steps = rng.integers(1, n_features // 5, (chunk, 5))
        X = MultiHot.from_fixed(np.cumsum(steps, 1) % n_features, n_features)
        p = rng.random((chunk, 1))
        P0 = np.hstack([1 - p, p])
        started = time.perf_counter()
        state.add(X, P0)
        seconds += time.perf_counter() - started
    return state, seconds


def test_memory_goes_by_distinct_features_and_not_by_rows():
    sizes = []
    for n_rows in (2_000, 20_000):
        tracemalloc.start()
        state, _ = observe_stream(n_rows, 1_000, chunk=1_000)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert state.count.sum() == 5 * n_rows
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.slow
def test_ten_million_rows_are_observed_in_minutes_on_one_core():
    state, seconds = observe_stream(10_000_000, 1_000_000)
    print(f"10 million rows, 5 new cells each: {seconds:.1f} s")
    assert state.count.sum() == 50_000_000
    assert seconds < 180
