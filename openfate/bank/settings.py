"""Settings of wrapped models: which a bundle keeps, so that they can be trained again.

scikit-learn's are in the model's own file (`openfate.bank.sklearn_models`).  A file of LightGBM
holds trees alone: its settings stand in meta.json, and of these only the ones below are believed.
They are plain values within bounds; LightGBM has others, which name files to read and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from openfate.bank.sklearn_models import SETTINGS
from openfate.errors import InputError
from openfate.openworld import Task
from openfate.records import Between, fault

_SHARE, _WEIGHT = Between(0, 1), Between(0, 1e9)
_LIGHTGBM: dict[str, Any] = {
    "boosting_type": (("gbdt", "dart", "rf"), None),
    "num_leaves": (Between(2, 131_072), None),
    "max_depth": (Between(-1, 10_000), None),
    "learning_rate": (Between(0, 1e3), None),
    "n_estimators": (Between(1, 100_000), None),
    "subsample_for_bin": (Between(1, 1e9), None),
    "objective": (
        ("binary", "multiclass", "multiclassova", "regression", "regression_l1", "huber"),
        None,
    ),
    "class_weight": (("balanced",), None),
    "min_split_gain": (_WEIGHT, None),
    "min_child_weight": (_WEIGHT, None),
    "min_child_samples": (Between(0, 1e9), None),
    "subsample": (_SHARE, None),
    "subsample_freq": (Between(0, 1e6), None),
    "colsample_bytree": (_SHARE, None),
    "reg_alpha": (_WEIGHT, None),
    "reg_lambda": (_WEIGHT, None),
    "random_state": (Between(0, 2**31 - 1), None),
    "n_jobs": (Between(-256, 256), None),
    "importance_type": (("split", "gain"), None),
    "max_bin": (Between(2, 65_535), None),
    "cat_smooth": (_WEIGHT, None),
    "cat_l2": (_WEIGHT, None),
    "extra_trees": (bool, None),
    "path_smooth": (_WEIGHT, None),
    "verbose": (Between(-1, 1), None),
    "verbosity": (Between(-1, 1), None),
    "deterministic": (bool, None),
    "force_row_wise": (bool, None),
    "force_col_wise": (bool, None),
}


def keep_settings(model: Any) -> tuple[dict[str, Any] | None, list[str]]:
    """The settings of a model for meta.json, and the names of those that no bundle keeps.

    Returns
    -------
        None for settings that are in the model's own file, or nowhere.

    Examples
    --------
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> keep_settings(HistGradientBoostingClassifier(monotonic_cst=[1, 0]))
    (None, ['monotonic_cst'])
    """
    given = model.get_params() if hasattr(model, "get_params") else {}
    if not type(model).__module__.startswith("lightgbm."):
        is_kept = (bool, int, float, str, type(None))
        lost = [
            name
            for name, value in given.items()
            if name.rpartition("__")[2] in SETTINGS and not isinstance(value, is_kept)
        ]
        return None, lost
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}
    kept = {n: v for n, v in plain.items() if n in _LIGHTGBM and _is_good({n: v})}
    return kept, [name for name in plain if name not in kept]


def make_lightgbm(task: Task, settings: Mapping[str, Any]) -> Any:
    """A model of LightGBM that is not fitted, with settings of `keep_settings`."""
    if not _is_good(settings):
        raise InputError("the bundle's settings of LightGBM are none that it keeps; fit it again")
    package = import_module("lightgbm")
    make = package.LGBMRegressor if task == "regression" else package.LGBMClassifier
    # WHY: the same on any number of threads.
    way = {} if settings.get("force_col_wise") else {"force_row_wise": True}
    return make(**{"deterministic": True, **way, **settings})


def _is_good(settings: Mapping[str, Any]) -> bool:
    """Whether all settings are known, and as they may be."""
    known = settings.keys() <= _LIGHTGBM.keys()
    return known and fault(dict(settings), {name: _LIGHTGBM[name] for name in settings}) is None
