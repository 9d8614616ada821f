"""Small bundles of every kind, whole: what mutations start from."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from openfate import FATEClassifier, FATERegressor, OpenWorldClassifier, OpenWorldRegressor
from openfate.openworld import Pooling

Files = dict[str, bytes]  # by name
_NETWORK: dict[str, Any] = {"width": 4, "hidden": (4,), "epochs": 3, "random_state": 0}
_POOLING = Pooling(strength=0.5)
_LGBM = {"n_estimators": 4, "num_leaves": 5, "verbose": -1, "n_jobs": 1}


def known(n_rows: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": rng.normal(40, 9, n_rows).round(1),
            "pay": rng.lognormal(3, 1, n_rows),
            "job": rng.choice(["cook", "nurse", "judge"], n_rows),
        }
    )


def later(n_rows: int = 12, seed: int = 1) -> pl.DataFrame:
    """Rows with a new column, new values and missing cells."""
    rng = np.random.default_rng(seed)
    rows = known(n_rows, seed).with_columns(
        city=pl.Series(rng.choice(["Rome", "Oslo"], n_rows)),
        job=pl.Series(rng.choice(["cook", "pilot", None], n_rows)),
    )
    return rows


def numbers(rows: pl.DataFrame) -> Any:
    """Columns that every model takes, as most users have them."""
    return rows.select(pl.col("age", "pay"), *[c for c in rows.columns if c == "city"]).to_pandas()


def _models() -> Iterator[tuple[str, Any, bool]]:
    """Name, unfitted model, whether it takes text."""
    yield "network", FATEClassifier(**_NETWORK), True
    yield "fate", FATEClassifier(strategy="fate", **_NETWORK), True
    yield "deepfm", FATEClassifier(backbone="deepfm", strategy="none", **_NETWORK), True
    yield "number", FATERegressor(**_NETWORK), True
    bounds = {"source": "who", "half_life": 20, "max_new_features": {"city": 5}}
    yield "source", FATEClassifier(strategy="evidence", **bounds, **_NETWORK), True
    wrapped = {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        "forest": RandomForestClassifier(n_estimators=3, max_depth=4),
        "boosting": GradientBoostingClassifier(n_estimators=3),
        "histograms": HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=6),
        "stacking": StackingClassifier(
            [("a", LogisticRegression()), ("b", GaussianNB())], LogisticRegression(), cv=2
        ),
        "calibrated": CalibratedClassifierCV(GaussianNB(), cv=2),
        "lightgbm": LGBMClassifier(**_LGBM),
        "catboost": CatBoostClassifier(
            iterations=4, depth=3, verbose=0, thread_count=1, allow_writing_files=False
        ),
    }
    for name, model in wrapped.items():
        yield name, OpenWorldClassifier(model, pooling=_POOLING), False
    for name, model in {
        "ridge": Ridge(),
        "trees": ExtraTreesRegressor(n_estimators=2, max_depth=4),
        "lightgbm number": LGBMRegressor(**_LGBM),
    }.items():
        yield name, OpenWorldRegressor(model, pooling=_POOLING), False
    encode = ColumnTransformer(
        [("job", OneHotEncoder(handle_unknown="ignore"), ["job"])], remainder="passthrough"
    )
    text = make_pipeline(encode, LogisticRegression())
    yield "columns", OpenWorldClassifier(text, pooling=_POOLING), True


def make_bundles(names: set[str] | None = None) -> dict[str, tuple[Files, Any]]:
    """The files of each bundle, and rows that it predicts."""
    found = {}
    train, new = known(90), later(30)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for name, model, takes_text in _models():
            if names is not None and name not in names:
                continue
            target = train["pay"] + train["age"]
            y = target.to_numpy() if "Regressor" in type(model).__name__ else None
            y = y if y is not None else _classes(train, 3 if name in ("fate", "forest") else 2)
            X, rows = (train, new) if takes_text else (numbers(train), numbers(new))
            X = X.to_pandas() if name == "columns" else X
            rows = rows.drop("job").to_pandas().assign(job="cook") if name == "columns" else rows
            rows = (
                rows.with_columns(who=pl.Series(["a", "b", "c"] * 10)) if name == "source" else rows
            )
            model.fit(X, y).observe(rows)
            if name in ("network", "source", "logistic", "number", "lightgbm"):
                model.observe(rows[:20], y[:20])  # some labels: a mixture with a window
            path = Path(folder) / name
            model.save(path)
            files = {f.name: f.read_bytes() for f in path.iterdir() if f.name != ".lock"}
            found[name] = files, rows[:8]
    return found


def _classes(train: pl.DataFrame, n: int) -> np.ndarray:
    rank = train["age"].rank("ordinal").to_numpy()
    return np.array(["a", "b", "c"])[((rank - 1) * n // len(rank)).astype(int)]
