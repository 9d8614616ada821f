"""Processes that work on items: in order, replaced when they die, errors that name the node."""

from __future__ import annotations

import os
import platform
import signal
import warnings

import pytest

from cluster.by_value import by_value
from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate.executor import executor, spread

by_value(__name__)


def square(item):
    assert executor() is None  # a worker does its work alone
    return item * item, os.getpid()


class Deadly:
    """Kills its process over one item, once, or always."""

    def __init__(self, marker, item):
        self.marker, self.item = marker, item

    def __call__(self, item):
        if item == self.item and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item


def trouble(item):
    if item == "missing":
        open("/not/there/rows.csv")
    if item == "file":
        raise DataFileError("/data/7.parquet: cannot be read.")
    if item == "rows":
        raise InputError("a label is 7: clicks are 0 or 1.")
    if item == "full":
        raise OSError(28, os.strerror(28), "/data/part.parquet")
    warnings.warn("the column 'x' is new", UserWarning, stacklevel=1)
    return item


def test_results_come_in_order_from_several_processes(cluster):
    found = list(spread(square, range(20)))
    assert [number for number, _ in found] == [n * n for n in range(20)]
    pids = {pid for _, pid in found}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_items_are_asked_for_as_they_are_worked_on(cluster):
    asked = []
    results = spread(square, (asked.append(n) or n for n in range(1000)))
    next(results)
    assert len(asked) < 10
    results.close()


def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost(cluster, tmp_path):
    work = Deadly(tmp_path / "marker", 5)
    assert list(spread(work, range(12))) == [n * n for n in range(12)]
    assert (tmp_path / "marker").exists()


def test_an_item_that_kills_every_process_is_given_up(cluster):
    with pytest.raises(OpenFATEError, match="4 processes died over the same rows"):
        list(spread(Deadly(None, 1), range(3)))


def test_errors_name_the_node_where_it_matters(cluster):
    node = platform.node()
    for item, kind, text in (
        ("missing", DataFileError, f"node {node}: /not/there/rows.csv: No such file"),
        ("file", DataFileError, f"node {node}: /data/7.parquet: cannot be read."),
        ("full", DataFileError, f"node {node}: /data/part.parquet: No space left on device."),
        ("rows", InputError, "a label is 7: clicks are 0 or 1."),
    ):
        with pytest.raises(kind) as caught:
            list(spread(trouble, [item]))
        assert str(caught.value).startswith(text)
    with pytest.warns(UserWarning, match="the column 'x' is new"):
        assert list(spread(trouble, ["fine"])) == ["fine"]
