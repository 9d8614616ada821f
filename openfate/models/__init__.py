"""y = h(x; phi, W_hat) with W_hat = g(W, X; omega): backbones, extrapolators, FATE, baselines."""

from openfate.models.backbone import MLP, Backbone
from openfate.models.extrapolator import GCN, SGC, GraphSAGE
from openfate.models.fate import FATE
from openfate.models.interactions import DCN, DeepFM, WideDeep, make_backbone

__all__ = [
    "DCN",
    "FATE",
    "GCN",
    "MLP",
    "SGC",
    "Backbone",
    "DeepFM",
    "GraphSAGE",
    "WideDeep",
    "make_backbone",
]
