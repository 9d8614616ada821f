"""FeatureBank: a trained model, its vocabulary and the running state of new features; bundles."""

from openfate.bank.bank import FeatureBank, Graph, Retrain, Use
from openfate.bank.bundle import check_free, read_bundle, updating
from openfate.bank.explain import average_effects, contributions, describe, nearest
from openfate.bank.export import export_onnx, export_table, left_out
from openfate.bank.network import Network
from openfate.bank.notes import Note
from openfate.bank.settings import keep_settings, make_lightgbm
from openfate.bank.wrapped import Wrapped, native_columns, number_columns, package_of, rows_for
from openfate.openworld import Floats, Task

__all__ = [
    "FeatureBank",
    "Floats",
    "Graph",
    "Network",
    "Note",
    "Retrain",
    "Task",
    "Use",
    "Wrapped",
    "average_effects",
    "check_free",
    "contributions",
    "describe",
    "export_onnx",
    "export_table",
    "keep_settings",
    "left_out",
    "make_lightgbm",
    "native_columns",
    "nearest",
    "number_columns",
    "package_of",
    "read_bundle",
    "rows_for",
    "updating",
]
