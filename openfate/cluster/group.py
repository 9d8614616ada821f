"""Processes that train together, in one torch process group.

Plain actors and `torch.distributed` (gloo on CPUs, NCCL on GPUs) instead of Ray Train: what its
TorchTrainer adds is a storage path for checkpoints, a controller and a data layer, none of which is
needed where a run hands out its checkpoints itself, and which took longer to start than small
tables take to fit.
"""

from __future__ import annotations

import datetime
import platform
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from openfate.errors import OpenFATEError

_TRIES = 4  # groups that are started for one run
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

    def address(self) -> str:
        """Where the others can meet this process."""
        node = import_module("ray").util.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{node}:{free.getsockname()[1]}"

    def join(self, rank: int, n_ranks: int, address: str, on_gpus: bool) -> str:
        """Meet the others; the name of this node."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            init_method=address,
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
        except OpenFATEError as error:
            return None, error
        except (MemoryError, RuntimeError) as error:
            full = ("allocate memory", "out of memory")  # torch's words for the CPU and the GPU
            if not isinstance(error, MemoryError) and not any(text in str(error) for text in full):
                raise
            return None, OpenFATEError(
                f"node {platform.node()}: memory is full; give smaller mini-batches or widths, or "
                "embeddings='sharded' and more workers."
            )


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
        # WHY the driver's node: what was told outlives every member.
        self._ear = ray.remote(Ear).options(num_cpus=0).remote()
        address = ray.get(self._members[0].address.remote())
        self.nodes = ray.get(
            [
                one.join.remote(rank, n_ranks, address, bool(n_gpus))
                for rank, one in enumerate(self._members)
            ]
        )

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
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError:
            ended, _ = self._ray.wait(rest, num_returns=1, timeout=_PATIENCE) if rest else ([], [])
            for other in ended:
                self._ray.get(other)
            raise

    def close(self) -> None:
        """End the processes."""
        for one in (*self._members, self._ear):
            self._ray.kill(one)


def run_again(
    start: Callable[[], Group],
    make: Callable[[], Sequence[Callable[..., Any]]],
    hear: Callable[[Any], None],
) -> tuple[Group, list[Any]]:
    """Run what `make` makes in a group; in another one, made anew, where a process dies.

    Returns
    -------
        The group that it ended in, and what each process returned.
    """
    import ray

    for n_deaths in range(_TRIES):
        group = None
        try:
            group = start()
            return group, group.run(make(), hear)
        except ray.exceptions.RayActorError as error:
            if n_deaths == _TRIES - 1:
                where = ", ".join(dict.fromkeys(group.nodes)) if group is not None else "?"
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise OpenFATEError(
                    f"training processes died {_TRIES} times (nodes {where}); the last one: "
                    f"{lines[0] if lines else type(error).__name__}"
                ) from None
            if group is not None:
                group.close()
        except BaseException:
            if group is not None:
                group.close()
            raise
    raise AssertionError  # pragma: no cover
