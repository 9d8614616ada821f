"""A service that is made to be killed: `python crashing.py BUNDLE STATE [ROWS]`.

For each line on stdin a child is forked, which takes over the state, says its process id, and lets
four threads observe and label; "ack ID" and "label ID" are printed once they are acknowledged.
The parent only imports and forks, so that a child starts at once.
"""

from __future__ import annotations

import os
import sys
import threading

import polars as pl

from openfate.serving import LiveBank


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def cells_of(name):
    """The row of an id: what is in the log can be checked by it."""
    return {"page": f"p{hash_of(name) % 50}", "campaign": f"c{hash_of(name) % 7}", "age": 40.0}


def hash_of(name):
    return sum((at + 1) * ord(letter) for at, letter in enumerate(name))


def work(live, thread):
    for number in range(100_000):
        name = f"{os.getpid()}-{thread}-{number}"
        observed = {"kind": "observe", "rows": [cells_of(name)], "ids": [name]}
        live.submit(observed).durable.result()
        say("ack", name)
        if number % 3 == 0:
            label = {"kind": "label", "ids": [name], "labels": [hash_of(name) % 2]}
            live.submit(label).durable.result()
            say("label", name)


def reader(rows):
    """The training rows of a file, with their labels, as `LiveBank` wants them."""
    return lambda _: (pl.read_csv(rows).drop("bought"), pl.read_csv(rows)["bought"])


def main(bundle, state, rows=None):
    train = None if rows is None else reader(rows)
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            live = LiveBank(bundle, state, snapshot_entries=20, commit_s=0.001, train=train)
            say("pid", os.getpid())
            for thread in range(4):
                threading.Thread(target=work, args=(live, thread), daemon=True).start()
            threading.Event().wait()
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    main(*sys.argv[1:])
