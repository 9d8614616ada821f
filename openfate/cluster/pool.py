"""Processes that work on items, and are replaced when they die."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from openfate.cluster.faults import await_start, line_of, told
from openfate.errors import OpenFATEError

_AHEAD = 2  # items for each process that are worked on or wait to be: it never has to ask
_TRIES = 4  # processes that may die over one item before it is the item's fault


class Done(NamedTuple):
    """What a process made of an item, or why it could not."""

    result: Any
    error: OpenFATEError | None
    warned: list[warnings.WarningMessage]


class Worker:
    """What runs in a process: it has its own copy of the work."""

    def __init__(self) -> None:
        self._number = -1

    def ping(self) -> None:
        """Answer, by those that live."""

    def do(self, number: int, place: list[Any], item: Any) -> Done:
        """Work on an item; what a user can mend is told, not raised.

        Parameters
        ----------
        number, place
            Of the work, and where it is, which is looked up once.  WHY in a list: Ray would look it
            up for every item.
        """
        if number != self._number:
            self.work = import_module("ray").get(place[0])
            self._number = number
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                return Done(self.work(item), None, warned)
            except Exception as error:
                known = told(error, "give fewer rows at a time")
                if known is None:
                    raise
                return Done(None, known, warned)


@dataclass(eq=False)
class _Job:
    item: Any
    place: int  # of the process that has it
    answer: Any
    n_deaths: int = 0


class Pool:
    """Some processes, which stay for further work.

    Parameters
    ----------
    n_workers, n_gpus
        How many processes, and the GPUs of each.
    """

    def __init__(self, n_workers: int, n_gpus: int = 0) -> None:
        self._ray, self._n_workers = import_module("ray"), n_workers
        # WHY restarts by ourselves: the item that ends every process it is given to must be named.
        self._make = self._ray.remote(Worker).options(num_cpus=1, num_gpus=n_gpus, max_restarts=0)
        self._workers: list[Any] = []
        self._loads = [0] * n_workers
        self._number, self._place = 0, None

    def run(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """What the work makes of the items, in their order; one work at a time."""
        waiting: deque[_Job] = deque()
        self._number, self._place = self._number + 1, self._ray.put(work)
        try:
            for item in items:
                if len(self._workers) < self._n_workers:
                    self._workers.append(self._make.remote())
                waiting.append(self._give(item))
                if len(waiting) >= _AHEAD * self._n_workers:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            self._place = None
            if waiting:  # what is still worked on is of no use
                self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers, self._loads = [], [0] * self._n_workers

    def _give(self, item: Any) -> _Job:
        place = min(range(len(self._workers)), key=self._loads.__getitem__)
        self._loads[place] += 1
        return _Job(item, place, self._ask(place, item))

    def _ask(self, place: int, item: Any) -> Any:
        return self._workers[place].do.remote(self._number, [self._place], item)

    def _result(self, job: _Job) -> Any:
        done = self._wait(job)
        self._loads[job.place] -= 1
        for one in done.warned:
            warnings.warn(one.message, one.category, stacklevel=4)
        if done.error is not None:
            raise done.error
        return done.result

    def _wait(self, job: _Job) -> Done:
        errors = self._ray.exceptions
        dead = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError)
        while True:
            worker = self._workers[job.place]
            try:
                done: Done = self._ray.get(job.answer)
                return done
            except dead as error:
                if getattr(error, "actor_init_failed", False):
                    raise OpenFATEError(f"a process cannot start: {line_of(error, -1)}") from None
                job.n_deaths += 1
                if job.n_deaths >= _TRIES:
                    raise OpenFATEError(
                        f"{job.n_deaths} processes died over the same rows, the last one as "
                        f"follows: {line_of(error)}. Is the memory of its node full?"
                    ) from None
                if self._workers[job.place] is worker and not self._is_alive(worker):
                    self._workers[job.place] = self._make.remote()
                    await_start(self._ray, self._workers[job.place].ping.remote(), self._n_workers)
                job.answer = self._ask(job.place, job.item)

    def _is_alive(self, worker: Any) -> bool:
        try:
            self._ray.get(worker.ping.remote())
        except self._ray.exceptions.RayError:
            return False
        return True
