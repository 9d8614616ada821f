"""Data sets by their names: the paper's UCI experiments, logs in time order, scikit-learn's.

No data file is part of the package: see `openfate_lab.data.fetch`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from openfate._lazy import LazyDict
from openfate.errors import DataFileError, InputError, suggest
from openfate.table import MultiHot
from openfate_lab.data.source import Source

# A new data set is one line here, and its source in a file of its own.
SOURCES: LazyDict[Source] = LazyDict(
    {
        "digits": "openfate_lab.data.uci_tables:DIGITS",
        "breast_cancer": "openfate_lab.data.uci_tables:BREAST_CANCER",
        "wine": "openfate_lab.data.uci_tables:WINE",
        "iris": "openfate_lab.data.uci_tables:IRIS",
        "gene": "openfate_lab.data.uci_tables:GENE",
        "protein": "openfate_lab.data.uci_tables:PROTEIN",
        "protein-noleak": "openfate_lab.data.uci_tables:PROTEIN_NOLEAK",
        "robot": "openfate_lab.data.uci_tables:ROBOT",
        "drive": "openfate_lab.data.uci_tables:DRIVE",
        "drive-sample": "openfate_lab.data.uci_tables:DRIVE_SAMPLE",
        "calls": "openfate_lab.data.uci_tables:CALLS",
        "github": "openfate_lab.data.uci_tables:GITHUB",
        "flights": "openfate_lab.data.log_samples:FLIGHTS",
        "criteo-sample": "openfate_lab.data.log_samples:CRITEO_SAMPLE",
        "avazu-sample": "openfate_lab.data.log_samples:AVAZU_SAMPLE",
    }
)
NAMES = tuple(SOURCES)
_WIDE = 500  # fields; more of them are one column of lists
LOGS = tuple(name for name, source in SOURCES.items() if source.in_time)


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
    raw
        (N, d) the columns that the features were made of; None where there are none.
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
    raw: pl.DataFrame | None = None

    def to_frame(self, hidden: ArrayLike = ()) -> pl.DataFrame:
        """The rows as columns of lists, one for each field, whose values are the features.

        Lists, because an empty one says nothing: a cell that is missing is a feature itself.  A
        field without a feature that is not hidden has no column; of very many fields there is one
        column together, "features".

        Parameters
        ----------
        hidden
            Features that are left out.

        Examples
        --------
        >>> load("digits").to_frame()["pixel_0_2"].head(3).to_list()
        [['v5'], ['v4'], ['v4']]
        """
        shown = np.ones(self.X.n_features, dtype=bool)
        shown[np.asarray(hidden, dtype=np.int64)] = False
        at = np.flatnonzero(shown[self.X.ids])
        ids = self.X.ids[at]
        field = self.field_of[ids] if len(self.fields) <= _WIDE else np.zeros(len(ids), np.int32)
        names = self.fields if len(self.fields) <= _WIDE else ("features",)
        cells = pl.DataFrame({"row": self.X.row_of[at], "field": field, "value": ids})
        cells = cells.with_columns(value=pl.format("v{}", "value"))
        lists = cells.group_by("field", "row").agg("value").partition_by("field", as_dict=True)
        rows, columns = pl.DataFrame({"row": np.arange(self.X.n_rows)}), {}
        for (number,), part in lists.items():
            part = part.with_columns(pl.col("row").cast(rows.schema["row"]))
            column = rows.join(part, on="row", how="left", maintain_order="left")["value"]
            columns[names[int(number)]] = column.fill_null([])
        return pl.DataFrame({name: columns[name] for name in names if name in columns})


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
    source = source_of(name)
    paths = find(name, data)
    try:
        content = source.read(*paths)
        classes, y = _classes(content.labels, source.metric, paths)
    except DataFileError as error:
        raise DataFileError(f"{str(error).rstrip('.')}; {source.remedy(name)}.") from None
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    sha256 = content.sha256 or whole
    fields, field_of = content.fields, content.field_of
    of = (name, content.X, y, classes, fields, field_of, source.metric, sha256)
    return Dataset(*of, content.time, content.raw)


def _classes(
    labels: pl.Series, metric: str, paths: list[Path]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    names = labels.drop_nulls().unique().to_list()
    names.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    wrong = None
    if labels.null_count():
        wrong = f"{labels.null_count()} rows have no class"
    elif len(names) < 2:
        wrong = f"every row has the class {names[0]!r}; at least 2 classes are needed"
    elif metric == "auc" and len(names) > 2:
        some = ", ".join(repr(name) for name in names[:5])
        wrong = f"there are {len(names)} classes ({some}); AUC needs 2"
    if wrong is not None:
        raise DataFileError(f"{paths[-1]}: {wrong}.")
    y = labels.replace_strict(names, range(len(names)), return_dtype=pl.Int64)
    return tuple(names), y.to_numpy()


def source_of(name: str) -> Source:
    """Give the source of a data set; raises InputError, with a close name, where there is none.

    Examples
    --------
    >>> list(source_of("gene").files)
    ['splice.data']
    """
    if name not in SOURCES:
        hint = suggest(name, NAMES)
        raise InputError(f"unknown data set {name!r}{hint} (data sets: {', '.join(NAMES)})")
    return SOURCES[name]


def cache_folder(cache: str | Path | None = None) -> Path:
    """Give the folder that `fetch` fills: the argument, OPENFATE_CACHE, or the user's cache.

    Examples
    --------
    >>> cache_folder("/tmp/here").as_posix()
    '/tmp/here'
    """
    chosen = cache or os.environ.get("OPENFATE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openfate"


def find(name: str, data: str | Path | None = None) -> list[Path]:
    """Find the files of a data set in `data`, else in OPENFATE_DATA, else in the cache.

    Both DIR/uci/gene/splice.data and DIR/gene/splice.data are accepted.

    Raises
    ------
    DataFileError
        Where the folder or a file is missing; it names the places and the remedy.
    """
    source, found = source_of(name), []
    folders = _folders(data) if source.files else []
    for file in source.files:
        inner = Path(source.folder) / file
        places = [folder / top / inner for folder in folders for top in ("uci", "ctr", "")]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            looked = ", ".join(str(folder) for folder in folders)
            raise DataFileError(
                f"{inner.as_posix()} of the data set {name!r} is not in {looked}; "
                f"{source.remedy(name)}."
            )
        found.append(path)
    return found


def _folders(data: str | Path | None) -> list[Path]:
    if data is not None:
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise DataFileError(f"{data}: no such folder; give the folder of the data sets.")
        return [folder]
    from_environment = os.environ.get("OPENFATE_DATA")
    # WHY: the cache comes second even where OPENFATE_DATA is set: what was fetched is found.
    return [*([Path(from_environment).expanduser()] if from_environment else []), cache_folder()]
