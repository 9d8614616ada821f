"""Raw click logs: where their files are and what their columns mean.

Criteo (tabs, no header: label, 13 integers, 26 hashes), Avazu (csv, 24 named columns), and any
CSV, TSV or Parquet file or folder of files with a target.  Text may be gzipped.  Cells stay text:
what a text means (an integer's bucket, an hour) is decided once for each distinct value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from openfate.errors import DataFileError, InputError, check_choice
from openfate.table.fields import Field
from openfate.table.reader import File, ParquetFile, Paths, RowFile, TextFile, suffix_of

Format = Literal["criteo", "avazu", "csv"]
Meaning = Literal["text", "log", "hour"]  # how a text becomes a value
Check = Literal["label", "log", "hour", "time"]  # what a text must be

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
AVAZU_COLUMNS = (
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model"),
    *("device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
)
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}

_PARQUET = (".parquet", ".pq")
_TABBED = (".tsv", ".txt")
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "criteo": (".txt", ".tsv"),
    "avazu": (".csv",),
    "csv": (".csv", ".tsv", ".txt", *_PARQUET),
}
_REMEDIES: dict[Check, str] = {
    "label": "a label is 0 or 1",
    "log": "give numbers, or leave cells empty",
    "hour": "give YYMMDDHH",
    "time": "give every row a time",
}


@dataclass(frozen=True)
class Preset:
    """What `RowFile` and a schema need to know of a published format.

    Parameters
    ----------
    fields
        What the columns are.
    columns, separator
        Of files without a first line of names.
    exclude
        Columns that are no fields.

    Examples
    --------
    >>> len(PRESETS["criteo"].fields), PRESETS["avazu"].exclude
    (39, ('id',))
    """

    fields: tuple[Field, ...]
    columns: tuple[str, ...] | None = None
    separator: str | None = None
    exclude: tuple[str, ...] = ()

    def open(self, path: Paths, nulls: Sequence[str] = (), **options: Any) -> RowFile:
        """The rows of files of this format."""
        names = [field.name for field in self.fields]
        declared = [*names, *options.pop("declared", ())]
        return RowFile(
            path,
            nulls,
            columns=self.columns,
            separator=self.separator,
            declared=declared,
            **options,
        )


PRESETS = {
    "table": Preset(()),
    "criteo": Preset(
        (
            *(Field(name, "numeric", numeric="log") for name in CRITEO_COLUMNS[1:14]),
            *(Field(name, "categorical") for name in CRITEO_COLUMNS[14:]),
        ),
        CRITEO_COLUMNS,
        "\t",
    ),
    # PAPER: 22 fields; `id` names the row and is no field.
    "avazu": Preset(
        tuple(Field(name, "categorical") for name in AVAZU_COLUMNS[2:]), exclude=("id",)
    ),
}


@dataclass(frozen=True)
class Log:
    """The files of a raw log and what its columns are.

    Parameters
    ----------
    files
        In the order of their rows, all with the same columns.
    target, fields, time
        The label's column, those that become fields, and the one that the split goes by.
    by_day
        Whether the split goes by calendar days (`time` is YYMMDDHH) or cuts ten equal parts.
    meaning
        "log" or "hour" for the fields whose texts are not values themselves.
    """

    files: tuple[File, ...]
    target: str
    fields: tuple[str, ...]
    time: str | None
    by_day: bool
    meaning: dict[str, Meaning]

    @property
    def path(self) -> Path:
        """Where it is: its first file."""
        return self.files[0].path

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: the target, the fields, then the time if it is no field."""
        extra = () if self.time is None or self.time in self.fields else (self.time,)
        return (self.target, *self.fields, *extra)

    @property
    def checks(self) -> dict[str, Check]:
        """What the texts of some columns must be."""
        checks: dict[str, Check] = {self.target: "label"}
        checks |= {name: meaning for name, meaning in self.meaning.items() if meaning != "text"}
        if self.time is not None:
            checks[self.time] = "hour" if self.by_day else "time"
        return checks

    def read(self) -> pl.DataFrame:
        """All rows as text, checked, "" where a cell is empty: for a log that fits in memory."""
        found = []
        for file in self.files:
            for rows in file.rows():
                cells = rows.cells.select(pl.col(self.columns).fill_null(""))
                for name, check in self.checks.items():
                    bad = is_invalid(cells[name], check).arg_true()
                    if len(bad):
                        line = rows.line_of(bad[0])
                        raise cell_fault(file.path, line, name, cells[name][bad[0]], check)
                found.append(cells)
        return pl.concat(found, rechunk=True)


def open_log(
    raw: str | Path,
    format: Format,
    *,
    target: str | None = None,
    time: str | None = None,
    drop: Sequence[str] = (),
    log: Sequence[str] = (),
    hour: Literal["raw", "of-day"] = "raw",
) -> Log:
    r"""Find the files of a raw log and say what its columns are.

    Parameters
    ----------
    raw
        A file, or a folder whose files, by name, follow one another.
    format
        "criteo", "avazu" or "csv" (any CSV, TSV or Parquet with a header).
    target, time, drop, log
        For "csv": the label's column (0 or 1), the time's, those to leave out, and those whose
        numbers are discretised as Criteo's integers are.
    hour
        For "avazu": "raw" keeps YYMMDDHH as a field's value, which makes every later hour new;
        "of-day" keeps the hour of the day alone.

    Raises
    ------
    InputError
        For arguments that do not fit the format.
    DataFileError
        For missing files or other columns.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "rows.csv")
    ...     _ = path.write_text("click,city\n1,Rome\n")
    ...     open_log(path, "csv", target="click").fields
    ('city',)
    """
    check_choice("format", format, get_args(Format))
    check_choice("hour", hour, ("raw", "of-day"))
    if format != "csv" and (target or time or drop or log):
        raise InputError(f'target, time, drop and log belong to the format "csv", not {format!r}.')
    paths = _find_files(Path(raw), format)
    if format == "criteo":
        files = tuple(TextFile(path, "\t", CRITEO_COLUMNS, has_quotes=False) for path in paths)
        integers: dict[str, Meaning] = dict.fromkeys(CRITEO_COLUMNS[1:14], "log")
        return Log(files, "label", CRITEO_COLUMNS[1:], None, False, integers)
    if format == "avazu":
        files = tuple(TextFile(path, ",", has_quotes=False) for path in paths)
        _check_columns(files, AVAZU_COLUMNS)
        # PAPER: 22 fields; `id` names the row and is no field.
        of_day: dict[str, Meaning] = {"hour": "hour"} if hour == "of-day" else {}
        return Log(files, "click", AVAZU_COLUMNS[2:], "hour", True, of_day)
    return _open_csv(paths, target, time, drop, log)


def _open_csv(
    paths: Sequence[Path],
    target: str | None,
    time: str | None,
    drop: Sequence[str],
    log: Sequence[str],
) -> Log:
    is_parquet = {suffix_of(path) in _PARQUET for path in paths}
    if len(is_parquet) > 1:
        raise DataFileError(f"{paths[0].parent}: holds both Parquet and text; keep one kind.")
    separator = "\t" if suffix_of(paths[0]) in _TABBED else ","
    files: tuple[File, ...] = tuple(
        ParquetFile(path) if True in is_parquet else TextFile(path, separator) for path in paths
    )
    columns = files[0].columns
    _check_columns(files, columns)
    if target is None:
        raise InputError(f"give the label's column as target; columns: {_some(columns)}.")
    for name in (target, *([time] if time else []), *drop, *log):
        if name not in columns:
            raise InputError(f"{paths[0]} has no column {name!r}; it has {_some(columns)}.")
    fields = tuple(name for name in columns if name not in {target, time, *drop})
    if not fields:
        raise InputError(
            f"{paths[0]}: no column is left to be a field of {_some(columns)}; drop fewer."
        )
    meaning: dict[str, Meaning] = dict.fromkeys([name for name in log if name in fields], "log")
    return Log(files, target, fields, time, False, meaning)


def _find_files(raw: Path, format: Format) -> list[Path]:
    if raw.is_file():
        return [raw]
    if not raw.is_dir():
        raise DataFileError(f"{raw}: no such file or folder; check the path.")
    wanted = _SUFFIXES[format]
    inside = sorted(path for path in raw.iterdir() if path.is_file())
    files = [p for p in inside if suffix_of(p) in wanted and not p.name.startswith(".")]
    if not files:
        some = ", ".join(f"*{suffix}" for suffix in wanted)
        raise DataFileError(
            f"{raw}: holds no file of {some} (or .gz of them); give a folder that does."
        )
    return files


def _check_columns(files: Sequence[File], wanted: tuple[str, ...]) -> None:
    """Refuse a file whose columns are others."""
    for file in files:
        if file.columns != wanted:
            raise DataFileError(
                f"{file.path}: its columns are {_some(file.columns)}, not {_some(wanted)}; "
                "give files of one kind."
            )


def _some(names: Sequence[str]) -> str:
    more = f" ... ({len(names)})" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def values_of(texts: pl.Series, meaning: Meaning) -> pl.Series:
    """Turn texts into values; an empty text is a missing cell, null.

    Examples
    --------
    >>> values_of(pl.Series(["", "-1", "2", "3", "40"]), "log").to_list()
    [None, '-3', '0', '1', '13']
    >>> values_of(pl.Series(["14102123"]), "hour").to_list()
    ['23']
    """
    text = pl.col("text").replace("", None)
    if meaning == "hour":
        text = text.str.slice(6, 2)
    elif meaning == "log":
        number = text.cast(pl.Float64)
        # PAPER: above 2 the squared logarithm, else the number less 2, so that the two never meet.
        bucket = pl.when(number > 2).then(number.log().pow(2).floor()).otherwise(number.floor() - 2)
        text = bucket.cast(pl.Int64).cast(pl.String)
    return pl.DataFrame({"text": texts}).select(text).to_series()


def is_invalid(texts: pl.Series, check: Check) -> pl.Series:
    """Say which texts cannot be what a column needs.

    Examples
    --------
    >>> is_invalid(pl.Series(["1", "x", ""]), "log").to_list()
    [False, True, False]
    """
    if check == "label":
        return ~texts.is_in(list(LABELS))
    if check == "hour":
        time = (texts + "00").str.to_datetime("%y%m%d%H%M", strict=False)
        return ~texts.str.contains(r"^\d{8}$") | time.is_null()
    if check == "time":
        return texts == ""
    number = texts.cast(pl.Float64, strict=False)
    return ~number.is_finite().fill_null(False) & (texts != "")


def cell_fault(path: Path, line: int, column: str, text: str, check: Check) -> DataFileError:
    """Make an error that names a cell that cannot be used.

    Examples
    --------
    >>> print(cell_fault(Path("a.txt"), 7, "label", "2", "label"))
    a.txt, line 7: column 'label' holds '2'; a label is 0 or 1.
    """
    found = reprlib.repr(text) if text else "nothing"
    return DataFileError(
        f"{path}, line {line}: column {column!r} holds {found}; {_REMEDIES[check]}."
    )
