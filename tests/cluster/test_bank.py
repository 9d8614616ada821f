"""Banks in other processes predict and observe as one bank does."""

from __future__ import annotations

import os
import shutil
import signal

import numpy as np
import polars as pl
import pytest
from cli.tables import digest, people

from cluster.by_value import by_value
from openfate import FATEClassifier
from openfate.bank import FeatureBank, bank
from openfate.executor import using
from openfate.table import Encoder

by_value(__name__)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(bank, "_SPREAD_ROWS", 70)


@pytest.mark.parametrize("strategy", ["evidence", "fate"])
def test_estimators_do_the_same_on_a_cluster(strategy, ray_cluster, small_parts):
    rows, later = people(200, 0), people(260, 1, later=True)
    one = FATEClassifier(strategy=strategy, epochs=4, random_state=0)
    one.fit(rows.drop("rich", "id"), rows["rich"].fill_null(False).to_numpy())
    other = FATEClassifier._from_bank(one.bank_.copy())
    new, y = later.drop("rich", "id"), later["rich"].fill_null(False).to_numpy()
    for graph in ("auto", "state", "batch"):
        expected = one.predict_proba(new, graph=graph)
        with using(ray_cluster):
            found = other.predict_proba(new, graph=graph)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    for labels in (None, y):
        one.observe(new, labels, refit="never")
        with using(ray_cluster):
            other.observe(new, labels, refit="never")
    same(one.bank_, other.bank_)


def same(one, other):
    """The same ids, and sums but for their last bits."""
    (header, vocabulary), (own_header, own_vocabulary) = (
        b.encoder.to_parts() for b in (one, other)
    )
    assert header == own_header
    assert vocabulary.equals(own_vocabulary)
    state, own = one.state(), other.state()
    assert state.keys() == own.keys()
    for name, array in state.items():
        if "mixture" not in name:  # what is solved for
            np.testing.assert_allclose(own[name], array, rtol=1e-12, atol=1e-12)
    query = people(50, 7, later=True).drop("rich")
    found, expected = (b.predict(query, graph="state") for b in (other, one))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("labels", [pytest.param([], marks=pytest.mark.slow), ["--labelled"]])
def test_observe_gives_the_same_bundle_on_a_cluster(
    labels, tables, ray_cluster, tmp_path, openfate
):
    cut = ["--batch-rows", 40, *labels]
    for name in ("alone", "spread"):
        shutil.copytree(tables / "model", tmp_path / name)
    one = openfate("observe", tmp_path / "alone", tables / "later.csv", *cut, "--json")
    two = openfate("observe", tmp_path / "spread", tables / "later.csv", *cut, "--json",
                   "--cluster", "local", "--workers", 2)  # fmt: skip
    assert one | {"bundle": None} == two | {"bundle": None}
    same(*(FeatureBank.load(tmp_path / name) for name in ("alone", "spread")))


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(tables, ray_cluster, tmp_path, openfate):
    later, cut = tables / "later.csv", ["--batch-rows", 40]
    for workers in (1, 4):
        here, words = tmp_path / str(workers), ["--cluster", "local", "--workers", workers]
        shutil.copytree(tables / "model", here)
        openfate("observe", here, later, *cut, "--labelled", *words)
        openfate("predict", here, later, *cut, *words, "--out", tmp_path / f"{workers}.parquet")
    assert digest(tmp_path / "1") == digest(tmp_path / "4")
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "4.parquet").read_bytes()


def test_predict_and_evaluate_say_the_same_on_a_cluster(tables, ray_cluster, tmp_path, openfate):
    later, cut = tables / "later.csv", ["--batch-rows", 40]
    on = ["--cluster", "local", "--workers", 2]
    for name, words in (("a", []), ("b", on)):
        out = tmp_path / f"{name}.csv"
        openfate("predict", tables / "model", later, *cut, *words, "--out", out, "--keep", "city")
    one, two = (pl.read_csv(tmp_path / f"{name}.csv") for name in "ab")
    assert one.drop("p_true", "p_false").equals(two.drop("p_true", "p_false"))
    np.testing.assert_allclose(one["p_true"], two["p_true"], atol=1e-12)
    scores = [openfate("evaluate", tables / "model", later, *cut, *words, "--json")
              for words in ([], on)]  # fmt: skip
    assert scores[0].keys() == scores[1].keys()
    for use in ("used", "dropped"):
        for name, value in scores[0]["new_features"][use].items():
            assert scores[1]["new_features"][use][name] == pytest.approx(value, abs=1e-12)


class DyingEncoder(Encoder):
    """Kills its process over rows that hold a marker, once."""

    marker = None

    def encode(self, frame):
        if self.marker is not None and os.getpid() != self.driver:
            try:
                self.marker.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(frame)


@pytest.mark.parametrize("command", ["predict", "observe"])
def test_a_worker_that_is_killed_changes_nothing(command, tables, cluster, small_parts, tmp_path):
    later = people(260, 1, later=True).drop("rich", "id")
    banks = [FeatureBank.load(tables / "model") for _ in range(2)]
    deadly = banks[1].encoder
    deadly.__class__, deadly.marker, deadly.driver = DyingEncoder, tmp_path / "marker", os.getpid()
    if command == "observe":
        for one in banks:
            one.observe(later)
        deadly.__class__ = Encoder
        banks[1].encoder.__class__ = Encoder
        found, expected = (one.state() for one in banks)
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name
    else:
        expected, found = (one.predict(later) for one in banks)
        assert np.array_equal(found, expected)
    assert (tmp_path / "marker").exists()


def test_workers_need_a_cluster(tables, refused, tmp_path):
    words = ["predict", tables / "model", tables / "later.csv", "--out", tmp_path / "p.csv"]
    assert "--workers 2: it is of a cluster" in refused(*words, "--workers", 2)
    assert "give 'local', or 'ray://host:port'" in refused(*words, "--cluster", "spark://x")


def test_a_cluster_that_is_too_small_is_refused(tables, ray_cluster, refused, tmp_path):
    words = ["predict", tables / "model", tables / "later.csv", "--out", tmp_path / "p.csv"]
    said = refused(*words, "--cluster", "local", "--workers", 99)
    assert "workers=99: the cluster local has 10 cores and 0 GPUs" in said
    assert not (tmp_path / "p.csv").exists()
