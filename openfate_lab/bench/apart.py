"""A side of a bench in a process of its own: its memory and its threads are nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openfate.errors import OpenFATEError

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


def not_measured(what: str, done: subprocess.CompletedProcess[str]) -> OpenFATEError:
    """The error of a process that failed: the last line of what it said."""
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return OpenFATEError(f"{what} could not be measured: {last}")


def run_apart(
    arguments: Sequence[str], n_threads: int, what: str, python: Path | None = None
) -> dict[str, Any]:
    """What `python -m openfate_lab.bench` with these arguments prints on its last line.

    Parameters
    ----------
    arguments
        Of the command; the number of threads is added to them.
    n_threads
        Of every library in that process.
    what
        Is measured, for an error.
    python
        Of another environment, in which a peer lives; this one by default.
    """
    roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **dict.fromkeys(_COUNTS, str(n_threads))}
    environment["PYTHONPATH"] = os.pathsep.join(root for root in roots if root)
    command = [str(python or sys.executable), "-m", "openfate_lab.bench", *arguments]
    command += ["--threads", str(n_threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise not_measured(what, done)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
