"""--cluster, --workers, --gpus-per-worker: who does the work of a command."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

from openfate.cluster import connect
from openfate.errors import InputError

Cluster = Annotated[
    str | None,
    "Let Ray do the work: local (processes of this machine) or ray://host:port.",
]
Workers = Annotated[
    int | None, "Processes of the cluster that work at once [default: one for each core]."
]
GpusPerWorker = Annotated[int, "GPUs that each process of the cluster has for itself."]


def on_cluster(
    cluster: str | None, workers: int | None, gpus_per_worker: int
) -> AbstractContextManager[Any]:
    """The cluster that the flags name, for the work inside; this process without them."""
    if cluster is not None:
        return connect(cluster, workers=workers, gpus_per_worker=gpus_per_worker)
    for flag, given in (("workers", workers), ("gpus-per-worker", gpus_per_worker)):
        if given:
            raise InputError(f"--{flag} {given}: it is of a cluster; give --cluster too.")
    return nullcontext()
