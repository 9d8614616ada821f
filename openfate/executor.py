"""Who does the work: this process, or the processes of a cluster.

Folders that have work to spread (`table`, `training`, `bank`) ask for the executor; whoever has
processes to offer sets it for a while (`openfate.cluster.connect`).  Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")

Embeddings = Literal["replicated", "sharded", "torchrec"]


class Executor(Protocol):
    """Processes that work for this one."""

    @property
    def n_workers(self) -> int:
        """How many processes work at once."""

    @property
    def embeddings(self) -> Embeddings:
        """Whether each of them has all rows of W, or its own: see `openfate.training.sharded`."""

    @property
    def whole_graph(self) -> bool:
        """Whether each of them computes the graph of all rows: see `openfate.training.ranks`."""

    def map(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """What `work` makes of the items, in their order; each process is given `work` once.

        Items are asked for as they are worked on.  What a process that dies had in hand is done
        again by another, so that `work` must give the same whenever it is given the same.
        """

    def run_together(
        self, make: Callable[[], Sequence[Callable[..., T]]], hear: Callable[[Any], bool]
    ) -> list[T]:
        """Let every process run its work, ``work(rank, tell)``, in one torch process group.

        Parameters
        ----------
        make
            Makes the work of each process, by its rank; what is the same object is sent once.
        hear
            Called here with what processes tell; what one of them tells comes in its order.  Tells
            whether the run is further for it than it has ever been.

        Returns
        -------
            What each returns.  Where a process dies all are started anew, with what `make` makes
            then: it goes on from what was heard.  Deaths with nothing further between end the run.
        """


_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)


def executor() -> Executor | None:
    """The one that is set; None: this process works alone."""
    return _executor.get()


@contextmanager
def using(one: Executor) -> Iterator[None]:
    """Set the executor for a while."""
    token = _executor.set(one)
    try:
        yield
    finally:
        _executor.reset(token)


def spread(work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """What `work` makes of the items, in their order, by whoever does the work.

    Examples
    --------
    >>> list(spread(len, ["a", "bcd"]))
    [1, 3]
    """
    found: Any = executor()
    return map(work, items) if found is None else found.map(work, items)
