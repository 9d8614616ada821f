"""What a training step does not see: hidden features, and edges that DropEdge removes.

Proxy data (paper, section 2.2): every rule returns masks `kept` (S, D), one per step: True where
the step may use a feature's own embedding.  Random numbers come from a CPU generator: a seed gives
the same masks everywhere.

DropEdge (paper, Eq. 3): each edge of the graph is removed with probability rho at every step.
REFERENCE: rho is always the probability of REMOVAL; the released UCI code takes it as the
probability of keeping, which differs except at one half.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from openfate.errors import InputError
from openfate.graph import Bipartite, Edges
from openfate.training.settings import Settings


def draw_masks(
    settings: Settings, n_features: int, generator: torch.Generator, unit_of: Tensor | None = None
) -> Tensor:
    """Masks (S, D) of one iteration; `unit_of` (D,) is what k-shot samples, features by default."""
    s = settings
    if s.masking == "n_fold":
        return n_fold(n_features, s.n_folds, generator, reference=s.reference_folds)
    if s.masking == "leave_out":
        return leave_out(n_features, s.left_out, generator)
    if s.masking == "k_shot":
        unit_of = torch.arange(n_features) if unit_of is None else unit_of
        assert s.n_kept is not None
        return k_shot(unit_of, s.n_kept, s.n_draws, generator)
    return torch.ones(1, n_features, dtype=torch.bool)


def n_fold(
    n_features: int, n_folds: int, generator: torch.Generator, reference: bool = False
) -> Tensor:
    """Shuffle the features and hide each of `n_folds` even parts once: (n_folds, D).

    Parameters
    ----------
    reference
        REFERENCE: the released code rounds 1 / (1 - 0.8) up to six folds, whose last hides a stray
        feature or none; ours are exactly n.

    Examples
    --------
    >>> n_fold(6, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([4, 4, 4])
    """
    if n_folds < 2:
        raise InputError(f"n_folds={n_folds}: choose 2 or more, or nothing is kept to learn from.")
    order = torch.randperm(n_features, generator=generator)
    if reference:
        hidden_share = 1 - (1 - 1 / n_folds)  # 0.19999999999999996 for five folds
        cuts = [int(i * hidden_share * n_features) for i in range(math.ceil(1 / hidden_share) + 1)]
        parts = [order[start:end] for start, end in itertools.pairwise(cuts)]
    else:
        parts = list(order.tensor_split(n_folds))
    kept = torch.ones(len(parts), n_features, dtype=torch.bool)
    for fold, hidden in enumerate(parts):
        kept[fold, hidden] = False
    return kept


def k_shot(unit_of: Tensor, n_kept: int, n_draws: int, generator: torch.Generator) -> Tensor:
    """Keep `n_kept` units, drawn without replacement anew for each step: (n_draws, D).

    Parameters
    ----------
    unit_of
        (D,) the unit of each feature: its field (PAPER: "we randomly sample k raw features"), or
        ``torch.arange(D)`` to sample features themselves.
    """
    if n_draws < 1:
        raise InputError(f"n_draws={n_draws}: choose 1 or more.")
    units, place = torch.unique(unit_of, return_inverse=True)
    if not 1 <= n_kept <= len(units):
        raise InputError(
            f"n_kept={n_kept}: there are {len(units)} to sample from, choose 1..{len(units)}."
        )
    kept = torch.zeros(n_draws, len(units), dtype=torch.bool)
    for draw in kept:
        draw[torch.randperm(len(units), generator=generator)[:n_kept]] = True
    return kept.index_select(1, place)


def leave_out(n_features: int, share: float, generator: torch.Generator) -> Tensor:
    """Hide one random `share` of the features: (1, D).

    PAPER: appendix, "leave-one-out, which leave out partial features as a fixed set for masking in
    training": draw it once and use it for the whole run.  The paper does not give the share.
    """
    if not 0 <= share <= 1:
        raise InputError(f"left_out={share} is not a share of the features: choose from 0 to 1.")
    kept = torch.ones(1, n_features, dtype=torch.bool)
    n_hidden = math.ceil(round(share * n_features, 6))  # WHY: .07 of 100 is a little more than 7
    kept[0, torch.randperm(n_features, generator=generator)[:n_hidden]] = False
    return kept


# ---- DropEdge -----------------------------------------------------------------------------------


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
