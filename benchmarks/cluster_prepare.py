"""How much faster two workers of one core each prepare a log than one: seconds of `prepare`.

    PYTHONPATH=. python benchmarks/cluster_prepare.py OUT.json [--rows 4000000] [--repeats 3]

With one worker, it and the process that reads, joins and writes share one core; with two, all three
share two.  Workers have started before the clock does.  Sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from openfate.cluster import connect
from openfate.executor import spread
from openfate.table import prepare
from openfate_lab.bench.record import about, tell, write_result

FIELDS, VALUES = 20, 20_000


def write_log(path: Path, n_rows: int) -> None:
    """A label and 20 fields of skewed values."""
    rng = np.random.default_rng(0)
    cells = {f"f{f}": rng.zipf(1.3, n_rows) % VALUES for f in range(FIELDS)}
    pl.DataFrame({"click": rng.integers(0, 2, n_rows), **cells}).write_csv(path)


def wake(_: int) -> int:
    """Load what a preparation needs."""
    import openfate.table  # noqa: F401, PLC0415

    time.sleep(1)  # so that every process is given one
    return os.getpid()


def measure(folder: Path, n_workers: int) -> float:
    """Seconds of a preparation on so many cores; this process must have done nothing yet."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_workers])
    with connect("local", workers=n_workers):
        assert len(set(spread(wake, range(2 * n_workers)))) == n_workers
        started = time.perf_counter()
        prepare(
            folder / "log.csv", folder / f"out{n_workers}", "csv", target="click",
            chunk_bytes=1 << 23, shard_rows=100_000, workers=n_workers, overwrite=True,
        )  # fmt: skip
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", type=int, help="so many workers, on the log in the folder OUT")
    given = parser.parse_args()
    if given.measure:
        print(measure(given.out, given.measure))
        return
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder, "log.csv"), given.rows)
        n_bytes = Path(folder, "log.csv").stat().st_size
        for _ in range(given.repeats):
            for n_workers, found in seconds.items():
                command = [sys.executable, __file__, folder, "--measure", str(n_workers)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append(round(float(said.split()[-1]), 2))
                tell(f"{n_workers} workers: {found[-1]} s")
        same = [Path(folder, f"out{n}", "vocabulary.parquet").read_bytes() for n in seconds]
        assert same[0] == same[1]
    one, two = (float(np.median(found)) for found in seconds.values())
    result = {
        "rows": given.rows,
        "bytes": n_bytes,
        "seconds": seconds,
        "ratio": round(one / two, 2),
    }
    write_result({**about("cpu"), **result}, given.out)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
