"""y = h(x; phi, W_hat) with W_hat = g(W, X; omega): backbones, extrapolators, FATE, baselines."""

from openfate.models.backbone import MLP
from openfate.models.extrapolator import GCN, SGC, GraphSAGE
from openfate.models.fate import FATE

__all__ = ["FATE", "GCN", "MLP", "SGC", "GraphSAGE"]
