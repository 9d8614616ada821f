"""Somebody else's fitted model as bytes, in a format that runs no code when it is read.

LightGBM, CatBoost and XGBoost have text or JSON formats of their own; scikit-learn's estimators go
through skops, which refuses types that it does not trust.  Anything else is refused: never pickle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openfate.errors import DataFileError, InputError

__all__ = ["dump", "revive"]

Predict = Callable[[Any], Any]  # rows -> probabilities or numbers

# What skops does not trust by itself and is plain data: trees, and types of numbers.
_TRUSTED = [
    "numpy.dtype",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
]


def dump(estimator: Any) -> tuple[str, bytes]:
    """Write a fitted model: the name of the format, and the bytes.

    Raises
    ------
    InputError
        Where there is no safe format for it.
    """
    if isinstance(estimator, _Revived):
        return estimator.format, estimator.content
    package = type(estimator).__module__.partition(".")[0]
    if package in _BOOSTERS:
        return package, _BOOSTERS[package][0](estimator)
    return "skops", _dump_skops(estimator)


def revive(name: str, content: bytes, classes: list[Any]) -> Any:
    """Read what `dump` wrote: an object with `predict_proba` and `classes_`, or `predict`.

    Raises
    ------
    DataFileError
        Where the format is unknown, its package is not there, or types in it are not trusted.
    """
    if name == "skops":
        return _revive_skops(content)
    if name not in _BOOSTERS:
        raise DataFileError(f"a wrapped model of the format {name!r} is not known.")
    return _Revived(name, content, classes)


class _Revived:
    """A booster that was read back: it predicts, and is written as it was read."""

    def __init__(self, name: str, content: bytes, classes: list[Any]) -> None:
        self.format, self.content, self.classes_ = name, content, np.array(classes)
        try:
            self._predict = _BOOSTERS[name][1](content, classes)
        except ImportError:
            raise DataFileError(f"the wrapped model needs {name}: pip install {name}.") from None
        except Exception as error:
            raise DataFileError(f"the wrapped model cannot be read ({error}).") from None

    def __reduce__(self) -> Any:
        return _Revived, (self.format, self.content, self.classes_.tolist())

    def predict(self, X: Any) -> Any:
        """Numbers (N,)."""
        return self._predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (N, C)."""
        p = np.asarray(self._predict(X))
        return np.stack([1 - p, p], axis=1) if p.ndim == 1 else p


def _dump_lightgbm(estimator: Any) -> bytes:
    return str(estimator.booster_.model_to_string(num_iteration=-1)).encode()


def _revive_lightgbm(content: bytes, classes: list[Any]) -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_str=content.decode())
    return lambda X: booster.predict(X)


def _dump_catboost(estimator: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        estimator.save_model(str(path), format="cbm")
        return path.read_bytes()


def _revive_catboost(content: bytes, classes: list[Any]) -> Predict:
    import catboost

    model = catboost.CatBoostClassifier() if classes else catboost.CatBoostRegressor()
    model.load_model(blob=content, format="cbm")
    return lambda X: model.predict_proba(X) if classes else model.predict(X)


def _dump_xgboost(estimator: Any) -> bytes:
    return bytes(estimator.get_booster().save_raw("json"))


def _revive_xgboost(content: bytes, classes: list[Any]) -> Predict:
    import xgboost

    model = xgboost.XGBClassifier() if classes else xgboost.XGBRegressor()
    model.load_model(bytearray(content))
    return lambda X: model.predict_proba(X) if classes else model.predict(X)


_BOOSTERS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes, list[Any]], Predict]]] = {
    "lightgbm": (_dump_lightgbm, _revive_lightgbm),
    "catboost": (_dump_catboost, _revive_catboost),
    "xgboost": (_dump_xgboost, _revive_xgboost),
}


def _dump_skops(estimator: Any) -> bytes:
    name = type(estimator).__name__
    try:
        import skops.io
    except ImportError:
        raise InputError(
            f"{name} is written with skops, which is not installed: pip install skops."
        ) from None
    try:
        content: bytes = skops.io.dumps(estimator)
        found = skops.io.get_untrusted_types(data=content)
    except Exception as error:
        raise InputError(f"{name} has no safe file format ({error}); keep it in memory.") from None
    untrusted = [name for name in found if name not in _TRUSTED]
    if untrusted:
        raise InputError(
            f"{name} holds the types {', '.join(untrusted[:3])}, which are not safe to read back: "
            "write that model yourself, and wrap it again after loading."
        )
    return content


def _revive_skops(content: bytes) -> Any:
    try:
        import skops.io
    except ImportError:
        raise DataFileError("the wrapped model needs skops: pip install skops.") from None
    try:
        return skops.io.loads(content, trusted=_TRUSTED)
    except Exception as error:
        raise DataFileError(f"the wrapped model cannot be read ({error}).") from None
