"""`openfate bench serve`: the service beside a plain FastAPI service around LightGBM.

Both are processes of one worker on this machine, asked by a third over connections that stay open.
The peer is `openfate_lab.bench.serve_peer`, written as its users would.  While ours is asked, rows
with values that nobody has seen are observed beside, durable each.

    requests     single rows, as JSON: requests a second
    p99          of the same: milliseconds
    bulk         rows a second: Arrow to ours, JSON to the peer
    growth       ours alone: a request with 10^3 and with 10^6 observed new features; milliseconds
"""

from __future__ import annotations

import io
import json
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import openfate
from openfate.errors import OpenFATEError
from openfate_lab.arguments import at_least
from openfate_lab.bench.record import about, tell

_FITTED = 5_000  # rows of both models
_BULK = 200_000  # rows at once


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
    with tempfile.TemporaryDirectory() as folder:
        rows, bulk = _make_sides(Path(folder))
        bodies = [json.dumps({"row": row}).encode() for row in rows]
        tell("serve: the peer")
        peer_bodies = [json.dumps(row).encode() for row in rows]
        with _peer(Path(folder)) as port:
            peer = _load(port, "/predict", peer_bodies, seconds, connections)
            few = json.dumps(rows[:1000]).encode()
            peer_bulk = 1000 / _median_seconds(port, "/predict-many", few, 5)
        tell("serve: ours")
        with _ours(Path(folder), "beside") as port, _observing(port, rows, observes) as done:
            ours = _load(port, "/predict", bodies, seconds, connections)
        n_observed = done[0] / ours["seconds"]
        with _ours(Path(folder), "bulk") as port:
            arrow = {"content-type": "application/vnd.apache.arrow.stream"}
            ours_bulk = _BULK / _median_seconds(port, "/predict", bulk, 5, arrow)
        tell("serve: new features")
        growth = {n: _grown(Path(folder), bodies, seconds, n) for n in (1000, known)}
    rows_ = [
        _row(
            "requests", ours["rate"], peer["rate"], "requests a second", ours["rate"] / peer["rate"]
        ),
        _row("p99", ours["p99"], peer["p99"], "ms", peer["p99"] / ours["p99"]),
        _row("bulk", ours_bulk, peer_bulk, "rows a second", ours_bulk / peer_bulk),
        {
            "case": "growth",
            "ours": round(growth[known], 3),
            "peer": round(growth[1000], 3),
            "peer_name": "ours with 1,000 new features",
            "unit": "ms",
            "ratio": round(growth[1000] / growth[known], 3),
            "ours_bytes": None,
            "peer_bytes": None,
            "parts": {},
        },
    ]
    told = {"connections": connections, "seconds": seconds, "observes_a_second": round(n_observed)}
    return {"bench": "serve", **about("cpu"), **told, "rows": rows_}


def _row(case: str, ours: float, peer: float, unit: str, ratio: float) -> dict[str, Any]:
    return {
        "case": case,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "peer_name": "FastAPI and LightGBM",
        "unit": unit,
        "ratio": round(ratio, 2),
        "ours_bytes": None,
        "peer_bytes": None,
        "parts": {},
    }


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
    bulk, _ = _make_rows(_BULK, 2)
    table, out = pa.Table.from_pandas(bulk, preserve_index=False), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return asked.to_dict("records"), out.getvalue()


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


@contextmanager
def _process(words: Sequence[str]) -> Iterator[int]:
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
        yield port
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
    with _ours(folder, f"grown-{n_new}") as port:
        for start in range(0, n_new, 10_000):
            count = min(10_000, n_new - start)
            rows = [{"t0": f"new{start + at}"} for at in range(count)]
            _median_seconds(port, "/observe", json.dumps({"rows": rows}).encode(), 1)
        return _load(port, "/predict", bodies, seconds / 2, 1)["p50"]


# ---- asking --------------------------------------------------------------------------------------


def _request(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    told = {"host": "bench", "content-length": str(len(body)), "content-type": "application/json"}
    lines = [f"{name}: {value}" for name, value in (told | (headers or {})).items()]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body


class _Connection:
    """One connection that stays open; one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got, self._wanted, self.sent = b"", -1, 0.0

    def send(self, request: bytes) -> None:
        self._got, self._wanted, self.sent = b"", -1, time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Take what has come; whether the answer is whole."""
        part = self.socket.recv(1 << 20)
        if not part:
            raise OpenFATEError("a service closed the connection.")
        self._got += part
        if self._wanted < 0 and (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                raise OpenFATEError(f"a service answered {self._got[:300]!r}.")
            self._wanted = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return 0 <= self._wanted <= len(self._got)


def _load(
    port: int, path: str, bodies: Sequence[bytes], seconds: float, connections: int
) -> dict[str, float]:
    """Ask as fast as answers come; requests a second, and latencies in ms."""
    requests = [_request(path, body) for body in bodies]
    took: list[float] = []
    with selectors.DefaultSelector() as ready:
        for at in range(connections):
            connection = _Connection(port)
            ready.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(requests[at])
        began, number = time.perf_counter(), connections
        warm = began + min(1.0, seconds / 5)
        while time.perf_counter() < warm + seconds:
            for key, _ in ready.select():
                connection = key.data
                if connection.receive():
                    if connection.sent > warm:
                        took.append(time.perf_counter() - connection.sent)
                    connection.send(requests[number % len(requests)])
                    number += 1
        for key in list(ready.get_map().values()):
            key.data.socket.close()
    p50, p99 = np.percentile(took, [50, 99]) * 1e3
    return {"rate": len(took) / seconds, "p50": float(p50), "p99": float(p99), "seconds": seconds}


def _median_seconds(
    port: int, path: str, body: bytes, repeats: int, headers: dict[str, str] | None = None
) -> float:
    """Of some requests, one after the other."""
    connection, found = _Connection(port), []
    for _ in range(repeats):
        connection.send(_request(path, body, headers))
        while not connection.receive():
            pass
        found.append(time.perf_counter() - connection.sent)
    connection.socket.close()
    return float(np.median(found))


@contextmanager
def _observing(port: int, rows: Sequence[dict[str, Any]], rate: int) -> Iterator[list[int]]:
    """Observe so many rows a second beside, each with a value that is new; how many were."""
    stop, done = threading.Event(), [0]
    n_threads = 8

    def observe(thread: int) -> None:
        connection, number = _Connection(port), 0
        due = time.perf_counter()
        while not stop.is_set():
            row = {**rows[number % len(rows)], "t0": f"new{thread}-{number}"}
            connection.send(_request("/observe", json.dumps({"row": row}).encode()))
            while not connection.receive():
                pass
            number, due = number + 1, due + n_threads / rate
            done[0] += 1
            stop.wait(max(0.0, due - time.perf_counter()))
        connection.socket.close()

    threads = [threading.Thread(target=observe, args=(n,), daemon=True) for n in range(n_threads)]
    if rate:
        for thread in threads:
            thread.start()
    yield done
    stop.set()
    if rate:
        for thread in threads:
            thread.join(10)
