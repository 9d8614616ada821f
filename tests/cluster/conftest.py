"""A Ray cluster of this machine, once for all tests of the folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """An executor of two processes, in a cluster of ten that needs as many cores as it is given.

    WHY ten: the processes of an executor stay until the end, eight of them in test_fit.py, beside
    the two of a command.
    """
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'openfate[cluster]'")
    from openfate.cluster import RayExecutor, connect
    from openfate.executor import _executor

    with connect("local", workers=10):
        token, one = _executor.set(None), RayExecutor(2)
        try:
            yield one
        finally:
            one.close()
            _executor.reset(token)


@pytest.fixture
def cluster(ray_cluster):
    """The executor, set."""
    from openfate.executor import using

    with using(ray_cluster):
        yield ray_cluster
