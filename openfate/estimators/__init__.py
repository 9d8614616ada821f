"""FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor; save and load."""

from openfate.estimators.fate import FATEClassifier, FATERegressor
from openfate.estimators.networks import usual_numeric
from openfate.estimators.saving import from_bank, load, save
from openfate.estimators.scores import LESS_IS_BETTER, task_scores
from openfate.estimators.wrapper import OpenWorldClassifier, OpenWorldRegressor

__all__ = [
    "LESS_IS_BETTER",
    "FATEClassifier",
    "FATERegressor",
    "OpenWorldClassifier",
    "OpenWorldRegressor",
    "from_bank",
    "load",
    "save",
    "task_scores",
    "usual_numeric",
]
