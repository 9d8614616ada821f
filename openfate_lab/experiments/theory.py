"""Section 3 of the paper: Theorem 1 as numbers, and the model that it analyses.

The bound on the generalisation gap, in log space:

    gap <= 2 gamma + (4 M gamma + lambda) sqrt(ln(1 / delta) / 2 M)       with probability 1 - delta
    gamma = (2 beta / M) ((1 + c)^T - 1)

    d fields, k of them in each sub-matrix of the training table, M = C(d, k) sub-matrices (times
    C(N, B) with mini-batches), T steps of SGD with step size lr; beta and beta' are the Lipschitz
    constants of the loss and its gradient, lambda the largest loss.

Three readings:

    as_printed       Theorem 1 as it stands: the second bracket is 4 gamma / M + lambda; c = beta' d
    as_derived       what its proof (Theorem 2) gives: 4 M gamma + lambda; c = beta' d
    with_step_size   the proof's recursion drops the step size; with it c = lr beta' d

The model, trained the way the proof assumes:

    y_i = sigmoid(sum_j x_ij w_hat_j Phi),   W_hat = D_c^-1 X^T D_r^-1 X W

An embedding and one linear layer without bias; a graph network of two rounds of mean pooling that
has no weights; plain SGD on full batches, each step on the columns of k fields drawn anew, nothing
hidden.  There is no validation: the last step's weights are kept.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openfate.errors import InputError
from openfate.graph import Edges, features_to_rows, rows_to_features
from openfate.models import FATE, MLP
from openfate.table import MultiHot
from openfate.training import Settings, train

READINGS = ("as_printed", "as_derived", "with_step_size")
# Of the loss and of its gradient: 1/4 bounds the derivative of a sigmoid (the paper's proof uses
# 1); the largest loss; and the probability with which the bound fails.
BETA, BETA_PRIME, LAMBDA, DELTA = 1.0, 0.25, 1.0, 0.05

_LN10 = math.log(10)


def generalization_report(d: int, k: int, T: int, lr: float) -> dict[str, Any]:
    """What the bound of Theorem 1 says: an order-of-magnitude diagnostic, not a guarantee.

    The proof takes the M sub-matrices for independent draws, which they are not (they overlap), and
    is about SGD on a logistic model in W Phi without masks: neither holds for a trained FATE.  M
    counts subsets, not information.

    Parameters
    ----------
    d, k
        Observed fields, and those of a sub-matrix.
    T, lr
        Steps and step size of SGD.

    Returns
    -------
    dict
        `log10_M`; `readings`, for each the log10 of gamma, of both terms and of the bound, whether
        it is `vacuous` (not below lam, which holds without a theorem) and `largest_T`, the most
        steps for which it is not; `convex_sgd`, the alternative.

    Examples
    --------
    >>> robot = generalization_report(d=24, k=19, T=1000, lr=0.01)
    >>> printed, derived, with_lr = robot["readings"].values()
    >>> round(printed["log10_gamma"]), round(with_lr["log10_gamma"]), with_lr["largest_T"]
    (841, 21, 52)
    """
    _check(d, k, T, lr)
    log_M = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
    # ln sqrt(ln(1 / delta) / 2 M), the width of the second term
    log_s = 0.5 * (math.log(math.log(1 / DELTA) / 2) - log_M)
    readings = {}
    for reading in READINGS:
        c = BETA_PRIME * d * (lr if reading == "with_step_size" else 1.0)
        log_a = math.log(4) + (-log_M if reading == "as_printed" else log_M)
        scale = math.log(2 * BETA) - log_M  # ln 2 beta / M
        log_gamma = scale + _log_expm1(T * math.log1p(c))
        first = math.log(2) + log_gamma
        second = _log_add(log_a + log_gamma, math.log(LAMBDA)) + log_s
        bound = _log_add(first, second)
        readings[reading] = {
            "log10_gamma": log_gamma / _LN10,
            "log10_first_term": first / _LN10,
            "log10_second_term": second / _LN10,
            "log10_bound": bound / _LN10,
            "vacuous": bound >= math.log(LAMBDA),
            "largest_T": _largest_steps(c, scale, log_a, log_s),
        }
    return {
        "log10_M": log_M / _LN10,
        "readings": readings,
        "convex_sgd": _convex_sgd(d, k, T, lr),
    }


def _largest_steps(c: float, scale: float, log_a: float, log_s: float) -> int:
    """The most steps T with 2 gamma + (a gamma + lambda) s < lambda; 0 where there is none."""
    if log_s >= 0:
        return 0
    # gamma < lambda (1 - s) / (2 + a s), and gamma = e^scale ((1 + c)^T - 1)
    most = math.log(LAMBDA) + math.log1p(-math.exp(log_s))
    log_gamma = most - _log_add(math.log(2), log_a + log_s)
    steps = _log_add(0.0, log_gamma - scale) / math.log1p(c)
    return max(0, math.ceil(steps) - 1)


def _convex_sgd(d: int, k: int, T: int, lr: float) -> dict[str, Any]:
    """The bound 2 lr L^2 T / n of a convex, smooth loss, where lr <= 2 / smoothness.

    Of Hardt, Recht and Singer (2016); n, the number of independent sub-matrices, is taken to be
    that of the blocks of k fields that do not overlap.
    """
    n = float(d // k)
    # The input of the logistic model is no longer than sqrt(d), so L = beta sqrt(d).
    gamma = 2 * lr * BETA**2 * d * T / n
    return {
        "n_effective": n,
        "log10_gamma": math.log10(gamma),
        "step_size_small_enough": lr <= 2 / (BETA_PRIME * d),
        "vacuous": gamma >= LAMBDA,
    }


def _check(d: int, k: int, T: int, lr: float) -> None:
    for name, value in {"d": d, "k": k, "T": T}.items():
        if type(value) is not int or not 1 <= value <= 10**12:
            raise InputError(f"{name}={value!r}: choose an integer from 1 to 10^12.")
    if k > d:
        raise InputError(f"k and d are {k} and {d}: the first is a part of the second.")
    if not 1e-12 <= lr <= 1e12:
        raise InputError(f"lr={lr!r}: choose a number from 1e-12 to 1e12.")


def _log_expm1(x: float) -> float:
    """ln(e^x - 1), for an x of any size above 0."""
    return x + math.log(-math.expm1(-x))


def _log_add(x: float, y: float) -> float:
    """ln(e^x + e^y)."""
    high, low = max(x, y), min(x, y)
    return high + math.log1p(math.exp(low - high))


# ---- the model -----------------------------------------------------------------------------------


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
