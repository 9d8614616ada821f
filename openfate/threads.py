"""How many threads numpy's and scipy's products may start."""

from __future__ import annotations

import functools
import threading
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController  # type: ignore[import-untyped]


class _OneThread:
    """Keeps numpy's products to one thread as long as anybody is inside.

    WHY: the limit is of the process.  Of callers that each set it and put back what they found, the
    last one would put back the limit of another.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside = threading.Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._limit = _blas().limit(limits=1, user_api="blas")
                _let_go()
            self._n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._limit.restore_original_limits()
                _let_go()


ONE_THREAD = _OneThread()


@functools.cache
def _blas() -> ThreadpoolController:
    """The libraries behind numpy's products; they are looked for once."""
    return ThreadpoolController()


def _let_go() -> None:
    """Let other threads set limits too.

    WHY: threadpoolctl 3.8 leaves them to the thread that set one first, and ignores the others'.
    """
    getattr(OpenBLASController, "clear_controlling_thread", bool)()
