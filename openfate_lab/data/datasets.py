"""The data sets of the paper's UCI experiments, logs in time order, and scikit-learn's digits.

PAPER: section 4.1 and appendix; every numeric column is cut into 10 equal-width buckets whose edges
come from all rows, and a missing cell gives no feature.  D, the number of 0-1 features, then equals
the paper's Table 2 but for `calls` (216 here, 219 there, unexplained).
No data file is part of the package: see `openfate_lab.data.fetch`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import reprlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table import Encoder, Field, MultiHot, Schema
from openfate_lab.data import logs
from openfate_lab.data.sources import NAMES, SOURCES, DataFile, check_name, find, remedy

__all__ = ["NAMES", "Dataset", "load"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of 0-1 features and their classes.

    Parameters
    ----------
    name
        What `load` was asked for.
    X
        N rows, D features.
    y
        (N,) the class of each row, an index into `classes`.
    classes
        The names of the classes.
    fields
        The names of the raw columns.
    field_of
        (D,) the field of each feature, an index into `fields`.
    metric
        What the paper reports.
    sha256
        Of the raw file; of several files, the hash of their hashes.
    time
        (N,) seconds, ascending, of rows in time order; None where order means nothing.
    """

    name: str
    X: MultiHot
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    field_of: NDArray[np.int32]
    metric: Literal["accuracy", "auc"]
    sha256: str
    time: NDArray[np.float64] | None = None


def load(name: str, data: str | Path | None = None) -> Dataset:
    """Load a data set by its name, one of `NAMES`.

    Parameters
    ----------
    name
        E.g. "digits", which needs no folder, or "gene".
    data
        The data folder; by default OPENFATE_DATA, then the cache that `openfate fetch` fills.

    Raises
    ------
    InputError
        For an unknown name.
    DataFileError
        For a missing or malformed file.

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.X.n_rows, len(digits.fields), len(digits.classes), digits.metric
    (1797, 64, 10, 'accuracy')
    """
    check_name(name)
    if name == "digits":
        return _load_digits()
    files = [
        _Raw(name, path, file, _read_bytes(path))
        for path, file in zip(find(name, data), SOURCES[name].files, strict=True)
    ]
    hashes = [hashlib.sha256(raw.content).hexdigest() for raw in files]
    whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    if name == "github":
        return _load_github(*files, sha256=whole)
    if name in logs.READERS:
        return _load_log(files[0], whole)
    frame, labels = _READERS[name](files[0])
    classes, y = _classes(labels, files[0])
    X, encoder = _encode(frame, Schema.from_frame(frame))
    return Dataset(name, X, y, classes, encoder.fields, encoder.field_of, "accuracy", whole)


def _load_log(raw: _Raw, sha256: str) -> Dataset:
    frame, labels, seconds = logs.READERS[raw.name](raw.unpacked())
    order = np.argsort(seconds, kind="stable")
    classes, y = _classes(labels, raw)
    if len(classes) > 2:
        raise raw.fault(f"the label takes {len(classes)} values; AUC needs 2")
    schema = Schema(Field(name, "categorical") for name in frame.columns)
    X, encoder = _encode(frame[order], schema)
    field_of, fields = encoder.field_of, encoder.fields
    return Dataset(raw.name, X, y[order], classes, fields, field_of, "auc", sha256, seconds[order])


def _encode(frame: pl.DataFrame, schema: Schema) -> tuple[MultiHot, Encoder]:
    # PAPER: bucket edges and vocabulary come from all rows, test rows too; missing cells are 0.
    encoder = Encoder(schema, missing="none").fit(frame)
    return encoder.encode(frame), encoder


# ---- raw files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Raw:
    """A raw file's bytes, with what is needed to name it in an error."""

    name: str
    path: Path
    file: DataFile
    content: bytes

    def fault(self, what: str) -> DataFileError:
        return DataFileError(f"{self.path}: {what}; {remedy(self.name)}.")

    def unpacked(self) -> _Raw:
        """The same file without its compression."""
        try:
            return replace(self, content=gzip.decompress(self.content))
        except (OSError, EOFError, zlib.error):
            raise self.fault("not a gzip file, or cut short") from None

    def lines(self) -> list[bytes]:
        """What is not empty at the end; a tab there is a cell, not space."""
        return self.content.removeprefix(b"\xef\xbb\xbf").rstrip(b" \r\n").splitlines()

    def table(self, names: Sequence[str] | None) -> pl.DataFrame:
        """Read the lines as text cells; without names, the first line holds them."""
        lines = self.lines()
        separator = str(self.file.separator)
        self._check_width(lines, separator.encode())
        if names is None:
            names = [
                cell.strip() for cell in lines.pop(0).decode(errors="replace").split(separator)
            ]
            if "" in names:
                raise self.fault(f"line 1 has no name for column {names.index('') + 1}")
            if len(set(names)) < len(names):
                raise self.fault("line 1 names a column twice")
        if not lines:
            raise self.fault("no rows")
        try:
            return pl.read_csv(
                BytesIO(b"\n".join(lines)),
                separator=separator,
                has_header=False,
                new_columns=list(names),
                infer_schema=False,
                quote_char=None,
            ).select(pl.all().str.strip_chars().replace("", None))
        except pl.exceptions.PolarsError:
            raise self.fault("not a text table in UTF-8") from None

    def _check_width(self, lines: list[bytes], separator: bytes) -> None:
        if not lines:
            raise self.fault("empty file")
        wanted = self.file.n_columns
        for number, line in enumerate(lines, start=1):
            if (found := line.count(separator) + 1) != wanted:
                raise self.fault(f"line {number} has {found} columns, not {wanted}")

    def column(self, table: pl.DataFrame, name: str) -> pl.Series:
        if name not in table.columns:
            raise self.fault(f"no column {name!r}")
        return table[name]

    def numbers(
        self, table: pl.DataFrame, names: Sequence[str], may_miss: bool = False
    ) -> pl.DataFrame:
        """Take the named columns as finite floats."""
        first_line = 1 + (len(self.lines()) - len(table))
        columns = []
        for name in names:
            text = self.column(table, name)
            number = text.cast(pl.Float64, strict=False)
            bad = ~number.is_finite().fill_null(False)
            if may_miss:
                bad &= text.is_not_null()
            if bad.any():
                at = bad.to_list().index(True)
                cell = "an empty cell" if text[at] is None else f"{text[at]!r}, not a number"
                raise self.fault(f"line {first_line + at}, column {name!r} holds {cell}")
            columns.append(number)
        return pl.DataFrame(columns)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror}).") from None


def _classes(labels: pl.Series, raw: _Raw) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if labels.null_count():
        raise raw.fault(f"{labels.null_count()} rows have no class")
    names = labels.unique().to_list()
    names.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    if len(names) < 2:
        raise raw.fault(f"every row has the class {names[0]!r}; at least 2 classes are needed")
    y = labels.replace_strict(names, range(len(names)), return_dtype=pl.Int64)
    return tuple(names), y.to_numpy()


def _numbered(stem: str, n: int) -> list[str]:
    return [f"{stem}_{i}" for i in range(1, n + 1)]


# ---- one reader for each data set --------------------------------------------------------------


def _read_gene(raw: _Raw) -> tuple[pl.DataFrame, pl.Series]:
    table = raw.table(["class", "name", "sequence"])
    letters = table["sequence"].fill_null("")
    width = letters.str.len_chars()
    if not (width == 60).all():
        at = (width != 60).to_list().index(True)
        raise raw.fault(f"line {at + 1} has a sequence of {width[at]} letters, not 60")
    positions = [
        letters.str.slice(i, 1).alias(name) for i, name in enumerate(_numbered("position", 60))
    ]
    return pl.DataFrame(positions), table["class"]


def _read_protein(raw: _Raw) -> tuple[pl.DataFrame, pl.Series]:
    table = raw.table(None)
    # PAPER: 743 features are reached only with these three, whose product is the label.
    leak = [raw.column(table, name) for name in ("Genotype", "Treatment", "Behavior")]
    labels = raw.column(table, "class")
    rest = {"MouseID", "Genotype", "Treatment", "Behavior", "class"}
    proteins = [name for name in table.columns if name not in rest]
    frame = raw.numbers(table, proteins, may_miss=True)
    return frame if raw.name == "protein-noleak" else frame.with_columns(leak), labels


def _read_robot(raw: _Raw) -> tuple[pl.DataFrame, pl.Series]:
    sensors = _numbered("sensor", 24)
    table = raw.table([*sensors, "class"])
    return raw.numbers(table, sensors), table["class"]


def _read_drive(raw: _Raw) -> tuple[pl.DataFrame, pl.Series]:
    attributes = _numbered("attribute", 48)
    table = raw.table([*attributes, "class"])
    return raw.numbers(table, attributes), table["class"]


def _read_calls(raw: _Raw) -> tuple[pl.DataFrame, pl.Series]:
    table = raw.table(None)
    labels = raw.column(table, "Species")
    rest = {"Family", "Genus", "Species", "RecordID"}
    frame = raw.numbers(table, [name for name in table.columns if name not in rest])
    names = [name.replace(" ", "") for name in frame.columns]
    if len(set(names)) < len(names):
        raise raw.fault("line 1 names a column twice, but for spaces")
    return frame.rename(dict(zip(frame.columns, names, strict=True))), labels


_READERS: dict[str, Callable[[_Raw], tuple[pl.DataFrame, pl.Series]]] = {
    "gene": _read_gene,
    "protein": _read_protein,
    "protein-noleak": _read_protein,
    "robot": _read_robot,
    "drive": _read_drive,
    "drive-sample": _read_drive,
    "calls": _read_calls,
}


def _load_github(features: _Raw, target: _Raw, *, sha256: str) -> Dataset:
    table = target.table(None)
    classes, y = _classes(target.column(table, "ml_target"), target)
    if len(classes) > 2:
        some = ", ".join(repr(name) for name in classes[:5])
        raise target.fault(f"column 'ml_target' holds {len(classes)} classes ({some}); AUC needs 2")
    nodes = _node_ids(target, table)
    lists = _node_lists(features)
    absent = next((node for node in nodes if node not in lists), None)
    if absent is not None:
        raise features.fault(f"no entry for the row with id {absent!r} of {target.path.name}")
    row = np.repeat(np.arange(len(nodes)), [len(lists[node]) for node in nodes])
    numbers, feature = np.unique(
        np.concatenate([np.asarray(lists[node], dtype=np.int64) for node in nodes]),
        return_inverse=True,
    )
    if not len(numbers):
        raise features.fault("every list of feature numbers is empty")
    X = MultiHot.from_entries(row, feature, len(nodes), len(numbers))
    # The archive gives no raw columns, so each 0-1 feature is a field of its own.
    fields = tuple(f"feature_{number}" for number in numbers)
    own = np.arange(len(fields), dtype=np.int32)
    return Dataset("github", X, y, classes, fields, own, "auc", sha256)


def _node_ids(raw: _Raw, table: pl.DataFrame) -> list[str]:
    """Read the column "id", each id once."""
    line_of: dict[str, int] = {}
    for line, node in enumerate(raw.column(table, "id").to_list(), start=2):
        if node is None:
            raise raw.fault(f"line {line} has no id")
        if node in line_of:
            raise raw.fault(f"the id {node!r} is on line {line_of[node]} and on line {line}")
        line_of[node] = line
    return list(line_of)


def _node_lists(raw: _Raw) -> dict[str, list[int]]:
    try:
        # WHY: a tuple of pairs and not a dict, which would hide that an entry is there twice.
        pairs = json.loads(raw.content, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        raise raw.fault("not JSON") from None
    if not isinstance(pairs, tuple):
        raise raw.fault("not a JSON object of lists of feature numbers")
    lists: dict[str, list[int]] = {}
    for node, numbers in pairs:
        if node in lists:
            raise raw.fault(f"the entry {node!r} is there twice")
        if not isinstance(numbers, list):
            raise raw.fault(f"the entry {node!r} is not a list of feature numbers")
        odd = [n for n in numbers if type(n) is not int or not 0 <= n < 2**63]
        if odd:
            found = reprlib.repr(odd[0])
            raise raw.fault(f"the entry {node!r} holds {found}, not a feature number from 0 up")
        lists[node] = numbers
    return lists


def _load_digits() -> Dataset:
    # WHY: imported here, by name, because scikit-learn takes a second that only digits needs.
    digits = import_module("sklearn.datasets").load_digits()
    schema = Schema(
        Field(f"pixel_{r}_{c}", "numeric", n_buckets=4, bounds=(0, 16))
        for r in range(8)
        for c in range(8)
    )
    pixels = np.ascontiguousarray(digits.data, dtype=np.float64)  # (1797, 64)
    y = np.ascontiguousarray(digits.target, dtype=np.int64)
    X, encoder = _encode(pl.DataFrame(pixels, schema=list(schema.names)), schema)
    sha256 = hashlib.sha256(pixels.astype("<f8").tobytes() + y.astype("<i8").tobytes()).hexdigest()
    classes = tuple(str(name) for name in digits.target_names)
    return Dataset("digits", X, y, classes, encoder.fields, encoder.field_of, "accuracy", sha256)
