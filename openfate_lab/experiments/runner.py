"""One runner for all experiments: plan, resume, process pool, lock, record checks, summary.

An experiment is a frozen dataclass of its settings (`Experiment`); a trial is one seed of it on one
data set (`Plan`), whose folder holds `trial.json` with the settings, seed, versions and data hash
beside the result of each method.  The file is replaced as a whole after every method, so a kill
loses at most the method that was running.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import polars as pl
import torch
from matplotlib.figure import Figure

from openfate.errors import InputError, OpenFATEError, suggest
from openfate.files import hold_folder, writing
from openfate.records import Between, Shape, read_record, versions
from openfate_lab.arguments import at_least
from openfate_lab.experiments.display import Cell, save_figure

Job = TypeVar("Job")
Result = TypeVar("Result")
Record = dict[str, Any]

# What every experiment relies on in the records that it reads back; each adds its own.
RESULT: Record = {"metric": str, "score": Between(0, 1), "seconds": Between(0)}
ROW = ("dataset", "observed", "method", "metric")  # what a row of most summaries is of
RECORD: Record = {"dataset": str, "results": {str: RESULT}}
_HALF_WRITTEN = re.compile(r"\..+\.json\.[0-9a-f]{32}")  # as `writing` names it


# ---- what an experiment is -----------------------------------------------------------------------


class Experiment(ABC):
    """What the runner asks of an experiment, which is a frozen dataclass of its settings.

    One file defines it, `openfate_lab.experiments` lists it, and the command `openfate experiment`
    takes its flags from the fields and their texts in the docstring.
    """

    record_shape: ClassVar[Shape] = RECORD  # what is relied on in its records
    summary_file: ClassVar[str] = "summary.json"
    printed: ClassVar[tuple[str, ...]] = ("rows",)  # what of the summary a run answers with
    trials: int = 1  # seeds; a field where there are several
    settable: ClassVar[Any] = None  # the dataclass whose fields its `set` changes, if it has one

    @property
    def name(self) -> str:
        """Of its command and of its folder of results."""
        return type(self).__name__.lower()

    @property
    def folder(self) -> str:
        """Where this kind of run lies, below the folder of results."""
        return ""

    def resolve(self) -> Experiment:
        """The experiment itself, or another one that its settings ask for."""
        return self

    def plan(self, data: str | None, trials: int) -> Iterable[Plan]:
        """Every trial, settings and files being checked before anything runs."""
        return ()

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return {}

    def restore(self, plan: Plan, record: Record) -> Record:
        """A record as this version would have written it, without results to make again."""
        return record

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the trial's record does not have yet; the whole record."""
        raise NotImplementedError  # an experiment whose `plan` is empty has no trials to run

    @abstractmethod
    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """`rows`, and what else the records tell; of `methods` in their order, or of all."""

    def figure(self, content: Record, records: Sequence[Record]) -> Figure | None:
        """The picture of a summary and its records."""
        return None

    def cells(self, content: Record) -> Iterable[Cell]:
        """The tables of a summary, for the terminal."""
        return ()

    def remarks(self, content: Record) -> Sequence[str]:
        """Lines below the tables."""
        return ()


@dataclass(frozen=True)
class Plan:
    """One trial to run.

    Parameters
    ----------
    experiment
        Its settings.
    dataset, seed, observed
        The data set, the seed, and the share of observed features where there is one.
    methods
        Names of the results that the record must have.
    place
        Of the record, below the experiment's folder.
    case
        What else tells it from other trials, as its experiment likes.
    folder, data, command
        The runner's: where records go, where data sets lie, what started it.
    """

    experiment: Experiment
    dataset: str
    seed: int
    methods: tuple[str, ...]
    place: str
    observed: float = 0.0
    case: Any = None
    folder: Path = Path()
    data: str | None = None
    command: str = ""

    @property
    def path(self) -> Path:
        """The record."""
        return self.folder / self.place / "trial.json"

    def record(self) -> Record | None:
        """What there is of the record; refuses one that was made otherwise."""
        record = open_record(self.path, self.experiment.record_shape)
        if record is not None:
            record = self.experiment.restore(self, record)
            _check_same(self.path, record, self.experiment.header(self))
        return record

    def finished(self) -> Record | None:
        """The record, if it has every method."""
        record = self.record()
        done = record is not None and all(m in record["results"] for m in self.methods)
        return record if done else None

    def begin(self, **about: Any) -> Record:
        """A record without results."""
        made = {"command": self.command, "versions": _versions()}
        return {**self.experiment.header(self), **about, **made, "results": {}}

    def complete(self, record: Record, result: Callable[[str], Record]) -> Record:
        """Add the results that a record does not have yet, writing it after each."""
        for method in self.methods:
            if method not in record["results"]:
                found = record["results"][method] = result(method)
                if not math.isfinite(found["score"]):
                    raise OpenFATEError(
                        f"{method} has no {found['metric']} on the test rows of {self.dataset}, "
                        f"seed {self.seed}: they hold one class alone, or its predictions are not "
                        "numbers."
                    )
                write_json(self.path, record)
        return record


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Parameters
    ----------
    experiment
        As it was run.
    folder, files
        Where its records lie; the summary and figures among them, of all trials there.
    content
        The summary of this run's own trials: `rows`, and more in some experiments.
    """

    experiment: Experiment
    folder: Path
    files: list[Path]
    content: Record

    def to_json(self) -> Record:
        """What `openfate experiment ... --json` prints."""
        about = {"experiment": self.experiment.name, "folder": str(self.folder)}
        return {**about, **{key: self.content[key] for key in self.experiment.printed}}


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    data: str | None = None,
    trials: int | None = None,
    on_trial: Callable[[int, int, str], None] | None = None,
    command: str | None = None,
) -> Outcome:
    """Run what is left of an experiment, and sum up all that its folder holds.

    Trials run in processes that import the script which calls this: there it belongs under
    ``if __name__ == "__main__":``.  What is done is kept when the run is interrupted.

    Parameters
    ----------
    experiment
        Such as `UCI(datasets=("gene",))`.
    out
        Folder of the results; those in it are kept, and added to. By default `results/NAME`.
    jobs
        Processes, by default as many as there are cores.
    data
        Folder of the data sets; by default the environment variable OPENFATE_DATA, then the cache.
    trials
        How many seeds; by default as many as the experiment says.
    on_trial
        Called with the trials that are done, their total and the name of the last one.
    command
        What records say they were made by.

    Examples
    --------
    >>> import tempfile
    >>> from openfate_lab.experiments import UCI
    >>> digits = UCI(datasets=("digits",), observed=(0.5,), methods=("base",), epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run(digits, out=folder, trials=1, jobs=1)
    >>> [(row["method"], row["n_trials"]) for row in found.content["rows"]]
    [('base', 1)]
    """
    at_least(1, jobs=1 if jobs is None else jobs)
    command = command or f"run({experiment!r})"
    plans = make_plans(experiment, out, data=data, trials=trials, command=command)
    experiment = experiment.resolve()
    folder = _folder(experiment, out)
    with only_writer(folder):
        found = [plan.finished() for plan in plans]
        records = [record for record in found if record is not None]
        pending = [plan for plan, record in zip(plans, found, strict=True) if record is None]
        tell = on_trial or (lambda done, total, last: None)
        if plans:
            tell(len(records), len(plans), "starting" if pending else "nothing left to run")
        for plan, record in run_jobs(_run_trial, pending, jobs or os.cpu_count() or 1):
            records.append(record)
            tell(len(records), len(plans), plan.place.replace("/", " "))
        everything = records_in(folder, experiment, plans)
        content = experiment.summary(everything)
        about = {"experiment": experiment.name, "command": command, "versions": _versions()}
        files = [folder / experiment.summary_file]
        write_json(files[0], {**about, **content})
        if (figure := experiment.figure(content, everything)) is not None:
            names = [folder / f"{experiment.name}.{kind}" for kind in ("png", "svg")]
            files += [save_figure(figure, name) for name in names]
    if plans:
        content = experiment.summary(records, plans[0].methods)
    return Outcome(experiment, folder, files, content)


def make_plans(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    trials: int | None = None,
    command: str = "",
) -> list[Plan]:
    """Every trial of an experiment, checked: names, folders and files, before anything runs."""
    trials = experiment.trials if trials is None else trials
    at_least(1, trials=trials)
    experiment = experiment.resolve()
    folder, plans = _folder(experiment, out), experiment.plan(data, trials)
    return [replace(plan, folder=folder, data=data, command=command) for plan in plans]


def _folder(experiment: Experiment, out: str | Path | None) -> Path:
    return Path(f"results/{experiment.name}" if out is None else out) / experiment.folder


def _run_trial(plan: Plan) -> Record:
    """A function of the module, so that a worker process can be given it."""
    return plan.experiment.run_trial(plan)


def _versions() -> dict[str, str]:
    return versions("openfate", "torch", "numpy")


# ---- checks of settings --------------------------------------------------------------------------


def choose(
    argument: str, given: Sequence[str] | str | None, known: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names given for an argument, each once; "all" is all of `known`, if it is not empty.

    Examples
    --------
    >>> choose("methods", "all", ["fate", "base"])
    ('fate', 'base')
    >>> choose("methods", ["bas"], ["base"])
    Traceback (most recent call last):
        ...
    openfate.errors.InputError: methods: 'bas' is unknown; did you mean 'base'? (choose from base)
    """
    names = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))
    if names == ("all",) and known:
        return tuple(known)
    if not names:
        raise InputError(f"{argument} is empty: name one or more.")
    for name in names if known else ():
        if name not in known:
            raise InputError(
                f"{argument}: {name!r} is unknown{suggest(name, known)} "
                f"(choose from {', '.join(known)})"
            )
    return names


# ---- records -------------------------------------------------------------------------------------


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all, lists of ids on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"\[[\s\d,]+\]", lambda ids: " ".join(ids[0].split()), text)
    with writing(path) as file:
        file.write(f"{text}\n".encode())


def open_record(path: Path, shape: Shape = RECORD) -> Record | None:
    """The record of a trial, or None if it has not begun; refuses one of another shape."""
    try:
        return cast(Record, read_record(path, shape, "delete it to run the trial again"))
    except FileNotFoundError:
        return None


def records_in(folder: Path, experiment: Experiment, plans: Sequence[Plan]) -> list[Record]:
    """The records of all trials in a folder that have begun, where those of `plans` lie."""
    depths = {plan.place.count("/") + 1 for plan in plans}
    paths = [path for n in depths for path in folder.glob("*/" * n + "trial.json")]
    found = [open_record(path, experiment.record_shape) for path in sorted(paths)]
    return [record for record in found if record is not None]


def _check_same(path: Path, record: Record, wanted: Record) -> None:
    """Refuse to add to a trial that was begun with other settings or data."""
    for key, value in wanted.items():
        if record.get(key) != value:
            difference = _first_difference(key, record.get(key), value)
            raise InputError(
                f"{path} was made with {difference}: choose another folder, or delete that one."
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


# ---- processes -----------------------------------------------------------------------------------


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
            "run the same again, with fewer jobs."
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


# ---- summary -------------------------------------------------------------------------------------


def scores(records: Sequence[Record], methods: Sequence[str]) -> list[Record]:
    """One line for each trial and method, by data set, share, method and seed."""
    lines = [
        {
            **{"dataset": record["dataset"], "observed": float(record["observed"])},
            **{"seed": record["seed"], "method": method, "metric": result["metric"]},
            **{"score": float(result["score"]), "seconds": float(result["seconds"])},
        }
        for method in methods
        for record in sorted(records, key=lambda record: int(record["seed"]))
        if (result := record["results"].get(method)) is not None
    ]
    return sorted(lines, key=lambda line: (line["dataset"], line["observed"]))


def summarise(
    lines: Sequence[Record],
    by: Sequence[str] = ROW,
    *more: pl.Expr,
) -> list[Record]:
    """Mean and spread of `score` over the lines that agree in `by`, in order of appearance.

    Parameters
    ----------
    lines
        One for each trial: `score`, `seconds` and what it is of.
    more
        What else a row tells of its lines.

    Examples
    --------
    >>> lines = [{"method": "base", "score": x, "seconds": 2.0} for x in (0.5, 0.5)]
    >>> summarise(lines, ["method"])
    [{'method': 'base', 'mean': 0.5, 'std': 0.0, 'n_trials': 2, 'seconds': 2.0}]
    """
    if not lines:
        return []
    score, seconds = pl.col("score"), pl.col("seconds")
    spread = score.std().fill_null(0.0).alias("std")  # of a single trial there is none
    frame = pl.DataFrame(lines, infer_schema_length=None)
    rows = frame.group_by(by, maintain_order=True).agg(
        score.mean().alias("mean"), spread, pl.len().alias("n_trials"), seconds.mean(), *more
    )
    return rows.to_dicts()
