"""Processes that write bundles: a module of its own, so that a fork server can load it once.

WHY: polars must not be forked once its threads run, and each fresh interpreter takes a second.
"""

from __future__ import annotations

import multiprocessing

import numpy as np
import polars as pl

from openfate.bank import read_bundle, updating
from openfate.bank.bundle import Bundle, write_bundle

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["bundle_writer"])


def make(number: int = 0, size: int = 3) -> Bundle:
    """A bundle whose every part tells its number but the weights, which never change."""
    return Bundle(
        schema={"number": number},
        vocabulary=pl.DataFrame({"id": [number]}),
        weights={"W": np.full((2, 3), 7.0)},
        state={"sums": np.full(size, float(number))},
        meta={"kind": "test", "number": number},
    )


def write_for_ever(path: str, size: int, first: int) -> None:
    """Overwrite a bundle until killed."""
    number = first
    while True:
        number += 1
        write_bundle(make(number, size), path, overwrite=True)


def add_one(path: str, times: int) -> None:
    """Read, add one and write, several times."""
    for _ in range(times):
        with updating(path):
            number = read_bundle(path).meta["number"]
            write_bundle(make(number + 1), path, overwrite=True)
