"""`openfate observe`: rows, and labels where they have come, teach a bundle what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from openfate.bank import FeatureBank, describe, read_bundle, updating
from openfate.cli.command import Answer
from openfate.cli.flags import BatchRows, Bundle, Exclude, Null, RowsPath, Trusted, Where
from openfate.cli.later_rows import LaterBatch, LaterRows
from openfate.cli.target_flag import is_complete
from openfate.errors import InputError


def observe(
    bundle: Bundle,
    rows: RowsPath,
    *,
    target: str | None = None,
    labelled: bool = False,
    seen: bool = False,
    where: Where = None,
    null: Null = None,
    exclude: Exclude = (),
    batch_rows: BatchRows = 65_536,
    trusted: Trusted = False,
) -> Answer:
    """Let rows teach a bundle what is new in them.

    Nothing is trained: what new columns and values mean is told by the rows that have them.

    Parameters
    ----------
    target
        Labels that have come: a column or an SQL expression.
    labelled
        The rows have labels: the target as in fit.
    seen
        The rows were observed before; now their labels come.
    """
    read_bundle(bundle)  # WHY: a path that is no bundle gets no lock
    with updating(bundle):
        bank = FeatureBank.load(bundle, trusted=trusted)
        before = describe(bank)
        later = LaterRows(
            *(bank, rows, batch_rows, where, null, exclude, target),
            labelled="some" if labelled else "none",
        )
        if seen and later.labels is None:
            raise InputError("--seen: only labels are new then; give --labelled or --target.")
        n_rows = n_labels = n_unknown = 0
        show = partial(bank.observe, overrides=later.overrides())
        for batch in later.batches("observing"):
            known, unknown = _observe(show, bank, batch, seen)
            n_labels, n_unknown = n_labels + known, n_unknown + unknown
            n_rows += len(batch)
        later.remember_types()
        bank.save(bundle, overwrite=True)
    result = {
        "bundle": str(bundle),
        "rows": n_rows,
        "labels": n_labels,
        "labels_of_unknown_class": n_unknown,
        "labels_used": bool(n_labels) and bank.evidence is not None,
        **_growth(before, describe(bank)),
    }
    return result, _describe(result)


def _observe(
    show: Callable[..., None], bank: FeatureBank, batch: LaterBatch, seen: bool
) -> tuple[int, int]:
    """Show a batch to the bank, rows without a label apart.

    Returns
    -------
        The number of labels, and of those that are no class of the model, which count as none.
    """
    if batch.labels is None:
        show(batch.rows)
        return 0, 0
    has_label = is_complete(batch.labels).copy()
    y, known = batch.filter(has_label).truth(bank)
    has_label[has_label] = known
    if has_label.any():
        show(batch.rows.filter(has_label), y[known], seen=seen)
    if not seen and not has_label.all():
        show(batch.rows.filter(~has_label))
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


def _describe(result: dict[str, Any]) -> Iterator[str]:
    gained = result["new_features"]
    yield f"Observed {result['rows']:,} rows; {sum(gained.values()):,} features are new."
    for name, n in gained.items():
        yield f"  {name}: {n:,}{' (a new column)' if name in result['new_columns'] else ''}"
    if result["labels"]:
        used = "used" if result["labels_used"] else "not used: this model learns without them"
        yield f"{result['labels']:,} rows had a label ({used})."
    if result["labels_of_unknown_class"]:
        yield (
            f"{result['labels_of_unknown_class']:,} rows had a label of a class that the model "
            "does not know (not used)."
        )
    yield f"Bundle: {result['bundle']}"
