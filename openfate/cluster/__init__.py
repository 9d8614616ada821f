"""The same fit, predict and observe on Ray: `connect` lets its processes do the work.

    connect.py   start or find a cluster, and check what its nodes have installed
    pool.py      processes that work on items, and are replaced when they die
    group.py     processes that train together, in one torch process group

Nothing here is imported by what is spread: see `openfate.executor`.
"""

from openfate.cluster.connect import RayExecutor, connect

__all__ = ["RayExecutor", "connect"]
