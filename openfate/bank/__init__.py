"""FeatureBank: a trained model, its vocabulary and the running state of new features; bundles."""

from openfate.bank.bank import EVIDENCE_KIND, FeatureBank, Graph, Use
from openfate.bank.bases import Floats, Network, Task, Wrapped, used_part
from openfate.bank.export import export_onnx, export_table
from openfate.bank.insight import contributions, describe, nearest
from openfate.bank.persistence import check_free, read_bundle, updating

__all__ = [
    "EVIDENCE_KIND",
    "FeatureBank",
    "Floats",
    "Graph",
    "Network",
    "Task",
    "Use",
    "Wrapped",
    "check_free",
    "contributions",
    "describe",
    "export_onnx",
    "export_table",
    "nearest",
    "read_bundle",
    "updating",
    "used_part",
]
