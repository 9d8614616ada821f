"""A service that has the training rows trains its model again, and still only the log counts."""

from __future__ import annotations

import threading
import time

import numpy as np
import polars as pl
import pytest
from cli.tables import QUICK, people, run
from hypothesis import HealthCheck, Phase, given, settings

from openfate import FeatureBank, load
from openfate.errors import DataFileError, InputError
from openfate.serving import LiveBank, RefusedError
from serving.conftest import Trained, shop
from serving.test_crash import get, post, start
from serving.test_live import FIXED, Story, assert_same, observe, steps, submit, wait_for

ROWS = [*shop(10, 5)[0].iter_rows(named=True), {"page": "new1", "campaign": "spring"}]


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """Trained again from the first solution on: at 8 labels, 10, 13, ..."""
    monkeypatch.setattr("openfate.estimators.estimator._FIRST_RETRAINED", 1)


class TrainedStory(Story):
    """The twin is an estimator that was given the rows."""

    def __init__(self, trained, state, **options):
        self.trained = trained
        super().__init__(trained.bundle, state, train=trained.train, **options)

    def fresh(self, bundle):
        model = load(bundle).remind(self.trained.rows, self.trained.bought)
        return model.bank_, lambda rows, y, seen: model.observe(rows, y, seen=seen)

    def check(self):
        assert self.live.untrained is None
        assert_same_models(self.live.bank, self.twin())


def assert_same_models(bank, twin):
    """The state, and what the model trained again predicts."""
    assert_same(bank, twin)
    assert (bank.retrained is None) == (twin.retrained is None)
    for row in ROWS:
        found, wanted = (one.run(row, "state") for one in (bank, twin))
        np.testing.assert_allclose(found.outputs, wanted.outputs, atol=1e-9)
        if bank.retrained is not None and bank.mixture.n_labels:
            np.testing.assert_allclose(found.retrained, wanted.retrained, atol=1e-9)


@settings(
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking threads takes minutes
)
@given(steps)
def test_any_story_ends_in_the_state_of_a_fresh_estimator(trained, tmp_path_factory, steps):
    story = TrainedStory(trained, str(tmp_path_factory.mktemp("state")), snapshot_entries=3)
    for kind, told in [*FIXED[3:6], *steps]:
        story.run(kind, told)
    story.check()
    story.close()


def test_a_story_on_every_store(trained, state):
    story = TrainedStory(trained, state, snapshot_entries=3)
    for kind, told in FIXED:
        story.run(kind, told)
        story.check()
    assert story.live.bank.retrained is not None
    story.close()
    with LiveBank(trained.bundle, state, train=trained.train) as again:
        assert_same_models(again.bank, story.twin())


def tell(live, n, seed=1, first=0):
    rows, bought = shop(n, seed, campaigns=("spring", "summer"))
    rows, ids = list(rows.iter_rows(named=True)), [f"r{first + at}" for at in range(n)]
    submit(live, "labelled", rows=rows, ids=ids, labels=bought.tolist())


def test_processes_of_one_state_agree(trained, state):
    options = {"train": trained.train, "poll_s": 0.05}
    with LiveBank(trained.bundle, state, **options) as one:
        with LiveBank(trained.bundle, state, **options) as two:
            tell(one, 20)
            wait_for(lambda: two.position == 1)
            tell(two, 20, 2, 20)
            wait_for(lambda: one.position == 2)
            assert min(one.trainings, two.trainings) > 4
            assert_same_models(one.bank, two.bank)


def test_a_state_is_not_the_same_with_rows_and_without(trained, state):
    with LiveBank(trained.bundle, state, train=trained.train) as live:
        tell(live, 30)
        used, position = live.bank, live.position
    with pytest.raises(DataFileError, match=r"made with the rows of fit.*give them \(train\)"):
        LiveBank(trained.bundle, state)
    with LiveBank(trained.bundle, state, train=trained.train) as live:
        assert live.trainings == 0  # the snapshot holds it
        assert_same_models(live.bank, used)
    plain = FeatureBank.load(trained.bundle)
    rows, bought = shop(30, 1, campaigns=("spring", "summer"))
    plain.observe(rows, bought)
    with LiveBank(trained.bundle, state, replay=True) as live:
        assert_same_models(live.bank, plain)
        with pytest.raises(RefusedError, match="rows that this process does not have"):
            submit(live, "rollback", to=position)
        assert live.trouble is None
    with pytest.raises(DataFileError, match="no rows of fit at hand"):
        LiveBank(trained.bundle, state, train=trained.train)
    with LiveBank(trained.bundle, state, train=trained.train, replay=True) as live:
        assert_same_models(live.bank, used)
        submit(live, "rollback", to=position + 1)  # without rows, then with them again
        assert_same_models(live.bank, plain)
        submit(live, "rollback", to=position)
        assert_same_models(live.bank, used)


def test_other_rows_start_nothing(trained, tmp_path):
    read = {
        "these are 399 rows": lambda _: (trained.rows[1:], trained.bought[1:]),
        "or their order differ": lambda _: (trained.rows[::-1], trained.bought[::-1]),
    }
    for message, train in read.items():
        with pytest.raises(InputError, match=message):
            LiveBank(trained.bundle, str(tmp_path / "state"), train=train)
    assert not (tmp_path / "state").exists()


def test_a_new_bundle_brings_its_rows(trained, state, tmp_path):
    """Those of the file as it is then; who does not have them goes on and says so."""
    newer, now = Trained(tmp_path, seed=9), [trained]
    with (
        LiveBank(trained.bundle, state, train=lambda _: now[0].train(_)) as live,
        LiveBank(trained.bundle, state, train=trained.train, poll_s=0.05) as other,
    ):
        tell(live, 20)
        before = live.bank
        with pytest.raises(InputError, match="not the rows"):
            live.take_bundle(newer.bundle)
        now[0] = newer
        for _ in range(2):  # taken in again: nothing changes
            assert live.take_bundle(newer.bundle).applied.result(30) is None
        model = load(newer.bundle).remind(newer.rows, newer.bought)
        rows, bought = shop(20, 1, campaigns=("spring", "summer"))
        model.observe(rows, bought)
        assert_same_models(live.bank, model.bank_)
        wait_for(lambda: other.trouble is not None)
        assert "start again with those" in other.trouble
        assert other.bank.predict(ROWS[0], graph="state").shape == (1, 2)
        observe(live, [{"page": "zebra"}])
        submit(live, "rollback", to=1)  # the old rows are kept for that
        assert_same_models(live.bank, before)
        wait_for(lambda: other.position == live.position)
        assert_same_models(other.bank, before)


def test_bundles_that_come_during_a_replay_take_no_rows_from_it(trained, tmp_path, monkeypatch):
    """Two more, read while a third is replayed, had its rows thrown out: the rest of the labels
    trained nothing, and nobody said so."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    newer = [Trained(folder, seed) for seed, folder in enumerate(folders, 7)]
    began, go, now = threading.Event(), threading.Event(), [trained]
    kind = type(load(trained.bundle).estimator)
    fit = kind.fit

    def slow(*arguments, **options):
        began.set()
        assert go.wait(30)
        return fit(*arguments, **options)

    with LiveBank(trained.bundle, str(tmp_path / "state"), train=lambda _: now[0].train(_)) as live:
        tell(live, 20)
        monkeypatch.setattr(kind, "fit", slow)
        for now[0] in newer:
            if now[0] is newer[0]:
                ticket = live.take_bundle(newer[0].bundle)
                assert began.wait(30)
            else:
                live._pack(now[0].bundle)  # as for a bundle that cannot be written then
        go.set()
        assert ticket.applied.result(30) is None
        model = load(newer[0].bundle).remind(newer[0].rows, newer[0].bought)
        rows, bought = shop(20, 1, campaigns=("spring", "summer"))
        model.observe(rows, bought)
        assert_same_models(live.bank, model.bank_)
        submit(live, "rollback", to=2)  # replayed again
        assert_same_models(live.bank, model.bank_)


def test_what_was_compacted_is_trained_on_too(trained, state):
    days = [0.0]
    options = {"train": trained.train, "keep_days": 1, "snapshot_entries": 1}
    with LiveBank(trained.bundle, state, **options) as live:
        live.log.clock = lambda: time.time() + 86_400 * days[0]
        tell(live, 12)
        wait_for(lambda: live.log.blobs("snapshot"))
        days[0] = 2.0
        first = iter(range(1, 100))

        def is_compacted():
            tell(live, 2, 2, 100 * next(first))
            return live.log.first > 0

        wait_for(is_compacted)
        n_told = live.bank.mixture.n_labels
        before = live.bank
    with LiveBank(trained.bundle, state, **options) as again:
        assert again.log.first > 0
        assert_same_models(again.bank, before)
        assert sum(len(y) for _, y, _ in again.bank.kept) == n_told
        tell(again, 30, 3, 9_000)
        model = load(trained.bundle).remind(trained.rows, trained.bought)
        parts = [(12, 1), *[(2, 2)] * ((n_told - 12) // 2), (30, 3)]
        for n, seed in parts:
            rows, bought = shop(n, seed, campaigns=("spring", "summer"))
            model.observe(rows, bought)
        assert_same_models(again.bank, model.bank_)


def test_predictions_go_on_while_it_trains(trained, tmp_path, monkeypatch):
    began, go = threading.Event(), threading.Event()
    fit = type(load(trained.bundle).estimator).fit

    def slow(*arguments, **options):
        began.set()
        assert go.wait(30)
        return fit(*arguments, **options)

    with LiveBank(trained.bundle, str(tmp_path / "state"), train=trained.train) as live:
        monkeypatch.setattr(type(load(trained.bundle).estimator), "fit", slow)
        rows, bought = shop(12, 1)
        told = {"rows": list(rows.iter_rows(named=True)), "labels": bought.tolist()}
        ticket = live.submit({"kind": "labelled", "ids": [None] * 12, **told})
        assert began.wait(30)
        assert ticket.durable.result(10).position == 1
        assert live.bank.predict(ROWS[0], graph="state").shape == (1, 2)
        assert live.bank.mixture.n_labels == 0
        later = live.submit({"kind": "observe", "rows": [{"page": "okapi"}], "ids": ["o"]})
        assert later.durable.result(10).position == 2
        assert not ticket.applied.done()
        go.set()
        assert later.applied.result(30) is None
        assert live.trainings > 0


def test_a_training_that_fails_loses_no_label(trained, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ValueError("cannot be fitted")

    with LiveBank(trained.bundle, str(tmp_path / "state"), train=trained.train) as live:
        monkeypatch.setattr(type(load(trained.bundle).estimator), "fit", broken)
        tell(live, 30)
        assert (live.bank.mixture.n_labels, live.refused, live.trainings) == (30, 0, 0)
        assert "cannot be fitted" in live.untrained


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """What `openfate fit` wrote, and its rows."""
    folder = tmp_path_factory.mktemp("fitted")
    people(300, 0).write_csv(folder / "rows.csv")
    quick = [*QUICK[:-1], "evidence"]
    words = ("--target", "rich", "--exclude", "id", *quick, "--out", folder / "model")
    assert run("fit", folder / "rows.csv", *words) == 0
    return folder


def test_the_command_trains_again(fitted, tmp_path):
    state = str(tmp_path / "state")
    words = (fitted / "model", state, "--train", str(fitted / "rows.csv"))
    process, url = start(*words)
    rows = people(120, 1, later=True).drop_nulls().drop("id")
    told = {"rows": rows.drop("rich").to_dicts(), "labels": rows["rich"].to_list()}
    post(f"{url}/labels", told)
    wait_for(lambda: get(f"{url}/health")["trainings"] == 1)
    process.kill()
    process.communicate()
    process, url = start(*words)
    assert get(f"{url}/health")["trainings"] == 1  # the log was replayed
    process.terminate()
    process.communicate(timeout=30)
    process, url = start(*words)
    assert get(f"{url}/health")["trainings"] == 0  # a snapshot was left
    process.terminate()
    process.communicate(timeout=30)


def test_the_command_refuses_rows_that_are_not_those(fitted, trained, tmp_path, refused):
    rows = pl.read_csv(fitted / "rows.csv")
    files = {
        "cells, labels or their order differ": rows.reverse(),
        "and the model was fitted on": rows[:-20],
        "other": rows.with_columns(rich=pl.lit("perhaps")),
        "no column 'job'": rows.drop("job"),
        "rich": rows.drop("rich"),
    }
    for number, (said, table) in enumerate(files.items()):
        file = tmp_path / f"{number}.csv"
        table.write_csv(file)
        assert said in refused("serve", fitted / "model", "--train", file)
    assert "gone.csv" in refused("serve", fitted / "model", "--train", tmp_path / "gone.csv")
    assert "--target" in refused("serve", trained.bundle, "--train", trained.file)
    assert "--train" in refused("serve", fitted / "model", "--target", "rich")
    assert "--train" in refused("serve", "--demo", "--train", tmp_path / "0.csv")
    assert not (fitted / "model.state").exists()
    with LiveBank(trained.bundle, str(tmp_path / "state"), train=trained.train):
        pass
    state = ("--state", tmp_path / "state")
    assert "give them (train)" in refused("serve", trained.bundle, *state)


def test_the_target_of_a_bundle_from_python_is_named(trained, tmp_path):
    words = ("--train", str(trained.file), "--target", "bought")
    process, url = start(trained.bundle, str(tmp_path / "state"), *words)
    rows, bought = shop(20, 1)
    told = {"rows": list(rows.iter_rows(named=True)), "labels": bought.tolist()}
    post(f"{url}/labels", told)
    wait_for(lambda: get(f"{url}/health")["trainings"] > 0)
    process.terminate()
    process.communicate(timeout=30)
