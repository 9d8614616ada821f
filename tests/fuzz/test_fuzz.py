"""A short run of `make fuzz`, always the same: nothing that a file says does harm."""

from __future__ import annotations

from cases import BAD
from seed_bundles import make_bundles
from supervisor import run


def test_spoilt_bundles_and_rows_are_refused_or_predicted_and_nothing_else():
    seeds = make_bundles(
        {"fate", "source", "logistic", "forest", "histograms", "lightgbm", "stacking"}
    )
    jobs = [("bundle with old hashes", n) for n in range(30)]
    jobs += [("bundle with fresh hashes", n) for n in range(90)]
    jobs += [("rows", n) for n in range(60)]
    counts, told = run(seeds, jobs, n_workers=1)
    assert not [case for case in told if case[1] in BAD]
    assert sum(counts.values()) == len(jobs)
    assert counts["bundle with fresh hashes", "refused"] > 45
    assert counts["rows", "same"] > 10  # they do read some


def test_a_crash_and_a_hang_are_counted_and_the_rest_goes_on(monkeypatch):
    """The fuzzer itself: a worker that dies or waits costs one case."""
    import supervisor

    monkeypatch.setattr(supervisor, "PATIENCE", 2.0)
    monkeypatch.setattr(supervisor, "work", _die_or_wait)
    counts, _ = run({}, [("die", 0), ("wait", 1), ("fine", 2)], n_workers=1)
    assert counts == {("die", "crash"): 1, ("wait", "hang"): 1, ("fine", "same"): 1}


def _die_or_wait(to_parent, seeds, jobs) -> None:
    import os
    import time

    for job in jobs:
        to_parent.send((job, None))
        if job[0] == "die":
            os.abort()
        if job[0] == "wait":
            time.sleep(60)
        to_parent.send((job, ("same", "")))
    to_parent.send((None, None))
