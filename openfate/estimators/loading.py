"""From a bundle to the estimator that it was, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from openfate.bank import FeatureBank, Wrapped
from openfate.errors import DataFileError
from openfate.estimators.fate import FATEClassifier, FATERegressor
from openfate.estimators.fitting import FATEEstimator
from openfate.estimators.wrapping import OpenWorldClassifier, OpenWorldRegressor
from openfate.table import Schema

__all__ = ["load", "save"]

_FATE: dict[str, type[FATEEstimator]] = {
    "FATEClassifier": FATEClassifier,
    "FATERegressor": FATERegressor,
}
_WRAPPED = {"OpenWorldClassifier": OpenWorldClassifier, "OpenWorldRegressor": OpenWorldRegressor}


def save(estimator: Any, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted estimator as a bundle, a folder of plain files.

    Parameters
    ----------
    path
        The folder; one that is there needs `overwrite`.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> clf = FATEClassifier(epochs=5).fit(rows, rows["job"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(clf, Path(folder) / "model")
    ...     files = (Path(folder) / "model").glob("[a-z]*")
    ...     sorted(file.name.split("-")[0] for file in files)
    ['meta.json', 'schema', 'state', 'vocabulary', 'weights']
    """
    estimator.save(path, overwrite=overwrite)


def load(path: str | Path) -> Any:
    """Read the estimator that `save` or `openfate fit` wrote; no code of the bundle is run.

    Examples
    --------
    >>> import polars as pl, tempfile
    >>> rows = pl.DataFrame({"job": ["cook", "nurse"] * 30})
    >>> clf = FATEClassifier(epochs=5).fit(rows, rows["job"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(clf, Path(folder) / "model")
    ...     again = load(Path(folder) / "model")
    >>> bool((again.predict_proba(rows) == clf.predict_proba(rows)).all())
    True
    """
    bank = FeatureBank.load(path)
    name = bank.meta.get("kind")
    try:
        if name in _WRAPPED:
            return _loaded_wrapper(bank)
        if name in _FATE:
            return _loaded_fate(bank)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise DataFileError(f"{path}: meta.json does not describe a model ({error!r}).") from None
    raise DataFileError(f"{path}: a bundle of kind {name!r} is not known.")


def _loaded_fate(bank: FeatureBank) -> FATEEstimator:
    params = dict(bank.meta["params"])
    params["schema"] = Schema.from_json(params["schema"])
    if params["hidden"] is not None:
        params["hidden"] = tuple(params["hidden"])
    if isinstance(params.get("class_weight"), list):
        params["class_weight"] = dict(params["class_weight"])
    estimator = _FATE[bank.meta["kind"]](**params)
    if isinstance(estimator, FATEClassifier):
        estimator.classes_ = np.array(bank.classes, dtype=bank.meta["classes_dtype"])
    return estimator._restore(bank)


def _loaded_wrapper(bank: FeatureBank) -> OpenWorldClassifier | OpenWorldRegressor:
    """A wrapper around the model that was read back; its own parameters are not kept."""
    assert isinstance(bank.model, Wrapped)
    policies = bank.policies.to_dict()
    wrapper = _WRAPPED[bank.meta["kind"]](
        bank.model.estimator, prefit=True, schema=bank.overrides, exclude=bank.exclude, **policies
    )
    if isinstance(wrapper, OpenWorldClassifier):
        wrapper.classes_ = np.array(bank.classes, dtype=bank.meta["classes_dtype"])
    return wrapper._restore(bank)
