"""What a probe is asked, and that a bank does what was measured."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression

from openfate.errors import InputError
from openfate.estimators import FATEClassifier, FATERegressor, OpenWorldClassifier, fate, load
from openfate.estimators.usage import (
    EmbeddingNetwork,
    UseEmbeddings,
    candidates,
    choose_usage,
    measure_new_share,
    shares_to_hide,
)
from openfate.openworld import Decision, Pooling, View, combine
from openfate.table import Encoder, MultiHot, Policies, Schema, read_table

QUICK = {"epochs": 8, "n_members": 2, "n_draws": 2, "width": 8, "hidden": (8,), "lr": 2e-2}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 200)
    told = {f"q{at}": np.where(rng.random(200) < 0.75, group, 1 - group) for at in range(4)}
    return pl.DataFrame({name: values.astype(str) for name, values in told.items()} | {"y": group})


@pytest.fixture(scope="module")
def known(rows):
    return rows.select("q0", "q1")


@pytest.fixture(scope="module")
def later(rows):
    return rows.select("q0", "q1", "q2", "q3")


@pytest.fixture
def choose(monkeypatch):
    """Make a probe choose what a test wants."""

    def choose(name):
        accepted = () if name == "none" else (name,)
        gains, strengths = {name: (1.0, 0.1)}, {name: 0.7}
        decision = Decision(name, "asked for", gains, [], accepted, strengths, 0.9)
        monkeypatch.setattr(fate, "judge", lambda *_, **__: decision)

    return choose


# ---- what is hidden ----------------------------------------------------------------------------


def test_half_of_a_networks_draws_hide_half_as_much():
    assert shares_to_hide(0.3, 3, also_half=True) == (0.3, 0.3, 0.15)
    assert shares_to_hide(0.9, 2, also_half=False) == (0.5, 0.5)
    with pytest.raises(InputError, match=r"hidden_share=1\.5: choose a share"):
        shares_to_hide(1.5, 2, also_half=True)


def test_new_cells_are_those_of_new_columns_and_values_that_policies_let_in(known, later):
    encoder = Encoder(Schema.from_frame(known)).fit(known)

    def share(frame, **policies):
        allowed = Policies(**policies)
        return measure_new_share(encoder, read_table(frame), allowed, Schema([]), "buckets")

    assert share(later) == 0.5 and share(known) == 0
    assert share(later, new_columns="ignore") == 0
    assert share(known.with_columns(q0=pl.lit("?"))) == 0.5
    assert encoder.n_features == 4  # nothing was learned


@pytest.mark.parametrize("kind", [FATEClassifier, FATERegressor, OpenWorldClassifier])
def test_unlabelled_rows_tell_the_share_and_nothing_else(kind, rows, known, later):
    frame, wide, y = known.cast(int), later.cast(int), rows["y"]
    networks = kind is not OpenWorldClassifier
    make = partial(kind, **QUICK) if networks else partial(kind, LogisticRegression())
    told = make().fit(frame, y, unlabelled=wide.with_columns(y=y))  # the target is no new column
    given = make(hidden_share=0.5).fit(frame, y)
    decision = told.bank_.meta["decision"]
    sizes = {0.5, 0.25} if networks else {0.5}
    assert {draw["hidden_share"] for draw in decision["draws"]} == sizes
    assert decision == given.bank_.meta["decision"]
    assert told.bank_.encoder.fields == ("q0", "q1") and told.bank_.n_rows == 200
    assert np.array_equal(told.predict(wide), given.predict(wide))


# ---- what is chosen ----------------------------------------------------------------------------


def test_a_decision_says_how_strongly_what_is_used():
    ways = {"embeddings": 0.3, "evidence(alpha=3)": 0.5}
    gains = {name: (0.2, 0.01) for name in ways}
    usage = choose_usage(Decision("embeddings", "gains", gains, [], tuple(ways), ways))
    assert (usage.scale, usage.strength, usage.trusts_evidence) == (0.25, 0.3, True)
    assert usage.state.strength == usage.batch.strength == 0
    name = "evidence(alpha=3)"
    usage = choose_usage(Decision(name, "gains", gains, [], (name,), ways, 0.8))
    assert usage.scale is None and usage.trusts_evidence
    assert usage.state == usage.batch == Pooling(0.5, 3.0, relative=True, slope=0.8)
    nothing = choose_usage(Decision("none", "", {}, []))
    assert nothing.scale is None and not nothing.trusts_evidence


@pytest.mark.parametrize("backbone", ["mlp", "deepfm"])
def test_a_bank_does_with_a_batch_what_the_probe_measured(backbone, rows, known, later, choose):
    choose("embeddings")
    model = FATEClassifier(**QUICK, backbone=backbone).fit(known, rows["y"])
    bank = model.bank_
    assert bank.embeddings == 0.7 and "embeddings" in model.schema_report(later).note
    ahead = bank.grow_encoder(later)
    X, n_old = ahead.encode(later), bank.n_observed
    old, new = (X.select_features(np.arange(*at)) for at in ((n_old,), (n_old, X.n_features)))

    class Same(EmbeddingNetwork):
        def __init__(self):
            pass

        def __call__(self, X):
            return bank.model.predict(X)

        def with_embeddings(self, scale):
            return bank.model.copy()

    view = View(Same(), old, new, "binary")
    use = candidates(embeddings=True)["embeddings"]
    assert isinstance(use, UseEmbeddings)
    expected = combine(view.P0, 0.7 * use(view), "binary")
    assert not np.allclose(expected, view.P0)
    np.testing.assert_allclose(model.predict_proba(later, graph="batch"), expected, rtol=1e-9)


def test_embeddings_of_a_map_are_observed_saved_and_absorbed(rows, known, later, choose, tmp_path):
    choose("embeddings")
    model = FATEClassifier(**QUICK).fit(known, rows["y"])
    ignored = model.predict_proba(later, new_features="drop")
    model.observe(later)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    for graph in ("state", "batch"):
        p = model.predict_proba(later, graph)
        assert np.array_equal(again.predict_proba(later, graph), p) and not np.allclose(p, ignored)
    again.observe(later), model.observe(later)
    assert np.array_equal(again.predict_proba(later), model.predict_proba(later))
    json.dumps(model.bank_.model.settings())
    again.refit(later, rows["y"])
    assert again.refit_report_["absorbed_features"] == 4 and again.bank_.embeddings
    assert again.score(later, rows["y"]) > model.score(known, rows["y"])


def test_a_refit_may_choose_otherwise(rows, known, later, choose):
    choose("embeddings")
    model = FATEClassifier(**QUICK).fit(known, rows["y"])
    choose("none")
    model.refit(later, rows["y"])
    assert not model.bank_.embeddings and model.bank_.model.members[0].extrapolator is None


def test_embeddings_are_offered_where_a_row_is_one_sum(rows, known, monkeypatch):
    offered = []

    def judge(views, y, groups, **_):
        offered.append("embeddings" in groups)
        return Decision("none", "", {}, [])

    monkeypatch.setattr(fate, "judge", judge)
    for pool in ("sum", "field_linear"):
        FATEClassifier(**QUICK, pool=pool).fit(known, rows["y"])
    assert offered == [True, False]


def test_cells_with_values_are_put_side_by_side():
    from openfate.estimators.usage import _side_by_side

    X = MultiHot.from_entries([0, 1], [0, 1], 2, 2, [0.5, 2.0])
    Z = MultiHot.from_rows([[0], []], 1)
    assert _side_by_side(X, Z).to_dense().tolist() == [[0.5, 0, 1], [0, 2.0, 0]]
