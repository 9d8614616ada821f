"""The log: order, ids, keys, what is rewritten, and files that were damaged."""

from __future__ import annotations

import random
import sqlite3
import threading

import pytest

from openfate.errors import DataFileError, InputError
from openfate.serving import RefusedError, open_log


def observe(name, **cells):
    return {"kind": "observe", "rows": [cells], "ids": [name]}


def label(name, value, **more):
    return {"kind": "label", "ids": [name], "labels": [value], **more}


def test_entries_have_no_gaps_and_survive(state):
    with open_log(state) as log:
        for n in range(5):
            log.append([observe(f"r{n}", x=n), observe(None, x=-n)])
        before = log.read()
    with open_log(state) as log:
        assert [entry.position for entry in log.read()] == [1, 2, 3, 4, 5]
        assert log.read() == before
        assert [entry.position for entry in log.read(2, 4)] == [3, 4]
        assert log.damage.found == []


def test_two_writers_take_turns(state):
    with open_log(state) as one, open_log(state) as two:
        for n in range(6):
            (one, two)[n % 2].append([observe(f"r{n}", x=n)])
        assert one.read() == two.read()
        assert one.head() == two.head() == 6
        assert isinstance(two.append([observe("r0", x=9)])[0], RefusedError)


def test_of_two_that_begin_at_once_one_does(state):
    """Two services of one new state, one with the rows of fit and one without, both went on."""
    with open_log(state) as one, open_log(state) as two:
        threads = [
            threading.Thread(target=log.begin, args=(name, b"of " + name.encode()))
            for log, name in ((one, "a"), (two, "b"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one.blobs("bundle")) == 1
        assert one.blobs("bundle") == two.blobs("bundle")


def test_a_key_counts_once(state):
    with open_log(state) as log:
        [first] = log.append([observe("a", x=1) | {"key": "k"}])
        [again] = log.append([observe("b", x=2) | {"key": "k"}])
        assert (first.position, again.position, again.is_repeated) == (1, 1, True)
        assert log.head() == 1


def test_an_id_is_one_row_and_has_one_label(state):
    with open_log(state) as log:
        log.append([observe("a", x=1), label("a", 1)])
        again = log.append([observe("a", x=1)])[0]
        assert (again.repeated, again.position) == (1, log.head())
        assert log.append([label("a", 1)])[0].repeated == 1
        assert log.head() == 1  # nothing of that was new
        refused = log.append([observe("a", x=2), label("a", 0), label("z", 1)])
        assert [error.status for error in refused] == [409, 409, 404]
        assert "revise=true" in str(refused[1])
        assert log.head() == 1


def test_a_revised_label_takes_the_place_of_the_first(state):
    with open_log(state) as log:
        log.append([observe("a", x=1), label("a", 1)])
        log.append([label("a", 0, revise=True)])
        first, second = log.read()
        assert first.operations[1]["labels"] == [0]
        assert second.operations == ({"kind": "revise", "from": 1},)
        assert log.append([label("a", 0)])[0].repeated == 1


def test_a_forgotten_row_is_in_no_entry(state):
    with open_log(state) as log:
        log.append([observe("a", x="secret"), observe("b", x="plain")])
        log.append([label("a", 1)])
        log.append([{"kind": "forget", "ids": ["a"]}])
        assert "secret" not in str(log.read())
        assert "'a'" not in str(log.read())
        [error] = log.append([label("a", 1)])
        assert error.status == 404
        assert log.append([label("b", 1)])[0].position == 4


def test_each_entry_is_read_once_however_many_of_its_rows_are_told_of(state, monkeypatch):
    """Else a large request that is sent again would keep all others waiting for minutes."""
    names = [f"r{n}" for n in range(50)]
    rows = {"kind": "observe", "rows": [{"x": n} for n in range(50)], "ids": names}
    labels = {"kind": "label", "ids": names[::-1], "labels": [n % 2 for n in range(50)]}
    revised = {**labels, "labels": [1 - n % 2 for n in range(50)], "revise": True}
    both = {"kind": "labelled", "rows": rows["rows"], "ids": [f"b{n}" for n in range(50)]}
    both["labels"] = labels["labels"]
    with open_log(state) as log:
        read, decode = [], log._decode
        monkeypatch.setattr(log, "_decode", lambda *row: read.append(row[0]) or decode(*row))

        def reads(told):
            read.clear()
            [receipt] = log.append([told])
            return sorted(read), getattr(receipt, "repeated", receipt)

        log.append([rows, labels])
        log.append([both])
        assert reads(rows) == ([1], 50)
        assert reads(labels) == ([1], 50)
        assert reads(both) == ([2, 2], 50)
        assert reads(revised) == ([1, 1], 0)
        assert reads(revised) == ([1], 50)
        assert log.read()[0].operations[1]["labels"] == revised["labels"]
        assert reads({"kind": "forget", "ids": both["ids"]})[0] == [2]


def test_labels_take_their_rows_with_them_in_one_reading(state, monkeypatch):
    names = [f"r{n}" for n in range(50)]
    with open_log(state) as log:
        log.append([{"kind": "observe", "rows": [{"x": n} for n in range(50)], "ids": names}])
        log.append([{"kind": "label", "ids": names[::-1], "labels": [n % 2 for n in range(50)]}])
        read, entry_at = [], log._entry
        monkeypatch.setattr(log, "_entry", lambda at: read.append(at) or entry_at(at))
        with log.alone():
            log.compact(1)
        assert read == [2, 1]
        [kept] = log.read()
        assert [at["row"]["x"] for at in kept.operations[0]["places"]] == list(range(50))[::-1]


def test_a_rollback_takes_ids_back(state):
    with open_log(state) as log:
        log.append([observe("a", x=1)])
        log.append([observe("b", x=2), label("a", 1)])
        log.append([{"kind": "rollback", "to": 1}])
        [known, unknown] = log.append([label("a", 0), label("b", 0)])
        assert known.position == 4
        assert unknown.status == 404
        [error] = log.append([{"kind": "rollback", "to": 9}])
        assert "from 0 to 4" in str(error)


def test_what_a_snapshot_stands_for_is_dropped(state):
    with open_log(state) as log:
        for n in range(4):
            log.append([observe(f"r{n}", x=n)])
        log.put_blob("snapshot", "2", 2, b"state")
        with log.alone():
            log.compact(2)
        assert [entry.position for entry in log.read()] == [3, 4]
        assert log.append([label("r0", 1)])[0].status == 404
        assert log.append([observe("r9", x=9)])[0].position == 5
        assert (log.blobs("snapshot"), log.get_blob("snapshot", "2")) == ({"2": 2}, b"state")


def test_time_never_runs_backwards(state):
    times = iter([5.0, 9.0, 2.0, 11.0])
    with open_log(state, clock=lambda: next(times)) as log:
        for _ in range(4):
            log.append([observe(None, x=1)])
        assert [entry.at for entry in log.read()] == [5, 9, 9, 11]
        assert log.moment(10.0) == 3


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@there/db",
        "postgresql://nobody:secret@127.0.0.1:1/none",
        "postgresql://me:secret@[there/db",
    ],
)
def test_a_place_that_is_none_is_refused_without_its_password(url):
    with pytest.raises((InputError, DataFileError)) as error:
        open_log(url)
    assert "secret" not in str(error.value)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "state").write_text("mine")
    with pytest.raises(DataFileError, match="cannot be written"):
        open_log(str(tmp_path / "state"))


# ---- damage --------------------------------------------------------------------------------------


def fill(folder, n_entries):
    with open_log(str(folder)) as log:
        for n in range(n_entries):
            log.append([observe(f"r{n}", x=f"{n:05}" * 40) | {"key": f"k{n}"}])
        return log.read()


@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_is_found_and_what_is_good_is_kept(tmp_path, seed):
    entries = fill(tmp_path, 60)
    file, rng = tmp_path / "log.sqlite", random.Random(seed)
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 5])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    with open_log(str(tmp_path)) as log:
        kept = log.read()
        assert kept == entries[: len(kept)]
        assert kept == entries or log.damage.found
        if len(kept) < len(entries):
            assert log.damage.lost  # and says so
        log.append([observe("new", x=1)])  # goes on behind the last good one
        assert log.head() == len(kept) + 1
        assert log.append([observe("r0", x=2)])[0].status == 409 if kept else True


@pytest.mark.parametrize(
    ("place", "noise"),
    [
        (47, b"\x99"),  # the schema's format: "unsupported file format"
        ("openfate_log (pos", b"\xa9" * 12),  # SQLite quotes it, and its words are no UTF-8
        ("openfate_keys_1", b"\xf6>\xb2<"),
        ("at DOUBLE", b"xt"),  # "no such column"
        ("label_operation", b"lxbel"),  # of a table that is only written to
    ],
)
def test_a_file_that_no_longer_says_what_it_holds_is_put_aside(tmp_path, place, noise):
    fill(tmp_path, 10)
    file = tmp_path / "log.sqlite"
    content = bytearray(file.read_bytes())
    at = place if isinstance(place, int) else content.index(place.encode())
    content[at : at + len(noise)] = noise
    file.write_bytes(content)
    with open_log(str(tmp_path)) as log:
        assert log.damage.found
        [receipt] = log.append([observe("new", x=1)])
        assert receipt.position == log.head()
    assert list(tmp_path.glob("damaged-*/log.sqlite"))
    assert open_log(str(tmp_path)).damage.found == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_torn_file_is_found(tmp_path, share):
    entries = fill(tmp_path, 60)
    file = tmp_path / "log.sqlite"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with open_log(str(tmp_path)) as log:
        kept = log.read()
        assert kept == entries[: len(kept)]
        assert log.damage.found
        assert log.damage.lost
    assert open_log(str(tmp_path)).read() == kept


def test_a_log_that_lost_its_end_says_so(tmp_path):
    fill(tmp_path, 5)
    db = sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)
    db.execute("DELETE FROM openfate_log WHERE position > 3")
    db.execute("UPDATE openfate_head SET position = 3")
    db.close()
    with open_log(str(tmp_path)) as log:
        assert log.head() == 3
        assert log.damage.lost == [4, 5]


def test_a_note_of_the_last_entry_that_was_changed_is_not_believed(tmp_path):
    """A flipped bit may make of entry 5 one of 10^19: nobody would wait for those to be missed."""
    entries, file = fill(tmp_path, 5), tmp_path / "acknowledged"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    with open_log(str(tmp_path)) as log:
        assert log.read() == entries
        assert "the last entry is not what was written" in log.damage.found[0]
        assert log.damage.lost == []
    with open_log(str(tmp_path)) as log:
        assert log.damage.found == []


def test_entries_without_a_snapshot_that_stands_for_them_are_lost(tmp_path):
    """The service began at nothing, and told of a damaged snapshot alone."""
    with open_log(str(tmp_path)) as log:
        for n in range(3):
            log.append([observe(f"r{n}", x=n)])
        log.put_blob("snapshot", "2", 2, b"state")
        with log.alone():
            log.compact(2)
    with open_log(str(tmp_path)) as log:
        assert log.damage.lost == []
    file = tmp_path / "snapshot-2.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with open_log(str(tmp_path)) as log:
        assert log.damage.lost == [1, 2]
        assert "entries 1 to 2 have no snapshot left" in log.damage.found[-1]


def test_labels_of_rows_that_cannot_be_saved_are_told(tmp_path):
    """A replay behind a snapshot looked for the row of such a label, and could not start."""
    with open_log(str(tmp_path)) as log:
        for name in ("good", "bad"):
            log.append([observe(name, x=name)])
        log.put_blob("snapshot", "2", 2, b"state")
        for name in ("good", "bad"):
            log.append([label(name, 1)])
    with sqlite3.connect(tmp_path / "log.sqlite") as db:
        db.execute("UPDATE openfate_log SET checksum = 'x' WHERE position = 2")
    db.close()
    with open_log(str(tmp_path)) as log:
        assert "because their rows are gone: 1" in log.damage.found[-1]
        places = [told["places"] for entry in log.read() for told in entry.operations]
        rows = [log.rows_at(each) for each in places]
        assert rows == [[({"x": "good"}, None)], [(None, None)]]


def test_a_flipped_snapshot_is_found(tmp_path):
    with open_log(str(tmp_path)) as log:
        log.put_blob("snapshot", "7", 7, b"whole" * 100)
        file = tmp_path / "snapshot-7.bin"
        content = bytearray(file.read_bytes())
        content[200] ^= 4
        file.write_bytes(content)
        assert log.get_blob("snapshot", "7") is None
        assert "snapshot 7" in log.damage.found[0]
