"""y = h(x; phi, W_hat), W_hat = g(W, X; omega): backbones, extrapolators, FATE."""

from openfate.models.backbone import MLP, Backbone, Members, Pool
from openfate.models.extrapolator import GCN, SGC, GraphSAGE
from openfate.models.fate import FATE, field_means
from openfate.models.interactions import (
    BACKBONES,
    DCN,
    DeepBackbone,
    DeepFM,
    Linear,
    WideDeep,
    make_backbone,
    with_fields,
)
from openfate.models.running import ContextMap, Fields, More, RunningFATE, Sums, Touched
from openfate.models.stacked import StackedMLP, stack_embeddings

__all__ = [
    "BACKBONES",
    "DCN",
    "FATE",
    "GCN",
    "MLP",
    "SGC",
    "Backbone",
    "ContextMap",
    "DeepBackbone",
    "DeepFM",
    "Fields",
    "GraphSAGE",
    "Linear",
    "Members",
    "More",
    "Pool",
    "RunningFATE",
    "StackedMLP",
    "Sums",
    "Touched",
    "WideDeep",
    "field_means",
    "make_backbone",
    "stack_embeddings",
    "with_fields",
]
