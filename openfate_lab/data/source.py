"""What a data set is: its files, where they come from, and how they become rows of 0-1 features.

PAPER: section 4.1 and appendix; every numeric column is cut into 10 equal-width buckets whose edges
come from all rows, and a missing cell gives no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table import Encoder, MultiHot, Schema, TextFile


@dataclass(frozen=True, eq=False)
class Content:
    """What the files of a data set hold.

    Parameters
    ----------
    X
        N rows, D features.
    labels
        (N,) the name of each row's class.
    fields, field_of
        The names of the raw columns, and (D,) the one of each feature.
    time
        (N,) seconds, where rows have a time.
    sha256
        Where the data set has no files.
    raw
        (N, d) the columns that the features were made of, where there are any.
    """

    X: MultiHot
    labels: pl.Series
    fields: tuple[str, ...]
    field_of: NDArray[np.int32]
    time: NDArray[np.float64] | None = None
    sha256: str | None = None
    raw: pl.DataFrame | None = None


@dataclass(frozen=True)
class Source:
    """A data set.

    Parameters
    ----------
    read
        Called with the paths of the files, in order; errors need no remedy.
    folder, files
        Where they lie, and the hash of each public original by its name; None where none is known.
    url
        The public address of the file, or of a zip archive with all of them.
    metric
        What the paper reports.
    in_time
        Whether the rows are in time order.
    n_rows
        Checked after a download where no hash is known.
    instead
        What to do where the files cannot be had.
    """

    read: Callable[..., Content]
    folder: str = ""
    files: Mapping[str, str | None] = field(default_factory=dict)
    url: str | None = None
    metric: Literal["accuracy", "auc"] = "accuracy"
    in_time: bool = False
    n_rows: int | None = None
    instead: str = ""

    def remedy(self, name: str) -> str:
        """Say how to get the files of the data set, which is called `name`."""
        fetch = f"run `openfate fetch {name}`, or " if self.url is not None else ""
        return f"{fetch}give the data folder that has it{self.instead and ', or '}{self.instead}"


def encode(
    frame: pl.DataFrame,
    labels: pl.Series,
    schema: Schema | None = None,
    *,
    time: NDArray[np.float64] | None = None,
    sha256: str | None = None,
) -> Content:
    """Turn a table into 0-1 features; kinds of columns are guessed where no schema is given."""
    # PAPER: bucket edges and vocabulary come from all rows, test rows too; missing cells are 0.
    encoder = Encoder(schema or Schema.from_frame(frame), missing="none").fit(frame)
    X = encoder.encode(frame)
    return Content(X, labels, encoder.fields, encoder.field_of, time, sha256, frame)


class Cells:
    """A text file in memory: `table` has its cells without spaces around them, null where empty."""

    def __init__(self, path: Path, separator: str = ",", columns: Sequence[str] | None = None):
        found = list(TextFile(path, separator, columns).rows(-1))
        if not found:
            raise DataFileError(f"{path}: the file has no rows.")
        self.path, self.rows = path, found[0]
        self.table = self.rows.cells.select(pl.all().str.strip_chars().replace("", None))

    def fault(self, row: int, what: str) -> DataFileError:
        """Make an error that names a row's line."""
        return DataFileError(f"{self.path}, line {self.rows.line_of(row)}: {what}.")

    def column(self, name: str) -> pl.Series:
        """Give a column by its name."""
        if name not in self.table.columns:
            raise DataFileError(f"{self.path}: no column {name!r}.")
        return self.table[name]

    def numbers(self, names: Sequence[str], may_miss: bool = False) -> pl.DataFrame:
        """Take the named columns as finite floats."""
        columns = []
        for name in names:
            text = self.column(name)
            number = text.cast(pl.Float64, strict=False)
            bad = ~number.is_finite().fill_null(may_miss and text.is_null())
            if bad.any():
                at = int(bad.arg_true()[0])
                cell = "an empty cell" if text[at] is None else f"{text[at]!r}, not a number"
                raise self.fault(at, f"column {name!r} holds {cell}")
            columns.append(number)
        return pl.DataFrame(columns)
