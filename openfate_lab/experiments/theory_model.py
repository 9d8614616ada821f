"""The model that section 3 of the paper analyses, trained the way its proof assumes.

    y_i = sigmoid(sum_j x_ij w_hat_j Phi),   W_hat = D_c^-1 X^T D_r^-1 X W

An embedding and one linear layer without bias; a graph network of two rounds of mean pooling that
has no weights; plain SGD on full batches, each step on the columns of k fields drawn anew, nothing
hidden.  There is no validation: the last step's weights are kept.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openfate.graph import Edges, features_to_rows, rows_to_features
from openfate.models import FATE, MLP
from openfate.table import MultiHot
from openfate.training import Settings, train

__all__ = ["MeanPooling", "theory_model", "train_theory_model"]


class MeanPooling(nn.Module):
    """Each row the mean of its features, then each feature the mean of its rows: no weights.

    Shapes
    ------
    states (D, H), output alike
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, states: Tensor, edges: Edges) -> Tensor:
        """States of the features after two rounds."""
        rows = features_to_rows(edges.to_rows, states) / _at_least_one(edges.to_rows.row_degree)
        features = rows_to_features(edges.to_features, rows)
        return features / _at_least_one(edges.to_features.feature_degree)


def _at_least_one(degree: Tensor) -> Tensor:
    return degree.clamp(min=1)[:, None].float()


def theory_model(n_features: int, width: int = 8) -> FATE:
    """The model, untrained, over D features; every feature uses the graph network's output."""
    backbone = MLP(width, n_outputs=1, hidden=())
    bias = cast("nn.Linear", backbone.layers[0]).bias
    nn.init.zeros_(bias).requires_grad_(False)  # PAPER: Phi in R^(H x 1) alone
    return FATE(n_features, backbone, MeanPooling(width), recompose="all")


def train_theory_model(
    X: MultiHot,
    y: NDArray[np.integer],
    field_of: NDArray[np.integer],
    *,
    n_kept: int,
    steps: int,
    lr: float,
    seed: int,
) -> FATE:
    """Train on a table (N, D) with classes y (N,) of 0 and 1: `steps` steps of SGD.

    Parameters
    ----------
    field_of
        (D,) the field of each feature.
    n_kept
        k, the fields whose columns a step sees.
    """
    torch.manual_seed(seed)
    model = theory_model(X.n_features)
    settings = Settings(
        masking="k_shot",
        unit="field",
        reading="columns",
        n_kept=n_kept,
        n_draws=1,
        drop_edge=0.0,
        untrained="leave",
        epochs=steps,
        lr=lr,
        optimizer="sgd",
    )
    train(model, X, y, settings, field_of=field_of, seed=seed)
    return model
