"""`openfate fit`: a table and a target in, a bundle out."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from openfate import __version__
from openfate.bank import FeatureBank, check_free, describe
from openfate.cli.cluster_flags import Cluster, GpusPerWorker, Workers, on_cluster
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
from openfate.files import write_whole
from openfate.table import PART_ROWS, PRESETS, Field, RowFile, plain_types


def fit(
    train: RowsPath,
    *,
    target: str,
    out: Path,
    not_yet: tuple[str, ...] = (),
    where: Where = None,
    null: Null = None,
    task: Literal["classification", "regression"] = "classification",
    format_: Literal["table", "criteo", "avazu"] = "table",
    kinds: Mapping[str, str] | None = None,
    hashed: tuple[str, ...] = (),
    seed: int = 0,
    overwrite: bool = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
    **settings: Any,
) -> Answer:
    """Fit a model on a table of any size and write it as a bundle.

    What is done so far lies in OUT.work beside the bundle: killed, and started again with the same
    arguments, it goes on from there and ends in the same bundle.

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
    format_
        criteo, avazu: raw logs as they were published, whose columns are known.
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
    preset = PRESETS[format_]
    file = preset.open(train, null or (), declared=[*(kinds or ()), *hashed])
    arguments = {
        **{"target": target, "not_yet": not_yet, "where": where, "null": null, "task": task},
        **{"format": format_, "kinds": kinds, "hashed": hashed, "seed": seed, **settings},
    }
    work = _Work(out, file, arguments, overwrite)
    check_free(out, overwrite or work.is_begun)
    labels = read_target(target, file.types)
    later = "of a column that comes later: --new-columns NAME=ignore"
    file.check_columns(settings["exclude"], "--exclude", later)
    file.check_columns(hashed, "--hashed")
    file.check_columns(not_yet, "--not-yet")
    source = [] if settings["source"] is None else [settings["source"]]
    exclude = tuple(
        dict.fromkeys([*settings["exclude"], *preset.exclude, *labels.columns, *source])
    )
    fields = _fields(kinds or {}, hashed, settings["numeric"], settings["strategy"])
    told = {field.name for field in fields}
    if settings["time"] in not_yet:
        raise InputError(
            f"--time {settings['time']}: --not-yet leaves it out of the training rows."
        )
    unused = {*exclude, *not_yet} - {settings["time"]}  # it orders rows, a feature or not
    rows = _TrainingRows(file, labels, where, task, unused)
    settings |= {
        "schema": [*(field for field in preset.fields if field.name not in told), *fields],
        "exclude": exclude,
        "class_weight": _class_weight(settings["class_weight"], rows),
        "random_state": seed,
        "progress": sys.stderr.isatty(),
        "cache": work.folder / "fit",
    }
    make = FATERegressor if task == "regression" else FATEClassifier
    known = inspect.signature(make).parameters
    estimator = make(**{name: value for name, value in settings.items() if name in known})
    with work, on_cluster(cluster, workers, gpus_per_worker):
        estimator.fit(rows, labels.texts if len(labels.texts) > 1 else labels.texts[0])
        estimator.bank_.exclude = exclude
        estimator.bank_.meta["table"] = {  # for `openfate.cli.later_rows`
            "file": str(file.path),
            "where": where,
            "target": labels.texts,
            "types": plain_types(file.types),
            "nulls": null or [],
            **({} if format_ == "table" else {"format": format_}),
        }
        estimator.save(out, overwrite=overwrite or work.is_begun)
        work.remove()
    seconds = round(estimator.history_.seconds, 3)
    result = _result(estimator.bank_, rows.n_unlabelled, seconds, out)
    return result, _describe(result)


class _Work:
    """What a fit has done so far, in a folder beside the bundle."""

    def __init__(
        self, out: Path, file: RowFile, arguments: dict[str, Any], overwrite: bool
    ) -> None:
        self.folder = out.with_name(f"{out.name}.work")
        told = {"files": file.identity, "arguments": arguments, "openfate": __version__}
        self._text = json.dumps(told, sort_keys=True, default=str)
        self._file = self.folder / "command.json"
        held = self._file.read_text(encoding="utf-8") if self._file.exists() else None
        self.is_begun = held == self._text
        if held is not None and not self.is_begun and not overwrite:
            raise InputError(
                f"{self.folder}: holds an unfinished fit of other files or settings; give the same "
                "again to go on, or overwrite=True to begin anew."
            )
        if held is None and self.folder.exists() and any(self.folder.iterdir()):
            raise InputError(f"{self.folder}: is in the way of this fit; choose another --out.")

    def __enter__(self) -> None:
        if not self.is_begun:
            self.remove()
            write_whole(self._file, self._text.encode())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # WHY: with these arguments it would always end here; a full disk may be another one later.
        if kind is not None and issubclass(kind, InputError) and not self.is_begun:
            self.remove()

    def remove(self) -> None:
        """Delete it, the name of its command last."""
        shutil.rmtree(self.folder / "fit", ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


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


def _class_weight(given: str | Mapping[str, float] | None, rows: _TrainingRows) -> Any:
    """The weights by the classes themselves; a flag has their texts."""
    if not isinstance(given, Mapping):
        return given
    labels = (batch.to_series() for batch in rows.batches(columns=rows.label_names[:1]))
    classes = {class_text(value): value for part in labels for value in part.unique().to_list()}
    for name in given:
        if name not in classes:
            known = ", ".join(list(classes)[:20])
            raise InputError(f"--class-weight {name}: there is no such class; choose from {known}.")
    return {classes[name]: weight for name, weight in given.items()}


# ---- fitting -------------------------------------------------------------------------------------


class _TrainingRows:
    """The rows that have a target, in batches, the target among their columns."""

    def __init__(
        self, file: RowFile, labels: Target, where: str | None, task: str, unused: set[str]
    ) -> None:
        self._file, self._labels, self._where, self._task = file, labels, where, task
        self._used = [name for name in file.types if name not in unused]
        self.label_names, self.n_unlabelled = labels.texts, 0
        if not self._used:
            raise InputError(
                f"{file.path}: --exclude, --not-yet and --target leave no column to learn."
            )
        if len(labels.texts) > 1 and task == "regression":
            raise InputError(f"--target {','.join(labels.texts)}: regression takes one target.")

    @property
    def identity(self) -> Any:
        """Files and flags."""
        return [self._file.identity, self._where, self.label_names, self._task]

    @cached_property
    def types(self) -> dict[str, pl.DataType]:
        """Of the columns that are used, and of the target."""
        used = {name: self._file.types[name] for name in self._used}
        return {**used, **dict.fromkeys(self.label_names, pl.Unknown())}

    def batches(
        self, size: int = PART_ROWS, *, columns: Iterable[str] | None = None
    ) -> Iterator[pl.DataFrame]:
        """Rows with some columns, the target's among them or not."""
        wanted = list(self.types if columns is None else columns)
        used = [name for name in wanted if name not in self.label_names]
        read = dict.fromkeys([*used, *self._labels.columns])
        n_found = n_kept = 0
        for rows in self._file.batches(size, self._where, read):
            found = self._labels.of(rows)
            kept = is_complete(found)
            n_found, n_kept = n_found + len(rows), n_kept + int(kept.sum())
            if kept.any():
                cells = [*rows.select(used).filter(kept)] if used else []
                if len(used) < len(wanted):
                    cells += self._convert(found.filter(kept))
                yield pl.DataFrame(cells).select(wanted)
        if not n_found:
            raise InputError(
                f"--where {self._where}: no row of {self._file.path} is so; ask for others."
            )
        if not n_kept:
            raise InputError(
                f"--target {', '.join(self.label_names)}: it is missing in every row; name another."
            )
        self.n_unlabelled = n_found - n_kept

    def _convert(self, found: pl.DataFrame) -> list[pl.Series]:
        """Labels as an estimator takes them."""
        if len(self.label_names) > 1:
            return [*map(pl.Series, self.label_names, as_labels(found).T)]
        convert = as_numbers if self._task == "regression" else as_classes
        return [pl.Series(self.label_names[0], convert(found))]


# ---- telling -------------------------------------------------------------------------------------


def _result(bank: FeatureBank, n_unlabelled: int, seconds: float, out: Path) -> dict[str, Any]:
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
        "training": {**meta["training"], "seconds": seconds},
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
