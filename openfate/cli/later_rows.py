"""Files of rows that come after `fit`, as a bundle's bank reads them, in batches.

A bundle remembers what `fit` was told (under "table" in its meta): the target, the types of the
columns and the cells that mean "missing", so that later commands read later files alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.bank import FeatureBank, Graph
from openfate.cli.command import count_rows
from openfate.cli.target_flag import (
    Target,
    as_codes,
    as_labels,
    as_numbers,
    is_complete,
    read_target,
)
from openfate.errors import InputError
from openfate.table import PRESETS, Schema, plain_types

_AT_ONCE = 65_536  # rows


def read_training(bank: FeatureBank, path: Path, target: str | None) -> tuple[pl.DataFrame, Any]:
    """The rows that a bundle's bank was fitted on, and their labels, as `remind` takes them."""
    told = bank.meta.get("table", {})
    rows = LaterRows(
        *(bank, path, _AT_ONCE),
        where=told.get("where"),
        nulls=None,
        exclude=(),
        target=target,
        labelled="all",
    )
    found = [(batch.rows, *batch.truth(bank)) for batch in rows.batches("reading")]
    if not found or not all(known.all() for _, _, known in found):
        raise InputError(
            f"{path}: its target has no classes, or others than the model knows; give the rows "
            "that the bundle was fitted on."
        )
    y = np.concatenate([labels for _, labels, _ in found])
    if bank.task in ("binary", "multiclass"):
        y = np.array(bank.classes)[y]
    return pl.concat([frame for frame, _, _ in found]), y


@dataclass(frozen=True)
class LaterBatch:
    """Some rows: what the bank may use, their numbers in the file, columns to keep, labels."""

    rows: pl.DataFrame
    numbers: NDArray[np.int64]
    kept: pl.DataFrame
    labels: pl.DataFrame | None

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, which: NDArray[np.bool_]) -> LaterBatch:
        """Some of the rows."""
        labels = None if self.labels is None else self.labels.filter(which)
        kept = self.kept.filter(which) if self.kept.width else self.kept
        return LaterBatch(self.rows.filter(which), self.numbers[which], kept, labels)

    def truth(self, bank: FeatureBank) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The labels as `bank` takes them, and which rows have one that it knows; all have one."""
        assert self.labels is not None
        if bank.task in ("binary", "multiclass"):
            codes = as_codes(self.labels, bank.classes)
            return codes, codes >= 0
        y = as_numbers(self.labels) if bank.task == "regression" else as_labels(self.labels)
        return y, np.ones(len(y), dtype=bool)


@dataclass
class LaterRows:
    """A file of rows, read as a bundle's bank needs it, `batch_rows` at a time.

    Parameters
    ----------
    exclude
        Columns that the bank may not use, besides its own `exclude` and those of the target.
    target
        --target; by default what `fit` was told.
    labelled
        "none": labels are not read, unless `target` names them; "some": rows may have one; "all":
        rows without one are left out, and counted in `n_unlabelled`.
    part
        Which of so many parts of the rows, in their order, to read; what the columns are is told by
        the whole file all the same.
    """

    bank: FeatureBank
    path: Path
    batch_rows: int
    where: str | None
    nulls: Sequence[str] | None
    exclude: Sequence[str]
    target: str | None = None
    labelled: Literal["none", "some", "all"] = "none"
    keep: Sequence[str] = ()
    part: tuple[int, int] = (1, 1)
    n_unlabelled: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        told, schema = self.bank.meta.get("table", {}), self.bank.encoder.schema
        nulls = [*told.get("nulls", []), *(self.nulls or ())]
        preset = PRESETS[told.get("format", "table")]
        self.file = preset.open(self.path, nulls, types=told.get("types"))
        self.labels = self._read_target(told.get("target"))
        self.file.check_columns(self.keep, "--keep")
        self.file.check_columns(self.exclude, "--exclude")
        self._label_columns = () if self.labels is None else self.labels.columns
        # The column that names the source of rows is no feature, and `observe` reads it.
        unused = {*self.bank.exclude, *self.exclude, *self._label_columns} - {self.bank.source}
        self.columns = [name for name in self.file.types if name not in unused]
        if not self.columns:
            raise InputError(
                f"{self.path}: it has no column that the model may use; exclude fewer."
            )
        if not any(name in schema for name in self.columns):
            warnings.warn(f"{self.path}: it has none of the model's columns.", stacklevel=2)
        self.new_columns = [
            name
            for name in self.columns
            if name not in schema
            and name != self.bank.source
            and self.bank.policies.of("new_columns", name) != "ignore"
        ]

    def _read_target(self, remembered: list[str] | None) -> Target | None:
        if self.target is None and self.labelled == "none":
            return None
        target = remembered if self.target is None else self.target
        if target is None:
            raise InputError("--target: the bundle does not know its target; name the column.")
        return read_target(target, self.file.types)

    def batches(self, what: str) -> Iterator[LaterBatch]:
        """The rows, while the terminal says `what` is done with them."""
        return count_rows(self._batches(), what)

    def _batches(self) -> Iterator[LaterBatch]:
        wanted = list(dict.fromkeys([*self.columns, *self._label_columns, *self.keep]))
        self.n_unlabelled = n_found = 0
        first, last = (
            self.file.n_rows * at // self.part[1] for at in (self.part[0] - 1, self.part[0])
        )
        for numbers, rows in self.file.numbered(self.batch_rows, self.where, wanted):
            n_found += len(rows)
            if numbers[0] <= first or numbers[-1] > last:
                inside = (numbers > first) & (numbers <= last)
                numbers, rows = numbers[inside], rows.filter(inside)
            labels = None if self.labels is None else self.labels.of(rows)
            used = rows if wanted == self.columns else rows.select(self.columns)
            batch = LaterBatch(used, numbers, rows.select(self.keep), labels)
            if self.labelled == "all" and labels is not None:
                has_label = is_complete(labels)
                self.n_unlabelled += int((~has_label).sum())
                batch = batch.filter(has_label)
            if len(batch):
                yield batch
        if not n_found:
            raise InputError(f"--where {self.where}: no row of {self.path} is so; ask for others.")

    def overrides(self) -> Schema:
        """What the file's new columns are, from the whole file.

        Otherwise the bank would guess kinds and bounds from the first batch that has the column.
        """
        known = self.bank.overrides
        fields = self.file.survey(
            self.new_columns,
            self.where,
            [entry for entry in known if entry.name in self.new_columns],
            self.bank.meta.get("numeric", "buckets"),
        )
        return Schema([*(entry for entry in known if entry.name not in fields), *fields])

    def look_ahead(self, graph: Graph) -> FeatureBank:
        """The bank to predict with, batch after batch: it has seen what the graph lets it see."""
        if graph == "state":
            return self.bank
        return self.bank.lookahead(self, graph, overrides=self.overrides())

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """The rows that a bank looks at ahead, which it may go through twice."""
        return (batch.rows for batch in self.batches("looking ahead"))

    def remember_types(self) -> None:
        """Keep the types of columns that the bank has come to know."""
        table = self.bank.meta.setdefault("table", {})
        found = plain_types({name: self.file.types[name] for name in self.new_columns})
        table["types"] = {**table.get("types", {}), **found}
