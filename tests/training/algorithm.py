"""Algorithm 1 of the paper, slowly: dense matrices, every loss written out, no mini-batches."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import reference
import torch
from reference import dense_by_feature, dense_by_row, multihot, random_table, random_values
from torch import Tensor

from openfate.graph import Bipartite, Edges
from openfate.models import FATE, GCN, MLP
from openfate.table import MultiHot
from openfate.training import Settings, drop_edges, k_shot, n_fold
from openfate.training.masking import leave_out

N, D, WIDTH, SEED = 12, 8, 4, 3
FIELDS = np.array([0, 0, 1, 1, 2, 2, 3, 3])
BASE = Settings(epochs=6, n_folds=3, n_draws=3, lr=0.02, lr_extrapolator=0.01)
WEIGHT = np.array([2.0, 0.0, 1.0, 0.5, 0.0, 3.0, 1.0, 1.0, 0.25, 4.0, 0.0, 1.0])
VARIANTS = {
    "default": {},
    "no DropEdge": {"drop_edge": 0.0},
    "directed DropEdge": {"drop_edge_directed": True},
    "all edges dropped": {"drop_edge": 1.0},
    "joint updates": {"async_updates": False},
    "accumulated backbone": {"accumulate_backbone": True},
    "hidden overwritten": {"overwrite_hidden": True},
    "reference folds": {"reference_folds": True, "n_folds": 5},
    "k-shot": {"masking": "k_shot", "n_kept": 5},
    "k-shot fields": {"masking": "k_shot", "n_kept": 2, "unit": "field"},
    "k-shot columns": {"masking": "k_shot", "n_kept": 5, "reading": "columns"},
    "k-shot columns of fields": {
        "masking": "k_shot",
        "n_kept": 2,
        "unit": "field",
        "reading": "columns",
    },
    "leave out": {"masking": "leave_out", "left_out": 0.4},
    "no masking": {"masking": "none"},
    "plain SGD": {"optimizer": "sgd", "lr": 0.3, "lr_extrapolator": 0.1},
    "AdamW": {"optimizer": "adamw", "weight_decay": 0.1},
}


def make_rows(seed: int = 0, with_values: bool = False) -> tuple[MultiHot, np.ndarray]:
    """Twelve rows, the first without features, and their labels; feature 1 has no row."""
    X = random_table(seed, N, D, share=0.5)
    values = random_values(seed, N, D) if with_values else None
    return multihot(X, values), np.random.default_rng(seed).permutation(np.arange(N) % 3)


def make_model(
    g: torch.nn.Module | str | None = "gcn", recompose: str = "masked", n_outputs: int = 3
) -> FATE:
    """In double precision, so that two algorithms that agree agree to many digits."""
    torch.manual_seed(0)
    extrapolator = GCN(WIDTH, 2) if g == "gcn" else g
    return FATE(D, MLP(WIDTH, n_outputs), extrapolator, recompose=recompose).double()


def distance(one: FATE, other: FATE) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def draw_masks(s: Settings, rng: torch.Generator) -> Tensor:
    if s.masking == "n_fold":
        return n_fold(D, s.n_folds, rng, s.reference_folds)
    if s.masking == "k_shot":
        units = torch.from_numpy(FIELDS) if s.unit == "field" else torch.arange(D)
        return k_shot(units, s.n_kept, s.n_draws, rng)
    return leave_out(D, s.left_out, rng) if s.masking == "leave_out" else torch.ones(1, D).bool()


def dense_outputs(model: FATE, graph: Bipartite, kept: Tensor, edges: Edges) -> Tensor:
    """The outputs under one mask, with dense matrices throughout."""
    g, X, values = model.extrapolator, dense_by_row(graph), None
    if graph.value is not None:
        values = dense_by_row(graph, with_values=True)
        X = values

    def extrapolate(states: Tensor) -> Tensor:
        ways = dense_by_row(edges.to_rows), dense_by_feature(edges.to_features)
        return reference.gcn(states, *ways, list(g.P), list(g.bias), values)

    run_g = None if g is None else extrapolate
    return reference.fate(model.W, kept, X, run_g, model.backbone, model.recompose)


def algorithm_1(
    model: FATE, X: MultiHot, y: np.ndarray, s: Settings, weight: np.ndarray | None = None
) -> FATE:
    """The box of the paper, on a copy of the model."""
    model, graph, y = copy.deepcopy(model), Bipartite.from_multihot(X), torch.from_numpy(y)
    w = None if weight is None else torch.from_numpy(weight)
    masks_rng, edges_rng = (torch.Generator().manual_seed(SEED + i) for i in range(2))
    adam = partial(torch.optim.AdamW, weight_decay=s.weight_decay, foreach=False)
    make = partial(torch.optim.SGD, foreach=False) if s.optimizer == "sgd" else adam
    theta = make([model.W, *model.backbone.parameters()], s.lr)
    omega_list = [] if model.extrapolator is None else list(model.extrapolator.parameters())
    omega = make([*omega_list, torch.zeros(1)], s.lr_extrapolator)
    model.W.data[X.feature_degree == 0] = 0
    fixed = draw_masks(s, masks_rng) if s.masking == "leave_out" else None
    for _ in range(s.epochs):
        theta.zero_grad()
        omega.zero_grad()
        for kept in draw_masks(s, masks_rng) if fixed is None else fixed:
            if s.overwrite_hidden:
                model.W.data[~kept] = 0
            G = graph.keep_features(kept) if s.reading == "columns" else graph
            edges = Edges.of(G)
            if model.extrapolator is not None:
                edges = drop_edges(G, s.drop_edge, edges_rng, s.drop_edge_directed)
            if not s.accumulate_backbone:
                theta.zero_grad()
            outputs = dense_outputs(model, G, kept, edges)
            reference.mean_loss(s.loss, outputs, y, w).backward()
            theta.step()
            if not s.async_updates:
                omega.step()
                omega.zero_grad()
        if s.async_updates:
            omega.step()
    return model
