"""The mixture: its weights against a slow twin, and its bound against whatever may come."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_mixture import weigh_rows

from openfate.errors import InputError
from openfate.openworld import EXPERTS, Labelled, Mixture, to_predictions
from openfate.openworld.mixture import _PRIOR, _PRIOR_OF_IGNORING, _SHARE
from openfate.table import MultiHot

TASKS = ("binary", "multiclass", "multilabel", "regression")
N_OUTPUTS = {"binary": 2, "multiclass": 3, "multilabel": 2, "regression": 1}
N_FEATURES = 6
WHAT = (
    "random",
    "told",  # by the features
    "flipped",  # told, and from the middle on the other way round
    "constant",
    "certain and wrong",  # P0 of 0 and 1
    "terrible",  # the model that was trained again
)


def predictions(z, task):
    """(N, C) of logits (N, 3)."""
    n_logits = 1 if task == "binary" else N_OUTPUTS[task]
    return to_predictions(z[:, :n_logits], task)


def outcomes(z, task, rng):
    if task == "regression":
        return np.clip(z[:, :1] + rng.normal(size=(len(z), 1)), -4, 4)
    P = predictions(z, task)
    if task == "multilabel":
        return (rng.random(P.shape) < P).astype(float)
    return (rng.random((len(z), 1)) > P.cumsum(1)[:, :-1]).sum(1)


def stream(seed, task, what="random", n=160):
    """Labelled rows, and what a model that was trained again says of them."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, N_FEATURES)) < 0.4
    X = MultiHot.from_entries(*np.nonzero(dense), n, N_FEATURES)
    told = dense @ rng.normal(size=(N_FEATURES, 3)) * 2
    z = rng.normal(size=(n, 3))
    moved = z + 0.5 * told + rng.normal(size=(n, 3))
    again = z + told
    if what == "flipped":
        told[n // 2 :] *= -1
    y = outcomes(z + told if what in ("told", "flipped") else z, task, rng)
    if what == "constant":
        y = np.broadcast_to(y[:1], y.shape).copy()
    if what in ("certain and wrong", "terrible"):
        worst = 4.0 if task == "regression" else 40.0
        away = np.zeros((n, 3))
        for at in range(N_OUTPUTS[task]):
            if task in ("binary", "multiclass"):
                away[:, at] = np.where(y == at, -worst, worst)
            else:
                away[:, at] = np.where(
                    y[:, at] > (0 if task == "regression" else 0.5), -worst, worst
                )
        if task == "binary":
            away[:, 0] = np.where(y == 1, -worst, worst)
        if what == "terrible":
            again = away
        else:
            z = away
    weight = rng.uniform(0.2, 1.0, n) if seed % 2 else np.ones(n)
    rows = Labelled(X, predictions(z, task), predictions(moved, task), y, weight, np.zeros(n, bool))
    return rows, predictions(again, task)


def learn(mixture, rows, again=None, cuts=()):
    """As a bank does: in blocks, whatever the calls."""
    for call in np.split(np.arange(len(rows.y)), cuts):
        for part in mixture.blocks(len(call)):
            at = call[part]
            if mixture.learn(rows.select(at), None if again is None else again[at]):
                mixture.solve()
    return mixture


def make(task, trusts=False):
    return Mixture(N_OUTPUTS[task], task, trusts_evidence=trusts, bounds=(-4.0, 4.0))


def price(mixture):
    """How much a nat costs: numbers have squared error."""
    half = (mixture.bounds[1] - mixture.bounds[0]) / 2
    return 2 * half**2 if mixture.task == "regression" else 1.0


# ---- the bound -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_never_above_that_of_ignoring_by_more_than_the_prior_says(task, trusts, what):
    for seed in range(2):
        rows, again = stream(seed, task, what)
        mixture = learn(make(task, trusts), rows, again)
        above = mixture.loss - mixture.loss_of_ignoring
        allowed = price(mixture) * math.log(1 / _PRIOR_OF_IGNORING[mixture.trusts_evidence])
        assert mixture.loss.shape == ((2,) if task == "multilabel" else (1,))
        assert np.all(above <= allowed + 1e-6)
        if what == "told":
            assert np.all(above < -0.5 * price(mixture))  # and where there is something, it gains


def row_loss(P, y, task):
    """Of one row (1, C), of each gate; 0 counts as a millionth, as in all experts."""
    if task == "regression":
        return ((np.clip(P, -4, 4) - y) ** 2).sum(1)
    chance = np.where(y > 0, P, 1 - P)[0] if task == "multilabel" else P[0, y]
    return -np.log(np.clip(chance, 1e-6, 1 - 1e-6))


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(TASKS), st.sampled_from(WHAT), st.booleans())
def test_the_bound_holds_for_what_is_served_row_by_row(seed, task, what, trusts):
    """Each row predicted just before its label comes: the sum of those losses is within it."""
    rows, again = stream(seed, task, what, n=30)
    mixture, served, ignored = make(task, trusts), 0.0, 0.0
    for at in range(30):
        row = rows.select(np.array([at]))
        late = None if mixture.corrections is None else again[[at]]
        P = mixture.predict(row.X, row.P0, row.moved, late)
        served = served + row.weight * row_loss(P, row.y, task)
        ignored = ignored + row.weight * row_loss(row.P0, row.y, task)
        if mixture.learn(row, late):
            mixture.solve()
    allowed = price(mixture) * math.log(1 / _PRIOR_OF_IGNORING[mixture.trusts_evidence])
    # Before the first label a mixture that trusts evidence serves that alone.
    first = 14 * price(mixture) if trusts else 0.0
    # Beyond the range of training numbers are served as they are: the bound is of clipped ones.
    inside = task != "regression" or max(np.abs(part).max() for part in (rows.P0, again)) < 4
    if inside:
        assert np.all(served - ignored <= allowed + first + 1e-3)


# ---- the weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("trusts", [False, True])
def test_weights_agree_with_their_slow_twin(task, trusts):
    for seed in range(6):
        rows, again = stream(seed, task, "told", n=60)
        mixture = make(task, trusts)
        shown = []
        for part in mixture.blocks(60):
            at = np.arange(60)[part]
            block = rows.select(at)
            shown.append(mixture._experts(block.X, block.P0, block.moved, again[at]))
            if mixture.learn(block, again[at]):
                mixture.solve()
        P = np.concatenate(shown, 1)  # (E, N, C)
        for gate in range(len(mixture.loss)):

            def chance(p, i, gate=gate, rows=rows):
                """What a prediction (C,) gave to what happened, as much as the row counts."""
                y = rows.y[i]
                if task == "regression":
                    off = min(max(p[0], -4), 4) - min(max(y[0], -4), 4)
                    given_to = math.exp(-off * off / 32)
                elif task == "multilabel":
                    given_to = p[gate] if y[gate] else 1 - p[gate]
                else:
                    given_to = p[y]
                return given_to ** rows.weight[i]

            likelihood = [[chance(P[k, i], i) for k in range(len(EXPERTS))] for i in range(60)]

            def rest_of(i, weights, likelihood=likelihood, chance=chance, P=P):
                if task == "regression":
                    mean = sum(w * P[k, i, 0] for k, w in enumerate(weights))
                    return chance([mean], i)
                return sum(w * p for w, p in zip(weights, likelihood[i], strict=True))

            weights, ignoring, loss, loss_of_ignoring = weigh_rows(
                likelihood,
                rest_of,
                _PRIOR[trusts],
                _PRIOR_OF_IGNORING[mixture.trusts_evidence],
                _SHARE,
            )
            np.testing.assert_allclose(mixture.weights[gate], weights, rtol=1e-8)
            odds = math.log(ignoring) - math.log1p(-ignoring) if ignoring < 1 else np.inf
            assert mixture.log_odds[gate] == pytest.approx(odds, rel=1e-6)
            assert mixture.loss[gate] == pytest.approx(price(mixture) * loss)
            expected = price(mixture) * loss_of_ignoring
            assert mixture.loss_of_ignoring[gate] == pytest.approx(expected)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_before_any_label_predictions_are_the_models_bit_for_bit(task, trusts):
    rows, again = stream(0, task)
    mixture = make(task, trusts)
    found = mixture.predict(rows.X, rows.P0, rows.moved, again)
    assert found is (rows.moved if trusts else rows.P0)
    assert mixture.describe().keys() == set(EXPERTS)
    assert sum(mixture.describe().values()) == pytest.approx(1)


@pytest.mark.parametrize("task", TASKS)
def test_rows_on_which_all_agree_keep_their_bits(task):
    """Before the first solution, where nobody trained again, all predict as the model does."""
    rows, _ = stream(1, task, n=5)
    mixture = learn(make(task), rows)
    assert mixture.n_labels == 5 and mixture.corrections is None
    assert np.array_equal(mixture.predict(rows.X, rows.P0, rows.moved), rows.P0)


@pytest.mark.parametrize("task", TASKS)
def test_the_mixture_finds_what_the_features_tell_and_what_a_good_model_says(task):
    rows, again = stream(2, task, "told", n=300)
    half = np.arange(150)
    alone = learn(make(task), rows.select(half))
    helped = learn(make(task), rows.select(half), again[half])
    corrected = [weight for name, weight in alone.describe().items() if "correction" in name]
    assert sum(corrected) > 0.5 > 0.1 > alone.describe()["ignore"]
    assert helped.describe()["retrained"] > 0.3


def test_weights_follow_a_change_of_the_best_expert():
    """The second half is the other way round: a good model of before turns bad, and is dropped."""
    rows, again = stream(0, "binary", "flipped", n=400)
    rows = Labelled(rows.X, rows.P0, rows.moved, rows.y, np.ones(400), rows.counted)
    before = learn(make("binary"), rows.select(np.arange(200)), again)
    after = learn(make("binary"), rows, again)
    assert before.describe()["retrained"] > 0.5 > 0.01 > after.describe()["retrained"]


# ---- cuts, copies, arrays ------------------------------------------------------------------------


@settings(max_examples=8)
@given(st.integers(0, 3), st.lists(st.integers(1, 59), max_size=5), st.sampled_from(TASKS))
def test_cuts_do_not_matter(seed, cuts, task):
    rows, again = stream(seed, task, "told", n=60)
    whole = learn(make(task), rows, again)
    parts = learn(make(task), rows, again, sorted(set(cuts)))
    assert parts.n_labels == whole.n_labels == 60
    np.testing.assert_allclose(parts.weights, whole.weights, rtol=1e-9)
    np.testing.assert_allclose(
        *(m.predict(rows.X, rows.P0, rows.moved, again) for m in (parts, whole)), atol=1e-12
    )


def test_corrections_are_solved_when_labels_have_grown_by_a_quarter():
    mixture = make("binary")
    assert [part.stop for part in mixture.blocks(20)] == [8, 10, 12, 15, 19, 20]
    assert mixture.blocks(0) == []
    rows, _ = stream(0, "binary")
    due = []
    for part in mixture.blocks(11):
        due.append(mixture.learn(rows.select(np.arange(160)[part])))
        if due[-1]:
            mixture.solve()
    assert due == [True, True, False]
    assert sum(len(part.y) for part in mixture.uncounted()) == 1  # since the last solution
    assert mixture.blocks(3)[0] == slice(0, 1)


@pytest.mark.parametrize("task", TASKS)
def test_corrections_are_solved_for_what_evidence_tells_by_now(task):
    """What it told of the first rows, before it had seen any, is not what it tells of the next."""
    rows, _ = stream(3, task, "told", n=8)
    early, late = make(task, trusts=True), make(task, trusts=True)
    assert early.learn(replace(rows, moved=rows.P0))
    early.solve(lambda window: rows.arranged(8).moved)
    assert late.learn(rows)
    late.solve()
    assert np.array_equal(early.corrections.W, late.corrections.W)
    (window,) = early._window  # and stay so, until they are moved again
    assert np.array_equal(window.moved, rows.arranged(8).moved)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_what_came_since_a_solution_is_corrected_before_the_next(task, trusts):
    """At fixed counts of labels: how calls cut them, or a bundle between two, does not matter."""
    rows, again = stream(6, task, "told", n=160)
    due = learn(make(task, trusts), rows.select(np.arange(100)), again)._due  # the next solution
    dense = rows.X.to_dense().astype(float)
    dense[: due - 20, 0] = 0.0  # comes late
    X = MultiHot.from_entries(*np.nonzero(dense), 160, N_FEATURES)
    rows, n = replace(rows, X=X).select(np.arange(due - 3)), due - 3
    whole = learn(make(task, trusts), rows, again)
    assert 0 in whole.corrections.features
    assert 0 not in whole._solved.features
    parts = learn(make(task, trusts), rows.select(np.arange(n - 5)), again)
    settings = {"trusts_evidence": trusts, "bounds": (-4.0, 4.0)}
    parts = Mixture.from_arrays(parts.to_arrays(), N_OUTPUTS[task], task, **settings)
    parts = learn(parts, rows.select(np.arange(n - 5, n)), again[n - 5 :], [2])
    for name in ("features", "W"):
        found, wanted = (getattr(m.corrections, name) for m in (parts, whole))
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_allclose(parts.weights, whole.weights, rtol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_the_solution_does_not_depend_on_the_order_of_labels(task):
    rows, _ = stream(4, task, "told", n=59)
    due = 48  # the last solution
    order = np.random.default_rng(0).permutation(due)
    one, other = (learn(make(task), rows.select(at)) for at in (np.arange(due), order))
    for name in ("features", "W", "side", "bias"):
        assert np.array_equal(getattr(one.corrections, name), getattr(other.corrections, name))


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_arrays_bring_it_back_and_it_goes_on_equally(task, trusts):
    rows, again = stream(5, task, "told")
    first, rest = rows.select(np.arange(90)), rows.select(np.arange(90, 160))
    mixture = learn(make(task, trusts), first, again[:90])
    read = Mixture.from_arrays(
        {name: array.copy() for name, array in mixture.to_arrays().items()},
        N_OUTPUTS[task],
        task,
        **mixture.settings(),
    )
    for one in (mixture, read):
        learn(one, rest, again[90:])
    assert read.describe() == mixture.describe()
    for name in ("loss", "loss_of_ignoring", "log_odds"):
        assert np.array_equal(getattr(read, name), getattr(mixture, name))
    found = (m.predict(rows.X, rows.P0, rows.moved, again) for m in (mixture, read))
    assert np.array_equal(*found)


def test_arrays_that_do_not_fit_are_refused():
    rows, _ = stream(6, "binary")
    arrays = learn(make("binary"), rows).to_arrays()
    for name in ("weights", "counts", "P0", "corrections.side"):
        less = {key: array for key, array in arrays.items() if key != name}
        with pytest.raises(InputError, match="a mixture lacks or misshapes an array") as caught:
            Mixture.from_arrays(less, 2, "binary")
        assert name in str(caught.value)
    rest = {key: array for key, array in arrays.items() if key != "ids"}
    with pytest.raises(InputError, match="lack the rows"):  # found by make fuzz: a traceback
        Mixture.from_arrays(rest, 2, "binary")
    with pytest.raises(InputError, match=r"log_odds of a mixture is float64 \(1,\), not \(3,\)"):
        Mixture.from_arrays(arrays, 3, "multilabel")
    with pytest.raises(InputError, match="labelled rows of different lengths"):
        Mixture.from_arrays({**arrays, "y": arrays["y"][1:]}, 2, "binary")


def test_a_copy_is_independent():
    rows, again = stream(7, "multiclass", "told")
    mixture = learn(make("multiclass"), rows.select(np.arange(50)), again[:50])
    before = mixture.predict(rows.X, rows.P0, rows.moved, again)
    arrays = {name: array.copy() for name, array in mixture.to_arrays().items()}
    learn(mixture.copy(), rows, again)
    assert np.array_equal(mixture.predict(rows.X, rows.P0, rows.moved, again), before)
    assert all(np.array_equal(a, arrays[name]) for name, a in mixture.to_arrays().items())


@pytest.mark.parametrize(
    ("task", "y", "message"),
    [
        ("multiclass", np.array([0, 1]), "3 rows but 2 labels: give one label for each row."),
        ("multiclass", np.array([0.0, 1, 2]), "labels are float64 (3,): give a class number each."),
        ("multiclass", np.array([0, 1, 3]), "class 3 is outside 0..2: give the place of each"),
        ("binary", np.array([0, -1, 1]), "class -1 is outside 0..1"),
        ("multilabel", np.zeros((3, 3)), "labels have the shape (3, 3): give 2 finite numbers a r"),
        ("regression", np.array([0, np.nan, 1]), "give 1 finite numbers a row."),
    ],
)
def test_labels_that_cannot_be_learned_from_are_named(task, y, message):
    with pytest.raises(InputError) as caught:
        make(task).check(y, 3)
    assert message in str(caught.value)
