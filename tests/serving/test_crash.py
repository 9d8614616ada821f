"""Killed at any moment: every row and label that was acknowledged is there, once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from openfate import FeatureBank
from openfate.estimators import from_bank
from openfate.serving import LiveBank
from openfate.serving.live import apply_entry
from serving.conftest import POSTGRES
from serving.crashing import cells_of, hash_of, reader
from serving.test_live import assert_same, observe, wait_for

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def kill_many(bundle, state, n_kills, *rows):
    """Kill a service so many times under load; what was acknowledged."""
    said, rng = [], random.Random(0)
    script = Path(__file__).with_name("crashing.py")
    command = [sys.executable, str(script), str(bundle), state, *map(str, rows)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        for _ in range(n_kills):
            process.stdin.write("go\n")
            process.stdin.flush()
            kill = None
            for line in process.stdout:
                kind, _, name = line.strip().partition(" ")
                if kind == "pid":
                    told = (int(name), signal.SIGKILL)
                    kill = threading.Timer(rng.uniform(0.0, 0.6), os.kill, told)
                    kill.start()
                elif kind == "dead":
                    break
                else:
                    said.append((kind, name))
            assert kill is not None, "the service did not start"
            kill.join()
        process.stdin.close()
    return said


def check(bundle, state, said, *rows):
    """By count and by content; and the state is that of a replay from the beginning."""
    acknowledged = Counter(said)
    assert max(acknowledged.values()) == 1
    train = reader(*rows) if rows else None
    with LiveBank(bundle, state, snapshot_entries=10**9, train=train) as live:
        rows, labels, names = {}, {}, {}
        for entry in live.log.read():
            for number, told in enumerate(entry.operations):
                if told["kind"] == "observe":
                    for at, (name, cells) in enumerate(zip(told["ids"], told["rows"], strict=True)):
                        assert name not in rows
                        rows[name], names[entry.position, number, at] = cells, name
                else:
                    for place, label in zip(told["places"], told["labels"], strict=True):
                        name = names[tuple(place)]
                        assert name not in labels
                        labels[name] = label
        assert {name for kind, name in said if kind == "ack"} <= rows.keys()
        assert {name for kind, name in said if kind == "label"} <= labels.keys()
        assert all(cells == cells_of(name) for name, cells in rows.items())
        assert all(label == hash_of(name) % 2 for name, label in labels.items())
        assert live.bank.n_rows == 400 + len(rows)
        assert live.bank.mixture.n_labels == len(labels)
        assert live.log.damage.found == []
        fresh, again = FeatureBank.load(bundle), None
        if train is not None:
            again = from_bank(fresh.copy()).remind(*train(fresh)).retraining
            assert (live.bank.retrained is not None) == (len(labels) >= 16)
        for entry in live.log.read():
            apply_entry(fresh, entry, live.log, retraining=again)
        assert_same(live.bank, fresh)
    return len(rows)


def test_a_few_kills(bundle, state):
    said = kill_many(bundle, state, 2)
    assert check(bundle, state, said) > 10


def test_a_few_kills_while_the_model_is_trained_again(trained, state):
    said = kill_many(trained.bundle, state, 2, trained.file)
    assert check(trained.bundle, state, said, trained.file) > 10


@pytest.mark.slow
def test_a_hundred_kills(bundle, state):
    check(bundle, state, kill_many(bundle, state, 100))


@pytest.mark.slow
def test_many_kills_while_the_model_is_trained_again(trained, state):
    said = kill_many(trained.bundle, state, 30, trained.file)
    check(trained.bundle, state, said, trained.file)


@pytest.mark.parametrize("state", ["postgresql"], indirect=True)
def test_a_database_that_goes_away_and_comes_back(bundle, state):
    import psycopg

    schema = state.rpartition("%3D")[2]
    with LiveBank(bundle, state) as one, LiveBank(bundle, state) as two:
        stop = threading.Event()

        def interrupt():
            with psycopg.connect(POSTGRES, autocommit=True) as db:
                while not stop.wait(0.2):
                    db.execute(
                        "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_class c ON "
                        "c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
                        "WHERE n.nspname = %s AND l.pid <> pg_backend_pid()",
                        (schema,),
                    )

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            for n in range(40):
                observe((one, two)[n % 2], [{"page": f"p{n}"}], [f"r{n}"])
                time.sleep(0.01)
        finally:
            stop.set()
            interrupting.join()
        deadline = time.monotonic() + 5
        while min(one.position, two.position) < one.log.head() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert one.bank.n_rows == 440
        assert_same(one.bank, two.bank)


# ---- the command ---------------------------------------------------------------------------------


def start(bundle, state, *more):
    """`openfate serve` on a free port; the process and its address."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    words = ["serve", str(bundle), "--state", state, "--port", str(port), *more]
    command = [sys.executable, "-m", "openfate", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    line = process.stderr.readline()
    if line != f"openfate: http://127.0.0.1:{port}/\n":
        process.kill()  # WHY: a service that runs would let read() wait for ever
        pytest.fail(line + process.stderr.read())
    return process, f"http://127.0.0.1:{port}"


def post(url, told):
    request = urllib.request.Request(url, json.dumps(told).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def test_the_command_survives_a_kill_and_ends_in_order(bundle, tmp_path):
    state = str(tmp_path / "state")
    process, url = start(bundle, state)
    for n in range(5):
        assert post(f"{url}/observe", {"row": {"page": f"p{n}"}, "id": n})["position"] == n + 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process, url = start(bundle, state, "--observe-requests", "--json")
    assert post(f"{url}/labels", {"ids": list(range(5)), "labels": [0, 1, 0, 1, 0]})["applied"]
    told = post(f"{url}/predict", {"row": {"page": "p1"}, "id": "seen"})
    assert told["observed"]
    with pytest.raises(urllib.error.HTTPError, match="409"):
        post(f"{url}/observe", {"row": {"page": "other"}, "id": "seen"})
    with pytest.raises(urllib.error.HTTPError, match="413") as large:  # an answer, not a reset
        post(f"{url}/observe", {"row": {"page": "x" * 20_000_000}})
    assert "send at most" in json.loads(large.value.read())["error"]["remedy"]
    process.send_signal(signal.SIGHUP)  # the bundle again, and the log replayed on it
    wait_for(lambda: get(f"{url}/health")["replays"] == 2)
    assert post(f"{url}/observe", {"row": {"page": "p9"}})["position"] == 9
    process.terminate()
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert json.loads(out) == {"position": 9, "trouble": None}
    assert "p1" not in errors  # no row's content is logged
    with LiveBank(bundle, state) as live:
        assert (live.bank.n_rows, live.bank.mixture.n_labels) == (407, 5)


@pytest.mark.slow
def test_two_services_on_one_database_one_killed(bundle, tmp_path):
    from serving.conftest import postgres_url

    url_of_state, schema = postgres_url()
    first, one = start(bundle, url_of_state)
    second, two = start(bundle, url_of_state)
    for n in range(6):
        post(f"{(one, two)[n % 2]}/observe", {"row": {"page": f"p{n}"}, "id": n})
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert post(f"{two}/labels", {"ids": [0, 1], "labels": [1, 0]})["position"] == 7
    second.terminate()
    second.communicate(timeout=30)
    with LiveBank(bundle, url_of_state) as live:
        assert (live.bank.n_rows, live.bank.mixture.n_labels) == (406, 2)
    import psycopg

    with psycopg.connect(POSTGRES, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.slow
def test_two_services_one_killed_and_the_database_restarted_under_them(bundle, cluster):
    """Every row and label that was acknowledged is there once; the other goes on by itself."""
    processes = [start(bundle, cluster.url) for _ in range(2)]
    acknowledged, stop = [], threading.Event()

    def tell(thread, path, body):
        """Until somebody acknowledges it; False at the end of the test."""
        turn = thread
        while not stop.is_set():
            try:
                post(f"{processes[turn % 2][1]}/{path}", body)
                return True
            except OSError:  # HTTPError too: 503 while the database is away
                turn += 1
                time.sleep(0.05)
        return False

    def write(thread):
        for number in range(100_000):
            name = f"{thread}-{number}"
            if not tell(thread, "observe", {"row": cells_of(name), "id": name}):
                return
            acknowledged.append(("ack", name))
            # Of the other service, if it lives: it finds rows that it did not write.
            if not tell(thread + 1, "labels", {"ids": [name], "labels": [hash_of(name) % 2]}):
                return
            acknowledged.append(("label", name))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for mode in ("immediate", "fast", "immediate"):
            time.sleep(1.5)
            cluster.control("restart", "-m", mode)
            if mode == "fast":
                processes[0][0].kill()
                processes[0][0].communicate()
        n_before, deadline = len(acknowledged), time.monotonic() + 30
        while len(acknowledged) < n_before + 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(acknowledged) >= n_before + 20, "the other service did not come back"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for process, _ in processes:
            process.terminate()
            process.communicate(timeout=60)
    check(bundle, cluster.url, acknowledged)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a BUNDLE"),
        (("BUNDLE", "--demo"), "give a BUNDLE"),
        (("BUNDLE", "--host", "0.0.0.0"), "give --tokens"),
        (("BUNDLE", "--port", "99999"), "choose one from 0"),
        (("BUNDLE", "--state", "mysql://x"), "is unknown"),
        (("BUNDLE", "--state", "/proc/nothing"), "cannot be written"),
        (("BUNDLE", "--state", ""), "is unknown"),
        (("BUNDLE", "--keep-days", "nan"), "give how many days"),
        (("BUNDLE", "--keep-days", "-1"), "give how many days"),
        (("BUNDLE", "--new-features", "-1"), "give 0 or more"),
        (("nowhere",), "nowhere"),
    ],
)
def test_a_command_that_cannot_serve_is_refused(bundle, refused, words, said):
    assert said in refused("serve", *(str(bundle) if w == "BUNDLE" else w for w in words))


def test_without_the_extra_it_says_what_to_install(bundle, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'openfate[serve]'" in refused("serve", str(bundle))
