"""`openfate predict`: rows in, a file of predictions out, a batch at a time."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from openfate.bank import FeatureBank
from openfate.cli.cluster_flags import Cluster, GpusPerWorker, Workers, on_cluster
from openfate.cli.command import Answer, check_out
from openfate.cli.flags import BatchRows, Bundle, Exclude, Graph, Null, RowsPath, Trusted, Where
from openfate.cli.later_rows import LaterBatch, LaterRows
from openfate.cli.target_flag import class_text
from openfate.errors import DataFileError, InputError, shorten
from openfate.executor import spread
from openfate.files import unwritable, writing
from openfate.table import uncollected


def predict(
    bundle: Bundle,
    rows: RowsPath,
    *,
    out: Path,
    where: Where = None,
    null: Null = None,
    graph: Graph = "auto",
    exclude: Exclude = (),
    keep: tuple[str, ...] = (),
    batch_rows: BatchRows = 65_536,
    trusted: Trusted = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
) -> Answer:
    """Predict rows, using what is new in them.

    The bundle is not changed. Files larger than memory are read twice, in batches.

    Parameters
    ----------
    out
        A .csv or .parquet file.
    keep
        Columns to copy into the file.
    """
    _check_out(out, rows, bundle)
    bank = FeatureBank.load(bundle, trusted=trusted)
    later = LaterRows(bank, rows, batch_rows, where, null, exclude, keep=keep)
    _check_kept(out, {name: later.file.types[name] for name in keep})
    with uncollected(later), on_cluster(cluster, workers, gpus_per_worker):
        ready = later.look_ahead(graph)
        n_rows = _write(spread(partial(_predict, ready), later.batches("predicting")), out)
    result = {
        "rows": n_rows,
        "new_columns": later.new_columns,
        "new_features": ready.encoder.n_features - bank.encoder.n_features,
        "how": bank.describe_usage(),
        "out": str(out),
    }
    return result, _describe(result, graph)


def _describe(result: dict[str, Any], graph: str) -> Iterator[str]:
    yield f"Predicted {result['rows']:,} row{'s' * (result['rows'] != 1)}."
    columns = shorten(result["new_columns"])
    if graph == "state" and columns:
        yield f"New columns were not used: {columns} (observe them, or give --graph auto)."
    elif result["new_features"]:
        among = f", among them the columns {columns}" if columns else ""
        yield f"{result['new_features']:,} features are new{among}. {result['how']}"
    yield result["out"]


# ---- checks before the work ----------------------------------------------------------------------


def _check_out(out: Path, rows: Path, bundle: Path) -> None:
    """Refuse a path that could not be written, or is of the rows or the bundle."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: predictions are a .csv or a .parquet file.")
    check_out(out, rows)
    if out.is_dir():
        raise InputError(f"--out {out}: it is a folder; name a file.")
    if bundle.resolve() in out.resolve().parents:
        raise InputError(f"--out {out}: it is in the bundle, {bundle}; choose another path.")


def _check_kept(out: Path, types: Mapping[str, pl.DataType]) -> None:
    """Refuse columns that the file could not hold."""
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


# ---- predictions ---------------------------------------------------------------------------------


def _predict(bank: FeatureBank, batch: LaterBatch) -> pl.DataFrame:
    """Predict a batch by the state: row, prediction, a probability for each class, kept columns."""
    outputs = bank.predict(batch.rows, graph="state")  # (N, C)
    columns = [pl.Series(column) for column in outputs.T]
    if bank.task == "regression":
        names = ["prediction"]
    elif bank.task == "multilabel":
        labels = bank.meta.get("table", {}).get("target") or list(map(str, bank.classes))
        names = [*labels, *(f"p_{name}" for name in labels)]
        columns = [*((column > 0.5).cast(pl.Int8) for column in columns), *columns]
    else:
        names = ["prediction", *(f"p_{class_text(name)}" for name in bank.classes)]
        columns = [pl.Series(bank.classes)[outputs.argmax(axis=1)], *columns]
    names = _unique(["row", *names])
    for name in batch.kept.columns:
        if name in names:
            raise InputError(f"--keep {name}: the predictions have a column of that name.")
    found = dict(zip(names, [pl.Series(batch.numbers), *columns], strict=True))
    return pl.DataFrame({**found, **{name: batch.kept[name] for name in batch.kept.columns}})


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


def _write(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames one after the other, all or none; gives the number of rows.

    Through a folder of parts, for polars writes a file in one go.
    """
    with (
        writing(out) as file,
        tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".parts-") as folder,
    ):
        parts, n_rows = list[Path](), 0
        try:
            for frame in frames:
                parts.append(Path(folder) / f"{len(parts)}.parquet")
                frame.write_parquet(parts[-1])
                n_rows += len(frame)
            whole = pl.scan_parquet(parts)
            sink = whole.sink_csv if out.suffix.lower() == ".csv" else whole.sink_parquet
            sink(file, maintain_order=True)
        except pl.exceptions.PolarsError as error:  # a full disk, for one
            raise unwritable(out, error) from None
        except pl.exceptions.PanicException:  # is no Exception
            raise DataFileError(
                f"{out}: cannot be written (a column of --keep holds what has no text, such as a "
                f"date beyond the calendar); write --out {out.with_suffix('')}.parquet."
            ) from None
        return n_rows
