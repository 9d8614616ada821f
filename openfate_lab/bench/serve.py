"""`openfate bench serve`: the service beside a plain FastAPI service around LightGBM.

Both are processes of one worker on this machine, asked by a third over connections that stay open.
The peer is `openfate_lab.bench.serve_peer`, written as its users would.  While ours is asked, a
fourth process observes rows with values that nobody has seen, durable each.  The two sides take
turns of a second or so, so that whatever else the machine does hits both.

    requests     single rows, as JSON: requests a second
    p99          of the same: milliseconds, the median of the turns
    bulk         rows a second: Arrow to ours, JSON to the peer
    growth       ours alone: a request with 10^3 and with 10^6 observed new features; milliseconds
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import openfate
from openfate.errors import OpenFATEError
from openfate_lab.arguments import at_least
from openfate_lab.bench.record import about, tell
from openfate_lab.bench.serve_load import Floats, Observer, ask_for, seconds_of

_FITTED = 5_000  # rows of both models
_BULK = 200_000  # rows at once
_TURNS = 5  # of each side
_ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def bench_serve(
    seconds: float = 10.0, connections: int = 4, observes: int = 200, known: int = 1_000_000
) -> dict[str, Any]:
    """The service against a plain one around LightGBM.

    Parameters
    ----------
    seconds
        That each side is asked.
    connections
        Open at a time.
    observes
        A second, beside the requests to ours.
    known
        New features of the case "growth".
    """
    at_least(1, connections=connections, known=known)
    for extra, package in (("serve", "fastapi"), ("peers", "lightgbm"), ("dev", "pyarrow")):
        if find_spec(package) is None:
            raise OpenFATEError(f"the bench needs {package}: pip install 'openfate[{extra}]'.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, bulk = _make_sides(folder)
        bodies = [json.dumps({"row": row}).encode() for row in rows]
        sides = {"ours": bodies, "peer": [json.dumps(row).encode() for row in rows]}
        tell("serve: ours and the peer, by turns")
        with _peer(folder) as peer, _ours(folder, "beside") as ours:
            servers = {"peer": peer, "ours": ours}
            requests, observed = _ask_by_turns(
                servers, sides, folder, seconds, connections, observes
            )
            bulks = _bulk_by_turns(servers, rows, bulk)
        tell("serve: new features")
        growth = {n: _grown(folder, bodies, seconds / 2, n) for n in (1000, known)}
    grown = {"ours": growth[known], "peer": growth[1000]}
    rows_ = [
        *requests,
        bulks,
        _row("growth", grown, "ms", peer_name="ours with 1,000 new features"),
    ]
    told = {"connections": connections, "seconds": seconds, "observes_a_second": round(observed)}
    return {"bench": "serve", **about("cpu"), **told, "rows": rows_}


def _ask_by_turns(
    servers: Mapping[str, Server],
    bodies: Mapping[str, Sequence[bytes]],
    folder: Path,
    seconds: float,
    connections: int,
    observes: int,
) -> tuple[list[dict[str, Any]], float]:
    """The cases "requests" and "p99", and the observes a second that were reached."""
    took: dict[str, list[Floats]] = {side: [] for side in servers}  # ms
    cpu = dict.fromkeys(servers, 0.0)
    with Observer(servers["ours"].port, folder / "rows.json", observes) as observer:
        for turn in range(2 * _TURNS):
            side = ("peer", "ours")[turn % 2]
            server, before = servers[side], servers[side].cpu_seconds()
            if side == "ours":
                observer.start()
            took[side].append(
                ask_for(seconds / _TURNS, server.port, "/predict", bodies[side], connections)
            )
            if side == "ours":
                observer.pause()
            cpu[side] += server.cpu_seconds() - before
    count = {side: sum(map(len, turns)) for side, turns in took.items()}
    rates = {side: count[side] / seconds for side in took}
    p99 = {side: float(np.median([np.percentile(t, 99) for t in took[side]])) for side in took}
    overall = {side: float(np.percentile(np.concatenate(took[side]), 99)) for side in took}
    per_request = {side: 1e3 * cpu[side] / count[side] for side in took}
    return [
        _row("requests", rates, "requests a second", _named(per_request, "CPU ms a request")),
        _row("p99", p99, "ms", _named(overall, "of all turns")),
    ], observer.reached


def _bulk_by_turns(
    servers: Mapping[str, Server], rows: Sequence[Mapping[str, Any]], bulk: bytes
) -> dict[str, Any]:
    """The case "bulk": the medians of some requests for many rows."""
    many = json.dumps(rows).encode()
    asked = {"peer": ("/predict-many", many, {}), "ours": ("/predict", bulk, _ARROW)}
    n_rows = {"peer": len(rows), "ours": _BULK}
    took: dict[str, list[float]] = {side: [] for side in servers}
    cpu: dict[str, list[float]] = {side: [] for side in servers}
    for side in ("peer", "ours") * _TURNS:
        before = servers[side].cpu_seconds()
        took[side].append(seconds_of(servers[side].port, *asked[side]))
        cpu[side].append(servers[side].cpu_seconds() - before)
    rates = {side: n_rows[side] / float(np.median(took[side])) for side in took}
    by_cpu = {side: n_rows[side] * _TURNS / max(0.01, sum(cpu[side])) for side in cpu}
    return _row("bulk", rates, "rows a second", _named(by_cpu, "rows a CPU second"))


def _row(
    case: str,
    sides: Mapping[str, float],
    unit: str,
    parts: Mapping[str, float] | None = None,
    peer_name: str = "FastAPI and LightGBM",
) -> dict[str, Any]:
    ratio = sides["ours"] / sides["peer"]
    return {
        "case": case,
        "ours": round(sides["ours"], 3),
        "peer": round(sides["peer"], 3),
        "peer_name": peer_name,
        "unit": unit,
        "ratio": round(1 / ratio if unit == "ms" else ratio, 2),
        "ours_bytes": None,
        "peer_bytes": None,
        "parts": dict(parts or {}),
    }


def _named(sides: Mapping[str, float], what: str) -> dict[str, float]:
    return {f"{side}: {what}": round(number, 3) for side, number in sides.items()}


def describe_serve(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    lines = [f"{'case':<10} {'ours':>12} {'peer':>12} {'ratio':>7}"]
    for row in result["rows"]:
        figures = f"{row['ours']:>12,.2f} {row['peer']:>12,.2f} {row['ratio']:>7.2f}"
        lines.append(f"{row['case']:<10} {figures}   {row['unit']}, peer: {row['peer_name']}")
    lines.append(
        f"{result['observes_a_second']} observes a second beside ours, "
        f"{result['connections']} connections; {result['machine']}, load {result['load_average']}"
    )
    return "\n".join(lines)


# ---- the two sides -------------------------------------------------------------------------------


def _make_sides(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Fit both on the same rows; rows to ask for, and many of them as Arrow."""
    import pandas as pd
    import pyarrow as pa
    from lightgbm import LGBMClassifier

    frame, y = _make_rows(_FITTED, 0)
    openfate.FATEClassifier(epochs=10).fit(frame, y).save(folder / "bundle")
    texts = [name for name in frame if name.startswith("t")]
    categories = {name: sorted(frame[name].unique()) for name in texts}
    for name in texts:
        frame[name] = pd.Categorical(frame[name], categories=categories[name])
    model = LGBMClassifier(n_estimators=100, num_leaves=31, n_jobs=1, verbose=-1).fit(frame, y)
    model.booster_.save_model(str(folder / "model.txt"))
    told = {"columns": list(frame.columns), "categories": categories}
    (folder / "model.json").write_text(json.dumps(told))
    asked, _ = _make_rows(500, 1)
    rows = asked.to_dict("records")
    (folder / "rows.json").write_text(json.dumps(rows))
    bulk, _ = _make_rows(_BULK, 2)
    table, out = pa.Table.from_pandas(bulk, preserve_index=False), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return rows, out.getvalue()


def _make_rows(n: int, seed: int) -> tuple[Any, Any]:
    """Five columns of numbers and five of text, and a class."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    columns: dict[str, Any] = {f"x{j}": rng.normal(y * 0.4 * j, 1.0).round(3) for j in range(5)}
    for j in range(5):
        hint = np.where(rng.random(n) < 0.5, rng.integers(0, 2, n), y)
        columns[f"t{j}"] = [
            f"v{kind}{at}" for kind, at in zip(hint, rng.integers(0, 20, n), strict=True)
        ]
    return pd.DataFrame(columns), y


@dataclass(frozen=True)
class Server:
    """A process that answers on a port."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """What it has used of processors so far; 0 where the system does not tell."""
        try:
            told = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _process(words: Sequence[str]) -> Iterator[Server]:
    """A server on a free port, ready when it answers."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = int(place.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise OpenFATEError(f"{words[0]} did not start.") from None
                time.sleep(0.1)
        yield Server(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _ours(folder: Path, state: str) -> Any:
    words = ("openfate", "serve", str(folder / "bundle"), "--state", str(folder / state))
    return _process((*words, "--new-features", "1000000000"))


def _peer(folder: Path) -> Any:
    return _process(("openfate_lab.bench.serve_peer", str(folder)))


def _grown(folder: Path, bodies: Sequence[bytes], seconds: float, n_new: int) -> float:
    """The median latency of a request, in ms, once so many new features were observed."""
    with _ours(folder, f"grown-{n_new}") as server:
        port = server.port
        for start in range(0, n_new, 10_000):
            count = min(10_000, n_new - start)
            rows = [{"t0": f"new{start + at}"} for at in range(count)]
            seconds_of(port, "/observe", json.dumps({"rows": rows}).encode())
        return float(np.median(ask_for(seconds, port, "/predict", bodies, 1)))
