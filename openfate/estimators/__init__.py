"""FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor; save and load."""

from openfate.estimators.fate import (
    FATEClassifier,
    FATERegressor,
    OpenWorldClassifier,
    OpenWorldRegressor,
)
from openfate.estimators.loading import load, save
from openfate.estimators.scores import LESS_IS_BETTER, task_scores

__all__ = [
    "LESS_IS_BETTER",
    "FATEClassifier",
    "FATERegressor",
    "OpenWorldClassifier",
    "OpenWorldRegressor",
    "load",
    "save",
    "task_scores",
]
