"""Raw click logs: where their files are and what their columns mean.

Criteo (tabs, no header: label, 13 integers, 26 hashes), Avazu (csv, 24 named columns), and any
CSV, TSV or Parquet file or folder of files with a target.  Text may be gzipped.  Cells stay text:
what a text means (an integer's bucket, an hour) is decided once for each distinct value, in
`vocabulary`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from openfate.errors import DataFileError, InputError
from openfate.table.clicks.textfile import fault, parquet, read_line, reading

__all__ = [
    "AVAZU_COLUMNS",
    "CRITEO_COLUMNS",
    "Format",
    "Log",
    "check_header",
    "header_of",
    "open_log",
]

Format = Literal["criteo", "avazu", "csv"]
Meaning = Literal["text", "log", "hour"]  # how a text becomes a value

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
AVAZU_COLUMNS = (
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model"),
    *("device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
)
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "criteo": (".txt", ".tsv"),
    "avazu": (".csv",),
    "csv": (".csv", ".tsv", ".txt", ".parquet", ".pq"),
}
_PARQUET = (".parquet", ".pq")
_TABBED = (".tsv", ".txt")


@dataclass(frozen=True)
class Log:
    """The files of a raw log and what its columns are.

    Parameters
    ----------
    files
        In the order of their rows.
    columns
        All columns of a line, in order.
    target, fields, time
        The label's column, those that become fields, and the one that the split goes by.
    meaning
        "log" or "hour" for the fields whose texts are not values themselves.
    separator
        Of text files; None for Parquet.
    by_day
        Whether the split goes by calendar days (`time` is YYMMDDHH) or cuts ten equal parts.
    has_header, has_quotes
        Whether the first line names the columns; whether a cell may be quoted.
    """

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    target: str
    fields: tuple[str, ...]
    time: str | None
    by_day: bool
    meaning: dict[str, Meaning]
    separator: str | None
    has_header: bool
    has_quotes: bool

    def fault(self, file: int, what: str, remedy: str) -> DataFileError:
        """Make an error that names one of the files."""
        return fault(self.files[file], what, remedy)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read: the target, the fields, then the time if it is no field."""
        extra = () if self.time is None or self.time in self.fields else (self.time,)
        return (self.target, *self.fields, *extra)


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
    if format not in get_args(Format):
        raise InputError(f'format must be "criteo", "avazu" or "csv", not {format!r}.')
    if hour not in ("raw", "of-day"):
        raise InputError(f'hour must be "raw" or "of-day", not {hour!r}.')
    if format != "csv" and (target or time or drop or log):
        raise InputError(f'target, time, drop and log belong to the format "csv", not {format!r}.')
    files = _find_files(Path(raw), format)
    if format == "criteo":
        integers = CRITEO_COLUMNS[1:14]
        meaning: dict[str, Meaning] = dict.fromkeys(integers, "log")
        fields = CRITEO_COLUMNS[1:]
        return Log(files, CRITEO_COLUMNS, "label", fields, None, False, meaning, "\t", False, False)
    if format == "avazu":
        # PAPER: 22 fields; `id` names the row and is no field.
        fields = AVAZU_COLUMNS[2:]
        meaning = {"hour": "hour"} if hour == "of-day" else {}
        return Log(files, AVAZU_COLUMNS, "click", fields, "hour", True, meaning, ",", True, False)
    return _open_csv(files, target, time, drop, log)


def _open_csv(
    files: tuple[Path, ...],
    target: str | None,
    time: str | None,
    drop: Sequence[str],
    log: Sequence[str],
) -> Log:
    is_parquet = {_suffix(path) in _PARQUET for path in files}
    if len(is_parquet) > 1:
        raise DataFileError(f"{files[0].parent}: holds both Parquet and text; keep one kind.")
    separator = None if True in is_parquet else "\t" if _suffix(files[0]) in _TABBED else ","
    columns = header_of(files[0], separator)
    for path in files[1:]:
        check_header(path, header_of(path, separator), columns)
    if target is None:
        raise InputError(f"give the label's column as target; columns: {_some(columns)}.")
    for name in (target, *([time] if time else []), *drop, *log):
        if name not in columns:
            raise InputError(f"{files[0]} has no column {name!r}; it has {_some(columns)}.")
    fields = tuple(name for name in columns if name not in {target, time, *drop})
    if not fields:
        raise InputError(f"{files[0]}: no column is left to be a field; columns: {_some(columns)}.")
    meaning: dict[str, Meaning] = dict.fromkeys([name for name in log if name in fields], "log")
    has_header = separator is not None
    return Log(
        files, columns, target, fields, time, False, meaning, separator, has_header, has_header
    )


def _find_files(raw: Path, format: Format) -> tuple[Path, ...]:
    if raw.is_file():
        files: tuple[Path, ...] = (raw,)
    elif raw.is_dir():
        wanted = _SUFFIXES[format]
        inside = sorted(path for path in raw.iterdir() if path.is_file())
        files = tuple(p for p in inside if _suffix(p) in wanted and not p.name.startswith("."))
        if not files:
            some = ", ".join(f"*{suffix}" for suffix in wanted)
            raise DataFileError(f"{raw}: holds no file of {some} (or .gz of them).")
    else:
        raise DataFileError(f"{raw}: no such file or folder.")
    for path in files:
        if path.stat().st_size == 0:
            raise fault(path, "the file is empty", "remove it or fetch it again")
    return files


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def header_of(path: Path, separator: str | None) -> tuple[str, ...]:
    """Read the names of the columns."""
    if separator is None:
        return tuple(parquet(path, lambda: pl.read_parquet_schema(path)))
    with reading(path) as content:
        text = read_line(content, path).removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    names = tuple(next(csv.reader([text.rstrip("\r\n")], delimiter=separator), []))
    if "" in names or len(set(names)) < len(names):
        raise fault(path, "line 1 leaves a column without a name or names one twice", "rename it")
    return names


def check_header(path: Path, found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Refuse a file whose columns are others."""
    if found != wanted:
        raise fault(
            path, f"its columns are {_some(found)}, not {_some(wanted)}", "give files of one kind"
        )


def _some(names: Sequence[str]) -> str:
    more = f" ... ({len(names)})" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
