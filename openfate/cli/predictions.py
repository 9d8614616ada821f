"""The file that `openfate predict` writes: whole or not at all, a batch at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from openfate.bank import FeatureBank
from openfate.cli.labels import class_text
from openfate.cli.rows import Batch
from openfate.data.files import writing
from openfate.errors import InputError

__all__ = ["check_out", "predicted", "write_predictions"]


def check_out(out: Path) -> None:
    """Refuse a path that could not be written, before the work."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: predictions are a .csv or a .parquet file.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.absolute().parent}; make it first.")
    if out.is_dir():
        raise InputError(f"--out {out}: it is a folder; name a file.")


def predicted(bank: FeatureBank, batch: Batch, keep: Sequence[str]) -> pl.DataFrame:
    """Predict a batch by the state: row, prediction, a probability for each class, kept columns."""
    outputs = bank.outputs(batch.rows, "state")
    columns = {"row": pl.Series(batch.numbers)}
    if bank.task == "regression":
        columns["prediction"] = pl.Series(outputs[:, 0])
    elif bank.task == "multilabel":
        names = bank.meta.get("table", {}).get("target") or list(map(str, bank.classes))
        columns |= {
            name: pl.Series((outputs[:, k] > 0.5).astype(np.int8)) for k, name in enumerate(names)
        }
        columns |= {f"p_{name}": pl.Series(outputs[:, k]) for k, name in enumerate(names)}
    else:
        columns["prediction"] = pl.Series(bank.classes)[outputs.argmax(axis=1)]
        columns |= {
            f"p_{class_text(name)}": pl.Series(outputs[:, k]) for k, name in enumerate(bank.classes)
        }
    for name in keep:
        if name in columns:
            raise InputError(f"--keep {name}: the predictions have a column of that name.")
        columns[name] = batch.rows[name]
    return pl.DataFrame(columns)


def write_predictions(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames one after the other; gives the number of rows."""
    write = _write_csv if out.suffix.lower() == ".csv" else _write_parquet
    with writing(out) as file:
        return write(frames, file, out)


def _write_csv(frames: Iterable[pl.DataFrame], file: IO[bytes], out: Path) -> int:
    n_rows = 0
    for frame in frames:
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
            frame.write_parquet(parts[-1])
            n_rows += len(frame)
        pl.scan_parquet(parts).sink_parquet(file, maintain_order=True)
    return n_rows
