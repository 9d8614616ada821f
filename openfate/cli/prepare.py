"""`openfate prepare`: a raw click log to shards of feature ids, once, for many fits."""

from __future__ import annotations

import os
import platform
import resource
import shlex
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import polars as pl

from openfate.cli.cluster_flags import Cluster, GpusPerWorker, Workers, on_cluster
from openfate.cli.command import Answer, make_progress
from openfate.table import Log, PreparedData, TextFile, open_log
from openfate.table import prepare as prepare_log


def prepare(
    raw: Path,
    *,
    out: Path,
    format: Literal["criteo", "avazu", "csv"],
    measure: bool = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
    **settings: Any,
) -> Answer:
    """Raw click logs to shards of feature ids, out of core; goes on after an interruption.

    Parameters
    ----------
    raw
        A raw log, or a folder of its files.
    out
        Folder of the prepared data.
    format
        csv: CSV, TSV, Parquet.
    measure
        Time a bare polars scan of the files too.
    settings
        The other arguments of `openfate.table.prepare`.
    """
    resumed = (out / ".work" / "plan.json").exists()
    start, cpu_start = perf_counter(), process_time()
    with on_cluster(cluster, workers, gpus_per_worker), make_progress() as progress:
        task = progress.add_task("reading", total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, description=stage)

        command = shlex.join(["openfate", *sys.argv[1:]])
        data = prepare_log(raw, out, format, command=command, on_progress=show, **settings)
    seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
    result = {**_costs(data, seconds, cpu_seconds), "resumed": resumed}
    if measure:
        columns = {name: settings[name] for name in ("target", "time", "drop", "log")}
        source = open_log(raw, format, **columns)
        start, cpu_start = perf_counter(), process_time()
        _scan(source)
        scan, cpu_scan = perf_counter() - start, process_time() - cpu_start
        result["scan_seconds"], result["scan_cpu_seconds"] = round(scan, 2), round(cpu_scan, 2)
        result["scan_multiple"] = round(seconds / scan, 2)
    return result, _describe(result)


def _costs(data: PreparedData, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """What a preparation made and took."""
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "command": data.manifest["command"],
        "folder": str(data.folder),
        "rows": data.n_rows,
        "bad_lines": data.manifest["n_bad_lines"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "rows_per_second": round(data.n_rows / seconds),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
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


def _scan(log: Log) -> None:
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


def _describe(result: dict[str, Any]) -> list[str]:
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
    return [*lines, result["folder"]]
