"""Cases in processes of their own: a crash or a hang is counted, and the rest goes on."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

from cases import Cases, listen

PATIENCE = 40.0  # seconds for one case, on a machine that does other things too
_MEMORY = 16 << 30  # bytes of addresses, of which torch takes a few before any case
Job = tuple[str, int]
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["cases"])  # WHY: another interpreter would take seconds


def work(to_parent: Connection, seeds: Any, jobs: list[Job]) -> None:
    """Run the jobs, and tell of each before and after."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    listen()
    cases = Cases(seeds)
    for job in jobs:
        to_parent.send((job, None))
        to_parent.send((job, cases.run(*job)))
    to_parent.send((None, None))


class Worker:
    """One process and the jobs that are left to it; it is made again where it dies."""

    def __init__(self, seeds: Any, jobs: list[Job]) -> None:
        self.seeds, self.jobs = seeds, list(jobs)
        self.start()

    def start(self) -> None:
        self.reader, writer = processes.Pipe(duplex=False)
        self.process = processes.Process(target=work, args=(writer, self.seeds, self.jobs))
        self.process.start()
        writer.close()
        self.current, self.since = None, time.monotonic()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.reader.close()


def run(seeds: Any, jobs: Iterable[Job], n_workers: int) -> tuple[Counter[Any], list[Any]]:
    """All jobs; gives the count of each (kind, outcome), and (job, outcome, what) of every one."""
    jobs, counts, told = list(jobs), Counter[Any](), list[Any]()
    workers = [Worker(seeds, jobs[at::n_workers]) for at in range(n_workers)]

    def finish(worker: Worker, outcome: str, what: str) -> None:
        job = worker.current
        counts[job[0], outcome] += 1
        told.append((job, outcome, what))
        worker.jobs.remove(job)
        worker.current = None

    while workers:
        ready = wait([worker.reader for worker in workers], timeout=1.0)
        for worker in list(workers):
            if worker.reader in ready:
                try:
                    job, outcome = worker.reader.recv()
                except EOFError:  # it died
                    worker.process.join()
                    code = worker.process.exitcode
                    if worker.current is None:
                        raise RuntimeError(f"a worker died between cases ({code}).") from None
                    finish(worker, "crash", f"exit code {code}")
                    worker.stop()
                    worker.start()
                    continue
                if job is None:
                    worker.stop()
                    workers.remove(worker)
                elif outcome is None:
                    worker.current, worker.since = job, time.monotonic()
                else:
                    finish(worker, *outcome)
            elif worker.current is not None and time.monotonic() - worker.since > PATIENCE:
                worker.process.kill()
                finish(worker, "hang", f"{PATIENCE:.0f} seconds")
                worker.stop()
                worker.start()
    return counts, told
