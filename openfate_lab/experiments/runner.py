"""Trials as folders: run them side by side, stop at any time, go on later, gather the results.

A trial is one data set, one share and one seed; its folder holds `trial.json` with the settings,
seed, versions and data hash beside the result of each method.  The file is replaced as a whole
after every method, so a kill loses at most the method that was running.
"""

from __future__ import annotations

import difflib
import json
import multiprocessing
import os
import platform
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch

from openfate.errors import InputError, OpenFATEError
from openfate.files import hold_folder, writing
from openfate.records import Between, Shape, read_record

__all__ = [
    "RECORD",
    "RESULT",
    "Recorded",
    "check_same",
    "choose_all",
    "only_writer",
    "open_record",
    "records_in",
    "run_jobs",
    "summarise",
    "trial_path",
    "versions",
    "write_json",
]

Job = TypeVar("Job")
Result = TypeVar("Result")
Record = dict[str, Any]
_HALF_WRITTEN = re.compile(r"\..+\.json\.[0-9a-f]{32}")  # as `writing` names it


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all, lists of ids on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"\[[\s\d,]+\]", lambda ids: " ".join(ids[0].split()), text)
    with writing(path) as file:
        file.write(f"{text}\n".encode())


def versions() -> dict[str, str]:
    """The software and machine behind a number."""
    packages = {name: version(name) for name in ("openfate", "torch", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


# What every experiment relies on in the records that it reads back; each adds its own.
RESULT: Record = {"metric": str, "score": Between(0, 1), "seconds": Between(0)}
RECORD: Record = {"dataset": str, "results": {str: RESULT}}


def open_record(path: Path, shape: Shape = RECORD) -> Record | None:
    """The record of a trial, or None if it has not begun; refuses one of another shape."""
    try:
        return cast(Record, read_record(path, shape, "delete it to run the trial again"))
    except FileNotFoundError:
        return None


def records_in(folder: Path, shape: Shape, below: str = "*/*/*") -> list[Record]:
    """The records of all trials of an experiment that have begun."""
    found = [open_record(path, shape) for path in sorted(folder.glob(f"{below}/trial.json"))]
    return [record for record in found if record is not None]


def choose_all(flag: str, given: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse an empty list, and names that are not known."""
    if not given:
        raise InputError(f"{flag} is empty: name one or more.")
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InputError(f"{flag} {name}: unknown; choose from {', '.join(known)}.{hint}")


class Recorded(ABC):
    """A plan whose results are kept in a record, method by method."""

    shape: ClassVar[Shape] = RECORD  # what is relied on in its record
    methods: tuple[str, ...]

    @property
    @abstractmethod
    def path(self) -> Path:
        """The record."""

    @abstractmethod
    def header(self) -> Record:
        """What a record must agree with before anything is added to it."""

    def completed(self, record: Record) -> Record:
        """A record as this version would have written it."""
        return record

    def record(self) -> Record | None:
        """What there is of it; refuses one that was made otherwise."""
        record = open_record(self.path, self.shape)
        if record is not None:
            record = self.completed(record)
            check_same(self.path, record, self.header())
        return record

    def finished(self) -> Record | None:
        """The record, if it has every method."""
        record = self.record()
        done = record is not None and all(m in record["results"] for m in self.methods)
        return record if done else None


def trial_path(folder: Path, dataset: str, observed: float, seed: int) -> Path:
    """Where the record of one split of one data set lies."""
    return folder / dataset / f"observed-{observed!r}" / f"seed-{seed}" / "trial.json"


def check_same(path: Path, record: Record, wanted: Record) -> None:
    """Refuse to add to a trial that was begun with other settings or data."""
    for key, value in wanted.items():
        if record.get(key) != value:
            difference = _first_difference(key, record.get(key), value)
            raise InputError(
                f"{path} was made with {difference}: choose another --out, or delete that folder."
            )


def _first_difference(key: str, old: object, new: object) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in new:
            if old.get(name) != new[name]:
                return _first_difference(name, old.get(name), new[name])
    return f"{key}={old!r}, not {new!r}"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder of an experiment: a second run there is refused, strays are swept."""
    with hold_folder(folder):
        for stray in folder.rglob(".*.json.*"):  # what a killed run left half-written
            if _HALF_WRITTEN.fullmatch(stray.name):
                stray.unlink(missing_ok=True)
        yield


def run_jobs(
    work: Callable[[Job], Result], jobs: Sequence[Job], n_jobs: int
) -> Iterator[tuple[Job, Result]]:
    """Run jobs in `n_jobs` processes of one thread each, and yield each with its result as it ends.

    One thread each, whatever `n_jobs`: a trial gives the same numbers alone and beside others.
    """
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(n_jobs, len(jobs)), context, initializer=_start_worker, initargs=(os.getpid(),)
    )
    try:
        pending: dict[Future[Result], Job] = {pool.submit(work, job): job for job in jobs}
        while pending:
            # WHY: polars makes a wait without a limit deaf to Ctrl-C.
            for future in wait(pending, timeout=0.5, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    except BrokenProcessPool:
        raise OpenFATEError(
            "a worker process was killed (out of memory?). Finished trials are kept: "
            "run the same command again, with fewer --jobs."
        ) from None
    finally:  # also on Ctrl-C: nobody waits for what is still running
        for process in list((pool._processes or {}).values()):
            process.terminate()
        manager: Any = pool._executor_manager_thread
        pool.shutdown(wait=False, cancel_futures=True)
        if manager is not None:  # WHY: at exit Python would wake it through a pipe that it closes
            manager.join(timeout=5)


def _start_worker(parent: int) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def summarise(records: Iterable[Record], methods: Sequence[str]) -> list[Record]:
    """One row for each data set, share and method: mean and spread over the trials."""
    cells: dict[tuple[str, float, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        for method in methods:
            if method in record["results"]:
                key = (record["dataset"], record["observed"], method)
                cells.setdefault(key, []).append(record["results"][method])
    order = {method: place for place, method in enumerate(methods)}
    rows = []
    for dataset, observed, method in sorted(cells, key=lambda k: (k[0], k[1], order[k[2]])):
        results = cells[dataset, observed, method]
        scores = [result["score"] for result in results]
        rows.append(
            {
                "dataset": dataset,
                "observed": observed,
                "method": method,
                "metric": results[0]["metric"],
                "mean": float(np.mean(scores)),
                "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
                "n_trials": len(scores),
                "seconds": float(np.mean([result["seconds"] for result in results])),
            }
        )
    return rows
