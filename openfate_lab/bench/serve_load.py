"""The clients of `openfate bench serve`: requests over connections that stay open.

As a program it observes beside, in a process of its own, so that nobody waits for anybody's lock:

    python -m openfate_lab.bench.serve_load PORT ROWS.json RATE

A line on stdin starts or pauses it; for each pause it tells how many rows were observed so far, and
in how many seconds.  Rows on their way when it is paused count once they are acknowledged.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openfate.errors import OpenFATEError

Floats = NDArray[np.float64]

_CONNECTIONS = 32  # of the process that observes


def write_request(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A POST, as it goes over the wire."""
    told = {"host": "bench", "content-length": str(len(body)), "content-type": "application/json"}
    lines = [f"{name}: {value}" for name, value in (told | dict(headers or {})).items()]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body


class Connection:
    """One connection that stays open; one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got, self._wanted, self.sent = b"", -1, 0.0

    def send(self, request: bytes) -> None:
        """Send a request; `sent` is when."""
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


def ask_for(
    seconds: float, port: int, path: str, bodies: Sequence[bytes], connections: int
) -> Floats:
    """Ask as fast as answers come; the latencies in ms of what was asked within these seconds."""
    requests = [write_request(path, body) for body in bodies]
    took: list[float] = []
    with selectors.DefaultSelector() as ready:
        for at in range(connections):
            connection = Connection(port)
            ready.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(requests[at])
        number, warm = connections, time.perf_counter() + min(1.0, seconds / 5)
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
    return 1e3 * np.array(took)


def seconds_of(
    port: int, path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> float:
    """How long one request takes."""
    connection = Connection(port)
    connection.send(write_request(path, body, headers))
    while not connection.receive():
        pass
    took = time.perf_counter() - connection.sent
    connection.socket.close()
    return took


class Observer:
    """A process that observes rows, so many a second, each with a value that is new.

    Parameters
    ----------
    port
        Of the service.
    rows
        A file with a JSON list of rows.
    rate
        Rows a second; 0 for none.

    Attributes
    ----------
    reached
        Rows that were observed a second, between `start` and `pause`.
    """

    def __init__(self, port: int, rows: Path, rate: int) -> None:
        self.reached = 0.0
        words = ["-m", __name__, str(port), str(rows), str(rate)]
        self._process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self) -> None:
        """Begin, or go on."""
        self._say()

    def pause(self) -> None:
        """Stop, and count."""
        self._say()
        stdout: Any = self._process.stdout
        count, seconds = stdout.readline().split()
        self.reached = int(count) / float(seconds)

    def _say(self) -> None:
        stdin: Any = self._process.stdin
        stdin.write("\n")
        stdin.flush()


def observe_beside(port: int, rows: Sequence[Mapping[str, Any]], rate: int) -> None:
    """Observe whenever a row is due, in turns that lines on stdin begin and end."""
    number, done, seconds = 0, 0, 0.0
    while sys.stdin.readline():
        idle = deque(Connection(port) for _ in range(_CONNECTIONS))
        opened = list(idle)
        began = due = time.perf_counter()
        with selectors.DefaultSelector() as ready:
            ready.register(sys.stdin, selectors.EVENT_READ)
            for connection in opened:
                ready.register(connection.socket, selectors.EVENT_READ, connection)
            is_over = False
            while not is_over or len(idle) < len(opened):
                now = time.perf_counter()
                while rate and idle and now >= due and not is_over:
                    row = {**rows[number % len(rows)], "t0": f"new{number}"}
                    body = json.dumps({"row": row}).encode()
                    idle.popleft().send(write_request("/observe", body))
                    number, due = number + 1, due + 1 / rate
                for key, _ in ready.select(max(0.0, due - now) if rate and idle else 0.1):
                    if key.data is None:
                        sys.stdin.readline()
                        ready.unregister(sys.stdin)
                        seconds, is_over = seconds + time.perf_counter() - began, True
                    elif key.data.receive():
                        idle.append(key.data)
                        done += 1
        for connection in opened:
            connection.socket.close()
        print(done, seconds, flush=True)


if __name__ == "__main__":
    observe_beside(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3]))
