"""A bound on new features: what is forgotten, what stays, and that nobody else notices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from openfate import FATEClassifier, load
from openfate.bank import FeatureBank, Wrapped
from openfate.errors import DataFileError, InputError, OpenWorldWarning
from openfate.openworld import LiveEvidence, Mixture, Pooling
from openfate.table import Encoder, Schema

RNG = np.random.default_rng(0)
ROWS = pl.DataFrame({"a": RNG.normal(size=60)})
Y = RNG.integers(0, 2, 60)
INNER = LogisticRegression().fit(ROWS, Y)
pytestmark = pytest.mark.filterwarnings("ignore:max_new_features")


def make(most: int | None, **more) -> FeatureBank:
    encoder = Encoder(Schema.from_frame(ROWS)).fit(ROWS)
    model = Wrapped(INNER, ["a"], encoder.n_features, "binary", ["a"])
    evidence = LiveEvidence(2, "binary", Pooling(0.8, 2.0, relative=False))
    bound = {"embeddings": 0.0, "evidence": evidence, "max_new_features": most}
    return FeatureBank(encoder, model, (0, 1), **bound, **more)


def frame(users: list[str], seed: int = 0) -> pl.DataFrame:
    numbers = np.random.default_rng(seed).choice(ROWS["a"].to_numpy(), len(users))
    return pl.DataFrame({"a": numbers, "user": pl.Series(users, dtype=pl.String)})


def told(bank: FeatureBank) -> dict[str, tuple[float, ...]]:
    """Rows and the sum of P0 of every user that is known."""
    D, encoder = bank.n_observed, bank.encoder
    names = [encoder.decode(j)[1] for j in range(D, encoder.n_features)]
    sums = zip(bank.rows[D:], bank.evidence.state.count, bank.evidence.state.total, strict=True)
    return {name: (n, m, *total) for name, (n, m, total) in zip(names, sums, strict=True)}


class Twin:
    """The same by plain dicts, a row at a time."""

    def __init__(self, most: int) -> None:
        self.most, self.met, self.n_evicted = most, set(), 0
        self.known: dict[str, np.ndarray] = {}  # oldest first

    def observe(self, users: list[str], P0: np.ndarray) -> None:
        n_cells = Counter(users)
        for user in sorted(set(users) - self.known.keys()):
            if n_cells[user] > 1 or user in self.met:
                self.known[user] = np.zeros(4)
            else:
                self.met.add(user)
        for user, p in zip(users, P0, strict=True):
            if user in self.known:
                self.known[user] += [1, 1, *p]
        if len(self.known) > self.most:
            n_out = len(self.known) - self.most + self.most // 10
            for user in sorted(self.known, key=lambda user: self.known[user][0])[:n_out]:
                del self.known[user]
                self.n_evicted += 1


users = st.lists(st.integers(0, 25).map(lambda at: f"u{at:02}"), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.lists(users, max_size=8))
def test_what_is_kept_and_forgotten_is_that_of_the_slow_twin(most, calls):
    bank, twin = make(most), Twin(most)
    for seed, call in enumerate(calls):
        rows = frame(call, seed)
        twin.observe(call, INNER.predict_proba(rows.select("a")))
        bank.observe(rows)
        assert bank.encoder.n_features - bank.n_observed <= most
        found = told(bank)
        assert list(found) == list(twin.known)
        for user, sums in twin.known.items():
            np.testing.assert_allclose(found[user], sums)
        assert bank.n_evicted == twin.n_evicted


def crowd(n: int, times: int, first: int = 0) -> list[str]:
    return [f"u{at:03}" for at in range(first, first + n)] * times


@pytest.mark.parametrize("strategy", ["evidence", "fate"])
def test_rows_without_forgotten_features_are_predicted_as_before(strategy):
    """Whatever labels taught stays too, and so does the model that they trained again."""
    rng = np.random.default_rng(1)
    rows = ROWS.with_columns(job=pl.Series(rng.choice(["cook", "judge"], 60)))
    model = FATEClassifier(
        strategy=strategy, epochs=2, width=4, hidden=(4,), random_state=0, max_new_features=40
    ).fit(rows, Y)
    bank, often = model.bank_, frame(crowd(8, 6)).with_columns(job=pl.lit("cook"))
    model.observe(often, np.arange(48) % 2)
    model.observe(frame(crowd(30, 2, 100)).with_columns(job=pl.lit("judge")))
    before = bank.copy()
    assert bank.n_evicted == 0
    with pytest.warns(OpenWorldWarning, match="max_new_features=40: "):
        model.observe(frame(crowd(8, 3, 200)).with_columns(job=pl.lit("judge")))
    assert all(bank.encoder.find("user", f"u{at:03}") is not None for at in range(8))
    np.testing.assert_allclose(
        bank.mixture.predict(*labelled(bank, often)),
        before.mixture.predict(*labelled(before, often)),
    )
    assert "new features were forgotten" in model.schema_report(often).note


def labelled(bank: FeatureBank, rows: pl.DataFrame):
    call = bank.run(rows, "state")
    return call.X, call.P0, call.P0, call.retrained


def test_a_bundle_keeps_the_bound_and_who_was_met(tmp_path):
    model = FATEClassifier(epochs=1, random_state=0, max_new_features=20).fit(ROWS, Y)
    model.observe(frame(crowd(25, 2)))
    model.observe(frame(["once"]))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.max_new_features == 20
    for one in (model, again):
        assert one.bank_.n_evicted == 7
        one.observe(frame(["once", "twice"]))
        assert one.bank_.encoder.find("user", "once") is not None
        assert one.bank_.encoder.find("user", "twice") is None
    P = (one.predict_proba(frame(crowd(25, 1))) for one in (model, again))
    np.testing.assert_array_equal(*P)
    bundle = again.bank_.to_bundle()
    del bundle.state["newcomers"]
    with pytest.raises(DataFileError, match="bound on new features"):
        FeatureBank.from_bundle(bundle)


def test_labels_are_worth_more_than_rows():
    bank = make(10, mixture=Mixture(2, "binary", trusts_evidence=True))
    bank.observe(frame(crowd(5, 2)), np.arange(10) % 2)
    bank.observe(frame(crowd(30, 9, 100)))
    known = told(bank)
    assert len(known) == 9
    assert {f"u{at:03}" for at in range(5)} <= known.keys()


def test_what_labels_taught_of_forgotten_features_is_forgotten_in_a_bundle_too():
    """Labels of values that come and go, each of them known for a while."""
    bank = make(10, mixture=Mixture(2, "binary", trusts_evidence=True))
    for turn in range(12):
        bank.observe(frame(crowd(4, 3, 4 * turn)), np.arange(12) % 2)
        again = FeatureBank.from_bundle(bank.copy().to_bundle())
        rows = frame(crowd(8, 1, 4 * turn - 4 if turn else 0))
        found, expected = (one.predict(rows, graph="state") for one in (again, bank))
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert bank.n_evicted > 20


def test_columns_that_name_rows_are_told():
    rows = ROWS.vstack(ROWS).with_columns(order=pl.Series([f"o{at}" for at in range(120)]))
    with pytest.warns(OpenWorldWarning, match="in the column 'order': such values teach nothing"):
        model = FATEClassifier(epochs=1).fit(rows, np.tile(Y, 2))
    later = ROWS.vstack(ROWS).with_columns(visit=pl.Series([f"v{at}" for at in range(120)]))
    assert "own in the column 'visit'" in model.schema_report(later).note
    assert "of its own" not in model.schema_report(ROWS).note


def test_bounds_by_field_hold_and_other_fields_know_all():
    """A column that strangers fill does not push out what the others have brought."""
    bank = make({"user": 10})
    for start in range(0, 60, 20):
        rows = frame(crowd(20, 2, start))
        bank.observe(
            rows.with_columns(city=pl.Series([f"c{at}" for at in range(start, start + 40)]))
        )
    fields = [bank.encoder.decode(at)[0] for at in range(bank.n_observed, bank.encoder.n_features)]
    assert Counter(fields)["user"] <= 10
    assert Counter(fields)["city"] == 80  # none twice, and none had to wait
    assert bank.n_evicted >= 50
    both = FeatureBank.from_bundle(make({"user": 10, "*": 30}).to_bundle())
    assert both.max_new_features == {"user": 10, "*": 30}
    for start in range(0, 60, 20):
        rows = frame(crowd(20, 2, start))
        both.observe(rows.with_columns(city=pl.Series([f"c{at // 2}" for at in range(40)])))
        assert both.encoder.n_features - both.n_observed <= 30
    assert make({}).max_new_features is None


@pytest.mark.parametrize("bad", [{"user": -1}, {3: 4}, {"user": 1.5}])
def test_bounds_that_are_none(bad):
    with pytest.raises(InputError, match="max_new_features"):
        make(bad)
