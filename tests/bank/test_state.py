"""A state is one thing: whatever stops a call, and whoever reads beside it, it is whole."""

from __future__ import annotations

import collections
import contextlib
import copy
import linecache
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_bank import LATER, ONE, ROWS, TWO, Y, again, make

import openfate
from openfate.bank import FeatureBank, contributions, describe, nearest
from openfate.errors import InputError

HOME = str(Path(openfate.__file__).parent)
STOPS = (KeyboardInterrupt, MemoryError)


class Stop:
    """Notes the lines of the library that are run, and raises at one of them: (line, n-th time)."""

    def __init__(self, at=None, error=KeyboardInterrupt):
        self.at, self.error, self.times, self.lines = at, error, collections.Counter(), []

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _enter(self, frame, event, _):
        file, last = frame.f_code.co_filename, 0

        def note(frame, event, _):
            nonlocal last
            line, before, last = frame.f_lineno, last, frame.f_lineno
            # WHY: between the block of a "with" and its __exit__, Python looks for no signal.
            leaves = line < before and linecache.getline(file, line).lstrip().startswith("with ")
            if event == "line" and not leaves:
                self.times[file, line] += 1
                self.lines.append(((file, line), self.times[file, line]))
                if self.lines[-1] == self.at:
                    raise self.error("at this very line")
            return note

        return note if file.startswith(HOME) else None


def everything(bank):
    """What `observe` changes, as plain values."""
    header, vocabulary = bank.encoder.to_parts()
    return {**bank.state(), "header": header, "vocabulary": vocabulary.rows()}


def is_same(found, expected, tolerance=0.0):
    """Whether two of these are equal, arrays to a tolerance."""
    return found.keys() == expected.keys() and all(
        np.allclose(found[name], there, rtol=0, atol=tolerance)
        if isinstance(there, np.ndarray) and there.dtype.kind == "f" and tolerance
        else np.array_equal(found[name], there)
        for name, there in expected.items()
    )


def observed(kind):
    """A bank that has seen some rows, and the rows of a call that have all kinds of new things."""
    bank = make(kind, ONE, TWO)
    bank.observe(ROWS)
    bank.observe(LATER[:9].with_columns(e=pl.lit("first")), Y[:9], retrain=again(bank))
    return bank, LATER[9:14].with_columns(f=pl.Series(range(5)), c=pl.lit("never"))


def check_stops(kind, labels, chosen):
    """Stop a call at lines of it, one after the other, on one and the same bank."""
    bank, rows = observed(kind)
    options = {"y": Y[9:14], "retrain": again(bank)} if labels else {}
    start = bank.copy()
    for _ in range(2):  # the second time by what is computed once
        whole = bank.copy()
        with Stop() as every:
            whole.observe(rows, **options)
    before, after, n_whole = everything(start), everything(whole), 0
    for number, at in enumerate(chosen(every.lines)):
        stop, is_whole = Stop(at, STOPS[number % 2]), False
        with contextlib.suppress(KeyboardInterrupt, Exception), stop:
            bank.observe(rows, **options)
            is_whole = True
        # A line may not be run this time, as one that computes what is there by now.
        assert not (is_whole and at in stop.lines), at
        n_whole += is_whole
        if bank.n_rows == whole.n_rows:
            assert is_same(everything(bank), after), at
            bank.restore(start)
        assert is_same(everything(bank), before), at
    assert number > 100 and n_whole < max(5, number / 100)
    assert np.array_equal(bank.predict(LATER), start.predict(LATER))
    bank.observe(rows, **options)
    assert is_same(everything(bank), after, 1e-9 if labels else 1e-12)
    np.testing.assert_allclose(bank.predict(rows), whole.predict(rows), rtol=0, atol=1e-12)


def first_and_last(lines):
    """Of each line that is run, the first and the last time."""
    last = dict(lines)
    return [(line, n) for line, n in lines if n in (1, last[line])]


CALLS = [(kind, labels) for kind in ("embeddings", "wrapped") for labels in (False, True)]


@pytest.mark.parametrize(("kind", "labels"), CALLS)
def test_a_call_that_is_stopped_at_a_line_leaves_the_bank_as_it_was(kind, labels):
    step = 12 if labels else 3
    check_stops(kind, labels, lambda lines: first_and_last(lines)[::step])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "labels"), CALLS)
def test_a_call_that_is_stopped_at_any_line_leaves_the_bank_as_it_was(kind, labels):
    check_stops(kind, labels, first_and_last)


def read_back(bank, folder):
    path = folder / f"{threading.get_ident()}-{time.perf_counter_ns()}"
    bank.save(path)
    return FeatureBank.load(path)


COPIES = {
    "copy": lambda bank, folder: bank.copy(),
    "deepcopy": lambda bank, folder: copy.deepcopy(bank),
    "pickle": lambda bank, folder: pickle.loads(pickle.dumps(bank)),
    "bundle": read_back,
}


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("kind", ["embeddings", "wrapped"])
def test_what_is_read_beside_a_writer_is_of_a_whole_number_of_calls(kind, labels, tmp_path):
    rows = LATER.with_columns(f=pl.Series([f"f{i}" for i in range(80)]))
    bank, expected, outputs = make(kind, ONE, TWO), {}, {}
    replayed = bank.copy()
    parts = [slice(at, at + 1) for at in range(40)]
    for part in [slice(0, 0), *parts]:
        replayed.observe(rows[part], Y[part] if labels else None)
        expected[replayed.n_rows] = everything(replayed)
        outputs[replayed.predict(rows[:5], graph="state").tobytes()] = replayed.n_rows
    done, found = threading.Event(), collections.defaultdict(list)

    def read(name):
        while not done.is_set() and len(found[name]) < 100:
            if name == "predict":
                found[name].append(bank.predict(rows[:5], graph="state"))
                contributions(bank, rows[:2]), describe(bank), nearest(bank, "c", "c0")
            else:
                found[name].append(COPIES[name](bank, tmp_path))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(5) as pool:
            readers = [pool.submit(read, name) for name in ("predict", *COPIES)]
            for part in parts:
                bank.observe(rows[part], Y[part] if labels else None)
            done.set()
        for reader in readers:
            reader.result()
    finally:
        done.set()
        sys.setswitchinterval(interval)
    assert is_same(everything(bank), expected[40])
    for P in found.pop("predict"):
        assert P.tobytes() in outputs
    for name, copies in found.items():
        assert copies, name
        for one in copies:
            assert is_same(everything(one), expected[one.n_rows]), name


def test_writers_take_turns_and_no_row_is_lost():
    bank, whole = make("embeddings", ONE, TWO), make("embeddings", ONE, TWO)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: bank.observe(LATER[at : at + 2]), range(0, 80, 2)))
    whole.observe(LATER)
    assert bank.n_rows == 80
    found, expected = (b.predict(LATER, graph="state") for b in (bank, whole))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_bank_goes_back_to_an_earlier_copy():
    bank = make("embeddings", ONE, TWO)
    bank.observe(LATER[:20])
    before, expected = bank.copy(), bank.predict(LATER)
    bank.observe(LATER[20:], Y[20:])
    assert not np.array_equal(bank.predict(LATER), expected)
    bank.restore(before)
    assert np.array_equal(bank.predict(LATER), expected) and bank.mixture.n_labels == 0
    bank.observe(LATER[20:], Y[20:])
    assert before.n_rows == 20 and bank.n_rows == 80
    with pytest.raises(InputError, match="no copy of the bank"):
        bank.restore(make("numbers"))
