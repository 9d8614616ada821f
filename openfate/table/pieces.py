"""Batches of rows that lie in pieces (shards on disk, blocks that are drawn), read ahead.

B rows of a batch, d fields.  Numpy alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from operator import index
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from openfate.errors import InputError
from openfate.seeds import checked_seed

S = TypeVar("S")
T = TypeVar("T")

Batch = tuple[NDArray[np.int32], NDArray[np.float32]]  # (B, d) ids and (B,) labels


def batches_of(
    sizes: Sequence[int],
    load: Callable[[int], Batch],
    batch_rows: int,
    seed: int | None = None,
) -> Iterator[Batch]:
    """Iterate over the rows of numbered pieces in batches of equal size but for the last.

    Parameters
    ----------
    sizes
        The rows of each piece.
    load
        Gives a piece by its number; called only for pieces with rows that are asked for.
    batch_rows
        B.
    seed
        None keeps the order; a seed mixes the pieces and the rows inside each.

    Examples
    --------
    >>> rows = np.arange(10, dtype=np.int32)[:, None]
    >>> pieces = [(rows[:6], rows[:6, 0] / 10), (rows[6:], rows[6:, 0] / 10)]
    >>> [ids.ravel().tolist() for ids, _ in batches_of([6, 4], pieces.__getitem__, 4)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """
    size = index(batch_rows)
    if size < 1:
        raise InputError(f"batch_rows={batch_rows}: give 1 or more.")
    seed = None if seed is None else checked_seed(seed)

    def batches() -> Iterator[Batch]:
        numbers = np.arange(len(sizes))
        if seed is not None:
            numbers = np.random.default_rng([seed, 0]).permutation(len(sizes))
        left: list[Batch] = []  # what does not fill a batch yet
        for number in numbers.tolist():
            if not sizes[number]:
                continue
            ids, y = load(number)
            if seed is not None:
                order = np.random.default_rng([seed, 1, number]).permutation(len(y))
                ids, y = ids[order], y[order]
            left.append((ids, y))
            n_left = sum(len(labels) for _, labels in left)
            if n_left < size:
                continue
            ids, y = (np.concatenate(arrays) for arrays in zip(*left, strict=True))
            whole = n_left - n_left % size
            for at in range(0, whole, size):
                yield ids[at : at + size], y[at : at + size]
            left = [(ids[whole:], y[whole:])]
        if sum(len(labels) for _, labels in left):
            ids, y = (np.concatenate(arrays) for arrays in zip(*left, strict=True))
            yield ids, y

    return batches()


def work_ahead(
    work: Callable[[S], T], items: Iterable[S], workers: int, n_ahead: int | None = None
) -> Iterator[T]:
    """Work on items in threads and give the results in order.

    An exception is raised where its result would have come.  The threads end with the iterator:
    also when it is closed, or no longer referred to, half-way.

    Parameters
    ----------
    work, items
        What is done, to what.
    workers
        The number of threads.
    n_ahead
        How many results may wait; by default as many as there are threads.

    Examples
    --------
    >>> list(work_ahead(len, ["a", "bcd", "ef"], workers=2))
    [1, 3, 2]
    """
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(workers, "openfate-work-ahead") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > (n_ahead or workers):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for waiting in pending:
                waiting.cancel()


def read_ahead(items: Iterable[T], n_ahead: int = 2) -> Iterator[T]:
    """The same items, of which a thread fetches up to `n_ahead` before they are asked for.

    Exceptions and the end of the thread are those of `work_ahead`.

    Examples
    --------
    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    rest, end = iter(items), object()
    for item in work_ahead(lambda _: next(rest, end), repeat(None), 1, n_ahead):
        if item is end:
            return
        yield item  # type: ignore[misc]
