"""Start or find a Ray cluster, and let it do the work for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar, get_args

from openfate.cluster.group import Group, run_again
from openfate.cluster.pool import Pool
from openfate.errors import InputError, OpenFATEError, check_choice, check_integer
from openfate.executor import Embeddings, using
from openfate.records import versions

S = TypeVar("S")
T = TypeVar("T")

# What must be the same everywhere for results to be: bytes of shards, bits of sums.
_SAME = ("openfate", "torch", "numpy", "polars")
_TORCHREC = ("torchrec",)  # and its kernels, which it loads


class RayExecutor:
    """Processes of a Ray cluster: an `openfate.executor.Executor`.

    Parameters
    ----------
    n_workers
        How many processes work at once.
    gpus_per_worker
        GPUs that each of them has for itself.
    embeddings, whole_graph
        See `connect`.
    """

    def __init__(
        self,
        n_workers: int,
        gpus_per_worker: int = 0,
        embeddings: Embeddings = "replicated",
        whole_graph: bool = False,
    ) -> None:
        check_choice("embeddings", embeddings, get_args(Embeddings))
        if whole_graph and embeddings != "replicated":
            raise InputError("whole_graph=True is of embeddings='replicated': choose that one.")
        self.n_workers, self.gpus_per_worker = n_workers, gpus_per_worker
        self.embeddings, self.whole_graph = embeddings, whole_graph
        self._group: Group | None = None
        self._pool: Pool | None = None

    def map(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """What `work` makes of the items, in their order: see `openfate.executor`."""
        # WHY kept: a process imports torch and polars for as long as it predicts a million rows.
        # Either a pool or a group: each needs all cores.
        self._close_group()
        if self._pool is None:
            self._pool = Pool(self.n_workers, self.gpus_per_worker)
        return self._pool.run(work, items)

    def run_together(
        self, make: Callable[[], Sequence[Callable[..., T]]], hear: Callable[[Any], bool]
    ) -> list[T]:
        """Let every process run its work, in one process group: see `openfate.executor`."""
        self._close_pool()
        self._group, results = run_again(self._start, make, hear)
        return results

    def _start(self) -> Group:
        group, self._group = self._group, None
        return group or Group(self.n_workers, self.gpus_per_worker)

    def close(self) -> None:
        """End all processes."""
        self._close_group()
        self._close_pool()

    def _close_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextmanager
def connect(
    address: str = "local",
    *,
    workers: int | None = None,
    gpus_per_worker: int = 0,
    embeddings: Embeddings = "replicated",
    whole_graph: bool = False,
) -> Iterator[RayExecutor]:
    """Let a Ray cluster do the work of the calls inside.

    Parameters
    ----------
    address
        "local": processes of this machine, started now and ended in the end; or a cluster that is
        there: "ray://host:port".  Inside a Ray program, or within another `connect`, "local" is the
        cluster that is in use already, and it is left running.
    workers
        How many processes work at once; by default one for each core, or for each share of GPUs.
    gpus_per_worker
        GPUs that each of them has for itself.
    embeddings
        Of training.  "replicated": every worker has all embeddings, and those that a mini-batch
        touches are exchanged.  "sharded": every worker has its share of them, with Adam's moments,
        and is sent what its rows touch; of `openfate.training.train` on mini-batches of ids.
        "torchrec": the same, sent by TorchRec, which must be installed on every node.
    whole_graph
        Of `fit`.  A mini-batch is cut into a part for each worker, and by default a part is a graph
        of its own, as a smaller mini-batch would be.  True: every worker computes the graph of the
        whole mini-batch, so that the weights are those of one process; it saves no time.

    Raises
    ------
    InputError
        Where Ray is not installed, or the cluster has too few cores or GPUs.
    OpenFATEError
        Where the cluster cannot be reached, or a node has other versions; it names the node.

    Examples
    --------
    >>> import openfate.cluster
    >>> with openfate.cluster.connect("local", workers=2):  # doctest: +SKIP
    ...     FATEClassifier().fit("logs/*.parquet", "click").save("model")
    """
    ray = _import_ray()
    if address != "local" and not address.startswith("ray://"):
        raise InputError(f"address={address!r}: give 'local', or 'ray://host:port'.")
    check_integer("gpus_per_worker", gpus_per_worker, 0)
    if embeddings == "torchrec" and find_spec("torchrec") is None:
        raise InputError(
            "embeddings='torchrec': it is not installed; pip install --no-deps torchrec and "
            "fbgemm-gpu-cpu as docs/howto/cluster.md says, or choose 'sharded'."
        )
    if workers is not None:
        check_integer("workers", workers, 1)
    is_ours = not ray.is_initialized()
    if not is_ours and address != "local":
        raise InputError(
            f"address={address!r}: this process uses a Ray cluster already; give 'local' for that "
            "one, or leave it first."
        )
    if is_ours:
        _start(ray, address, workers, gpus_per_worker)
    try:
        n_workers = _count_workers(ray, address, workers, gpus_per_worker)
        check_nodes(ray, (*_SAME, *(_TORCHREC if embeddings == "torchrec" else ())))
        one = RayExecutor(n_workers, gpus_per_worker, embeddings, whole_graph)
        try:
            with using(one):
                yield one
        finally:
            one.close()
    finally:
        if is_ours:
            ray.shutdown()


def _import_ray() -> Any:
    # WHY: Ray would tell GPU-less workers that there are no GPUs by a variable, and warn of it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install 'openfate[cluster]'.") from None
    return ray


def _start(ray: Any, address: str, workers: int | None, gpus_per_worker: int) -> None:
    # WHY one thread: each core has a process already.  Polars reads its number once, at import.
    environment = {"env_vars": {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}}
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        n_workers = workers or os.cpu_count() or 1
        gpus = {"num_gpus": n_workers * gpus_per_worker} if gpus_per_worker else {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=n_workers, include_dashboard=False, runtime_env=environment, **gpus, **quiet
        )
        return
    try:
        ray.init(address=address, runtime_env=environment, **quiet)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = " ".join([*lines[:1], *lines[1:][-1:]]).rstrip(".") or repr(error)
        raise OpenFATEError(
            f"{address}: no Ray cluster answers there ({what}); is `ray start --head "
            "--ray-client-server-port PORT` running there, and has this process the same "
            "RAY_AUTH_MODE?"
        ) from None


def _count_workers(ray: Any, address: str, workers: int | None, gpus_per_worker: int) -> int:
    there = ray.cluster_resources()
    most = int(there.get("CPU", 0))
    if gpus_per_worker:
        most = min(most, int(there.get("GPU", 0)) // gpus_per_worker)
    if workers is not None and workers > most:
        each = f" and {gpus_per_worker} GPUs" if gpus_per_worker else ""
        raise InputError(
            f"workers={workers}: the cluster {address} has {int(there.get('CPU', 0))} cores and "
            f"{int(there.get('GPU', 0))} GPUs, and a worker takes a core{each}; give {most} or "
            "fewer."
        )
    if not most:
        raise InputError(
            f"the cluster {address} has no core, or too few GPUs, for a worker; add a node, or ask "
            "for fewer GPUs."
        )
    return workers or most


def check_nodes(ray: Any, names: Sequence[str]) -> None:
    """Refuse a cluster of which a node lacks a package, or has another version of it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(names: Sequence[str]) -> dict[str, str]:
        # WHY within: a function of this module could not be read where the package is missing.
        import platform
        from importlib.metadata import PackageNotFoundError, version

        found = {"python": platform.python_version()}
        for name in names:
            try:
                found[name] = version(name).partition("+")[0]  # 2.13.0+cpu and 2.13.0+cu130
            except PackageNotFoundError:
                found[name] = "none"
        return found

    own = {name: text for name, text in versions(*names).items() if name != "machine"}
    own = {name: text.partition("+")[0] for name, text in own.items()}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = [
        ray.remote(look)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], False))
        .remote(names)
        for n in nodes
    ]
    for node, answer in zip(nodes, asked, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            found = ray.get(answer, timeout=120)
        except ray.exceptions.RayError as error:
            raise OpenFATEError(
                f"node {name} does not answer ({type(error).__name__}): is it up?"
            ) from None
        for what, text in own.items():
            if found[what] == "none":
                raise OpenFATEError(
                    f"node {name} has no {what}: install 'openfate[cluster]' {own['openfate']} "
                    "there."
                )
            if found[what] != text:
                raise OpenFATEError(
                    f"node {name} has {what} {found[what]}, this process {text}: install the same "
                    "versions everywhere."
                )
