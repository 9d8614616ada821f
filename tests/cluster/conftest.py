"""A Ray cluster of this machine, once for all tests of the folder."""

from __future__ import annotations

import pytest
from cli.tables import people, run


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


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Rows, later rows, and a bundle that was fitted on the first."""
    folder = tmp_path_factory.mktemp("tables")
    people(300, 0).write_csv(folder / "train.csv")
    people(260, 1, later=True).write_csv(folder / "later.csv")
    run("fit", folder / "train.csv", "--target", "rich", "--exclude", "id", "--strategy",
        "evidence", "--epochs", 15, "--out", folder / "model")  # fmt: skip
    return folder
