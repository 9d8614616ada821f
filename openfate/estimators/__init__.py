"""FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor; save and load."""

from openfate.estimators.fate import FATEClassifier, FATERegressor
from openfate.estimators.networks import usual_numeric
from openfate.estimators.saving import load, save
from openfate.estimators.scores import LESS_IS_BETTER, task_scores
from openfate.estimators.wrapper import OpenWorldClassifier, OpenWorldRegressor

__all__ = [
    "LESS_IS_BETTER",
    "FATEClassifier",
    "FATERegressor",
    "OpenWorldClassifier",
    "OpenWorldRegressor",
    "load",
    "save",
    "task_scores",
    "usual_numeric",
]
