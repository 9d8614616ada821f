"""What a preparation costs: rows a second, peak memory, and a bare scan of the same files."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import polars as pl

from openfate.table.logs import Log, open_log
from openfate.table.preparation import prepare
from openfate.table.reader import TextFile

T = TypeVar("T")


def measured_prepare(
    raw: Path, out: Path, format: Any, with_scan: bool = False, **options: Any
) -> dict[str, Any]:
    """Prepare a log and say what it took.

    Parameters
    ----------
    raw, out, format
        As in `prepare`.
    with_scan
        Time a bare polars scan of the same files too, after the preparation.
    options
        All else of `prepare`.

    Returns
    -------
    dict
        Rows, seconds, rows a second, peak memory, what the manifest reports, and the machine.
    """
    resumed = (Path(out) / ".work" / "plan.json").exists()
    (data, seconds, cpu) = _timed(lambda: prepare(raw, out, format, **options))
    # WHY: read before the scan, whose memory is its own.
    peak = peak_bytes()
    result = {
        "command": data.manifest["command"],
        "folder": str(out),
        "rows": data.n_rows,
        "bad_lines": data.manifest["n_bad_lines"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "rows_per_second": round(data.n_rows / seconds),
        "peak_bytes": peak,
        "resumed": resumed,
        "n_features": data.n_features,
        "n_observed": data.n_observed,
        **data.report,
        "rows_in": {part: data.rows_in(part) for part in data.parts},
        # Other programs take a share of a shared machine: the load says how much to expect.
        "machine": {
            "cores": os.cpu_count(),
            "kind": platform.machine(),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": data.manifest["versions"],
    }
    if with_scan:
        kept = ("target", "time", "drop", "log")
        chosen = {name: options[name] for name in kept if options.get(name)}
        _, scan, scan_cpu = _timed(lambda: bare_scan(open_log(raw, format, **chosen)))
        result |= {
            "scan_seconds": round(scan, 2),
            "scan_cpu_seconds": round(scan_cpu, 2),
            "scan_multiple": round(seconds / scan, 2),
        }
    return result


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """Run something; its result, the seconds and the processors' seconds."""
    start, cpu = perf_counter(), process_time()
    return work(), perf_counter() - start, process_time() - cpu


def bare_scan(log: Log) -> None:
    """Let polars' streaming engine parse all cells of a log and count those that are not empty."""
    paths, file = [file.path for file in log.files], log.files[0]
    if isinstance(file, TextFile):
        frame = pl.scan_csv(
            paths,
            separator=file.separator,
            has_header=file.has_header,
            quote_char='"' if file.has_quotes else None,
            schema=dict.fromkeys(file.columns, pl.String),
        )
    else:
        frame = pl.scan_parquet(paths)
    frame.select(pl.all().count()).collect(engine="streaming")


def peak_bytes() -> int:
    """Give the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_preparation(result: dict[str, Any]) -> str:
    """Say it in a few lines.

    Examples
    --------
    >>> features = {"in_training": 2, "new_in_validation": 1, "new_in_test": 0}
    >>> print(describe_preparation({"rows": 10, "bad_lines": 0, "seconds": 0.5,
    ...     "rows_per_second": 20, "peak_bytes": 2**30, "features": features, "paper": None,
    ...     "folder": "out"}))
    10 rows in 0.5 s: 20 rows/s, peak memory 1.00 GiB
    features in training 2, new in validation 1, new in test 0
    out
    """
    rows, seconds, rate = (result[name] for name in ("rows", "seconds", "rows_per_second"))
    peak = result["peak_bytes"] / 2**30
    lines = [f"{rows:,} rows in {seconds:,} s: {rate:,} rows/s, peak memory {peak:.2f} GiB"]
    if "scan_seconds" in result:
        multiple = result["scan_multiple"]
        lines.append(f"{multiple} times a bare polars scan ({result['scan_seconds']} s)")
    if result["bad_lines"]:
        lines.append(f"{result['bad_lines']} lines of a wrong width were left out")
    for name in ("features", "paper"):
        if found := result[name]:
            lines.append(
                f"{name} in training {found['in_training']:,}, new in validation "
                f"{found['new_in_validation']:,}, new in test {found['new_in_test']:,}"
            )
    return "\n".join([*lines, result["folder"]])
