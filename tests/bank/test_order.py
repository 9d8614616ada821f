"""What rows teach depends on the rows: not on their order, nor on how they are cut into calls."""

from __future__ import annotations

import functools

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from openfate.bank import FeatureBank, Network, Wrapped
from openfate.models import FATE, MLP, GraphSAGE, RunningFATE
from openfate.openworld import LiveEvidence, Mixture, Pooling, evidence
from openfate.table import Encoder, Field, Schema

N = 150
TASKS = {"binary": 2, "multiclass": 3, "multilabel": 2, "regression": 1}
DECLARED = Schema([Field("pay", "numeric", numeric="linear", knots=(0.0, 1.0, 2.0, 4.0))])


def table(seed, n=N):
    """Rows of which two columns are known, with new values, new columns and declared numbers."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)

    def noisy(n_values):
        told = np.where(rng.random(n) < 0.7, y, rng.integers(0, 3, n))
        return [f"{v}, {w}" for v, w in zip(told, rng.integers(0, n_values, n), strict=True)]

    known = {"a": rng.normal(size=n) + y, "c": noisy(2)}
    new = {"c": noisy(4), "d": noisy(9), "e": noisy(2), "pay": np.abs(rng.normal(size=n)) + y}
    return pl.DataFrame(known), pl.DataFrame(known | new), y


ROWS, LATER, Y = table(0)
_, QUERY, _ = table(1, 40)


@functools.cache
def made(kind, task):
    encoder, n_outputs = Encoder(Schema.from_frame(ROWS)).fit(ROWS), TASKS[task]
    if kind == "wrapped":
        target = {"multilabel": np.stack([Y > 0, Y > 1], 1), "binary": Y > 0}.get(task, Y)
        inner = LinearRegression() if task == "regression" else LogisticRegression()
        inner = MultiOutputClassifier(inner) if task == "multilabel" else inner
        model = Wrapped(inner.fit(ROWS.select("a"), target), ["a"], encoder.n_features, task, ["a"])
    else:
        torch.manual_seed(0)
        width = 1 if task == "binary" else n_outputs
        fates = [FATE(encoder.n_features, MLP(8, width), GraphSAGE(8)) for _ in range(2)]
        for fate in fates:  # untrained ones predict nearly the same for all rows
            torch.nn.init.normal_(fate.W, std=3.0)
        model = Network([RunningFATE(fate) for fate in fates], task)
    return FeatureBank(
        encoder,
        model,
        () if task == "regression" else tuple(range(n_outputs)),
        embeddings=0.7 if kind == "embeddings" else 0.0,
        evidence=LiveEvidence(n_outputs, task, Pooling(0.9, 3.0, relative=True)),
        mixture=Mixture(n_outputs, task, trusts_evidence=True, bounds=(0.0, 2.0)),
        overrides=DECLARED,
        meta={"numeric": "linear"},
    )


def observed(bank, parts, y=None):
    bank = bank.copy()
    for part in parts:
        bank.observe(LATER[part], None if y is None else y[part])
    return bank


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["network", "embeddings", "wrapped"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, N), max_size=5))
def test_unlabelled_rows_teach_the_same_in_any_order_and_cut(kind, task, seed, cuts):
    """The sample behind the strength went by ids, which are given in the order of arrival."""
    most, evidence.SAMPLE = evidence.SAMPLE, 30  # fewer than the rows: some of them are chosen
    try:
        order = np.random.default_rng(seed).permutation(N)
        whole = observed(made(kind, task), [np.arange(N)])
        parts = observed(made(kind, task), np.split(order, sorted(cuts)))
        expected = whole.predict(QUERY, graph="state")
        np.testing.assert_allclose(parts.predict(QUERY, graph="state"), expected, atol=1e-12)
        assert np.array_equal(parts.evidence.sample.key, whole.evidence.sample.key)
        found, expected = (bank.predict(QUERY, graph="batch") for bank in (parts, whole))
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert whole.evidence.fixed.strength > 0
    finally:
        evidence.SAMPLE = most


LABELS = {
    "binary": (Y > 0).astype(int),
    "multiclass": Y,
    "multilabel": np.stack([Y > 0, Y > 1], 1).astype(float),
    "regression": Y.astype(float),
}


@pytest.mark.parametrize(
    ("kind", "task"), list(zip(["network", "wrapped"] * 2, TASKS, strict=True))
)
@settings(max_examples=2, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_labelled_rows_teach_the_same_in_any_cut(kind, task, cuts):
    """Their order is time; but the solver took rows in an order of ids, which follow the cuts."""
    whole = observed(made(kind, task), [np.arange(60)], LABELS[task])
    parts = observed(made(kind, task), np.split(np.arange(60), sorted(cuts)), LABELS[task])
    found, expected = (bank.predict(QUERY, graph="state") for bank in (parts, whole))
    np.testing.assert_allclose(found, expected, atol=1e-9)


# ---- a half-life ---------------------------------------------------------------------------------


def fading(kind, task, half_life):
    bank = made(kind, task).copy()
    bank.half_life = half_life
    return bank


@pytest.mark.parametrize(
    ("kind", "half_life"), [("wrapped", 1), ("wrapped", 37), ("embeddings", 40)]
)
@settings(max_examples=5, deadline=None)
@given(cuts=st.lists(st.integers(0, N), max_size=5))
def test_rows_fade_at_fixed_numbers_of_rows_in_any_cut(kind, half_life, cuts):
    whole = observed(fading(kind, "multiclass", half_life), [np.arange(N)])
    parts = observed(fading(kind, "multiclass", half_life), np.split(np.arange(N), sorted(cuts)))
    found, expected = (bank.predict(QUERY, graph="state") for bank in (parts, whole))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.array_equal(parts.evidence.sample.key, whole.evidence.sample.key)
    # Each row by itself: it fades at every eighth of a half-life from its own on.
    steps = 8 * np.arange(N + 1) // half_life
    weight = 2.0 ** (-(steps[-1] - steps[:-1]) / 8)
    X = whole.new_part(whole.encoder.encode(LATER))
    part = weight[X.row_of] * (1 if X.values is None else X.values)
    counts = np.bincount(X.ids, part, X.n_features)
    np.testing.assert_allclose(whole.evidence.state.count, counts, rtol=1e-9, atol=1e-12)


def test_labelled_rows_fade_in_any_cut_and_a_bundle_goes_on():
    whole = observed(fading("wrapped", "binary", 20), [np.arange(60)], LABELS["binary"])
    part = observed(fading("wrapped", "binary", 20), [np.arange(25)], LABELS["binary"])
    part = FeatureBank.from_bundle(part.to_bundle())
    assert part.half_life == 20
    part.observe(LATER[25:60], LABELS["binary"][25:60])
    found, expected = (bank.predict(QUERY, graph="state") for bank in (part, whole))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_world_that_changes_is_followed_sooner_with_a_half_life():
    """A new value that told of one class tells of the other from some row on."""
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.normal(3, 1, 300), rng.normal(-1, 1, 60)])
    later = ROWS[np.zeros(360, int)].with_columns(a=a, d=pl.Series(["x", "y"] * 180))
    later = later.with_columns(a=pl.when(pl.col("d") == "x").then("a").otherwise(1 - pl.col("a")))
    asked, moved = later[:1].with_columns(a=pl.lit(1.0)), {}
    for half_life in (None, 20):
        bank = fading("wrapped", "binary", half_life)
        bank.observe(later)
        P, ignoring = (bank.predict(asked, graph="state", new_features=u) for u in ("use", "drop"))
        moved[half_life] = P[0, 1] - ignoring[0, 1]
    assert moved[None] > 0 > moved[20]
