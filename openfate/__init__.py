"""OpenFATE: models that keep working, without retraining, when new columns and values appear.

Public names are loaded on first use, so that ``import openfate`` is quick and the numerical core
(graph, models, training) runs where only torch and numpy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate.bank import FeatureBank
    from openfate.estimators import (
        FATEClassifier,
        FATERegressor,
        OpenWorldClassifier,
        OpenWorldRegressor,
        load,
        save,
    )
    from openfate.models import FATE
    from openfate.table import Field, Schema
    from openfate.training import train

__version__ = "0.1.0"

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
    "load",
    "save",
    "train",
]

__getattr__, _ = lazy_names(__name__, read_homes(__file__))


def __dir__() -> list[str]:
    return __all__
