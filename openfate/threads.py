"""How many threads numpy's and scipy's products, and scikit-learn's loops, may start."""

from __future__ import annotations

import functools
import math
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from threadpoolctl import OpenBLASController, ThreadpoolController  # type: ignore[import-untyped]

_FEW_CELLS = 200_000  # up to which a second thread saves a model a part of a second at most


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
                self._limit = _libraries("blas").limit(limits=1)
                _let_go()
            self._n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._limit.restore_original_limits()
                _let_go()


ONE_THREAD = _OneThread()


def threads_for(rows: Any) -> AbstractContextManager[Any]:
    """Keep the loops of OpenMP that the caller starts to one thread where it has few rows.

    WHY: where other work has the cores, each loop of scikit-learn's boosting, and a fit has
    thousands, waits for a thread that does not run: iris took 40 s instead of half a second.  The
    limit is of the calling thread; what is found does not depend on it.
    """
    if math.prod(np.shape(rows)) > _FEW_CELLS:
        return nullcontext()
    limits: AbstractContextManager[Any] = _libraries("openmp").limit(limits=1)
    return limits


@functools.cache
def _libraries(api: str) -> ThreadpoolController:
    """The libraries that start threads by "blas" or by "openmp"; they are looked for once."""
    return ThreadpoolController().select(user_api=api)


def _let_go() -> None:
    """Let other threads set limits too.

    WHY: threadpoolctl 3.8 leaves them to the thread that set one first, and ignores the others'.
    """
    getattr(OpenBLASController, "clear_controlling_thread", bool)()
