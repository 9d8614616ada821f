"""`openfate fit`: a table and a target in, a bundle out."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.bank import FeatureBank, check_free, describe
from openfate.cli.command import Answer, check_out
from openfate.cli.flags import Null, RowsPath, Where
from openfate.cli.target_flag import (
    Target,
    as_classes,
    as_labels,
    as_numbers,
    class_text,
    is_complete,
    read_target,
)
from openfate.errors import InputError
from openfate.estimators import FATEClassifier, FATERegressor, usual_numeric
from openfate.table import Field, RowFile, plain_types


def fit(
    train: RowsPath,
    *,
    target: str,
    out: Path,
    not_yet: tuple[str, ...] = (),
    where: Where = None,
    null: Null = None,
    task: Literal["classification", "regression"] = "classification",
    kinds: Mapping[str, str] | None = None,
    hashed: tuple[str, ...] = (),
    seed: int = 0,
    overwrite: bool = False,
    **settings: Any,
) -> Answer:
    """Fit a model on a table and write it as a bundle.

    Parameters
    ----------
    target
        A column, an SQL expression ("arr_delay > 15"), or columns A,B.
    out
        The bundle: a folder that will be made.
    not_yet
        Columns to leave out of training only; they are new later.
    task
        classification (several columns as target: labels) or regression.
    kinds
        Where the guess is wrong: NAME=categorical|numeric|multivalued|datetime,...
    hashed
        Columns of which only keyed hashes are stored.
    seed
        The same seed gives the same model.
    overwrite
        Replace the bundle.
    settings
        The estimators' other arguments.
    """
    check_out(out, train)
    if out.is_symlink() and not out.exists():
        raise InputError(f"--out {out}: a link to nothing; remove it, or choose another path.")
    check_free(out, overwrite)
    file = RowFile(train, null or ())
    labels = read_target(target, file.types)
    later = "of a column that comes later: --new-columns NAME=ignore"
    file.check_columns(settings["exclude"], "--exclude", later)
    file.check_columns(hashed, "--hashed")
    file.check_columns(not_yet, "--not-yet")
    exclude = tuple(dict.fromkeys([*settings["exclude"], *labels.columns]))
    rows, y, n_unlabelled = _training_rows(file, labels, where, task, {*exclude, *not_yet})
    settings |= {
        "schema": _fields(kinds or {}, hashed, settings["numeric"], settings["strategy"]),
        "exclude": exclude,
        "class_weight": _class_weight(settings["class_weight"], y),
        "random_state": seed,
        "progress": sys.stderr.isatty(),
    }
    make = FATERegressor if task == "regression" else FATEClassifier
    known = inspect.signature(make).parameters
    estimator = make(**{name: value for name, value in settings.items() if name in known})
    estimator.fit(rows, y)
    estimator.bank_.meta["table"] = {  # for `openfate.cli.later_rows`
        "file": str(file.path),
        "where": where,
        "target": labels.texts,
        "types": plain_types(file.types),
        "nulls": null or [],
    }
    estimator.save(out, overwrite=overwrite)
    result = _result(estimator.bank_, n_unlabelled, out)
    return result, _describe(result)


# ---- reading flags -----------------------------------------------------------------------------


def _fields(
    kinds: Mapping[str, str], hashed: Sequence[str], numeric: Any, strategy: str
) -> list[Field]:
    numeric = numeric or usual_numeric(strategy)
    fields: dict[str, Any] = {**dict.fromkeys(hashed, "categorical"), **kinds}
    return [
        Field(
            name, kind, hashed=name in hashed, numeric=numeric if kind == "numeric" else "buckets"
        )
        for name, kind in fields.items()
    ]


def _class_weight(given: str | Mapping[str, float] | None, y: NDArray[Any]) -> Any:
    """The weights by the classes themselves; a flag has their texts."""
    if not isinstance(given, Mapping):
        return given
    classes = {class_text(value): value for value in np.unique(y).tolist()}
    for name in given:
        if name not in classes:
            known = ", ".join(list(classes)[:20])
            raise InputError(f"--class-weight {name}: there is no such class (classes: {known}).")
    return {classes[name]: weight for name, weight in given.items()}


# ---- fitting -------------------------------------------------------------------------------------


def _training_rows(
    file: RowFile, labels: Target, where: str | None, task: str, unused: set[str]
) -> tuple[pl.DataFrame, NDArray[Any], int]:
    """The rows that have a target, their targets, and how many have none."""
    used = [name for name in file.types if name not in unused]
    if not used:
        raise InputError(
            f"{file.path}: --exclude, --not-yet and --target leave no column to learn."
        )
    rows = file.read(where, dict.fromkeys([*used, *labels.columns]))
    if not len(rows):
        raise InputError(f"--where {where}: no row of {file.path} is so.")
    found = labels.of(rows)
    kept = is_complete(found)
    if not kept.any():
        raise InputError(f"--target {', '.join(labels.texts)}: it is missing in every row.")
    found = found.filter(kept)
    if len(labels.expressions) == 1:
        y: NDArray[Any] = (as_numbers if task == "regression" else as_classes)(found)
    elif task == "regression":
        raise InputError(f"--target {','.join(labels.texts)}: regression takes one target.")
    else:
        y = as_labels(found)
    return rows.filter(kept).select(used), y, int((~kept).sum())


# ---- telling -------------------------------------------------------------------------------------


def _result(bank: FeatureBank, n_unlabelled: int, out: Path) -> dict[str, Any]:
    described, meta = describe(bank), bank.meta
    return {
        "bundle": str(out),
        "file": meta["table"]["file"],
        "rows": meta["n_rows"],
        "rows_without_target": n_unlabelled,
        "target": meta["table"]["target"],
        "task": bank.task,
        "classes": [class_text(name) for name in bank.classes],
        "fields": {entry["name"]: entry["kind"] for entry in described["fields"]},
        "features": bank.n_observed,
        "training": meta["training"],
        "validation_rows": meta["n_validation"],
        "validation": meta["metrics"],
        "strategy": meta["params"]["strategy"],
        "backbone": meta["params"]["backbone"],
        "probe": meta.get("decision"),
        "how": bank.describe_usage(),
    }


def _describe(result: dict[str, Any]) -> Iterator[str]:
    left_out = result["rows_without_target"]
    note = f" ({left_out:,} without a target were left out)" if left_out else ""
    scores = ", ".join(
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in result["validation"].items()
    )
    training = result["training"]
    yield f"Fitted on {result['rows']:,} rows of {result['file']}{note}."
    yield f"  target      {', '.join(result['target'])} ({result['task']})"
    yield f"  fields      {', '.join(f'{n} ({k})' for n, k in result['fields'].items())}"
    yield f"  features    {result['features']:,} observed"
    yield f"  network     {result['backbone']}"
    yield (
        f"  training    {training['epochs']} epochs, the best was {training['best_epoch']}, "
        f"in {training['seconds']:.0f} s"
    )
    yield f"  validation  {scores or 'none'} ({result['validation_rows']:,} rows)"
    yield result["how"]
    yield f"Bundle: {result['bundle']}"
