"""Helpers of the command line's tests: small tables, and commands in this process or another."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import polars as pl

from openfate.cli import main

QUICK = ["--epochs", "4", "--width", "8", "--hidden", "8", "--strategy", "fate"]


def people(n_rows, seed, later=False):
    """Jobs and ages that tell `rich`; later a city that tells it too, and a wage, come along."""
    rng = random.Random(seed)
    jobs = ["cook", "nurse", "pilot", "judge"] + (["clown"] if later else [])
    rows = []
    for number in range(n_rows):
        job, age = rng.choice(jobs), rng.randint(18, 80)
        rich = (job in ("pilot", "judge")) != (age > 50)
        row = {"id": number, "job": job, "age": age, "zip": rng.choice(["01", "02", "10"])}
        row["rich"] = None if number % 50 == 7 else rich
        if later:
            row["city"] = (
                None if number < 20 else rng.choice(["Rome", "Oslo"] if rich else ["Bern"])
            )
            row["wage"] = round(rng.random() * 10 + 5 * rich, 2)
        rows.append(row)
    return pl.DataFrame(rows)


def run(*arguments):
    """Run a command in this process; its exit code is returned."""
    before = sys.argv
    sys.argv = ["openfate", *map(str, arguments)]
    try:
        main()
    except SystemExit as done:
        return done.code or 0
    finally:
        sys.argv = before
    return 0


def digest(folder):
    """The hash of all of a folder's files but the lock."""
    files = sorted(path for path in Path(folder).iterdir() if path.name != ".lock")
    content = b"".join(path.name.encode() + path.read_bytes() for path in files)
    return hashlib.sha256(content).hexdigest()


def process(*arguments, **options):
    """Start a command as a process of its own."""
    code = "from openfate.cli import main; main()"
    env = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        text=True, env=env, **pipes | options,
    )  # fmt: skip


def predictions(openfate, bundle, rows, out, *flags):
    """Predict rows by the fixture `openfate`; the table that is written."""
    openfate("predict", bundle, rows, "--out", out, *flags)
    return pl.read_parquet(out) if out.suffix == ".parquet" else pl.read_csv(out)
