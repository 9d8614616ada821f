"""A source counts for a feature as three rows at most, whatever it sends."""

from __future__ import annotations

import copy
import functools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from openfate import FATEClassifier, OpenWorldClassifier, load
from openfate.errors import InputError, OpenWorldWarning
from openfate.openworld import Evidence, LiveEvidence, Pooling
from openfate.openworld.sources import MOST
from openfate.table import MultiHot


def draw(seed: int, n: int = 60, n_sources: int = 6):
    """Rows with a few new features, votes, and who sent them."""
    rng = np.random.default_rng(seed)
    X = MultiHot.from_rows([rng.choice(5, rng.integers(0, 4), replace=False) for _ in range(n)], 5)
    who = rng.choice(n_sources, n, p=rng.dirichlet(np.ones(n_sources))).astype(np.uint64)
    return X, rng.dirichlet(np.ones(3), n), who


def pools(X: MultiHot, P0: np.ndarray, who: np.ndarray) -> np.ndarray:
    """(J, 1 + C) what counts, by plain loops: the slow twin."""
    found, dense = np.zeros((X.n_features, 4)), X.to_dense()
    for feature in range(X.n_features):
        for source in np.unique(who):
            rows = np.flatnonzero((who == source) & (dense[:, feature] > 0))
            if len(rows):
                weight = min(1.0, MOST / len(rows))
                found[feature] += weight * np.array([len(rows), *P0[rows].sum(0)])
    return found


def observed(parts, X, P0, who) -> Evidence:
    state = Evidence(3, by_source=True)
    for part in parts:
        state.add(X.select_rows(part), P0[part], voter=who[part])
    return state


@given(st.integers(0, 1000), st.lists(st.integers(0, 60), max_size=4))
@settings(max_examples=40, deadline=None)
def test_pools_are_those_of_plain_loops_for_any_cut_and_order(seed, cuts):
    X, P0, who = draw(seed)
    parts = np.split(np.random.default_rng(seed).permutation(60), sorted(cuts))
    state, wanted = observed(parts, X, P0, who), pools(X, P0, who)
    assert np.allclose(np.column_stack([state.count, state.total]), wanted, rtol=0, atol=1e-12)
    again = Evidence.from_arrays(state.to_arrays())
    assert np.allclose(again.mean, state.mean, rtol=0, atol=1e-12)
    more = again.add(X, P0, voter=who)  # what is behind the sums came back too
    twice = pools(MultiHot.stack([X, X]), np.concatenate([P0, P0]), np.concatenate([who, who]))
    assert np.allclose(np.column_stack([more.count, more.total]), twice, rtol=0, atol=1e-12)


@given(st.integers(0, 1000), st.integers(1, 59))
@settings(max_examples=20, deadline=None)
def test_merged_decayed_and_taken_back(seed, cut):
    X, P0, who = draw(seed)
    whole = observed([np.arange(60)], X, P0, who)
    first, second = (observed([rows], X, P0, who) for rows in np.split(np.arange(60), [cut]))
    assert np.allclose(first.copy().merge(second).total, whole.total, rtol=0, atol=1e-12)
    later = np.arange(cut, 60)
    less = whole.copy().add(X.select_rows(later), P0[later], weight=-1, voter=who[later])
    assert np.allclose(less.count, first.count, rtol=0, atol=1e-12)
    half = whole.copy().decay(0.5)
    assert (half.count <= whole.count + 1e-12).all()
    assert (half.count >= whole.count / 2 - 1e-12).all()  # what was beyond the bound now counts


def test_one_source_moves_the_mean_as_much_as_the_average_one():
    X, P0, who = draw(0, 300, 30)
    state = observed([np.arange(300)], X, P0, who)
    before, n = state.mean, 20_000
    attack = np.tile([1.0, 0.0, 0.0], (n, 1))
    attack[:, 1] = np.linspace(0, 1e-3, n)  # no two rows are alike
    state.add(MultiHot.from_rows([[0]] * n, 5), attack, voter=np.full(n, 99, np.uint64))
    assert np.abs(state.mean - before).max() < 2 / 30
    assert state.count[0] <= pools(X, P0, who)[0, 0] + MOST + 1e-9


def test_evidence_with_and_without_sources_is_not_merged():
    with pytest.raises(InputError, match="sources"):
        Evidence(3, training=np.eye(3), by_source=True).merge(Evidence(3, training=np.eye(3)))


def test_features_that_are_forgotten_leave_their_sources():
    X, P0, who = draw(3)
    live = LiveEvidence(3, pooling=Pooling(relative=True), by_source=True)
    live.observe(X, P0, voter=who)
    fewer = live.select(np.array([1, 3]), 5)
    assert np.allclose(fewer.state.total, live.state.total[[1, 3]])
    assert set(fewer.state.sources.to_layer(3).feature.tolist()) <= {0, 1}
    again = LiveEvidence.from_arrays(fewer.to_arrays(), "multiclass", live.pooling)
    assert np.allclose(again.state.total, fewer.state.total)
    assert again.fixed == fewer.fixed


# ---- estimators ----------------------------------------------------------------------------------


@functools.cache
def world(n: int = 1200):
    """Two columns that tell a class, a third one that is new, and who sent each row."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    a, b = (y + rng.normal(0, 0.7, n) for _ in range(2))
    shop = np.where(rng.random(n) < 0.85, y, 1 - y)
    shops = [f"{s}{t}" for s, t in zip(shop, rng.integers(0, 4, n), strict=True)]
    told = {"a": a, "b": b, "shop": shops}
    return pl.DataFrame(told | {"user": [f"u{i % 60}" for i in range(n)]}), y


def make(kind: str):
    if kind == "fate":
        return FATEClassifier(strategy="evidence", epochs=5, random_state=0, source="user")
    return OpenWorldClassifier(LogisticRegression(), pooling=Pooling(relative=True), source="user")


@pytest.mark.parametrize("kind", ["fate", "wrapped"])
def test_an_attacker_who_varies_rows_but_is_one_source(kind, tmp_path):
    """Hijacks the values of other people: without `source` every one of its rows is a voter."""
    rows, y = world()
    model = make(kind).fit(rows[:600].select("a", "b", "user"), y[:600])
    assert "user" not in model.bank_.encoder.fields
    model.observe(rows[600:900])
    assert "user" not in model.bank_.encoder.fields
    asked, rng, n = rows[900:].drop("user"), np.random.default_rng(1), 5000
    honest = model.predict(asked, graph="state")
    attack = pl.DataFrame({"a": rng.normal(4, 1, n), "b": rng.normal(4, 1, n)}).with_columns(
        shop=rows["shop"][600:900].sample(n, with_replacement=True, seed=0), user=pl.lit("me")
    )
    plain = make(kind).set_params(source=None, exclude=["user"])
    plain.fit(rows[:600].select("a", "b"), y[:600]).observe(rows[600:900])
    before = plain.predict(asked, graph="state")
    model.observe(attack)
    plain.observe(attack)
    assert (model.predict(asked, graph="state") != honest).mean() <= 0.01
    assert (plain.predict(asked, graph="state") != before).mean() >= 0.03
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.source == "user"
    assert np.array_equal(again.predict(asked, graph="state"), model.predict(asked, graph="state"))
    later = rows[:300].with_columns(user=pl.lit("me"))
    assert np.allclose(
        again.observe(later).predict_proba(asked, graph="state"),
        model.observe(later).predict_proba(asked, graph="state"),
        rtol=0,
        atol=1e-12,
    )


FAR = pl.Series([2**30], dtype=pl.Int32).cast(pl.Date)  # polars panics, which is no Exception


def test_a_source_is_what_its_text_is_and_an_odd_one_is_refused():
    rows, y = world()
    model = make("wrapped").fit(rows[:600].select("a", "b", "user"), y[:600])
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    seven = rows[600:640].with_columns(user=pl.lit(7))
    one.observe(seven).observe(seven)
    other.observe(seven).observe(seven.with_columns(user=pl.lit(7.0)))
    asked = rows[900:]
    assert np.array_equal(
        one.predict_proba(asked, graph="state"), other.predict_proba(asked, graph="state")
    )
    before = one.bank_._state
    for odd in (FAR, pl.Series([{"id": 7}]), pl.Series([[7]])):
        with pytest.raises(InputError, match="'user', which names the source of rows, holds"):
            one.observe(seven.with_columns(user=odd.new_from_index(0, len(seven))))
    assert one.bank_._state is before


def test_labelled_rows_keep_their_source_until_they_are_counted(tmp_path):
    rows, y = world()
    rows = rows.with_columns(pl.col("user").str.slice(0, 2))  # ten of them
    one = make("wrapped").fit(rows[:600].select("a", "b", "user"), y[:600])
    one.observe(rows[600:700], y[600:700], refit="never")
    one.save(tmp_path / "one")
    other = load(tmp_path / "one")
    for model in (one, other):
        for at in range(700, 900, 50):
            model.observe(rows[at : at + 50], y[at : at + 50], refit="never")
    asked = rows[900:].drop("user")
    assert np.allclose(one.predict_proba(asked), other.predict_proba(asked), rtol=0, atol=1e-9)
    D = one.bank_.n_observed
    state, counts = one.bank_.evidence.state, one.bank_.rows[D:]
    assert (state.count <= counts + 1e-9).all() and (state.count < counts).any()


def test_rows_without_a_source_are_one_together():
    rows, y = world()
    model = make("wrapped").fit(rows[:100].select("a", "b"), y[:100])
    with pytest.warns(OpenWorldWarning, match="no column 'user'"):
        model.observe(rows.drop("user"))
    assert np.allclose(model.bank_.evidence.state.count, MOST)
    with pytest.raises(InputError, match="List"):
        model.observe(rows[:2].with_columns(user=pl.Series([[1], [2]])))
    model.observe(rows[:2].with_columns(user=pl.lit(None)))
    assert np.allclose(model.bank_.evidence.state.count, MOST)
    assert model.bank_.exclude == ("user",)
    with pytest.raises(InputError, match="name of a column"):
        make("wrapped").set_params(source=3).fit(rows[:100].select("a", "b"), y[:100])
    assert model.predict_proba({"a": 1.0, "b": 2.0, "user": "u1"}).shape == (1, 2)
