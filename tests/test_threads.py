"""One thread for products, however many callers ask for it at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import threadpool_info, threadpool_limits

from openfate.threads import ONE_THREAD


def n_threads():
    """That numpy's products may start."""
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_products_have_their_threads_back_after_the_last_of_several_callers():
    def limited(_):
        with ONE_THREAD:
            time.sleep(0.001)
            return n_threads()

    with threadpool_limits(2, "blas"):
        pass  # whoever held the limits has let go of them
    before = n_threads()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(limited, range(100))) == [{1}] * 100
    assert n_threads() == before
