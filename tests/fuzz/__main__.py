"""`make fuzz`: thousands of spoilt bundles and files of rows; exit 1 where one did harm.

python tests/fuzz [--bundles N] [--rows N] [--first N] [--workers N] [--show OUTCOME]
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from cases import BAD
from seed_bundles import make_bundles
from supervisor import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/fuzz")
    parser.add_argument("--bundles", type=int, default=20_000, help="half with fresh hashes")
    parser.add_argument("--rows", type=int, default=5_000, help="CSV, TSV and Parquet files")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--workers", type=int, default=max(1, os.cpu_count() or 1))
    parser.add_argument("--show", default="", help="print what every case of this outcome was")
    given = parser.parse_args()
    start = time.monotonic()
    seeds = make_bundles()
    half = range(given.first, given.first + given.bundles // 2)
    jobs = [("bundle with old hashes", n) for n in half]
    jobs += [("bundle with fresh hashes", n) for n in half]
    jobs += [("rows", n) for n in range(given.first, given.first + given.rows)]
    counts, told = run(seeds, jobs, given.workers)
    for (kind, outcome), n in sorted(counts.items()):
        print(f"{kind:<26}{outcome:<22}{n:>7}")
    n_bad = sum(n for (_, outcome), n in counts.items() if outcome in BAD)
    for (kind, number), outcome, what in told:
        if outcome in BAD or outcome == given.show:
            print(f"\n{outcome}: {kind} {number}\n{what}")
    print(f"\n{len(told):,} cases in {time.monotonic() - start:.0f} seconds, {n_bad} bad ones.")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
