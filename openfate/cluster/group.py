"""Processes that train together, in one torch process group.

Plain actors and `torch.distributed` (gloo on CPUs, NCCL on GPUs) instead of Ray Train: what its
TorchTrainer adds is a storage path for checkpoints, a controller and a data layer, none of which is
needed where a run hands out its checkpoints itself, and which took longer to start than small
tables take to fit.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import platform
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from openfate.cluster.faults import await_start, line_of, told
from openfate.errors import OpenFATEError

_TRIES = 4  # groups that may die without a step between
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface
_PATIENCE = 60.0  # seconds in which the others notice that one of them has died


class Ear:
    """What processes have told and the driver has not heard yet."""

    def __init__(self) -> None:
        self._told: list[Any] = []

    def tell(self, value: Any) -> None:
        """Keep a value for the driver."""
        self._told.append(value)

    def take(self) -> list[Any]:
        """What was told since the last time."""
        told, self._told = self._told, []
        return told


class Member:
    """What runs in a process of the group."""

    def open(self) -> tuple[str, int]:
        """Where the others can meet this process: its node and a port.

        WHY open from now on: a free port that is only looked up may be another's a moment later.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        node = import_module("ray").util.get_node_ip_address()
        self._store = TCPStore(node, 0, is_master=True, wait_for_workers=False)
        return node, self._store.port

    def join(self, rank: int, n_ranks: int, place: tuple[str, int], on_gpus: bool) -> str:
        """Meet the others where the first of them is; the name of this node."""
        import torch
        import torch.distributed as dist

        if rank:
            self._store = dist.TCPStore(*place, is_master=False)  # type: ignore[attr-defined]
        torch.set_num_threads(1)
        # WHY: by default both look the host's name up, which many machines say is 127.0.0.1.
        link = _link_of(import_module("ray").util.get_node_ip_address())
        if link is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", link)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", link)
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            store=self._store,
            rank=rank,
            world_size=n_ranks,
            timeout=datetime.timedelta(minutes=30),
        )
        self.rank = rank
        return platform.node()

    def run(self, work: Callable[..., Any], ear: Any) -> tuple[Any, OpenFATEError | None]:
        """Do the work; what a user can mend is told, not raised."""
        ray = import_module("ray")
        try:
            return work(self.rank, lambda value: ray.get(ear.tell.remote(value))), None
        except Exception as error:
            known = told(
                error,
                "give smaller mini-batches or widths, or embeddings='sharded' and more workers",
            )
            if known is None:
                raise
            return None, known


def _link_of(address: str) -> str | None:
    """The network interface that has an address of this node; None where it cannot be told."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, suppress(OSError):
            asked = struct.pack("256s", name.encode()[:15])
            found = fcntl.ioctl(one, _SIOCGIFADDR, asked)
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


class Group:
    """Some processes that have met one another.

    Parameters
    ----------
    n_ranks, n_gpus
        How many, and the GPUs of each.
    """

    def __init__(self, n_ranks: int, n_gpus: int = 0) -> None:
        ray = self._ray = import_module("ray")
        member = ray.remote(Member).options(num_cpus=1, num_gpus=n_gpus, max_restarts=0)
        self._members = [member.remote() for _ in range(n_ranks)]
        # WHY a process of its own: what was told outlives the member that told it.
        self._ear = ray.remote(Ear).options(num_cpus=0).remote()
        place = await_start(ray, [one.open.remote() for one in self._members], n_ranks)[0]
        joined = [
            one.join.remote(rank, n_ranks, place, bool(n_gpus))
            for rank, one in enumerate(self._members)
        ]
        self.nodes = ray.get(joined)

    def run(self, works: Sequence[Callable[..., Any]], hear: Callable[[Any], None]) -> list[Any]:
        """What each process returns of its work; `hear` is called with what they tell."""
        ray = self._ray
        put: dict[int, Any] = {}  # WHY: what all of them share is sent once
        for work in works:
            put.setdefault(id(work), ray.put(work))
        rest = [
            member.run.remote(put[id(work)], self._ear)
            for member, work in zip(self._members, works, strict=True)
        ]
        results = {}
        ranks = {answer: rank for rank, answer in enumerate(rest)}
        while rest:
            ready, rest = ray.wait(rest, timeout=0.2)
            for value in ray.get(self._ear.take.remote()):
                hear(value)
            for answer in ready:
                results[ranks[answer]], error = self._get(answer, rest)
                if error is not None:
                    raise error
        for value in ray.get(self._ear.take.remote()):
            hear(value)
        return [results[rank] for rank in range(len(works))]

    def _get(self, answer: Any, rest: list[Any]) -> Any:
        """An answer; where there is none because another process died, that one's error."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.RayTaskError:
            # Those that live lose their peer, each in its own time: the death is one among many.
            end = time.monotonic() + _PATIENCE
            while rest and time.monotonic() < end:
                ended, rest = self._ray.wait(rest, timeout=end - time.monotonic())
                for other in ended:
                    with suppress(errors.RayTaskError):
                        self._ray.get(other)
            raise

    def close(self) -> None:
        """End the processes."""
        for one in (*self._members, self._ear):
            self._ray.kill(one)


def run_again(
    start: Callable[[], Group],
    make: Callable[[], Sequence[Callable[..., Any]]],
    hear: Callable[[Any], bool],
) -> tuple[Group, list[Any]]:
    """Run what `make` makes in a group; in another one, made anew, where a process dies.

    Returns
    -------
        The group that it ended in, and what each process returned.
    """
    ray, n_deaths = import_module("ray"), 0

    def note(value: Any) -> None:
        nonlocal n_deaths
        if hear(value):
            n_deaths = 0

    while True:
        group = None
        try:
            group = start()
            return group, group.run(make(), note)
        except BaseException as error:
            where = "?"
            if group is not None:
                where = ", ".join(dict.fromkeys(group.nodes))
                group.close()
            if not isinstance(error, ray.exceptions.RayActorError):
                raise
            n_deaths += 1
            if n_deaths == _TRIES:
                raise OpenFATEError(
                    f"training processes died {_TRIES} times without a step between (nodes "
                    f"{where}); the last one: {line_of(error)}."
                ) from None
