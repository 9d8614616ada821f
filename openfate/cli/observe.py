"""`openfate observe`: rows, and labels where they have come, teach a bundle what is new."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from openfate.bank import FeatureBank, Note, describe, read_bundle, updating
from openfate.cli.cluster_flags import Cluster, GpusPerWorker, Workers, on_cluster
from openfate.cli.command import Answer
from openfate.cli.flags import BatchRows, Bundle, Exclude, Null, RowsPath, Trusted, Where
from openfate.cli.later_rows import LaterBatch, LaterRows
from openfate.cli.target_flag import is_complete
from openfate.errors import MOST_TOLD, InputError
from openfate.executor import spread
from openfate.table import Schema


def observe(
    bundle: Bundle,
    rows: RowsPath,
    *,
    target: str | None = None,
    labelled: bool = False,
    seen: bool = False,
    part: str | None = None,
    where: Where = None,
    null: Null = None,
    exclude: Exclude = (),
    batch_rows: BatchRows = 65_536,
    trusted: Trusted = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
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
    part
        i/N: observe the i-th of N parts of the rows, in their order, and keep notes for
        `openfate merge`: each part in a copy of the same bundle, on any machine.
    """
    own = None if part is None else _read_part(part)
    read_bundle(bundle)  # WHY: a path that is no bundle gets no lock
    with updating(bundle):
        bank = FeatureBank.load(bundle, trusted=trusted)
        if own is not None:
            bank = _fork(bank, own, part)
        before = describe(bank)
        later = LaterRows(
            *(bank, rows, batch_rows, where, null, exclude, target),
            labelled="some" if labelled else "none",
            part=own or (1, 1),
        )
        if seen and later.labels is None:
            raise InputError("--seen: only labels are new then; give --labelled or --target.")
        n_rows = n_labels = n_unknown = 0
        overrides = later.overrides()
        batches = later.batches("observing")
        with on_cluster(cluster, workers, gpus_per_worker):
            if cluster is None:
                show = partial(bank.observe, overrides=overrides)
                counts: Iterator[Counts] = (_observe(show, bank, one, seen) for one in batches)
            else:
                counts = _observe_apart(bank, overrides, seen, batches)
            for n, known, unknown in counts:
                n_rows, n_labels, n_unknown = n_rows + n, n_labels + known, n_unknown + unknown
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
    return result, _describe(result, labelled=later.labels is not None)


def _read_part(text: str) -> tuple[int, int]:
    """The numbers of --part i/N."""
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InputError(f"--part {text}: give i/N with i from 1 to N, such as 2/4.")
    return int(number), int(of)


def _fork(bank: FeatureBank, part: tuple[int, int], text: str | None) -> FeatureBank:
    """The bank that keeps notes of a part; of more rows of that part, if it does already."""
    before = bank.meta.get("part")
    if before is None:
        bank = bank.fork()
        bank.meta["part"] = list(part)
    elif before != list(part):
        raise InputError(
            f"--part {text}: the bundle has observed part {before[0]}/{before[1]}; observe each "
            "part in a copy of its own, or `openfate merge` first."
        )
    return bank


Counts = tuple[int, int, int]  # rows, labels, and labels of classes that the model does not know


def _observe(show: Callable[..., Any], bank: FeatureBank, batch: LaterBatch, seen: bool) -> Counts:
    """Show a batch to the bank, rows without a label apart; an unknown label counts as none."""
    if batch.labels is None:
        show(batch.rows)
        return len(batch), 0, 0
    has_label = is_complete(batch.labels).copy()
    y, known = batch.filter(has_label).truth(bank)
    has_label[has_label] = known
    if has_label.any():
        show(batch.rows.filter(has_label), y[known], seen=seen)
    if not seen and not has_label.all():
        show(batch.rows.filter(~has_label))
    return len(batch), int(known.sum()), int((~known).sum())


def _observe_apart(
    bank: FeatureBank, overrides: Schema, seen: bool, batches: Iterable[LaterBatch]
) -> Iterator[Counts]:
    """The same by notes that other processes make of batches, added in the order of the rows."""
    for notes, counts in spread(partial(_note, bank.copy(), overrides, seen), batches):
        bank.add(*notes)
        yield counts


def _note(
    bank: FeatureBank, overrides: Schema, seen: bool, batch: LaterBatch
) -> tuple[list[Note], Counts]:
    notes = list[Note]()

    def show(rows: Any, y: Any = None, **options: Any) -> None:
        notes.append(bank.note(rows, y, overrides=overrides, **options))

    return notes, _observe(show, bank, batch, seen)


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


def _describe(result: dict[str, Any], *, labelled: bool) -> Iterator[str]:
    gained, new_columns = result["new_features"], frozenset(result["new_columns"])
    yield f"Observed {result['rows']:,} rows; {sum(gained.values()):,} features are new."
    for name, n in itertools.islice(gained.items(), MOST_TOLD):
        yield f"  {name}: {n:,}{' (a new column)' if name in new_columns else ''}"
    if len(gained) > MOST_TOLD:
        yield f"  and {len(gained) - MOST_TOLD:,} more columns"
    if result["labels"]:
        used = "used" if result["labels_used"] else "not used: this model learns without them"
        yield f"{result['labels']:,} rows had a label ({used})."
    if result["labels_of_unknown_class"]:
        yield (
            f"{result['labels_of_unknown_class']:,} rows had a label of a class that the model "
            "does not know (not used)."
        )
    if labelled and not (result["labels"] or result["labels_of_unknown_class"]):
        yield "No row had a label."
    yield f"Bundle: {result['bundle']}"
