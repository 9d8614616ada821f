"""What goes wrong in a process of a cluster, in words that name its node."""

from __future__ import annotations

import platform
from typing import Any

from openfate.errors import DataFileError, OpenFATEError, is_memory_full

_START = 600.0  # seconds in which a cluster finds a core for a process


def told(error: Exception, remedy: str) -> OpenFATEError | None:
    """What a user can mend, to be told and not raised; None: a fault of ours, or of the process.

    Parameters
    ----------
    remedy
        Against memory that is full.
    """
    node = f"node {platform.node()}"
    if isinstance(error, DataFileError):
        return DataFileError(f"{node}: {error}")
    if isinstance(error, OpenFATEError):
        return error
    if isinstance(error, OSError) and error.errno is not None:  # a missing file, a full disk
        where = f"{error.filename}: " if error.filename else ""
        return DataFileError(f"{node}: {where}{error.strerror or error}.")
    if is_memory_full(error):
        return OpenFATEError(f"{node}: memory is full; {remedy}.")
    return None


def await_start(ray: Any, answers: Any, n_workers: int) -> Any:
    """What processes answer that may have to wait for a core; an error where there is none."""
    try:
        return ray.get(answers, timeout=_START)
    except ray.exceptions.GetTimeoutError:
        there, free = ray.cluster_resources(), ray.available_resources()
        raise OpenFATEError(
            f"workers={n_workers}: one of them found no place within {_START / 60:.0f} minutes. "
            f"The cluster has {int(there.get('CPU', 0))} cores, {int(free.get('CPU', 0))} of them "
            f"free, on {sum(node['Alive'] for node in ray.nodes())} nodes: is one of them down?"
        ) from None


def line_of(error: Exception, at: int = 0) -> str:
    """The first line of what Ray says of an error, or the one at a place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[at].rstrip(".") if lines else type(error).__name__
