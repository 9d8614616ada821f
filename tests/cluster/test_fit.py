"""Processes that train together give what one process gives."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.tables import people

from cluster.by_value import by_value
from openfate.bank import FeatureBank
from openfate.cluster import RayExecutor
from openfate.errors import OpenFATEError
from openfate.executor import using
from openfate.models import FATE, MLP, GraphSAGE
from openfate.table import MultiHot
from openfate.training import Settings, array_batches, train

by_value(__name__)
RNG = np.random.default_rng(0)
FIELDS, VALUES = 5, 12
IDS = RNG.integers(0, VALUES, (400, FIELDS)) + VALUES * np.arange(FIELDS)
Y = (IDS[:, 0] + IDS[:, 1] + RNG.integers(0, 6, 400) > VALUES + 12).astype(np.int64)
D = FIELDS * VALUES
X = MultiHot.from_rows(IDS.tolist(), D)


def model(extrapolator=True, **options):
    torch.manual_seed(3)
    net = MLP(8, 1, (16,), **options)
    return FATE(D, net, GraphSAGE(8) if extrapolator else None, recompose="masked")


def weights(trained):
    return torch.cat([p.detach().reshape(-1) for p in trained.parameters()])


def fit(one, ranks, batches=None, settings=None, **options):
    with using(ranks):
        history = train(one, *((X, Y) if batches is None else (batches, None)), settings, **options)
    return weights(one), history


@pytest.fixture(scope="module")
def of(ray_cluster):
    """Executors; those of as many processes have the same ones, which takes seconds to start."""
    found = {n_workers: RayExecutor(n_workers) for n_workers in (1, 2, 3)}

    def choose(n_workers, whole_graph=True, embeddings="replicated"):
        one = found[n_workers]
        one.whole_graph, one.embeddings = whole_graph, embeddings
        return one

    yield choose
    for one in found.values():
        one.close()


# 60 steps, the last of an epoch of 5 rows, in which rounding is all that may differ.
TABLES = {
    "dense Adam": (Settings(epochs=10, batch_size=79, n_folds=3, drop_edge=0.3), {}),
    "piled up": (Settings(epochs=10, batch_size=79, n_folds=3, accumulate_backbone=True), {}),
    # Not Adam: of the rounding that is the gradient of a bias before BatchNorm it makes a step.
    "BatchNorm": (
        Settings(epochs=10, batch_size=79, n_folds=3, optimizer="sgd", lr=0.1),
        {"batch_norm": True},
    ),
    "whole table": (Settings(epochs=50, n_folds=2, drop_edge=0.0), {}),
}


def test_parts_of_a_table_train_the_weights_of_the_whole(of):
    found = {}
    for n_workers in (1, 2):
        ranks = of(n_workers)
        for case, (settings, options) in TABLES.items():
            one = model(**options)
            found[n_workers, case] = fit(one, ranks, settings=settings, validation=(X, Y))
    for case in TABLES:
        (expected, whole), (ours, parts) = (found[n_workers, case] for n_workers in (1, 2))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
        losses = [[step.train_loss for step in history.steps] for history in (whole, parts)]
        np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)


def test_a_plain_network_of_parts_is_that_of_one_process(of):
    """It has no graph: nothing is drawn, and nothing is lost where mini-batches are cut."""
    settings = Settings.plain(epochs=10, batch_size=80, cell_dropout=0.0)
    alone = model(False)
    train(alone, X, Y, settings, validation=(X, Y))
    two = of(2, whole_graph=False)
    found, _ = fit(model(False), two, settings=settings, validation=(X, Y))
    torch.testing.assert_close(found, weights(alone), rtol=0, atol=1e-5)


CLICKS = Settings.clicks(n_kept=3, epochs=2, lr=1e-2, validate_every=5, checkpoint_every=2)


class Deadly:
    """Batches of an epoch; reading the seventh of the second kills a process, once."""

    def __init__(self, marker):
        self.marker = marker

    def __call__(self, epoch):
        for number, batch in enumerate(array_batches(IDS, Y, 40, seed=1)(epoch)):
            if (epoch, number) == (2, 7) and self.marker is not None:
                try:
                    self.marker.touch(exist_ok=False)  # by whoever comes first
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def test_a_process_that_is_killed_changes_nothing(of, tmp_path):
    three = of(3, whole_graph=False)  # two of them outlive one, and lose it each in its own time
    results, steps = [], []
    for marker in (None, tmp_path / "marker"):
        seen = []
        one = FATE(D, MLP(8, 1, (16,), batch_norm=True), GraphSAGE(8), recompose="all")
        torch.manual_seed(5)
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        results.append(
            fit(one, three, Deadly(marker), CLICKS, validation=lambda: [(IDS, Y)],
                on_step=lambda step, seen=seen: seen.append(step.number))
        )  # fmt: skip
        steps.append(seen)
    assert (tmp_path / "marker").exists()
    assert torch.equal(results[0][0], results[1][0])
    assert repr(results[0][1].steps) == repr(results[1][1].steps)
    assert steps[0] == steps[1] == list(range(1, 21))  # none is lost, none is told twice


@pytest.mark.parametrize("adam", ["exact", pytest.param("lazy", marks=pytest.mark.slow)])
def test_sharded_embeddings_are_the_replicated_ones(adam, of, tmp_path):
    """With a checkpoint of half-way, of which one process dies too."""
    settings = replace(CLICKS, adam=adam)
    found, kept = {}, []
    for embeddings in ("replicated", "sharded"):
        ranks = of(2, whole_graph=False, embeddings=embeddings)
        marker = tmp_path / "marker" if embeddings == "sharded" else None
        found[embeddings], _ = fit(
            model(batch_norm=False), ranks, Deadly(marker), settings,
            validation=lambda: [(IDS, Y)], on_checkpoint=kept.append,
        )  # fmt: skip
    assert (tmp_path / "marker").exists()
    torch.testing.assert_close(found["sharded"], found["replicated"], rtol=0, atol=1e-5)
    assert kept[-1]["model.W"].shape == (D, 8)  # a whole checkpoint, for any number of processes


@pytest.mark.parametrize("n_workers", [2, 3])
def test_torchrec_moves_the_same_rows(n_workers, of):
    """Of a number of features that three processes cannot share out evenly, and uneven parts."""
    pytest.importorskip("torchrec", reason="TorchRec is not installed: see docs/howto/cluster.md")
    found = {}
    for embeddings in ("sharded", "torchrec"):
        ranks = of(n_workers, whole_graph=False, embeddings=embeddings)
        batches = array_batches(IDS, Y, 37, seed=1)
        torch.manual_seed(4)
        one = FATE(D + 1, MLP(8, 1, (16,)), GraphSAGE(8), recompose="masked")
        found[embeddings], _ = fit(
            one, ranks, batches, replace(CLICKS, epochs=5), validation=lambda: [(IDS, Y)]
        )
    torch.testing.assert_close(found["torchrec"], found["sharded"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_processes(of):
    kept = []
    one, two = of(1), of(2)
    options = {"settings": CLICKS, "validation": lambda: [(IDS, Y)]}
    batches = array_batches(IDS, Y, 40, seed=1)
    expected, _ = fit(model(), one, batches, **options, on_checkpoint=kept.append)
    found, _ = fit(model(), two, batches, **options, resume=kept[4])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_loss_of_small_graphs_is_that_of_large_ones_within_noise(of):
    batches = array_batches(IDS, Y, 100, seed=1)
    settings = Settings.clicks(n_kept=3, epochs=12, lr=1e-2, validate_every=4)
    losses = []
    for n_workers in (1, 2):
        ranks = of(n_workers, whole_graph=False)
        _, history = fit(model(), ranks, batches, settings, validation=lambda: [(IDS, Y)])
        losses.append(min(step.validation_loss for step in history.validations))
    assert losses[0] < 0.6
    assert abs(losses[0] - losses[1]) < 0.05


def test_fit_of_the_command_line_writes_a_bundle_of_the_same_kind(of, tmp_path, openfate):
    people(300, 0).write_csv(tmp_path / "train.csv")
    words = ["fit", tmp_path / "train.csv", "--target", "rich", "--exclude", "id", "--seed", 1]
    words += ["--strategy", "none", "--epochs", 3, "--dropout", 0.0, "--json"]
    alone = openfate(*words, "--out", tmp_path / "alone")
    spread = openfate(*words, "--out", tmp_path / "spread", "--cluster", "local", "--workers", 2)
    assert alone.keys() == spread.keys()
    assert not (tmp_path / "spread.work").exists()
    one, other = (FeatureBank.load(tmp_path / name) for name in ("alone", "spread"))
    query = people(50, 3).drop("rich")
    np.testing.assert_allclose(other.predict(query), one.predict(query), atol=1e-4)
    for name, score in alone["validation"].items():
        assert spread["validation"][name] == pytest.approx(score, abs=1e-3)


def data_bytes():
    """Bytes of private memory that this process has."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])


class Limit:
    """Batches, for a process that may have so many bytes; with None it notes what it has."""

    def __init__(self, n_bytes, n_features, folder):
        self.n_bytes, self.n_features, self.folder = n_bytes, n_features, folder

    def __setstate__(self, state):
        vars(self).update(state)
        if self.n_bytes is None:
            (self.folder / str(os.getpid())).write_text(str(data_bytes()))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (self.n_bytes, resource.RLIM_INFINITY))

    def __call__(self, epoch):
        rng = np.random.default_rng(epoch)
        for _ in range(3):
            ids = rng.integers(0, self.n_features // 2, (200, 2))
            yield ids + self.n_features // 2 * np.arange(2), rng.integers(0, 2, 200)


@pytest.mark.slow
def test_a_table_larger_than_the_memory_of_a_process_is_trained_by_two(ray_cluster, tmp_path):
    settings = Settings.clicks(n_kept=1, n_draws=1, epochs=1)
    n_features, width = 1 << 22, 16
    table = 4 * n_features * width  # bytes; with a copy and Adam's moments four times that
    for embeddings in ("replicated", "sharded"):
        ranks = RayExecutor(2, embeddings=embeddings)
        small, one = (
            FATE(n, MLP(width, 1, (8,)), GraphSAGE(width), recompose="all") for n in (8, n_features)
        )
        fit(small, ranks, Limit(None, 8, tmp_path), settings)  # what they have without the table
        without = max(int(path.read_text()) for path in tmp_path.iterdir())
        limited, before = Limit(without + 3 * table, n_features, tmp_path), weights(one)
        try:
            if embeddings == "replicated":
                with pytest.raises(OpenFATEError, match=r"memory is full; .*'sharded'"):
                    fit(one, ranks, limited, settings)
            else:
                after, history = fit(one, ranks, limited, settings)
                assert len(history.steps) == 3
                assert (after != before).any()
        finally:
            ranks.close()
