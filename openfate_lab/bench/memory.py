"""Peak memory of one side of a case.

On a CPU: the peak of the resident set over what the imports took, in a process of its own, which is
`python -m openfate_lab.bench memory CASE BENCH SIDE`.  On a GPU: what torch's allocator held at
most, over what it held before the side was made; in this process, since a new one would compile
all kernels again.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from openfate.errors import InputError
from openfate_lab.bench.apart import not_measured
from openfate_lab.bench.cases import CASES, Bench, Case

UNKNOWN = 3  # the exit code of a process that cannot tell its own peak


def peak_bytes(case: Case, bench: Bench, side: str) -> int | None:
    """Peak memory of a side in bytes; None where the system does not tell."""
    if case.device == "cuda":
        return _gpu_bytes(case, bench, side)
    text = json.dumps({"kind": type(case).__name__, **vars(case)})
    command = [sys.executable, "-m", "openfate_lab.bench", "memory", text, bench, side]
    command += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return int(done.stdout)
    if done.returncode == UNKNOWN:
        return None
    raise not_measured(f"memory of {side}", done)


def print_memory(case: str, bench: Bench, side: str, threads: int = 1) -> int:
    """Run a side and print its peak memory; `UNKNOWN` where the system does not tell."""
    torch.set_num_threads(threads)
    big = _case_of(case)
    # What torch loads on first use is not part of the run.
    _run(big.tiny(), bench, side, 1)
    with watch_peak() as peak:
        _run(big, bench, side, 2)
    if peak.n_bytes is None:
        return UNKNOWN
    print(peak.n_bytes)
    return 0


@dataclass
class Peak:
    """What a process held at most over what it held before; None where the system does not tell."""

    n_bytes: int | None = None


@contextmanager
def watch_peak() -> Iterator[Peak]:
    """The peak of this process's resident set over its size now, known when the block ends."""
    status, peak = Path("/proc/self/status"), Peak()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    except OSError:
        yield peak
        return
    before = _most_kilobytes(status)
    yield peak
    # WHY max: Linux writes the peak down late, so two readings may shrink by some pages.
    peak.n_bytes = max(_most_kilobytes(status) - before, 0) * 1024


def forget_peak() -> int:
    """Begin to look for a peak on the GPU; the bytes that are held now."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _gpu_bytes(case: Case, bench: Bench, side: str) -> int:
    """The rows of the case are counted too, on either side."""
    before = forget_peak()
    _run(case, bench, side, 2)
    return torch.cuda.max_memory_allocated() - before


def _case_of(text: str) -> Case:
    """A case by its name, or from its JSON."""
    if text in CASES:
        return CASES[text]
    try:
        shape = json.loads(text)
        kinds = {type(case).__name__: type(case) for case in CASES.values()}
        return kinds[shape.pop("kind")](**shape)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"case {text!r} is unknown: choose from {', '.join(CASES)}, or give a case as JSON."
        ) from None


def _run(case: Case, bench: Bench, side: str, n_times: int) -> None:
    (case.ours(bench) if side == "ours" else case.peer(bench))(n_times)


def _most_kilobytes(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])
