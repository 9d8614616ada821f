"""LiveBank: its state is that of a fresh bank which is fed in log order, whatever happened."""

from __future__ import annotations

import itertools
import shutil
import threading
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openfate import FATEClassifier, FeatureBank
from openfate.errors import DataFileError, InputError
from openfate.serving import BusyError, LiveBank, RefusedError, open_log
from serving.conftest import shop


def submit(live, kind, **told):
    """Submit, and wait until it is durable and learned."""
    ticket = live.submit({"kind": kind, **told})
    receipt = ticket.durable.result(10)
    assert ticket.applied.result(30) is None
    return receipt


def observe(live, rows, ids=None):
    return submit(live, "observe", rows=rows, ids=ids or [None] * len(rows))


def wait_for(condition):
    """A second where nobody else uses the machine."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_same(bank, twin):
    """The same vocabulary, and all running sums to 1e-9."""
    header, vocabulary = bank.encoder.to_parts()
    wanted, known = twin.encoder.to_parts()
    assert vocabulary.equals(known)
    assert header == wanted
    state, other = bank.state(), twin.state()
    assert state.keys() == other.keys()
    for name, array in state.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-9, atol=1e-9, err_msg=name)


cells = st.fixed_dictionaries(
    {
        "page": st.sampled_from(["a", "b", "new1", "new2"]),
        "campaign": st.sampled_from(["autumn", "spring", "summer"]),
        "age": st.sampled_from([20.0, 41.5, 77.0]),
    }
)
rows_of = st.lists(cells, min_size=1, max_size=4)
with_column = st.tuples(rows_of, st.booleans())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), with_column),
        st.tuples(st.just("labelled"), with_column),
        st.tuples(st.just("label"), st.lists(st.integers(0, 30), min_size=1, max_size=5)),
        st.tuples(st.just("revise"), st.integers(0, 30)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
        st.tuples(st.just("rollback"), st.floats(0, 1)),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("predict"), cells),
    ),
    min_size=3,
    max_size=25,
)


class Story:
    """Runs steps on a live bank and on its twin's list."""

    def __init__(self, bundle, state, **options):
        self.bundle, self.state, self.options = bundle, state, options
        self.live = LiveBank(bundle, state, commit_s=0, **options)
        self.n_ids, self.abandoned = 0, []
        self.log = []  # one step a position: (kind, ids, rows, labels), or ("rollback", to)

    def counting(self, position=None):
        """Indices of the steps that count at a position: a rollback is what was at its target."""
        position = len(self.log) if position is None else position
        if not position:
            return []
        kind, *told = self.log[position - 1]
        if kind == "rollback":
            return self.counting(told[0])
        return [*self.counting(position - 1), position - 1]

    def rows(self):
        """By id: the place of the row in the log, and of its label."""
        found = {}
        for at in self.counting():
            kind, ids, _, _ = self.log[at]
            for place, name in enumerate(ids):
                if kind in ("observe", "labelled") and name is not None:
                    found[name] = [(at, place), (at, place) if kind == "labelled" else None]
                elif kind == "label" and name is not None:
                    found[name][1] = (at, place)
        return found

    def run(self, kind, told):
        names = list(self.rows())
        if kind in ("observe", "labelled"):
            rows, has_new = told
            rows = [{**row, **({"channel": row["page"] + "!"} if has_new else {})} for row in rows]
            ids = [f"r{self.n_ids + n}" for n in range(len(rows))]
            self.n_ids += len(rows)
            labels = None if kind == "observe" else [n % 2 for n in range(len(rows))]
            submit(
                self.live,
                kind,
                rows=rows,
                ids=ids,
                **({} if labels is None else {"labels": labels}),
            )
            self.log.append((kind, ids, rows, labels))
        elif kind == "label":
            open_ = [n for n in names if self.rows()[n][1] is None]
            ids = list(dict.fromkeys(open_[at % len(open_)] for at in told)) if open_ else []
            if ids:
                labels = [at % 2 for at in range(len(ids))]
                submit(self.live, "label", ids=ids, labels=labels)
                rows = [self.log[p][2][i] for p, i in (self.rows()[name][0] for name in ids)]
                self.log.append((kind, ids, rows, labels))
        elif kind == "revise":
            done = [n for n in names if self.rows()[n][1] is not None]
            if done:
                name = done[told % len(done)]
                at, place = self.rows()[name][1]
                label = 1 - self.log[at][3][place]
                submit(self.live, "label", ids=[name], labels=[label], revise=True)
                self.log[at][3][place] = label
                self.log.append(("nothing", [], [], None))
        elif kind == "forget" and names:
            name = names[told % len(names)]
            submit(self.live, "forget", ids=[name])
            for at in {place[0] for place in self.rows()[name] if place is not None}:
                _, ids, rows, labels = self.log[at]
                place = ids.index(name)
                for column in (ids, rows, labels):
                    if column is not None:
                        del column[place]
            self.log.append(("nothing", [], [], None))
        elif kind == "rollback":
            to = int(told * len(self.log))
            if to < len(self.log):
                submit(self.live, "rollback", to=to)
                self.log.append(("rollback", to))
        elif kind == "restart":
            if told:
                self.live.close()
            else:
                self.abandoned.append(self.live)
            self.live = LiveBank(self.bundle, self.state, commit_s=0, **self.options)
        elif kind == "predict":
            assert self.live.bank.predict(told, graph="state").shape == (1, 2)

    def close(self):
        for live in (*self.abandoned, self.live):
            live.close()
            assert live.trouble is None

    def fresh(self, bundle):
        """A bank that has learned nothing, and what it learns by."""
        bank = FeatureBank.load(bundle)
        return bank, lambda rows, y, seen: bank.observe(rows, y, seen=seen)

    def twin(self, bundle=None):
        """The slow way: a fresh bank that is fed everything that counts."""
        bank, learn = self.fresh(bundle or self.bundle)
        for kind, _, rows, labels in (self.log[at] for at in self.counting()):
            # Rows of the same columns together: a column that a row does not have is no null in it.
            for columns in dict.fromkeys(frozenset(row) for row in rows or ()):
                alike = [at for at, row in enumerate(rows) if frozenset(row) == columns]
                y = None
                if labels is not None:
                    y = bank.read_labels([labels[at] for at in alike], len(alike))
                learn(pl.DataFrame([rows[at] for at in alike]), y, kind == "label")
        return bank


@settings(
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking threads takes minutes
)
@given(steps)
def test_any_story_ends_in_the_state_of_a_fresh_bank(bundle, tmp_path_factory, steps):
    story = Story(bundle, str(tmp_path_factory.mktemp("state")), snapshot_entries=4)
    for kind, told in steps:
        story.run(kind, told)
    assert_same(story.live.bank, story.twin())
    story.close()


FIXED = [
    ("observe", ([{"page": "b", "campaign": "summer", "age": 20.0}] * 2, False)),
    ("observe", ([{"page": "new1", "campaign": "spring", "age": 20.0}] * 3, True)),
    ("label", [0, 3]),
    ("labelled", ([{"page": "a", "campaign": "summer", "age": 41.5}] * 4, False)),
    *[("labelled", ([{"page": "b", "campaign": "spring", "age": 77.0}] * 4, False))] * 4,
    ("revise", 0),
    ("restart", False),
    ("forget", 1),
    ("observe", ([{"page": "new2", "campaign": "spring", "age": 20.0}], False)),
    ("restart", True),
    ("rollback", 0.7),
    ("observe", ([{"page": "b", "campaign": "winter", "age": 20.0}], True)),
]


def test_a_story_on_every_store(bundle, state):
    story = Story(bundle, state, snapshot_entries=3)
    for kind, told in FIXED:
        story.run(kind, told)
        assert_same(story.live.bank, story.twin())
    story.close()
    with LiveBank(bundle, state) as again:
        assert_same(again.bank, story.twin())


def test_operations_that_are_written_together_are_replayed_together(bundle, state):
    rows, bought = shop(60, 1, campaigns=("spring", "summer"))
    with LiveBank(bundle, state, commit_s=0.05) as live:
        tickets = [
            live.submit({"kind": "observe", "rows": [row], "ids": [f"r{n}"]})
            for n, row in enumerate(rows.iter_rows(named=True))
        ]
        assert {ticket.applied.result(10) for ticket in tickets} == {None}
        assert live.log.head() < 30
        tickets = [
            live.submit({"kind": "label", "ids": [f"r{n}"], "labels": [int(bought[n])]})
            for n in range(60)
        ]
        assert {ticket.applied.result(10) for ticket in tickets} == {None}
        before = live.bank
        assert before.n_rows == 460
        assert before.mixture.n_labels == 60
        live.trouble = "no snapshot"
        live._snapshot_at = live.position  # the next one replays every entry
    with LiveBank(bundle, state) as again:
        assert_same(again.bank, before)
        assert again.worth.points[-1]["labels"] == 50
        assert again.worth.points[-1]["used"]["auc"] > 0.5


def test_processes_learn_from_one_another_within_a_second(bundle, state):
    with LiveBank(bundle, state) as one, LiveBank(bundle, state) as two:
        observe(one, [{"page": "zebra"}], ["z"])
        submit(two, "label", ids=["z"], labels=[1])
        wait_for(lambda: one.position == 2)
        assert_same(one.bank, two.bank)
        submit(two, "forget", ids=["z"])
        wait_for(lambda: one.position == 3)
        assert one.bank.encoder.find("page", "zebra") is None


@pytest.mark.parametrize("state", ["postgresql"], indirect=True)
def test_a_database_tells_processes_what_others_wrote(bundle, state, monkeypatch):
    import psycopg

    from openfate.serving import live as module

    monkeypatch.setattr(module, "_LISTENING_POLL_S", 1000.0)  # nobody looks
    with LiveBank(bundle, state, poll_s=0.2) as one, LiveBank(bundle, state) as two:
        wait_for(lambda: two._reader.is_listening)
        observe(one, [{"page": "zebra"}], ["z"])
        wait_for(lambda: two.position == 1)
        with psycopg.connect(state, autocommit=True) as db:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^LISTEN'"
            db.execute(ended + " AND pid <> pg_backend_pid()")
        observe(one, [{"page": "okapi"}], ["o"])  # it is looked for, or listened to again
        wait_for(lambda: two.position == 2 and two._reader.is_listening)


def test_two_that_write_at_once_agree(bundle, state):
    with LiveBank(bundle, state) as one, LiveBank(bundle, state) as two:

        def write(live, name):
            for n in range(15):
                observe(live, [{"page": f"{name}{n}"}], [f"{name}{n}"])

        threads = [threading.Thread(target=write, args=told) for told in ((one, "x"), (two, "y"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: min(one.position, two.position) == one.log.head())
        assert one.bank.n_rows == 430
        assert_same(one.bank, two.bank)


def test_a_new_bundle_is_taken_with_what_was_said(bundle, state, tmp_path):
    newer = FeatureBank.load(bundle)
    newer.observe(shop(50, 3)[0])
    newer.save(tmp_path / "newer")
    story = Story(bundle, state)
    first = story.live.bundle
    for kind, told in FIXED[:9]:
        story.run(kind, told)
    with pytest.raises(DataFileError, match="another bundle"):
        LiveBank(tmp_path / "newer", state)
    ticket = story.live.take_bundle(tmp_path / "newer")
    assert ticket.applied.result(30) is None
    story.log.append(("nothing", [], [], None))
    assert_same(story.live.bank, story.twin(tmp_path / "newer"))
    story.live.close()
    with LiveBank(tmp_path / "newer", state) as again:
        assert_same(again.bank, story.twin(tmp_path / "newer"))
        submit(again, "rollback", to=len(story.log) - 1)  # to the bundle before
        assert_same(again.bank, story.twin())
    with LiveBank(tmp_path / "newer", state, replay=True) as again:
        assert_same(again.bank, story.twin(tmp_path / "newer"))
    with LiveBank(bundle, state, replay=True) as again:  # the first one, once more
        submit(again, "rollback", to=len(story.log) - 1)
        assert again.bundle == first
        assert_same(again.bank, story.twin())


def test_rows_are_kept_for_a_stated_time(bundle, state):
    days, numbers = [0.0], itertools.count()
    with LiveBank(bundle, state, keep_days=1, snapshot_entries=1) as live:
        live.log.clock = lambda: time.time() + 86_400 * days[0]
        observe(live, [{"page": "early"}], ["early"])
        wait_for(lambda: live.log.blobs("snapshot"))
        days[0] = 2.0

        def is_compacted():
            name = f"late{next(numbers)}"
            observe(live, [{"page": name}], [name])
            return live.log.first > 0

        wait_for(is_compacted)
        with pytest.raises(RefusedError, match="no row with the id 'early'"):
            submit(live, "label", ids=["early"], labels=[1])
        before = live.bank
    with LiveBank(bundle, state) as again:
        assert again.log.first > 0
        assert_same(again.bank, before)


def test_a_label_outlives_its_row_and_a_rollback_its_bundle(bundle, state, tmp_path):
    """A label may come days after its row.  Where only the row was old enough to be dropped, every
    replay ended in "entry 1 is missing", at the next start too; and a rollback to before a new
    bundle lost what had been dropped: the snapshot that stood for it was gone."""
    rows, bought = shop(400, 7)
    FATEClassifier(epochs=5).fit(rows, bought).save(tmp_path / "newer")
    row, days = {"page": "new1", "age": 30.0}, [0.0]
    with LiveBank(bundle, state, keep_days=1, snapshot_entries=1) as live:
        live.log.clock = lambda: time.time() + 86_400 * days[0]
        for position, day in enumerate((0.0, 0.9, 1.5), 1):
            days[0] = day
            if position == 2:
                submit(live, "label", ids=["r1"], labels=[1])
            else:
                observe(live, [row], [f"r{position}"])
            wait_for(lambda at=position: at in live.log.blobs("snapshot").values())
            wait_for(lambda: not live._snapshot_thread.is_alive())
        assert live.log.first == 1
        before, fresh = live.bank, FeatureBank.load(tmp_path / "newer")
        assert live.take_bundle(tmp_path / "newer").applied.result(30) is None
        fresh.observe(row, [1], seen=True)
        fresh.observe(row)
        assert_same(live.bank, fresh)
        wait_for(lambda: 4 in live.log.blobs("snapshot").values())
        wait_for(lambda: not live._snapshot_thread.is_alive())
        submit(live, "rollback", to=3)
        assert_same(live.bank, before)
    with LiveBank(bundle, state) as again:
        assert_same(again.bank, before)


def test_a_replay_begins_again_where_its_beginning_is_dropped(bundle, state, monkeypatch):
    """It went on behind what a snapshot stood for by then, which it had not begun with."""
    with LiveBank(bundle, state, keep_days=0) as live:
        for name in ("r1", "r2"):
            observe(live, [{"page": "new1", "age": 30.0}], [name])
        base, bank, worth = live._base, live.bank.copy(), live.worth.to_json()

        def dropped(*told):
            begun = base(*told)
            monkeypatch.undo()
            live._keep_snapshot(bank, live.bundle, 2, worth)
            return begun

        monkeypatch.setattr(live, "_base", dropped)
        live._rebuild()
        assert live.log.first == 2
        assert live.bank.n_rows == 402


def test_rows_forgotten_while_a_snapshot_is_kept_take_no_others_with_them(
    bundle, state, monkeypatch
):
    """Entries were dropped for a snapshot that the forgotten row had just made none."""
    with LiveBank(bundle, state, keep_days=0) as live, open_log(state) as other:
        for name in ("r1", "r2"):
            observe(live, [{"page": "new1", "age": 30.0}], [name])
        told = [{"kind": "forget", "ids": ["r1"]}]
        forgets = threading.Thread(target=other.append, args=(told,), kwargs={"patience_s": 30})
        moment = live.log.moment

        def between(at):
            forgets.start()
            forgets.join(0.5)
            return moment(at)

        monkeypatch.setattr(live.log, "moment", between)
        live._keep_snapshot(live.bank.copy(), live.bundle, 2, live.worth.to_json())
        forgets.join()
        monkeypatch.undo()
        n_forgotten = other.head() - 2  # none where the snapshot stood for it already
        wait_for(lambda: live.position == other.head())
        assert live.bank.n_rows == 402 - n_forgotten


def test_too_much_that_waits_is_refused(bundle, tmp_path):
    live = LiveBank(bundle, str(tmp_path), most_waiting=3, commit_s=0.3)
    with pytest.raises(BusyError, match="wait"):
        for _ in range(20):
            live.submit({"kind": "observe", "rows": [{"page": "a"}], "ids": [None]})
    live.close()


def test_who_comes_when_it_is_closed_is_told(bundle, tmp_path):
    with LiveBank(bundle, str(tmp_path / "state")) as live:
        pass
    with pytest.raises(BusyError, match="being stopped"):
        observe(live, [{"page": "a"}])  # it waited for ever


def test_what_cannot_be_learned_is_told_and_left_out_of_every_replay(bundle, tmp_path):
    with LiveBank(bundle, str(tmp_path), commit_s=0.1) as live:
        tickets = [
            live.submit({"kind": "observe", "rows": [{"size": cell}], "ids": [None]})
            for cell in (1.5, ["x"], 2.5)  # a column of numbers cannot hold lists
        ]
        why = [ticket.applied.result(10) for ticket in tickets]
        assert [reason is None for reason in why] == [True, False, True]
        assert live.refused == 1
        before = live.bank
        live._snapshot_at = live.position
    with LiveBank(bundle, str(tmp_path)) as again:
        assert_same(again.bank, before)
        assert again.refused == 1


def test_a_label_is_counted_once_whatever_its_neighbours_do(bundle, tmp_path, monkeypatch):
    """Of rows that are learned together one is refused, and the machine fails in the midst."""
    learn, failures = FeatureBank.observe, iter([MemoryError("once")])

    def observe(bank, rows, y=None, **options):
        if "bad" in rows.columns["page"].to_list():
            raise InputError("a row that cannot be learned")
        if "age" in rows.columns and y is not None:  # the last of the entry
            for failure in failures:
                raise failure
        learn(bank, rows, y, **options)

    def labelled(label, **cells):
        return {"kind": "labelled", "rows": [cells], "ids": [None], "labels": [label]}

    monkeypatch.setattr(FeatureBank, "observe", observe)
    with LiveBank(bundle, str(tmp_path), poll_s=0.05) as live:
        live.log.append(
            [
                labelled(1, page="new"),
                labelled(0, page="bad"),
                labelled(1, page="new"),
                labelled(0, page="a", age=20.0),
            ]
        )
        wait_for(lambda: live.position == 1)
        assert live.refused == 1
        assert live.worth.n_labels == live.bank.mixture.n_labels == 3
        [said] = live.worth.said.values()  # of page=new, which the first of them made known
        assert said[:2] == [1, 1.0]


def test_damage_goes_back_to_the_last_good_state(bundle, tmp_path):
    with LiveBank(bundle, str(tmp_path), snapshot_entries=2, commit_s=0) as live:
        for n in range(6):
            observe(live, [{"page": f"p{n}"}], [f"r{n}"])
        before = live.bank
    (tmp_path / "log.sqlite").write_bytes(b"\0" * 5000)
    with LiveBank(bundle, str(tmp_path)) as again:  # the snapshot of the end is whole
        assert again.log.damage.found
        assert_same(again.bank, before)
        observe(again, [{"page": "on"}])
        assert again.position == 7
    for file in tmp_path.glob("snapshot-*.bin"):
        file.write_bytes(file.read_bytes()[:-9])
    with LiveBank(bundle, str(tmp_path)) as again:
        assert any("snapshot" in text for text in again.log.damage.found)


def test_a_log_that_ends_before_a_snapshot_goes_on_behind_it(bundle, tmp_path):
    """As where the end of SQLite's own log was torn: entries that follow must not be hidden."""
    state = tmp_path / "state"
    for first in (0, 3):
        with LiveBank(bundle, str(state), commit_s=0) as live:
            for n in range(first, first + 3):
                observe(live, [{"page": f"p{n}"}], [f"r{n}"])
            before = live.bank
        if not first:
            shutil.copy(state / "log.sqlite", tmp_path)
    shutil.copy(tmp_path / "log.sqlite", state)
    with LiveBank(bundle, str(state), commit_s=0) as live:
        assert "ends at entry 3, before the snapshot of 6" in live.log.damage.found[0]
        assert_same(live.bank, before)
        for n in range(6, 9):
            observe(live, [{"page": f"p{n}"}], [f"r{n}"])
        before = live.bank
    (state / "snapshot-000000000000009.bin").unlink()  # as after a kill
    with LiveBank(bundle, str(state)) as again:
        assert again.position == 9
        assert again.bank.n_rows == 409
        assert_same(again.bank, before)
        assert again.log.damage.found == []


@pytest.mark.parametrize("kind", ["snapshot", "bundle", "*"])
@pytest.mark.parametrize("place", [0, 25, 60, -200])
def test_a_flipped_bit_in_a_snapshot_or_bundle_is_told_and_mended(bundle, tmp_path, kind, place):
    with LiveBank(bundle, str(tmp_path), snapshot_entries=2, commit_s=0) as live:
        for n in range(5):
            observe(live, [{"page": f"p{n}"}], [f"r{n}"])
        before = live.bank
    for file in tmp_path.glob(f"{kind}-*.bin"):
        content = bytearray(file.read_bytes())
        content[place] ^= 4
        file.write_bytes(content)
    with LiveBank(bundle, str(tmp_path)) as again:
        assert_same(again.bank, before)
        assert (again.position, again.log.damage.lost) == (5, [])
        assert any("is not what was written" in text for text in again.log.damage.found)
    with LiveBank(bundle, str(tmp_path)) as again:
        assert_same(again.bank, before)


def test_hashed_fields_stay_hashed(tmp_path):
    from openfate import Field

    rows, bought = shop(200)
    rows = rows.with_columns(email=pl.Series([f"u{n % 7}@a.org" for n in range(200)]))
    schema = [Field("email", "categorical", hashed=True)]
    FATEClassifier(epochs=3, schema=schema).fit(rows, bought).save(tmp_path / "bundle")
    with LiveBank(tmp_path / "bundle", str(tmp_path / "state")) as live:
        cells = {"page": "a", "email": "u3@a.org"}
        hidden = live.bank.encoder.hide(cells)
        observe(live, [hidden, live.bank.encoder.hide({**cells, "email": "new@b.org"})])
        twin = FeatureBank.load(tmp_path / "bundle")
        twin.observe(pl.DataFrame([cells, {**cells, "email": "new@b.org"}]))
        assert_same(live.bank, twin)
        assert np.allclose(live.bank.predict(hidden), twin.predict(cells))
        assert b"a.org" not in b"".join(p.read_bytes() for p in (tmp_path / "state").glob("log*"))
