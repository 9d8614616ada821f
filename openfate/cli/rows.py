"""A file of rows as a bundle sees it: known types, new columns, labels; read in batches.

A bundle remembers what `fit` was told (under "table" in its meta): the target, the types of the
columns and the cells that mean "missing", so that later commands read later files alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.cli.labels import Labels, complete, read_labels
from openfate.errors import InputError
from openfate.table import RowFile, Schema, plain_types

if TYPE_CHECKING:
    from openfate.bank import FeatureBank

__all__ = ["Batch", "TableOf"]


@dataclass(frozen=True)
class Batch:
    """Some rows, their numbers in the file and their labels, if the command wants them."""

    numbers: NDArray[np.int64]
    rows: pl.DataFrame
    labels: pl.DataFrame | None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, kept: NDArray[np.bool_]) -> Batch:
        """Some of the rows."""
        labels = None if self.labels is None else self.labels.filter(kept)
        return Batch(self.numbers[kept], self.rows.filter(kept), labels)


@dataclass
class TableOf:
    """A file of rows, read as a bundle's bank needs it.

    Parameters
    ----------
    bank
        Not changed.
    target
        --target; by default what `fit` was told.
    labelled
        "none": labels are not read, unless `target` names them; "some": rows may have one; "all":
        rows without one are left out, and counted in `n_unlabelled`.
    """

    bank: FeatureBank
    path: Path
    where: str | None = None
    nulls: Sequence[str] = ()
    target: str | None = None
    labelled: Literal["none", "some", "all"] = "none"
    keep: Sequence[str] = ()
    exclude: Sequence[str] = ()
    n_unlabelled: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        memory = self.bank.meta.get("table", {})
        nulls = [*memory.get("nulls", []), *self.nulls]
        self.file = RowFile(self.path, nulls, memory.get("types"))
        self.labels = self._labels(memory.get("target"))
        self.file.check_columns(self.keep, "--keep")
        self.file.check_columns(self.exclude, "--exclude")
        labels = self.labels.columns if self.labels is not None else ()
        self.unused = tuple(dict.fromkeys([*self.bank.exclude, *self.exclude, *labels]))
        self.overrides = self.bank.overrides
        self.columns = [name for name in self.file.types if name not in self.unused]
        if not self.columns:
            raise InputError(f"{self.path}: it has no column that the model may use.")
        if not any(name in self.bank.encoder.schema for name in self.columns):
            warnings.warn(f"{self.path}: it has none of the model's columns.", stacklevel=2)
        self.new_columns = [
            name
            for name in self.columns
            if name not in self.bank.encoder.schema
            and self.bank.policies.of("new_columns", name) != "ignore"
        ]

    def _labels(self, remembered: list[str] | None) -> Labels | None:
        if self.target is not None:
            return read_labels(self.target, self.file.types)
        if self.labelled == "none":
            return None
        if remembered is None:
            raise InputError("--target: the bundle does not know its target; name the column.")
        return read_labels(remembered, self.file.types)

    def declare_new_columns(self) -> None:
        """Find out what the file's new columns are, from the whole file, for `overrides`.

        Otherwise the bank would guess kinds and bounds from the first batch that has the column.
        """
        fields = self.file.survey(
            self.new_columns,
            self.where,
            [entry for entry in self.bank.overrides if entry.name in self.new_columns],
            self.bank.meta.get("numeric", "buckets"),
        )
        others = [entry for entry in self.bank.overrides if entry.name not in fields]
        self.overrides = Schema([*others, *fields])

    def batches(self, size: int) -> Iterator[Batch]:
        """The rows, `size` at a time."""
        label_columns = self.labels.columns if self.labels is not None else ()
        wanted = list(dict.fromkeys([*self.columns, *label_columns, *self.keep]))
        found = False
        self.n_unlabelled = 0
        for numbers, rows in self.file.numbered(size, self.where, wanted):
            found = True
            batch = Batch(numbers, rows, self.labels.of(rows) if self.labels is not None else None)
            if self.labelled == "all":
                batch = self._labelled(batch)
            if len(batch):
                yield batch
        if not found:
            raise InputError(f"--where {self.where}: no row of {self.path} is so.")

    def _labelled(self, batch: Batch) -> Batch:
        assert batch.labels is not None
        kept = complete(batch.labels).to_numpy()
        self.n_unlabelled += int((~kept).sum())
        return batch.select(kept)

    def remember_types(self, names: Iterable[str]) -> None:
        """Keep the types of columns that the bank has come to know."""
        table = self.bank.meta.setdefault("table", {})
        found = plain_types({name: self.file.types[name] for name in names})
        table["types"] = {**table.get("types", {}), **found}
