"""A Ray cluster of this machine, once for all tests of the folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """An executor of two processes; nothing is set."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'openfate[cluster]'")
    from openfate.cluster import connect
    from openfate.executor import _executor

    with connect("local", workers=2) as one:
        token = _executor.set(None)
        try:
            yield one
        finally:
            _executor.reset(token)


@pytest.fixture
def cluster(ray_cluster):
    """The executor, set."""
    from openfate.executor import using

    with using(ray_cluster):
        yield ray_cluster
    ray_cluster.close()  # its cores are needed by whoever connects next
