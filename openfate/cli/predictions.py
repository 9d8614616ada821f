"""The file that `openfate predict` writes: whole or not at all, a batch at a time."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from openfate.bank import FeatureBank
from openfate.cli.labels import class_text
from openfate.cli.rows import Batch
from openfate.errors import DataFileError, InputError
from openfate.files import check_place, writing

__all__ = ["check_kept", "check_out", "predicted", "write_predictions"]


def check_out(out: Path, rows: Path, bundle: Path) -> None:
    """Refuse a path that could not be written, or is of the rows or the bundle, before the work."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: predictions are a .csv or a .parquet file.")
    check_place(out)
    if out.is_dir():
        raise InputError(f"--out {out}: it is a folder; name a file.")
    given, written = rows.resolve(), out.resolve()
    if given == written or (rows.is_dir() and given in written.parents):
        raise InputError(f"--out {out}: that would change the rows, {rows}; choose another path.")
    if bundle.resolve() in written.parents:
        raise InputError(f"--out {out}: it is in the bundle, {bundle}; choose another path.")


def check_kept(out: Path, types: Mapping[str, pl.DataType]) -> None:
    """Refuse columns that the file could not hold, before the work."""
    if out.suffix.lower() != ".csv":
        return
    for name, dtype in types.items():
        try:
            pl.DataFrame({name: [None]}, schema={name: dtype}).write_csv(io.BytesIO())
        except pl.exceptions.PolarsError:
            raise InputError(
                f"--keep {name}: a CSV cannot hold {dtype}; write --out {out.with_suffix('')}"
                ".parquet, or do not keep it."
            ) from None


def predicted(
    bank: FeatureBank, batch: Batch, keep: Sequence[str], exclude: Sequence[str]
) -> pl.DataFrame:
    """Predict a batch by the state: row, prediction, a probability for each class, kept columns."""
    outputs = bank.predict(batch.rows, graph="state", exclude=exclude)
    found = [pl.Series(batch.numbers)]
    if bank.task == "regression":
        wanted = ["row", "prediction"]
        found += [pl.Series(outputs[:, 0])]
    elif bank.task == "multilabel":
        names = bank.meta.get("table", {}).get("target") or list(map(str, bank.classes))
        wanted = ["row", *names, *(f"p_{name}" for name in names)]
        found += [pl.Series(column) for column in (outputs.T > 0.5).astype(np.int8)]
        found += [pl.Series(column) for column in outputs.T]
    else:
        wanted = ["row", "prediction", *(f"p_{class_text(name)}" for name in bank.classes)]
        found += [pl.Series(bank.classes)[outputs.argmax(axis=1)]]
        found += [pl.Series(column) for column in outputs.T]
    columns = dict(zip(_unique(wanted), found, strict=True))
    for name in keep:
        if name in columns:
            raise InputError(f"--keep {name}: the predictions have a column of that name.")
        columns[name] = batch.rows[name]
    return pl.DataFrame(columns)


def _unique(names: Sequence[str]) -> list[str]:
    """Number names that are there already: a label may be called like another one's probability.

    Examples
    --------
    >>> _unique(["row", "y", "p_y", "p_y", "p_p_y"])
    ['row', 'y', 'p_y', 'p_y_2', 'p_p_y']
    """
    found: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique in found or (n > 1 and unique in names):
            n += 1
            unique = f"{name}_{n}"
        found.append(unique)
    return found


def write_predictions(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames one after the other; gives the number of rows."""
    write = _write_csv if out.suffix.lower() == ".csv" else _write_parquet
    with writing(out) as file:
        return write(frames, file, out)


def _write_csv(frames: Iterable[pl.DataFrame], file: IO[bytes], out: Path) -> int:
    n_rows = 0
    for frame in frames:
        with _refusing(out):
            frame.write_csv(file, include_header=not n_rows)
        n_rows += len(frame)
    return n_rows


def _write_parquet(frames: Iterable[pl.DataFrame], file: IO[bytes], out: Path) -> int:
    """Through a folder of parts, for polars writes a Parquet file in one go."""
    n_rows = 0
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".parts-") as folder:
        parts: list[Path] = []
        for frame in frames:
            parts.append(Path(folder) / f"{len(parts)}.parquet")
            with _refusing(out):
                frame.write_parquet(parts[-1])
            n_rows += len(frame)
        with _refusing(out):
            pl.scan_parquet(parts).sink_parquet(file, maintain_order=True)
    return n_rows


@contextmanager
def _refusing(out: Path) -> Iterator[None]:
    """Turn what polars says of a full disk into an error that names the file."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        what = str(error).strip().splitlines()[0].rstrip(".")
        raise DataFileError(f"{out}: cannot be written ({what}).") from None
