"""Reading ahead: a thread fetches the next items while one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")


def read_ahead(items: Iterable[T], n_ahead: int = 2) -> Iterator[T]:
    """The same items, of which a thread fetches up to `n_ahead` before they are asked for.

    An exception of `items` is raised where its item would have come.  The thread ends with the
    iterator: also when it is closed, or no longer referred to, half-way.

    Examples
    --------
    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    # WHY: the thread waits with a time limit, so that it notices that nobody reads any more.
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(n_ahead)
    closed = threading.Event()

    def put(item: T | None, end: BaseException | None) -> None:
        while not closed.is_set():
            try:
                return ready.put((item, end), timeout=0.1)
            except queue.Full:
                continue

    def fetch() -> None:
        try:
            for item in items:
                put(item, None)
                if closed.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=fetch, daemon=True, name="openfate-read-ahead")
    thread.start()
    try:
        while True:
            item, end = ready.get()
            if isinstance(end, StopIteration):
                return
            if end is not None:
                raise end
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()
