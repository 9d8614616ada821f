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
from openfate.bank import FeatureBank, Network, Wrapped, contributions, describe, nearest
from openfate.errors import DataFileError, InputError, OpenWorldWarning
from openfate.models import FATE, MLP, GraphSAGE, RunningFATE
from openfate.openworld import LiveEvidence, Mixture, Pooling, UseEvidence, View, combine
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


def make(kind, pooling=ONE, batch_pooling=None, trusts=True):
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
    mixture = Mixture(n_outputs, task, trusts_evidence=trusts)
    embeddings = 0.7 if kind == "embeddings" else 0.0
    return FeatureBank(
        encoder, model, classes, embeddings=embeddings, evidence=evidence, mixture=mixture
    )


def again(bank):
    """What trains a model again: here one that was there before."""
    inner = LinearRegression() if bank.task == "regression" else LogisticRegression()
    fitted = inner.fit(ROWS.select("a"), 1 - Y)
    n_observed = bank.encoder.n_features
    return lambda n_rows, encoder: Wrapped(fitted, ["a"], n_observed, bank.task, ["a"])


KINDS = ("network", "embeddings", "wrapped", "numbers")


def freeze(monkeypatch, bank):
    """Let every assignment to a part of the bank fail, and every change of an array."""
    parts = [bank, bank.model, bank.retrained, bank.evidence, bank.evidence.state, bank.mixture]
    for member in getattr(bank.model, "members", []):
        parts += [member, member.sums]
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    window = bank.mixture._window
    for kept in (bank.evidence.sample, bank.mixture.corrections, *window):
        for array in vars(kept).values():
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
    bank.observe(LATER[:30].with_columns(e=pl.lit("first")), Y[:30], retrain=again(bank))
    assert bank.mixture.corrections is not None and bank.retrained is not None
    newest = LATER.with_columns(f=pl.Series(range(80)), c=pl.lit("never"))
    expected = [bank.predict(newest, graph=graph) for graph in GRAPHS]
    before = bank.state()
    freeze(monkeypatch, bank)
    for graph, P in zip(GRAPHS, expected, strict=True):
        assert np.array_equal(bank.predict(newest, graph=graph), P)
        contributions(bank, newest, graph, [0])
    bank.predict(newest, new_features="drop")
    bank.schema_report(newest)
    bank.lookahead([newest[:40], newest[40:]], "batch").predict(newest[:5], graph="state")
    describe(bank), nearest(bank, "e", "first"), bank.to_bundle()
    for name, array in bank.state().items():  # sums are versions that share pages
        assert np.array_equal(array, before[name]), name
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
    # P0, and P with embeddings where rows have new features: by the state alone they have none.
    n_predictions = 2 if kind == "embeddings" and graph != "state" else 1
    assert calls == ["encode"] + ["predict"] * n_predictions


@pytest.mark.parametrize("n_sweeps", [1, 2])
@pytest.mark.parametrize("kind", ["network", "wrapped", "numbers"])
def test_a_batch_of_new_features_is_predicted_as_in_a_probe(kind, n_sweeps):
    use = UseEvidence(3.0, n_sweeps)
    bank = make(kind, ONE, use.pooling(0.8, 0.9))
    P0 = bank.predict(LATER, new_features="drop")
    encoder = Encoder(Schema.from_frame(LATER.select("d", "e"))).fit(LATER)
    X = encoder.encode(LATER)
    expected = combine(P0, 0.8 * use(View(lambda X: P0, X, X, bank.task)), bank.task, 0.9)
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


# ---- labels ------------------------------------------------------------------------------------


def cut(bank, size, seen, n=80, **options):
    """Observe labelled rows in calls of some size."""
    if seen:
        bank.observe(LATER[:n])
    for start in range(0, n, size):
        part = slice(start, min(n, start + size))
        bank.observe(LATER[part], Y[part], seen=seen, **options)
    return bank


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_how_labels_are_cut_into_calls_does_not_matter(kind, seen, trusts):
    pooling = ONE if trusts else Pooling(strength=0.0)
    whole = cut(make(kind, pooling, trusts=trusts), 80, seen)
    before = make(kind, pooling, trusts=trusts).predict(LATER, graph="state")
    assert np.abs(whole.predict(LATER, graph="state") - before).max() > 0.01
    for size in (41, 7):
        parts = cut(make(kind, pooling, trusts=trusts), size, seen)
        assert parts.n_rows == whole.n_rows == 80
        for graph in GRAPHS:
            found, expected = (bank.predict(LATER, graph=graph) for bank in (parts, whole))
            np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_teach_what_the_new_columns_tell(kind):
    bank = make(kind, Pooling(strength=0.0), trusts=False)
    train, test = slice(0, 50), slice(50, 80)
    ignoring = bank.predict(LATER[test], new_features="drop")
    assert np.array_equal(bank.predict(LATER[test]), bank.predict(ROWS[test]))
    bank.observe(LATER[train], Y[train])
    found, wanted = bank.predict(LATER[test]), Y[test]
    assert np.abs(found[:, -1] - wanted).mean() < np.abs(ignoring[:, -1] - wanted).mean()
    assert np.array_equal(bank.predict(LATER[test], new_features="drop"), ignoring)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_keeps_what_labels_taught_and_goes_on_equally(kind, tmp_path):
    bank = make(kind, ONE, TWO)
    bank.observe(LATER[:45], Y[:45], retrain=again(bank), weight=np.linspace(0.1, 3, 45))
    bank.save(tmp_path / "model")
    read = FeatureBank.load(tmp_path / "model")
    assert describe(read)["weights"] == describe(bank)["weights"]
    for _ in range(2):
        for graph in GRAPHS:
            found, expected = (one.predict(LATER, graph=graph) for one in (read, bank))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        for one in (read, bank):
            one.observe(LATER[45:], Y[45:])


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_weights_that_are_none_leave_the_bank_as_it_was(weight):
    bank = cut(make("network"), 20, False, n=20)
    before = {name: array.copy() for name, array in bank.state().items()}
    wrong = [np.full(3, weight), np.ones(2), np.ones((3, 1))]
    for given in wrong:
        with pytest.raises(InputError, match=r"sample_weight .*: give 3 finite numbers above 0"):
            bank.observe(LATER[20:23].with_columns(g=pl.lit("new")), Y[20:23], weight=given)
    after = bank.state()
    assert before.keys() == after.keys() and "g" not in bank.encoder.fields
    assert all(np.array_equal(after[name], array) for name, array in before.items())


def test_a_row_of_little_weight_teaches_little():
    banks = [make("wrapped", Pooling(strength=0.0), trusts=False) for _ in range(3)]
    for bank, weight in zip(banks, (1.0, 7.0, 1e-3), strict=True):
        bank.observe(LATER, Y, weight=np.full(80, weight))
    one, same, little = (bank.predict(LATER) for bank in banks)
    assert np.array_equal(one, same)  # the largest counts as one row
    P0 = banks[0].predict(LATER, new_features="drop")
    assert np.abs(little - P0).max() < 0.1 * np.abs(one - P0).max()


def test_training_again_that_fails_leaves_the_bank_as_it_was():
    bank = cut(make("embeddings"), 20, False, n=20)
    before, calls = {name: array.copy() for name, array in bank.state().items()}, []

    def fail(n_rows, encoder):
        calls.append(n_rows)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        bank.observe(LATER[20:], Y[20:], retrain=fail)
    assert calls and bank.mixture.n_labels == 20 and bank.retrained is None
    after = bank.state()
    assert all(np.array_equal(after[name], array) for name, array in before.items())


def test_the_model_trained_again_is_told_what_came_so_far_and_is_weighed_like_the_rest():
    bank, told = make("wrapped"), []
    retrain = again(bank)

    def note(n_rows, encoder):
        told.append((n_rows, encoder.fields))
        return retrain(n_rows, encoder) if n_rows > 20 else None

    bank.observe(LATER[:30], Y[:30], retrain=note)
    assert [n for n, _ in told] == [8, 10, 12, 15, 19, 24, 30]
    assert {fields for _, fields in told} == {("a", "c", "d", "e")}
    assert 0 < describe(bank)["weights"]["retrained"] < 0.2  # it says the opposite


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_told_at_once_though_labels_are_learned_from_later(kind):
    bank, n_rows = make(kind), []
    for stop in (9, 15, 40):  # few of these are where corrections are solved
        rows = LATER[stop - 6 : stop]
        bank.observe(rows, Y[stop - 6 : stop])
        n_rows.append(rows["d"].eq("d0").sum())
        assert nearest(bank, "d", "d0")["rows"] == sum(n_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_explanations_after_labels_are_what_the_prediction_loses_by_a_feature(kind):
    bank = make(kind)
    bank.observe(LATER, Y, retrain=again(bank))
    columns = contributions(bank, LATER, "state", [3])
    assert set(columns["field"]) == {"a", "c", "d", "e"}  # labels correct old features too
    if kind != "wrapped":
        return
    at = columns["field"].index("d")
    less = LATER[3:4].drop("d")
    with_, without = (bank.predict(rows, graph="state")[0] for rows in (LATER[3:4], less))
    effect = np.log(with_[1] / with_[0]) - np.log(without[1] / without[0])
    assert columns["effect"][at] == pytest.approx(effect)
    assert describe(bank)["labels"] == 80
    assert sum(describe(bank)["weights"].values()) == pytest.approx(1)
    effects = [nearest(bank, "d", value)["effect"]["1"] for value in ("d0", "d1")]
    assert effects[0] < 0 < effects[1]


def test_nothing_at_all_can_be_observed_and_predicted_after_labels():
    bank = cut(make("wrapped"), 80, False)
    assert bank.predict(LATER[:0]).shape == (0, 2)
    bank.observe(LATER[:0], Y[:0])
    assert bank.mixture.n_labels == 80
    assert contributions(bank, LATER, "state", [])["row"] == []
    assert np.isfinite(bank.predict(LATER.select("a"))).all()


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


def test_a_bundle_keeps_both_poolings(tmp_path):
    bank = make("network", ONE, TWO)
    bank.observe(LATER[:40])
    bank.save(tmp_path / "two")
    again = FeatureBank.load(tmp_path / "two")
    assert (again.evidence.pooling, again.evidence.batch_pooling) == (ONE, TWO)
    for graph in GRAPHS:
        assert np.array_equal(again.predict(LATER, graph=graph), bank.predict(LATER, graph=graph))
    meta = bank.to_bundle().meta
    assert meta["batch_pooling"] == asdict(TWO)
    assert meta["pooling"] == asdict(ONE)
    assert "batch_pooling" not in again.meta
    assert "batch_pooling" not in make("network", ONE, ONE).to_bundle().meta


def test_sums_of_float32_or_of_other_features_are_refused():
    bank = make("embeddings")
    bank.observe(LATER)
    bundle = bank.to_bundle()
    bundle.state["0.counts"] = bundle.state["0.counts"].astype(np.float32)
    with pytest.raises(DataFileError, match="do not fit together"):
        FeatureBank.from_bundle(bundle)
