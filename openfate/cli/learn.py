"""`openfate fit`: a table and a target in, a bundle out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openfate.cli.flags import (
    Config,
    Json,
    Null,
    Where,
    assignments_in,
    check_choice,
    interruptible,
    names_in,
    policy_in,
    stderr,
)
from openfate.errors import InputError
from openfate.files import check_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import NDArray

    from openfate.cli.labels import Labels
    from openfate.estimators import FATEClassifier, FATERegressor
    from openfate.table import Field, RowFile

__all__ = ["fit"]


# Flags that are parameters of the estimators as they are.
_PLAIN = (
    *(
        "strategy",
        "numeric",
        "backbone",
        "pool",
        "linear",
        "width",
        "epochs",
        "lr",
        "batch_size",
        "patience",
    ),
    *("validation_share", "dropout", "n_members", "weight_decay", "n_folds", "drop_edge"),
    *("lr_extrapolator", "novelty", "n_draws", "mixed_precision", "device", "tensorboard"),
)


def fit(
    context: typer.Context,
    train: Annotated[
        Path,
        typer.Argument(help="CSV, TSV (also .gz), Parquet or a folder of it.", metavar="TRAIN"),
    ],
    target: Annotated[
        str, typer.Option(help='A column, an SQL expression ("arr_delay > 15"), or columns A,B.')
    ],
    out: Annotated[Path, typer.Option(help="The bundle: a folder that will be made.")],
    exclude: Annotated[str, typer.Option(help="Columns not to use, now or later: A,B.")] = "",
    not_yet: Annotated[
        str, typer.Option(help="Columns to leave out of training only; they are new later: A,B.")
    ] = "",
    where: Where = None,
    null: Null = None,
    task: Annotated[
        str, typer.Option(help="classification (several columns as target: labels) or regression.")
    ] = "classification",
    kinds: Annotated[
        str,
        typer.Option(
            help="Where the guess is wrong: NAME=categorical|numeric|multivalued|datetime,..."
        ),
    ] = "",
    hashed: Annotated[
        str, typer.Option(help="Columns of which only keyed hashes are stored: A,B.")
    ] = "",
    numeric: Annotated[str, typer.Option(help="Numbers as buckets, or as one value.")] = "buckets",
    class_weight: Annotated[
        str | None, typer.Option(help="balanced, or CLASS=WEIGHT,CLASS=WEIGHT.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="Of regression: squared_error or absolute_error.")
    ] = "squared_error",
    strategy: Annotated[
        str,
        typer.Option(
            help="How new features will be used. auto: by evidence, as far as a probe finds that "
            "it pays; fate: the paper's model; evidence: without a probe; none: not at all."
        ),
    ] = "auto",
    backbone: Annotated[
        str, typer.Option(help="The network over the embeddings: mlp, deepfm, widedeep or dcn.")
    ] = "mlp",
    pool: Annotated[
        str,
        typer.Option(
            help="sum: of a row's embeddings; field_linear: its columns side by side (mlp, dcn)."
        ),
    ] = "sum",
    linear: Annotated[
        str,
        typer.Option(
            help="A new feature's linear weight: zero or extrapolated (deepfm, widedeep)."
        ),
    ] = "zero",
    width: Annotated[
        int | None, typer.Option(min=1, help="Of an embedding [default: by the strategy].")
    ] = None,
    hidden: Annotated[
        str, typer.Option(help="Widths of the hidden layers: 64,32 [default: by the strategy].")
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the rows, at most [default: likewise].")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(min=0, help="Learning rate [default: likewise].")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows in a mini-batch [default: likewise].")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs to wait for a better loss [default: likewise]."),
    ] = None,
    validation_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Rows spared to stop early, to probe, to report.")
    ] = 0.15,
    dropout: Annotated[
        float, typer.Option(min=0, max=0.95, help="Probability that a cell is dropped (not fate).")
    ] = 0.2,
    n_members: Annotated[
        int, typer.Option(min=1, help="Networks that are averaged (not fate).")
    ] = 2,
    weight_decay: Annotated[float, typer.Option(min=0, help="AdamW's (not fate).")] = 1e-2,
    n_folds: Annotated[
        int, typer.Option(min=2, help="Parts of the features hidden in turn (fate).")
    ] = 5,
    drop_edge: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that an edge is removed (fate).")
    ] = 0.5,
    lr_extrapolator: Annotated[
        float, typer.Option(min=0, help="The extrapolator's learning rate (fate).")
    ] = 1e-3,
    novelty: Annotated[
        str, typer.Option(help="What the probe expects to appear: values, columns or both.")
    ] = "both",
    n_draws: Annotated[int, typer.Option(min=1, help="How often the probe hides and fits.")] = 3,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same model.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    mixed_precision: Annotated[
        bool, typer.Option("--mixed-precision", help="Train in bfloat16 where it is safe.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="A folder for TensorBoard's event files.")
    ] = None,
    new_columns: Annotated[
        list[str] | None,
        typer.Option(help="extrapolate, ignore, warn or error; or NAME=WORD; repeatable."),
    ] = None,
    new_values: Annotated[list[str] | None, typer.Option(help="Likewise.")] = None,
    missing_columns: Annotated[
        list[str] | None, typer.Option(help="ignore, warn or error; or NAME=WORD; repeatable.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Fit a model on a table and write it as a bundle."""
    with interruptible("nothing was written"):
        check_choice("--task", task, ("classification", "regression"))
        check_choice("--strategy", strategy, ("auto", "fate", "evidence", "none"))
        check_choice("--backbone", backbone, ("mlp", "deepfm", "widedeep", "dcn"))
        check_choice("--pool", pool, ("sum", "field_linear"))
        check_choice("--linear", linear, ("zero", "extrapolated"))
        check_choice("--novelty", novelty, ("values", "columns", "both"))
        check_choice("--numeric", numeric, ("buckets", "value"))
        check_choice("--loss", loss, ("squared_error", "absolute_error"))
        _check_out(out, train, overwrite)
        from openfate.cli.labels import read_labels
        from openfate.table import RowFile

        file = RowFile(train, null or ())
        labels = read_labels(target, file.types)
        file.check_columns(
            names_in(exclude),
            "--exclude",
            "of a column that comes later: --new-columns NAME=ignore",
        )
        file.check_columns(names_in(hashed), "--hashed")
        file.check_columns(names_in(not_yet), "--not-yet")
        settings: dict[str, Any] = {
            **{name: context.params[name] for name in _PLAIN},
            "schema": _fields(kinds, names_in(hashed), numeric),
            "exclude": tuple(dict.fromkeys([*names_in(exclude), *labels.columns])),
            "hidden": _widths(hidden) or None,
            "random_state": seed,
            "new_columns": policy_in("--new-columns", new_columns, "extrapolate"),
            "new_values": policy_in("--new-values", new_values, "extrapolate"),
            "missing_columns": policy_in("--missing-columns", missing_columns, "ignore"),
            "progress": not as_json and stderr().is_terminal,
        }
        unused = {*settings["exclude"], *names_in(not_yet)}
        rows, y, n_unlabelled = _training_rows(file, labels, where, task, unused)
        estimator = _estimator(task, settings, loss, class_weight, y)
        estimator.fit(rows, y)
        estimator.bank_.meta["table"] = _memory(file, labels, where, null or ())
        estimator.save(out, overwrite=overwrite)
    result = _result(estimator, file, labels, n_unlabelled, out)
    print(json.dumps(result) if as_json else _described(result))


# ---- reading flags -----------------------------------------------------------------------------


def _check_out(out: Path, train: Path, overwrite: bool) -> None:
    """Refuse before training what would be refused after it, or read as rows later."""
    from openfate.bank import check_free

    check_place(out)
    if train.is_dir() and train.resolve() in out.resolve().parents:
        raise InputError(f"--out {out}: it is among the rows, {train}; choose another path.")
    if out.is_symlink() and not out.exists():
        raise InputError(f"--out {out}: a link to nothing; remove it, or choose another path.")
    try:
        check_free(out, overwrite)
    except InputError as error:
        raise InputError(f"--out {error}") from None


def _fields(kinds: str, hashed: Sequence[str], numeric: str) -> list[Field]:
    from openfate.table import Field

    words: dict[str, Any] = {name: "categorical" for name in hashed}
    words |= assignments_in("--kinds", kinds)
    return [
        Field(
            name,
            word,
            hashed=name in hashed,
            numeric="value" if (word, numeric) == ("numeric", "value") else "buckets",
        )
        for name, word in words.items()
    ]


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        widths = (0,)
    if any(width < 1 for width in widths):
        raise InputError(f"--hidden {text}: give whole numbers from 1 up, such as 64,32.")
    return widths


def _class_weights(text: str | None, y: NDArray[Any]) -> str | dict[Any, float] | None:
    import numpy as np

    from openfate.cli.labels import class_text

    if text is None or text == "balanced":
        return text
    classes = {class_text(value): value for value in np.unique(y).tolist()}
    weights = {}
    for name, weight in assignments_in("--class-weight", text).items():
        if name not in classes:
            known = ", ".join(list(classes)[:20])
            raise InputError(f"--class-weight {name}: there is no such class (classes: {known}).")
        try:
            weights[classes[name]] = float(weight)
        except ValueError:
            raise InputError(f"--class-weight {name}={weight}: not a number.") from None
    return weights


# ---- fitting -------------------------------------------------------------------------------------


def _training_rows(
    file: RowFile, labels: Labels, where: str | None, task: str, unused: set[str]
) -> tuple[pl.DataFrame, NDArray[Any], int]:
    """The rows that have a target, their targets, and how many have none."""
    from openfate.cli.labels import as_classes, as_numbers, as_truth, complete

    used = [name for name in file.types if name not in unused]
    if not used:
        raise InputError(
            f"{file.path}: --exclude, --not-yet and --target leave no column to learn."
        )
    rows = file.read(where, dict.fromkeys([*used, *labels.columns]))
    if not len(rows):
        raise InputError(f"--where {where}: no row of {file.path} is so.")
    found = labels.of(rows)
    kept = complete(found)
    if not kept.any():
        raise InputError(f"--target {', '.join(labels.texts)}: it is missing in every row.")
    if len(labels.expressions) > 1:
        if task == "regression":
            raise InputError(f"--target {','.join(labels.texts)}: regression takes one target.")
        y: NDArray[Any] = as_truth(found.filter(kept))
    else:
        y = (as_numbers if task == "regression" else as_classes)(found.filter(kept))
    return rows.filter(kept).select(used), y, int((~kept).sum())


def _estimator(
    task: str, settings: dict[str, Any], loss: str, class_weight: str | None, y: NDArray[Any]
) -> FATEClassifier | FATERegressor:
    from openfate.estimators import FATEClassifier, FATERegressor

    if task == "regression":
        return FATERegressor(loss=loss, **settings)  # type: ignore[arg-type]
    return FATEClassifier(class_weight=_class_weights(class_weight, y), **settings)


def _memory(
    file: RowFile, labels: Labels, where: str | None, nulls: Sequence[str]
) -> dict[str, Any]:
    """What the bundle remembers for `openfate.cli.rows`."""
    from openfate.table import plain_types

    return {
        "file": str(file.path),
        "where": where,
        "target": labels.texts,
        "types": plain_types(file.types),
        "nulls": list(nulls),
    }


# ---- telling -------------------------------------------------------------------------------------


def _result(
    estimator: FATEClassifier | FATERegressor,
    file: RowFile,
    labels: Labels,
    n_unlabelled: int,
    out: Path,
) -> dict[str, Any]:
    from openfate.bank import describe
    from openfate.cli.labels import class_text

    described = describe(estimator.bank_)
    meta = described["meta"]
    return {
        "bundle": str(out),
        "file": str(file.path),
        "rows": meta["n_rows"],
        "rows_without_target": n_unlabelled,
        "target": labels.texts,
        "task": described["task"],
        "classes": [class_text(name) for name in estimator.bank_.classes],
        "fields": {entry["name"]: entry["kind"] for entry in described["fields"]},
        "features": described["observed_features"],
        "training": meta["training"],
        "validation_rows": meta["n_validation"],
        "validation": meta["metrics"],
        "strategy": meta["params"]["strategy"],
        "backbone": meta["params"]["backbone"],
        "probe": meta.get("decision"),
        "how": estimator.bank_.describe_usage(),
    }


def _described(result: dict[str, Any]) -> str:
    left_out = result["rows_without_target"]
    note = f" ({left_out:,} without a target were left out)" if left_out else ""
    scores = ", ".join(
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in result["validation"].items()
    )
    training = result["training"]
    lines = [
        f"Fitted on {result['rows']:,} rows of {result['file']}{note}.",
        f"  target      {', '.join(result['target'])} ({result['task']})",
        f"  fields      {', '.join(f'{n} ({k})' for n, k in result['fields'].items())}",
        f"  features    {result['features']:,} observed",
        f"  network     {result['backbone']}",
        f"  training    {training['epochs']} epochs, the best was {training['best_epoch']}, "
        f"in {training['seconds']:.0f} s",
        f"  validation  {scores or 'none'} ({result['validation_rows']:,} rows)",
        result["how"],
        f"Bundle: {result['bundle']}",
    ]
    return "\n".join(lines)
