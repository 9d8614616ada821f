"""`openfate predict`, `observe`, `evaluate`: a bundle meets rows, maybe more than memory holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openfate.cli.flags import (
    BatchRows,
    Bundle,
    Config,
    Exclude,
    Graph,
    Json,
    Null,
    RowsPath,
    Target,
    Where,
    check_choice,
    counted,
    interruptible,
    names_in,
)
from openfate.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from openfate.bank import FeatureBank
    from openfate.cli.rows import Batch, TableOf

__all__ = ["evaluate", "observe", "predict"]

_BATCH_ROWS = 65_536
_GRAPHS = ("auto", "state", "batch")


def predict(
    bundle: Bundle,
    rows: RowsPath,
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file.")],
    where: Where = None,
    null: Null = None,
    graph: Graph = "auto",
    exclude: Exclude = "",
    keep: Annotated[str, typer.Option(help="Columns to copy into the file: A,B.")] = "",
    batch_rows: BatchRows = _BATCH_ROWS,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Predict rows, using what is new in them.

    The bundle is not changed. Files larger than memory are read twice, in batches.
    """
    with interruptible("nothing was written"):
        check_choice("--graph", graph, _GRAPHS)
        from openfate.bank import FeatureBank
        from openfate.cli.predictions import check_kept, check_out, predicted, write_predictions
        from openfate.cli.rows import TableOf

        check_out(out, rows, bundle)
        bank = FeatureBank.load(bundle)
        table = TableOf(
            bank, rows, where, null or (), keep=names_in(keep), exclude=names_in(exclude)
        )
        check_kept(out, {name: table.file.types[name] for name in table.keep})
        ready = _looked_ahead(table, graph, batch_rows)
        frames = (
            predicted(ready, batch, table.keep, table.unused)
            for batch in counted(table.batches(batch_rows), "predicting")
        )
        n_rows = write_predictions(frames, out)
    result = {
        "rows": n_rows,
        "new_columns": table.new_columns,
        "new_features": ready.encoder.n_features - bank.encoder.n_features,
        "how": bank.describe_usage(),
        "out": str(out),
    }
    print(json.dumps(result) if as_json else _described_predictions(result, graph))


def observe(
    bundle: Bundle,
    rows: RowsPath,
    target: Annotated[
        str | None, typer.Option(help="Labels that have come: a column or an SQL expression.")
    ] = None,
    labelled: Annotated[
        bool, typer.Option("--labelled", help="The rows have labels: the target as in fit.")
    ] = False,
    seen: Annotated[
        bool, typer.Option("--seen", help="The rows were observed before; now their labels come.")
    ] = False,
    where: Where = None,
    null: Null = None,
    exclude: Exclude = "",
    batch_rows: BatchRows = _BATCH_ROWS,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Let rows teach a bundle what is new in them.

    Nothing is trained: what new columns and values mean is told by the rows that have them.
    """
    with interruptible("the bundle is as it was"):
        from openfate.bank import FeatureBank, describe, read_bundle, updating
        from openfate.cli.rows import TableOf

        read_bundle(bundle)  # WHY: a path that is no bundle gets no lock
        with updating(bundle):
            bank = FeatureBank.load(bundle)
            before = describe(bank)
            kind: Literal["some", "none"] = "some" if labelled else "none"
            table = TableOf(bank, rows, where, null or (), target, kind, exclude=names_in(exclude))
            if seen and table.labels is None:
                raise InputError("--seen: only labels are new then; give --labelled or --target.")
            table.declare_new_columns()
            n_rows = n_labels = n_unknown = 0
            for batch in counted(table.batches(batch_rows), "observing"):
                known, unknown = _observe(table, batch, seen)
                n_labels, n_unknown = n_labels + known, n_unknown + unknown
                n_rows += len(batch)
            table.remember_types(table.new_columns)
            bank.save(bundle, overwrite=True)
    result = {
        "bundle": str(bundle),
        "rows": n_rows,
        "labels": n_labels,
        "labels_of_unknown_class": n_unknown,
        "labels_used": bool(n_labels) and bank.evidence is not None,
        **_growth(before, describe(bank)),
    }
    print(json.dumps(result) if as_json else _described_growth(result))


def evaluate(
    bundle: Bundle,
    rows: RowsPath,
    target: Target = None,
    where: Where = None,
    null: Null = None,
    exclude: Exclude = "",
    graph: Graph = "auto",
    batch_rows: BatchRows = _BATCH_ROWS,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Score a bundle, new features used and dropped.

    The rows need a target; those without one are left out.
    """
    with interruptible("nothing was changed"):
        check_choice("--graph", graph, _GRAPHS)
        import numpy as np

        from openfate.bank import FeatureBank
        from openfate.cli.rows import TableOf

        bank = FeatureBank.load(bundle)
        table = TableOf(bank, rows, where, null or (), target, "all", exclude=names_in(exclude))
        ready = _looked_ahead(table, graph, batch_rows)
        used, dropped, truth, n_unknown = [], [], [], 0
        for batch in counted(table.batches(batch_rows), "evaluating"):
            y, known = _truth(bank, batch)
            n_unknown += int((~known).sum())
            options: dict[str, Any] = {"graph": "state", "exclude": table.unused}
            used.append(ready.predict(batch.rows, **options)[known])
            dropped.append(bank.predict(batch.rows, new_features="drop", **options)[known])
            truth.append(y[known])
        if not sum(map(len, truth)):
            raise InputError(f"{rows}: no row has a target that the model knows.")
        y = np.concatenate(truth)
        assert table.labels is not None
        result = {
            "rows": len(y),
            "rows_without_target": table.n_unlabelled,
            "rows_of_unknown_class": n_unknown,
            "target": table.labels.texts,
            "task": bank.task,
            "new_columns": table.new_columns,
            "how": bank.describe_usage(),
            "new_features": {
                "used": _scores(bank, np.concatenate(used), y),
                "dropped": _scores(bank, np.concatenate(dropped), y),
            },
        }
    if as_json:
        print(json.dumps(result))
    else:
        _print_scores(result)


# ---- predicting ----------------------------------------------------------------------------------


def _looked_ahead(table: TableOf, graph: str, batch_rows: int) -> FeatureBank:
    """The bank to predict with, batch after batch: it has seen what the graph lets it see."""
    if graph == "state":
        return table.bank
    table.declare_new_columns()
    frames = _Frames(table, batch_rows)
    options = {"exclude": table.unused, "overrides": table.overrides}
    return table.bank.lookahead(frames, graph, **options)  # type: ignore[arg-type]


@dataclass
class _Frames:
    """The batches of a file; may be gone through twice."""

    table: TableOf
    batch_rows: int

    def __iter__(self) -> Iterator[pl.DataFrame]:
        batches = counted(self.table.batches(self.batch_rows), "looking ahead")
        return (batch.rows for batch in batches)


def _described_predictions(result: dict[str, Any], graph: str) -> str:
    lines = [f"Predicted {result['rows']:,} row{'s' * (result['rows'] != 1)}."]
    columns = ", ".join(result["new_columns"])
    if graph == "state" and columns:
        lines.append(f"New columns were not used: {columns} (observe them, or give --graph auto).")
    elif result["new_features"]:
        among = f", among them the columns {columns}" if columns else ""
        lines.append(f"{result['new_features']:,} features are new{among}. {result['how']}")
    return "\n".join([*lines, result["out"]])


# ---- observing -----------------------------------------------------------------------------------


def _observe(table: TableOf, batch: Batch, seen: bool) -> tuple[int, int]:
    """Show a batch to the bank, rows without a label apart.

    Returns
    -------
        The number of labels, and of those that are no class of the model, which count as none.
    """
    bank = table.bank
    observe = partial(bank.observe, exclude=table.unused, overrides=table.overrides)
    if batch.labels is None:
        observe(batch.rows)
        return 0, 0
    from openfate.cli.labels import complete

    has_label = complete(batch.labels).to_numpy().copy()
    y, known = _truth(bank, batch.select(has_label))
    has_label[has_label] = known
    if has_label.any():
        observe(batch.rows.filter(has_label), y[known], seen=seen)
    if not seen and not has_label.all():
        observe(batch.rows.filter(~has_label))
    return int(known.sum()), int((~known).sum())


def _growth(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    known = {entry["name"]: entry["new_features"] for entry in before["fields"]}
    gained = {
        entry["name"]: entry["new_features"] - known.get(entry["name"], 0)
        for entry in after["fields"]
    }
    return {
        "new_columns": [name for name in gained if name not in known],
        "new_features": {name: n for name, n in gained.items() if n},
    }


def _described_growth(result: dict[str, Any]) -> str:
    gained = result["new_features"]
    lines = [f"Observed {result['rows']:,} rows; {sum(gained.values()):,} features are new."]
    for name, n in gained.items():
        column = " (a new column)" if name in result["new_columns"] else ""
        lines.append(f"  {name}: {n:,}{column}")
    if result["labels"]:
        used = "used" if result["labels_used"] else "not used: this model learns without them"
        lines.append(f"{result['labels']:,} rows had a label ({used}).")
    if result["labels_of_unknown_class"]:
        lines.append(
            f"{result['labels_of_unknown_class']:,} rows had a label of a class that the model "
            "does not know (not used)."
        )
    return "\n".join([*lines, f"Bundle: {result['bundle']}"])


# ---- evaluating ----------------------------------------------------------------------------------


def _truth(bank: FeatureBank, batch: Batch) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The targets of rows as the scores take them, and which rows the model could get right."""
    import numpy as np

    from openfate.cli.labels import as_codes, as_numbers, as_truth

    assert batch.labels is not None
    if bank.task in ("binary", "multiclass"):
        codes = as_codes(batch.labels, bank.classes)
        return codes, codes >= 0
    y = as_numbers(batch.labels) if bank.task == "regression" else as_truth(batch.labels)
    return y, np.ones(len(y), dtype=bool)


def _scores(bank: FeatureBank, outputs: NDArray[Any], y: NDArray[Any]) -> dict[str, float | None]:
    import math

    from openfate.estimators import task_scores

    scores = task_scores(outputs, y, bank.task)
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def _print_scores(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from openfate.estimators import LESS_IS_BETTER

    used, dropped = result["new_features"]["used"], result["new_features"]["dropped"]
    table = Table(title=f"{', '.join(result['target'])}: {result['rows']:,} rows")
    table.add_column("score")
    table.add_column("new features used", justify="right")
    table.add_column("dropped", justify="right")
    for name, value in used.items():
        label = name.replace("_", " ") + (" (less is better)" if name in LESS_IS_BETTER else "")
        table.add_row(label, *("-" if v is None else f"{v:.4f}" for v in (value, dropped[name])))
    Console().print(table)
    for key, what in (
        ("rows_without_target", "without a target"),
        ("rows_of_unknown_class", "of a class that the model does not know"),
    ):
        if result[key]:
            print(f"{result[key]:,} rows {what} were left out.")
    if used == dropped:  # why they are
        print(result["how"])
