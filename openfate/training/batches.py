"""What an engine computes a step with: the rows of a mini-batch as a graph, or as bags of cells.

A stream is mini-batches of rows (B, d) of one id for each field, and labels (B,).  They may come
from a disk that holds more than memory: an epoch is an iterable of numpy arrays, read ahead in the
background and turned there into the graph of the batch, which holds only the features that its rows
touch (PAPER: "instance-level mini-batch partition").  Tensors that are on a device already will do
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from openfate.errors import InputError
from openfate.graph import Bipartite
from openfate.seeds import checked_seed
from openfate.table import MultiHot, read_ahead
from openfate.training.lines import Lines

Array = NDArray[Any] | Tensor
Batches = Iterable[tuple[Array, Array]]
T = TypeVar("T")


@dataclass(frozen=True)
class IdBatch:
    """Ids and labels of a mini-batch on the device where they are needed.

    Arrays travel from pinned memory on a stream of their own, while the device computes: call
    `wait` before use.
    """

    ids: Tensor  # (B, d) int32
    y: Tensor  # (B,) float32
    labels: NDArray[np.float32] | None = None  # y on the host, if it came from there
    ready: torch.cuda.Event | None = None

    @classmethod
    def of(cls, ids: Array, y: Array, device: torch.device | str = "cpu") -> IdBatch:
        """Ids (B, d) and labels (B,), arrays or tensors.

        Labels on a device, and ids of 32 bits there, are not looked at: the host does not wait.
        """
        _check_shapes(ids, y)
        ids, y = _on_host(ids), _on_host(y)
        labels = None
        _check_width(ids)
        if not isinstance(y, Tensor):
            check_labels(y)
            labels = y = y.astype(np.float32)
        at = torch.device(device)
        if at.type != "cuda" or isinstance(ids, Tensor) or isinstance(y, Tensor):
            return cls(_moved(ids, torch.int32, at), _moved(y, torch.float32, at), labels)
        side = _copy_stream(at)
        with torch.cuda.stream(side):
            moved = _moved(ids, torch.int32, at), _moved(y, torch.float32, at)
            return cls(*moved, labels, side.record_event())

    def wait(self) -> None:
        """Let the current stream wait until the rows are there."""
        if self.ready is not None:
            now = torch.cuda.current_stream(self.ids.device)
            now.wait_event(self.ready)
            for tensor in (self.ids, self.y):
                tensor.record_stream(now)


@dataclass(frozen=True)
class Batch:
    """Rows over the U features that they touch."""

    X: Bipartite
    ids: Tensor  # (U,) int64, the features behind the columns of X, increasing
    y: Tensor  # (B,) int64 classes, otherwise floating; (B, K) labels
    weight: Tensor | None = None  # (B,)
    whole: bool = False  # whether the features are all of the model's

    @classmethod
    def of(cls, ids: Array, y: Array, device: torch.device | str = "cpu") -> Batch:
        """The graph of rows (B, d), column f holding the feature of field f."""
        batch = IdBatch.of(ids, y, device)
        batch.wait()
        if batch.labels is None:
            check_labels(batch.y)
        # WHY: ids of 32 bits sort in 60 % of the time that those of 64 take.
        X, touched = Bipartite.from_fixed(batch.ids)
        if len(touched):
            check_ids(int(touched[0]))
        return cls(X, touched.long(), batch.y)


@dataclass(frozen=True)
class Bag:
    """Rows of a plain network whose backbone reads one sum of embeddings a row.

    WHY: `embedding_bag` and no graph: nothing is sent back from rows to features.
    """

    ids: Tensor  # (E,) int64 the feature of each entry, ordered by row
    starts: Tensor  # (B,) int64 where each row's entries begin
    value: Tensor | None  # (E,) of each entry; None: all are one
    y: Tensor  # as a `Batch`'s
    weight: Tensor | None
    touched: Tensor | None = None  # (U,) the features that `ids` number; None: all of the model's
    within: Tensor | None = None  # (E,) whether an entry is of the cell of the one before it
    turned: tuple[Tensor, ...] | None = None  # the entries by feature, for the way back

    @classmethod
    def of(cls, X: MultiHot, y: Tensor, weight: Tensor | None, like: Tensor) -> Bag:
        """Rows of a table, on the device and in the precision of `like`."""
        ids = torch.from_numpy(X.ids.astype(np.int64)).to(like.device)
        starts = torch.from_numpy(X.row_ptr[:-1]).to(like.device)
        value = None if X.values is None else torch.from_numpy(X.values).to(like)
        return cls(ids, starts, value, y, weight)

    def with_lines(self, X: MultiHot, lines: Lines | None) -> Bag:
        """The same where the entries of a cell, the knots around its number, are known as such."""
        if lines is None:
            return self
        within = torch.from_numpy(lines.within_cells(X)).to(self.ids.device)
        return replace(self, within=within)

    def over_touched(self, n_features: int, first: NDArray[np.int64]) -> Bag:
        """The same over the features `first` and those that the rows touch beside them."""
        old = self.ids.cpu().numpy()
        is_other = np.zeros(n_features, dtype=bool)
        is_other[old] = True
        is_other[first] = False
        touched = np.concatenate([first, np.flatnonzero(is_other)])
        number = np.empty(n_features, dtype=np.int64)
        number[touched] = np.arange(len(touched))
        new, at = number[old], self.ids.device
        ids, features = (torch.from_numpy(array).to(at) for array in (new, touched))
        turned = self._turn(new, len(touched)) if at.type == "cpu" else None
        return replace(self, ids=ids, touched=features, turned=turned)

    def _turn(self, ids: NDArray[np.int64], n_features: int) -> tuple[Tensor, ...]:
        """Which entry comes where by feature, its row, and where each feature's entries begin."""
        # WHY: numpy sorts 16 bits by counting.
        small = ids.astype(np.uint16) if n_features <= 1 << 16 else ids
        order = np.argsort(small, kind="stable")
        ends = np.append(self.starts.numpy(), len(ids))
        row = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        starts = np.zeros(n_features, dtype=np.int64)
        np.cumsum(np.bincount(ids, minlength=n_features)[:-1], out=starts[1:])
        return tuple(torch.from_numpy(array) for array in (order, row[order], starts))

    def sums(self, W: Tensor, value: Tensor | None) -> Tensor:
        """Sums (B, H + n_own) of embeddings, each entry times its `value` (E,)."""
        if self.turned is None:
            return F.embedding_bag(self.ids, W, self.starts, mode="sum", per_sample_weights=value)
        value = W.new_ones(len(self.ids)) if value is None else value
        if not torch.is_grad_enabled():
            return _bag(W, self.ids, self.starts, value)
        sums: Tensor = _Sums.apply(W, value, self.ids, self.starts, *self.turned)  # type: ignore[no-untyped-call]
        return sums

    def sums_back(self, grad: Tensor, value: Tensor | None) -> Tensor:
        """The gradient (U, H + n_own) at embeddings whose `sums` have this one."""
        assert self.turned is not None
        value = grad.new_ones(len(self.ids)) if value is None else value
        return _bag_back(grad, value, *self.turned)


class _Sums(torch.autograd.Function):
    """`F.embedding_bag`, on a CPU.

    WHY: the way back is a sum over the rows of each feature, which is another bag; torch's own
    takes eight times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, W: Tensor, value: Tensor, ids: Tensor, starts: Tensor, *turned: Tensor
    ) -> Tensor:
        ctx.save_for_backward(value, *turned)
        return _bag(W, ids, starts, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _bag_back(grads[0], *ctx.saved_tensors), *[None] * 6


def _bag_back(grad: Tensor, value: Tensor, order: Tensor, row: Tensor, starts: Tensor) -> Tensor:
    return _bag(grad.contiguous(), row, starts, value[order])


def _bag(table: Tensor, ids: Tensor, starts: Tensor, value: Tensor) -> Tensor:
    # WHY: `F.embedding_bag` asks around for as long as it computes.
    return torch.embedding_bag(table, ids, starts, mode=0, per_sample_weights=value)[0]


def _check_shapes(ids: Array, y: Array) -> None:
    for name, table in (("ids", ids), ("labels", y)):
        if not isinstance(table, np.ndarray | Tensor):
            raise InputError(
                f"a batch's {name} are a {type(table).__name__}: give an array or a tensor."
            )
    if ids.ndim != 2 or not ids.shape[1] or _kind(ids) not in "iu":
        raise InputError(
            f"a batch's ids have the shape {tuple(ids.shape)} and the type {ids.dtype}: "
            "give integers (rows, fields)."
        )
    if tuple(y.shape) != (len(ids),):
        raise InputError(
            f"a batch of {len(ids)} rows has labels of the shape {tuple(y.shape)}; give one for "
            "each row."
        )
    if _kind(y) not in "biuf":
        raise InputError(f"a batch's labels have the type {y.dtype}: give numbers 0 and 1.")


def _kind(table: Array) -> str:
    """The letter by which numpy knows a kind of numbers."""
    if not isinstance(table, Tensor):
        return table.dtype.kind
    if table.dtype == torch.bool:
        return "b"
    return "f" if table.is_floating_point() else "c" if table.is_complex() else "i"


def _check_width(ids: Array) -> None:
    """Refuse ids that would become others as int32, which is how they travel."""
    if isinstance(ids, Tensor):  # on a device
        if ids.dtype != torch.int64 or not len(ids):
            return
        ids = torch.stack(torch.aminmax(ids)).cpu().numpy()  # WHY: so the host waits once
    wide = {"int64": np.uint64, "uint64": np.uint64, "uint32": np.uint32}.get(ids.dtype.name)
    # WHY: seen without a sign, a negative id is a large one: a single pass finds both.
    if wide is None or not len(ids) or ids.view(wide).max() < 2**31:
        return
    check_ids(int(ids.min()))
    raise InputError(f"feature id {int(ids.max())}: ids go up to 2^31 - 1; number from 0 on.")


def check_labels(y: Array) -> None:
    """Refuse a label that is neither 0 nor 1."""
    wrong: Any = (y != 0) & (y != 1)
    if wrong.any():
        raise InputError(f"a label is {y[wrong][0]:g}: clicks are 0 or 1.")


def check_ids(lowest: int) -> None:
    """Refuse a negative id."""
    if lowest < 0:
        raise InputError(f"feature id {lowest}: ids are integers from 0.")


def _on_host(table: Array) -> Array:
    """A tensor of the host as an array."""
    if isinstance(table, Tensor) and table.device.type == "cpu":
        array: NDArray[Any] = table.numpy()
        return array
    return table


def _moved(table: Array, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(table, Tensor):
        return table.to(device, dtype)
    host = torch.empty(table.shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.copyto(host.numpy(), table, casting="unsafe")
    return host.to(device, non_blocking=True)


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def array_batches(
    ids: NDArray[np.integer], y: NDArray[Any], batch_size: int, seed: int | None = None
) -> Callable[[int], Batches]:
    """Batches of arrays that fit in memory, a function of the epoch.

    Parameters
    ----------
    seed
        Shuffle the rows, anew in every epoch; None: keep their order.

    Examples
    --------
    >>> epochs = array_batches(np.array([[0, 2], [1, 2], [0, 3]]), np.array([0, 1, 1]), 2)
    >>> [len(labels) for _, labels in epochs(1)]
    [2, 1]
    """
    seed = None if seed is None else checked_seed(seed)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: choose 1 or more.")

    def epoch(number: int) -> Batches:
        order = np.arange(len(ids))
        if seed is not None:
            order = np.random.default_rng([seed, number]).permutation(len(ids))
        for start in range(0, len(ids), batch_size):
            rows = order[start : start + batch_size]
            yield ids[rows], y[rows]

    return epoch


def prepare_ahead(
    batches: Batches, make: Callable[[Array, Array], T], n_ahead: int = 2
) -> Iterator[T]:
    """What `make` makes of the batches that have rows, `n_ahead` of them in advance."""
    made = (make(ids, y) for ids, y in check_pairs(batches) if len(ids))
    return read_ahead(made, n_ahead) if n_ahead else made


def check_pairs(batches: Batches) -> Iterator[tuple[Array, Array]]:
    """The batches, each a pair of ids and labels.

    Raises
    ------
    InputError
        Where they are something else.
    """
    if not isinstance(batches, Iterable):
        raise InputError(f"batches are a {type(batches).__name__}: give pairs of ids and labels.")
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InputError(
                f"a batch is a {type(batch).__name__}: give a pair of ids (B, d) and labels (B,)."
            )
        yield batch[0], batch[1]
