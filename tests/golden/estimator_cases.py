"""Every public estimator with every strategy, before and after it has met what is new."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from frozen import case, numbers, texts
from golden_tables import answers, figures, group, known, opinions, people
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from openfate import (
    FATEClassifier,
    FATERegressor,
    FeatureBank,
    Field,
    OpenWorldClassifier,
    OpenWorldRegressor,
    load,
    save,
)

SMALL: dict[str, Any] = {"width": 8, "hidden": (8,), "epochs": 20, "lr": 0.02, "n_draws": 2}
TRAIN, LATER = people(300, 0), people(100, 1, later=True)


def output(estimator: Any) -> Callable[..., Any]:
    return getattr(estimator, "predict_proba", estimator.predict)


def predictions(estimator: Any, rows: pl.DataFrame = LATER, prepare: Any = known) -> dict[str, Any]:
    """Predictions of rows with new columns and values, in every way."""
    frame, predict = prepare(rows), output(estimator)
    found = {graph: numbers(predict(frame, graph=graph)) for graph in ("auto", "state", "batch")}
    found["drop"] = numbers(predict(frame, new_features="drop"))
    return found


def life(estimator: Any, y_of: Any, prepare: Any = known) -> dict[str, Any]:
    """Everything that a fitted estimator does, in the order of a user's year."""
    later, half = prepare(LATER), len(LATER) // 2
    y = y_of(LATER)
    found = {"train": numbers(output(estimator)(prepare(TRAIN)))}
    found["new"] = predictions(estimator, prepare=prepare)
    found["part"] = predictions(estimator, LATER[:7], prepare=prepare)
    found["report"] = estimator.schema_report(later).to_dict()
    found["explained"] = explained(estimator, later)
    estimator.observe(later[:half])
    found["observed"] = predictions(estimator, prepare=prepare)
    estimator.observe(later[:half], y[:half], seen=True)
    found["labels_seen"] = predictions(estimator, prepare=prepare)
    estimator.observe(later[half:], y[half:])
    found["labels"] = predictions(estimator, prepare=prepare)
    found["explained_after"] = explained(estimator, later)
    found["report_after"] = estimator.schema_report(later).to_dict()
    found["saved"] = saved(estimator, prepare)
    return found


def explained(estimator: Any, later: pl.DataFrame) -> dict[str, Any]:
    frame = estimator.explain(later, rows=[0, 5, 9])
    return {
        "columns": frame.columns,
        "features": texts(frame.drop("effect").rows()),
        "new": int(frame["new"].sum()),
        "effect": numbers(frame["effect"]),
    }


def saved(estimator: Any, prepare: Any) -> dict[str, Any]:
    """Predictions of the bundle, as an estimator and as a bank; it can be observed further."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(estimator, path)
        again, bank = load(path), FeatureBank.load(path)
    rows = prepare(LATER)
    found = {"loaded": predictions(again, prepare=prepare), "bank": numbers(bank.predict(rows))}
    again.observe(prepare(people(40, 2, later=True)))
    return {**found, "observed": numbers(output(again)(rows))}


def refitted(estimator: Any, y_of: Any) -> dict[str, Any]:
    both = pl.concat([TRAIN, LATER], how="diagonal")
    estimator.refit(known(both), y_of(both))
    return {"report": _plain(estimator.refit_report_), **predictions(estimator)}


def _plain(value: Any) -> Any:
    """A report as plain values, whether it is a dict or an object."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if "seconds" not in key}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return _plain(vars(value)) if hasattr(value, "__dict__") else value


def rich(rows: pl.DataFrame) -> pl.Series:
    return rows["rich"]


def wage(rows: pl.DataFrame) -> pl.Series:
    return rows["wage"]


def labels(rows: pl.DataFrame) -> Any:
    """(N, 2) two labels of each row."""
    return np.stack([rows["rich"] == "yes", rows["wage"] > 15], axis=1).astype(int)


# ---- the networks -------------------------------------------------------------------------------


def _network(kind: type, strategy: str, y_of: Any) -> Callable[[], Any]:
    def run() -> Any:
        estimator = kind(strategy=strategy, **SMALL).fit(known(TRAIN), y_of(TRAIN))
        found = {"fitted": fitted(estimator), **life(estimator, y_of)}
        if kind is FATEClassifier:
            found["predicted"] = texts(estimator.predict(known(LATER)).tolist())
        return {**found, "refit": refitted(estimator, y_of)}

    return run


def fitted(estimator: Any) -> dict[str, Any]:
    meta = estimator.bank_.meta
    return {
        "metrics": meta.get("metrics"),
        "decision": _plain(meta.get("decision")),
        "features": int(estimator.bank_.n_observed),
        "classes": [str(name) for name in getattr(estimator, "classes_", [])],
    }


for _strategy in ("auto", "fate", "evidence", "none"):
    for _name, _kind, _y in (
        ("classifier", FATEClassifier, rich),
        ("regressor", FATERegressor, wage),
        ("multilabel", FATEClassifier, labels),
    ):
        case(f"{_name}-{_strategy}")(_network(_kind, _strategy, _y))


def _variant(kind: type, y_of: Any, strategy: str, **settings: Any) -> Callable[[], Any]:
    def run() -> Any:
        estimator = kind(strategy=strategy, **{**SMALL, **settings}).fit(known(TRAIN), y_of(TRAIN))
        found = {"fitted": fitted(estimator), "new": predictions(estimator)}
        estimator.observe(known(LATER), y_of(LATER))
        return {**found, "labels": predictions(estimator)}

    return run


VARIANTS: dict[str, dict[str, Any]] = {
    "deepfm": {"backbone": "deepfm"},
    "deepfm-extrapolated": {"backbone": "deepfm", "linear": "extrapolated"},
    "widedeep": {"backbone": "widedeep"},
    "dcn": {"backbone": "dcn"},
    "dcn-fields": {"backbone": "dcn", "pool": "field_linear"},
    "mlp-fields": {"pool": "field_linear"},
    "value": {"numeric": "value"},
    "batches": {"batch_size": 64, "patience": 2},
    "balanced": {"class_weight": "balanced"},
    "columns": {"novelty": "columns"},
    "excluded": {"exclude": ("zip",), "new_columns": {"*": "extrapolate", "score": "ignore"}},
    "kinds": {"schema": [Field("age", "categorical"), Field("zip", "categorical", hashed=True)]},
    "seed": {"random_state": 7},
}
for _name, _settings in VARIANTS.items():
    for _strategy in ("auto", "fate"):
        if "linear" in _settings and _strategy != "fate":
            continue
        case(f"classifier-{_strategy}-{_name}")(
            _variant(FATEClassifier, rich, _strategy, **_settings)
        )
for _strategy in ("auto", "fate"):
    case(f"regressor-{_strategy}-absolute")(
        _variant(FATERegressor, wage, _strategy, loss="absolute_error", numeric="value")
    )


@case("classifier-weights-arrays")
def _weights_arrays() -> Any:
    """An array instead of a frame, rows with weights."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 4, (150, 5)).astype(float)
    y = (X[:, 0] + X[:, 1] > 3).astype(int) + (X[:, 2] == 0)
    found = {}
    for strategy in ("auto", "fate"):
        estimator = FATEClassifier(strategy=strategy, **SMALL)
        estimator.fit(X, y, sample_weight=rng.random(150))
        found[strategy] = numbers(estimator.predict_proba(X + (rng.random(X.shape) < 0.1)))
    return found


# ---- models of others ---------------------------------------------------------------------------


def _wrapped(kind: type, make: Callable[[], Any], y_of: Any) -> Callable[[], Any]:
    def run() -> Any:
        estimator = kind(make(), n_draws=2).fit(figures(TRAIN), y_of(TRAIN))
        decision = _plain(estimator.bank_.meta["decision"])
        return {"decision": decision, **life(estimator, y_of, figures)}

    return run


def _boosted(kind: type) -> Callable[[], Any]:
    return lambda: kind(max_iter=10, max_leaf_nodes=7, random_state=0)


case("wrapped-logistic")(_wrapped(OpenWorldClassifier, lambda: LogisticRegression(C=0.5), rich))
case("wrapped-boosting")(
    _wrapped(OpenWorldClassifier, _boosted(HistGradientBoostingClassifier), rich)
)
case("wrapped-ridge")(_wrapped(OpenWorldRegressor, Ridge, wage))
case("wrapped-boosting-regressor")(
    _wrapped(OpenWorldRegressor, _boosted(HistGradientBoostingRegressor), wage)
)


@case("wrapped-prefit")
def _prefit() -> Any:
    model = LogisticRegression().fit(figures(TRAIN), rich(TRAIN))
    estimator = OpenWorldClassifier(model, prefit=True, n_draws=2).fit(figures(TRAIN), rich(TRAIN))
    return predictions(estimator, prepare=figures)


# ---- where evidence pays -------------------------------------------------------------------------


def _paid(make: Callable[[], Any], prepare: Any) -> Callable[[], Any]:
    def run() -> Any:
        train, later = opinions(400, 0), opinions(100, 1, later=True)
        estimator = make().fit(prepare(train), group(train))
        found = {"fitted": fitted(estimator), "new": predictions(estimator, later, prepare)}
        assert found["fitted"]["decision"]["chosen"] != "none"
        found["explained"] = explained(estimator, prepare(later))
        estimator.observe(prepare(later[:50]))
        found["observed"] = predictions(estimator, later, prepare)
        estimator.observe(prepare(later[50:]), group(later[50:]))
        return {**found, "labels": predictions(estimator, later, prepare)}

    return run


case("classifier-auto-pays")(
    _paid(lambda: FATEClassifier(**{**SMALL, "novelty": "columns", "n_draws": 3}), answers)
)
case("wrapped-logistic-pays")(
    _paid(
        lambda: OpenWorldClassifier(LogisticRegression()), lambda rows: answers(rows).to_dummies()
    )
)
