"""Functions of native.c, for tables in float32 on a CPU: what torch does, in one call each.

WHY: a step of a small table is dozens of calls of a few microseconds each, most of which ask what
to do.  The library is compiled when the package is installed where there is a C compiler.  Without
it `LIBRARY` is None and callers do the same in torch: the sums of a graph without edge values to
the bit, all else up to rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import Array, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from openfate.errors import InputError

_VERSION = 1  # of what the functions take: the same in native.c
_PLAIN = (Tensor, Parameter)
_WIDEST = 32  # of a layer; also in native.c
_LARGE = 1 << 17  # numbers in a tensor; beyond, several threads of torch are faster than one here


class Direction(ctypes.Structure):
    """A CSR direction of a graph, whose index leads into a table of `n_table` rows."""

    _fields_ = (
        *((name, c_int64) for name in ("n_segments", "n_edges", "n_table")),
        *((name, c_void_p) for name in ("ptr", "index", "value")),
    )

    @classmethod
    def of(cls, ptr: Tensor, index: Tensor, value: Tensor | None, n_table: int) -> Direction:
        """Of tensors that outlive it."""
        _check(value is None or value.numel() == index.numel())
        sizes = ptr.numel() - 1, index.numel(), n_table
        return cls(*sizes, ptr.data_ptr(), index.data_ptr(), _address(value))


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("libnative.so")))
    except OSError:
        return None
    version = getattr(library, "version", None)
    if version is None or version() != _VERSION:  # compiled from another source
        return None
    n, p = c_int64, c_void_p
    library.segment_sums.argtypes = (Direction, p, p, n)
    library.keep_edges.argtypes = (Direction, p, p, n, p, p, p, p)
    library.layers.argtypes = (n, n, p, p, p, p, p)
    library.layers_back.argtypes = (n, n, p, p, p, p, p, p, p, p)
    library.walk.argtypes = (Direction, Direction, p, p, n, n, n, n, n, p, p, p, p, p)
    return library


LIBRARY = _load()


def takes(integers: Iterable[Tensor | None], *floats: Tensor | None) -> bool:
    """Whether the library is there and made for these: int32 and float32, contiguous on a CPU.

    WHY not while a model is traced: what is done here leaves no trace.  WHY not of floats that
    autograd follows: who asks calls it within a function of autograd, unless a second derivative is
    wanted, which torch alone can give.
    """
    if LIBRARY is None or torch.compiler.is_compiling():
        return False
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    # WHY a plain loop, and the type: this is asked at every call; and what stands for a tensor
    # while a model is exported has no memory.
    is_large, is_followed = False, torch.is_grad_enabled()
    for tensors, dtype in ((integers, torch.int32), (floats, torch.float32)):
        for each in tensors:
            if each is None:
                continue
            if each.dtype is not dtype or type(each) not in _PLAIN:
                return False
            if not each.is_contiguous() or not each.is_cpu:
                return False
            if is_followed and each.requires_grad:
                return False
            is_large |= each.numel() > _LARGE
    return not is_large or torch.get_num_threads() == 1


def segment_sums(table: Tensor, index: Tensor, ptr: Tensor, values: Tensor | None) -> Tensor:
    """As `openfate.graph.bipartite.segment_sums`, of a contiguous table whose width is eights."""
    assert LIBRARY is not None
    out = table.new_empty(ptr.numel() - 1, table.size(1))
    direction = Direction.of(ptr, index, values, table.size(0))
    _check(LIBRARY.segment_sums(direction, table.data_ptr(), out.data_ptr(), table.size(1)))
    return out


def keep_edges(
    keep: Tensor, order: Tensor | None, ptr: Tensor, index: Tensor, value: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `openfate.graph.bipartite._left`, where `keep` (E,) is contiguous."""
    assert LIBRARY is not None
    if order is not None:
        order = order.long().contiguous()
    _check(keep.numel() == index.numel() and (order is None or order.numel() == index.numel()))
    n_kept = int(np.count_nonzero(keep.numpy()))
    new_ptr, upto = torch.empty_like(ptr), ptr.new_empty(index.numel() + 1)
    left = index.new_empty(n_kept + 1)
    new_value = None if value is None else value.new_empty(n_kept + 1)
    _check(
        LIBRARY.keep_edges(
            *(Direction.of(ptr, index, value, 0), keep.data_ptr(), _address(order), n_kept),
            *(upto.data_ptr(), new_ptr.data_ptr(), left.data_ptr(), _address(new_value)),
        )
    )
    return new_ptr, left[:n_kept], None if new_value is None else new_value[:n_kept]


def walk(
    states: Tensor,
    wanted: Tensor | None,
    directions: tuple[Direction, Direction],
    degrees: tuple[Tensor, Tensor],
    n_steps: int,
    constant: bool,
) -> tuple[Tensor, Tensor]:
    """As `openfate.models.walk._torch_steps`, of the directions to rows and to features."""
    assert LIBRARY is not None
    (n_features, width), (feature_ptr, row_ptr) = states.shape, degrees
    n_rows, (here, back) = row_ptr.numel() - 1, directions
    _check(n_steps >= 1 and (wanted is None or wanted.is_cpu))
    _check(here.n_segments == back.n_table == n_rows)
    _check(back.n_segments == here.n_table == feature_ptr.numel() - 1 == n_features)
    if wanted is not None:
        wanted, width = wanted.long().contiguous(), wanted.numel()
    n_signals = n_features if wanted is None else width
    n_columns = walk_columns(width, constant)
    room = states.new_empty((n_features + n_rows) * (2 * n_columns + 1))
    walked = states.new_empty(n_features, width)
    signal = states.new_empty(n_signals, n_steps * constant)
    _check(
        LIBRARY.walk(
            *(*directions, feature_ptr.data_ptr(), row_ptr.data_ptr(), n_steps, n_columns, width),
            *(constant, wanted is not None, states.data_ptr(), _address(wanted)),
            *(room.data_ptr(), walked.data_ptr(), signal.data_ptr()),
        )
    )
    return walked, signal


class Layers(NamedTuple):
    """The shape of a thin network, for rows of which so many numbers are kept."""

    n_rows: int
    n_layers: int
    sizes: Array[c_int64]  # the input's first
    parameters: Array[c_void_p]  # weight and bias of each layer; who has it holds them
    eights: list[int]  # of numbers that each layer leaves for a row

    @classmethod
    def of(cls, z: Tensor, parameters: Sequence[Tensor]) -> Layers | None:
        """Of rows (N, n_in); None where the library is not made for them."""
        n_rows, n_in = z.shape
        sizes = [n_in, *(bias.numel() for bias in parameters[1::2])]
        if n_in % 8 or max(sizes) > _WIDEST or not takes((), z, *parameters):
            return None
        shapes = zip(sizes[1:], sizes[:-1], strict=True)
        if any(w.shape != shape for w, shape in zip(parameters[::2], shapes, strict=True)):
            return None  # torch tells what is wrong
        eights = [-(-size // 8) for size in sizes[1:]]
        all_sizes = (c_int64 * len(sizes))(*sizes)
        return cls(n_rows, len(eights), all_sizes, _addresses(parameters), eights)


def layers(net: Layers, z: Tensor) -> tuple[Tensor, Tensor]:
    """An MLP with ReLU between its layers: rows (N, n_in) to (n_outputs, N), and what is kept."""
    assert LIBRARY is not None
    kept = z.new_empty(net.n_rows, 8 * sum(net.eights))
    out = z.new_empty(net.sizes[net.n_layers], net.n_rows)
    LIBRARY.layers(*net[:-1], z.data_ptr(), kept.data_ptr(), out.data_ptr())
    return out, kept


def layers_back(
    z: Tensor, kept: Tensor, grad: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The gradients at the rows of `layers` and at its parameters, from that at what it returns."""
    assert LIBRARY is not None
    net = Layers.of(z, parameters)  # WHY again: parameters may lie elsewhere by now
    if net is None or kept.numel() != 8 * net.n_rows * sum(net.eights):
        raise InputError(
            "the network changed its type or shape between a prediction and its gradient: "
            "change it before or after both."
        )
    at_z, at_parameters = torch.empty_like(z), [torch.empty_like(each) for each in parameters]
    room = z.new_empty(2, net.n_rows, 8 * max(net.eights))
    LIBRARY.layers_back(
        *(*net[:-1], z.data_ptr(), kept.data_ptr(), grad.data_ptr(), room.data_ptr()),
        *(_addresses(at_parameters), at_z.data_ptr()),
    )
    return at_z, at_parameters


def _addresses(tensors: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * len(tensors))(*[each.data_ptr() for each in tensors])


def walk_columns(width: int, constant: bool) -> int:
    """Columns of the table of a walk: a constant takes two more."""
    # WHY: vector instructions take columns by eights: 16 of them in less time than 9.
    return -(-max(1, width + 2 * constant) // 8) * 8


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(fine: int) -> None:
    if not fine:
        raise InputError(
            "an edge of the graph leads to a row or feature that is not there, or its lists do not "
            "belong together: build it by Bipartite.from_multihot."
        )
