"""DropEdge (paper, Eq. 3): each edge of the graph is removed with probability rho at every step.

REFERENCE: rho is always the probability of REMOVAL; the released UCI code takes it as the
probability of keeping, which differs except at one half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges


def drop_edges(
    graph: Bipartite, rho: float, generator: torch.Generator, directed: bool = False
) -> Edges:
    """Edges that are left after each was removed with probability `rho`.

    Parameters
    ----------
    graph
        The graph; its random numbers come from a generator on the same device.
    rho
        Probability of removal, in steps of 2^-16.
    directed
        REFERENCE: draw feature -> row and row -> feature independently; otherwise an edge is
        removed in both directions (PAPER: Eq. 3 drops entries of X).
    """
    if not 0 <= rho <= 1:
        raise InputError(f"drop_edge={rho} is not a probability: choose a number from 0 to 1.")
    if rho == 0:
        return Edges.of(graph)
    to_rows = graph.keep_edges(_keep(graph, rho, generator))
    if not directed:
        return Edges.of(to_rows)
    return Edges(to_rows, graph.keep_edges(_keep(graph, rho, generator)))


def _keep(graph: Bipartite, rho: float, generator: torch.Generator) -> Tensor:
    """(E,) True with probability 1 - rho."""
    # WHY: four edges share one 64-bit draw; drawing a float for each takes 2.5 times as long.
    draws = torch.empty(graph.n_edges // 4 + 1, dtype=torch.int64, device=generator.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int16)[: graph.n_edges]
    threshold = round(rho * 2**16) - 2**15  # int16 values below it are removed
    if threshold > 2**15 - 1:
        return torch.zeros_like(bits, dtype=torch.bool)
    if bits.device.type == "cpu":  # WHY: numpy compares in a ninth of the time
        return torch.from_numpy(bits.numpy() >= threshold)
    return bits >= threshold
