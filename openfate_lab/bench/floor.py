"""The least time that a part of a step could take: bytes that must move, products to multiply.

    B rows, d ids in each, E = B d edges, U features that occur, H width, h hidden units, float32

Bytes are those of a program that reads and writes everything once (the algebra is that of
`openfate.models.extrapolator`); peaks are measured on the machine, in the same run.  The share of
the floor that a part reaches is floor / time: one is perfect, and where a cache holds the data even
more than one is possible, because the peak is that of main memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openfate_lab.bench.record import now


@dataclass(frozen=True)
class Floor:
    """What a part must move and multiply at least."""

    n_bytes: float = 0.0
    flops: float = 0.0

    def milliseconds(self, peaks: Peaks) -> float:
        """The longer of the two, at the machine's peaks."""
        return max(self.n_bytes / peaks.bytes_per_second, self.flops / peaks.flops) * 1e3


@dataclass(frozen=True)
class Peaks:
    """What the machine can do: bytes a second of a copy, multiply-adds (as two) of a product."""

    bytes_per_second: float
    flops: float

    @classmethod
    def measure(cls, device: str = "cpu", n_numbers: int | None = None) -> Peaks:
        """Copy a table that no cache holds, and multiply two square matrices; best of five."""
        n = n_numbers or (2**28 if device == "cuda" else 2**24)
        source = torch.zeros(n, device=device)
        target = torch.ones_like(source)
        side = 8192 if device == "cuda" else 1024
        a, b = torch.ones(2, side, side, device=device)
        copies, products = [], []
        for _ in range(5):
            start = now(device)
            target.copy_(source)
            copied = now(device)
            torch.mm(a, b)
            copies.append(copied - start)
            products.append(now(device) - copied)
        return cls(8 * n / min(copies), 2 * side**3 / min(products))


def _network(n_rows: int, width: int, hidden: Sequence[int], n_outputs: int) -> float:
    """Multiply-adds, as two each, of layers there and back."""
    sizes = [width, *hidden, n_outputs]
    return 6.0 * n_rows * sum(i * o for i, o in itertools.pairwise(sizes))


def clicks_floor(
    n_rows: int, n_fields: int, n_touched: int, hidden: Sequence[int], n_steps: int
) -> dict[str, Floor]:
    """Of a mini-batch of clicks: GraphSAGE of 2 layers, H = 10; `n_steps` 0 for a prediction."""
    H, E, U = 10, n_rows * n_fields, n_touched
    passes, states = (3, 8) if n_steps == 0 else (6, 16)  # there, or there and back
    steps = max(1, n_steps)
    network = _network(n_rows, H, hidden, 1) / (3 if n_steps == 0 else 1)
    floors = {
        "sort": Floor(12 * E),  # ids read; order and ids written
        "sums": Floor(steps * (passes * 4 * E + states * n_rows * H + 8 * U * H)),
        "network": Floor(flops=steps * network),
    }
    return floors if n_steps == 0 else floors | {"optimizer": Floor(steps * 36 * U * H)}


def table_floor(
    n_rows: int, n_features: int, n_edges: int, n_outputs: int, n_steps: int
) -> dict[str, Floor]:
    """Of an epoch on a table: GCN of 4 layers, H = 8, half of the edges dropped in each step."""
    H, hidden = 8, (8, 8)
    # Six sparse products in four passes, there and back, and the sum that the network reads.
    walk = 8 * (4 * n_edges / 2 + 8 * n_rows * H)
    read = 2 * (4 * n_edges + 4 * n_rows * H)
    if n_steps == 0:  # a prediction: all edges, one way
        walk, read = 4 * (4 * n_edges + 8 * n_rows * H), 4 * n_edges + 4 * n_rows * H
        network = Floor(flops=_network(n_rows, H, hidden, n_outputs) / 3)
        return {"sums": Floor(walk + read), "network": network}
    return {
        "drop_edge": Floor(n_steps * (2 + 2 * 4) * n_edges),  # bits drawn; half of two lists copied
        "sums": Floor(n_steps * (walk + read)),
        "network": Floor(flops=n_steps * _network(n_rows, H, hidden, n_outputs)),
        "optimizer": Floor(n_steps * 28 * (n_features * H + 200)),
    }
