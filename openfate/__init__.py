"""OpenFATE: models that keep working, without retraining, when new columns and values appear.

Public names are loaded on first use, so that ``import openfate`` is quick and the numerical core
(graph, models, training) runs where only torch and numpy are installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "FATE": "openfate.models.fate",
    "FATEClassifier": "openfate.estimators",
    "FATERegressor": "openfate.estimators",
    "FeatureBank": "openfate.bank",
    "Field": "openfate.data.schema",
    "OpenWorldClassifier": "openfate.estimators",
    "OpenWorldRegressor": "openfate.estimators",
    "Schema": "openfate.data.schema",
    "datasets": "openfate.data.datasets",
    "load": "openfate.loading",
    "save": "openfate.loading",
    "train": "openfate.training.loop",
}

__all__ = [
    "FATE",
    "FATEClassifier",
    "FATERegressor",
    "FeatureBank",
    "Field",
    "OpenWorldClassifier",
    "OpenWorldRegressor",
    "Schema",
    "__version__",
    "datasets",
    "load",
    "save",
    "train",
]

if TYPE_CHECKING:
    from openfate.bank import FeatureBank
    from openfate.data import datasets
    from openfate.data.schema import Field, Schema
    from openfate.estimators import (
        FATEClassifier,
        FATERegressor,
        OpenWorldClassifier,
        OpenWorldRegressor,
    )
    from openfate.loading import load, save
    from openfate.models.fate import FATE
    from openfate.training.loop import train


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'openfate' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return getattr(module, name, module)  # `datasets` is a module itself


def __dir__() -> list[str]:
    return __all__
