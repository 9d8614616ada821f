"""A bank predicts in one go and assigns nothing; what it is told for a call is of that call."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from openfate import Field, Schema
from openfate.bank import FeatureBank, Network, Wrapped, contributions
from openfate.errors import DataFileError, InputError, OpenWorldWarning
from openfate.models import FATE, MLP, GraphSAGE, RunningFATE
from openfate.openworld import LiveEvidence, Pooling, UseEvidence, View
from openfate.table import Encoder, MultiHot, Policies

GRAPHS = ("auto", "state", "batch")
ONE = Pooling(0.7, 3.0, relative=True)
TWO = Pooling(0.9, 3.0, relative=True, n_sweeps=2)


def table(n=80, seed=0):
    """Two known columns, and two new ones that say something of the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    noisy = [np.where(rng.random(n) < 0.8, y, rng.integers(0, 2, n)) for _ in range(3)]
    known = pl.DataFrame({"a": rng.normal(size=n) + y, "c": [f"c{v}" for v in noisy[0]]})
    new = [pl.Series("d", [f"d{v}" for v in noisy[1]]), pl.Series("e", [f"e{v}" for v in noisy[2]])]
    return known, known.with_columns(*new), y


ROWS, LATER, Y = table()


def make(kind, pooling=ONE, batch_pooling=None):
    """A bank that has observed nothing, around a network or somebody else's model."""
    encoder = Encoder(Schema.from_frame(ROWS)).fit(ROWS)
    task = "regression" if kind == "numbers" else "binary"
    if kind in ("network", "embeddings"):
        torch.manual_seed(0)
        models = [FATE(encoder.n_features, MLP(4, 1), GraphSAGE(4)) for _ in range(2)]
        model = Network([RunningFATE(m) for m in models], task)
    else:
        inner = LinearRegression() if kind == "numbers" else LogisticRegression()
        frame = ROWS.select("a")
        model = Wrapped(inner.fit(frame, Y), ["a"], encoder.n_features, task, ["a"])
    n_outputs = 1 if task == "regression" else 2
    evidence = LiveEvidence(n_outputs, task, pooling, batch_pooling)
    classes = () if task == "regression" else (0, 1)
    return FeatureBank(encoder, model, classes, embeddings=kind == "embeddings", evidence=evidence)


KINDS = ("network", "embeddings", "wrapped", "numbers")


def freeze(monkeypatch, bank):
    """Let every assignment to a part of the bank fail, and every change of an array."""
    parts = [bank, bank.model, bank.evidence, bank.evidence.state]
    for member in getattr(bank.model, "members", []):
        parts += [member, member.sums]
    for part in parts:
        for value in [*vars(part).values(), *getattr(part, "_sums", {}).values()]:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    for array in vars(bank.evidence.sample).values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    frozen = {id(part) for part in parts}

    def refuse(self, name, value):
        if id(self) in frozen:
            raise AssertionError(f"{type(self).__name__}.{name} is assigned")
        object.__setattr__(self, name, value)

    for kind in {type(part) for part in parts}:
        monkeypatch.setattr(kind, "__setattr__", refuse, raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_assigns_nothing(kind, monkeypatch):
    bank = make(kind, ONE, TWO)
    bank.observe(ROWS)
    bank.observe(LATER[:30].with_columns(e=pl.lit("first")), Y[:30])
    newest = LATER.with_columns(f=pl.Series(range(80)), c=pl.lit("never"))
    expected = [bank.predict(newest, graph=graph) for graph in GRAPHS]
    freeze(monkeypatch, bank)
    for graph, P in zip(GRAPHS, expected, strict=True):
        assert np.array_equal(bank.predict(newest, graph=graph), P)
        contributions(bank, newest, graph, [0])
    bank.predict(newest, new_features="drop")
    bank.schema_report(newest)
    bank.lookahead([newest[:40], newest[40:]], "batch").predict(newest[:5], graph="state")
    with pytest.raises((AssertionError, ValueError)):  # what the freezing is for
        bank.observe(newest)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_encoded_once_and_predicted_once(kind, graph, monkeypatch):
    bank, calls = make(kind, ONE, TWO), []
    bank.observe(ROWS)
    for owner, name in [(Encoder, "encode"), (Network, "predict"), (Wrapped, "predict")]:
        whole = getattr(owner, name)

        def count(*args, whole=whole, name=name, **options):
            calls.append(name)
            return whole(*args, **options)

        monkeypatch.setattr(owner, name, count)
    bank.predict(LATER, graph=graph)
    n_predictions = 2 if kind == "embeddings" else 1  # P0, and P with embeddings
    assert calls == ["encode"] + ["predict"] * n_predictions


@pytest.mark.parametrize("n_sweeps", [1, 2])
@pytest.mark.parametrize("kind", ["network", "wrapped", "numbers"])
def test_a_batch_of_new_features_is_predicted_as_in_a_probe(kind, n_sweeps):
    pooling = Pooling(0.8, 3.0, relative=True, n_sweeps=n_sweeps)
    bank = make(kind, ONE, pooling)
    P0 = bank.predict(LATER, new_features="drop")
    encoder = Encoder(Schema.from_frame(LATER.select("d", "e"))).fit(LATER)
    X = encoder.encode(LATER)
    expected = UseEvidence(pooling)(View(lambda X: P0, X, X, bank.task))
    for graph in ("batch", "auto"):
        np.testing.assert_allclose(bank.predict(LATER, graph=graph), expected, atol=1e-12)
    assert np.abs(expected - P0).max() > 1e-5
    assert np.array_equal(bank.predict(LATER, graph="state"), P0)


def test_the_state_pools_once_by_its_own_settings():
    rows = [make("wrapped", ONE, batch) for batch in (None, TWO)]
    for bank in rows:
        bank.observe(LATER)
    one, two = (bank.predict(LATER, graph="state") for bank in rows)
    assert np.array_equal(one, two)
    assert np.array_equal(*(bank.predict(LATER) for bank in rows))  # nothing is unseen
    one, two = (bank.predict(LATER, graph="batch") for bank in rows)
    assert not np.allclose(one, two)


def test_what_the_state_has_seen_is_predicted_alike_beside_what_it_has_not():
    bank = make("embeddings", ONE, TWO)
    bank.observe(LATER)
    unseen = pl.when(pl.int_range(80) < 40).then("x" + pl.col("e"))
    mixed = LATER.with_columns(e=unseen.otherwise("e"))
    half = bank.predict(mixed)[40:]
    np.testing.assert_allclose(half, bank.predict(mixed[40:], graph="state"), atol=1e-12)
    assert not np.allclose(bank.predict(mixed)[:40], bank.predict(mixed, graph="state")[:40])


@pytest.mark.parametrize("graph", ["auto", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_in_parts_takes_as_many_sweeps(kind, graph):
    bank = make(kind, ONE, TWO)
    bank.observe(ROWS)
    bank.observe(LATER[:20].drop("e"))
    parts = [LATER[:33], LATER[33:50], LATER[50:]]
    ahead = bank.lookahead(parts, graph)
    found = np.concatenate([ahead.predict(part, graph="state") for part in parts])
    np.testing.assert_allclose(found, bank.predict(LATER, graph=graph), atol=1e-12)
    with pytest.raises(InputError, match="takes 2 sweeps: give a list"):
        bank.lookahead(iter(parts), graph)
    assert bank.lookahead(iter(parts), "state").encoder is bank.encoder
    once = make(kind)
    assert once.lookahead(iter(parts), graph).encoder.n_features > once.encoder.n_features


def test_an_explanation_is_what_the_prediction_loses_by_a_feature():
    bank = make("wrapped", ONE, TWO)
    columns = contributions(bank, LATER, "batch", [3])
    assert columns["field"] == ["d", "e"] and all(columns["new"]) and columns["row"] == [3, 3]
    joint = bank.lookahead([LATER], "batch").joint
    X = Encoder(Schema.from_frame(LATER.select("d", "e"))).fit(LATER).encode(LATER)
    P0 = bank.predict(LATER, new_features="drop")
    votes = joint.votes(X, P0)[3:4]
    for at in range(2):
        left = MultiHot.from_rows([[X.select_rows([3]).ids[1 - at]]], X.n_features)
        with_, without = bank.predict(LATER, graph="batch")[3], joint.move(P0[3:4], left, votes)[0]
        effect = np.log(with_[1] / with_[0]) - np.log(without[1] / without[0])
        assert columns["effect"][at] == pytest.approx(effect)


# ---- what is told for a call ---------------------------------------------------------------------


def test_options_are_of_the_call_and_not_kept():
    bank = make("wrapped")
    before = bank.exclude, bank.overrides, bank.policies
    without = bank.predict(LATER.select("a", "c", "d"))
    assert np.array_equal(bank.predict(LATER, exclude=["e"]), without)
    with pytest.raises(InputError, match="column 'd' is new"):
        bank.predict(LATER, policies=Policies(new_columns="error"))
    bank.predict(LATER, policies=Policies(new_columns="error"), new_features="drop")
    with pytest.warns(OpenWorldWarning, match="'e' is new") as warned:
        bank.lookahead([LATER], policies=Policies(new_columns="warn"))
    assert len(warned) == 1
    report = bank.schema_report(LATER, exclude=["d"], policies=Policies(new_columns="ignore"))
    assert report.new == ("e",) and report.columns[-1].action == "ignore"
    numbers = LATER.with_columns(f=pl.Series(range(80)))
    bank.observe(numbers, exclude=["d"], overrides=Schema([Field("f", "categorical")]))
    assert bank.encoder.fields == ("a", "c", "e", "f")
    assert bank.encoder.schema["f"].kind == "categorical"
    assert (bank.exclude, bank.overrides, bank.policies) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": "rows"}, "graph='rows' is unknown: choose 'auto', 'state' or 'batch'."),
        ({"new_features": "no"}, "new_features='no' is unknown: choose 'use' or 'drop'."),
    ],
)
def test_an_unknown_choice_is_named(options, message):
    with pytest.raises(InputError) as caught:
        make("wrapped").predict(LATER, **options)
    assert str(caught.value) == message


# ---- copies and bundles --------------------------------------------------------------------------


@pytest.mark.parametrize("make_copy", [FeatureBank.copy, copy.deepcopy, copy.copy, None])
def test_a_copy_has_a_lock_and_a_state_of_its_own(make_copy):
    bank = make("embeddings", ONE, TWO)
    bank.observe(LATER[:40])
    again = pickle.loads(pickle.dumps(bank)) if make_copy is None else make_copy(bank)
    assert again.lock is not bank.lock
    expected = bank.predict(LATER, graph="state")
    assert np.array_equal(again.predict(LATER, graph="state"), expected)
    if make_copy is not copy.copy:
        again.observe(LATER, Y)
        assert np.array_equal(bank.predict(LATER, graph="state"), expected)
        assert bank.n_rows == 40


def test_a_bundle_keeps_both_poolings_and_an_old_one_has_one_sweep(tmp_path):
    bank = make("network", ONE, TWO)
    bank.observe(LATER[:40])
    bank.save(tmp_path / "two")
    again = FeatureBank.load(tmp_path / "two")
    assert (again.evidence.pooling, again.evidence.batch_pooling) == (ONE, TWO)
    for graph in GRAPHS:
        assert np.array_equal(again.predict(LATER, graph=graph), bank.predict(LATER, graph=graph))
    meta = bank.to_bundle().meta
    assert meta["batch_pooling"] == asdict(TWO)
    assert "n_sweeps" not in meta["pooling"]  # as it was written before there were sweeps
    assert "batch_pooling" not in again.meta
    assert "batch_pooling" not in make("network", ONE, ONE).to_bundle().meta


def test_sums_of_float32_or_of_other_features_are_refused():
    bank = make("embeddings")
    bank.observe(LATER)
    bundle = bank.to_bundle()
    bundle.state["0.counts"] = bundle.state["0.counts"].astype(np.float32)
    with pytest.raises(DataFileError, match="do not fit together"):
        FeatureBank.from_bundle(bundle)
