"""Logs in time order: flights from New York, and small public samples of Criteo and Avazu.

What is known before the outcome becomes fields; what is measured after it (departure, air time) is
left out.  What the columns of Criteo and Avazu mean is told by `openfate.table.open_log`; no bucket
edge depends on rows that come later.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from openfate.table import Field, Log, Schema, open_log, values_of
from openfate_lab.data.source import Cells, Content, Source, encode

DAY = 86_400.0


def _encode_in_order(
    frame: pl.DataFrame, labels: pl.Series, seconds: NDArray[np.float64]
) -> Content:
    """All fields are categories; rows go by time."""
    order = np.argsort(seconds, kind="stable")
    schema = Schema(Field(name, "categorical") for name in frame.columns)
    return encode(frame[order], labels[order], schema, time=seconds[order])


# ---- flights -----------------------------------------------------------------------------------


def _read_flights(path: Path) -> Content:
    cells = Cells(path)
    when = cells.numbers(["year", "month", "day", "hour", "minute"])
    numbers = when.hstack(cells.numbers(["arr_delay"], may_miss=True))
    arrived = numbers["arr_delay"].is_not_null()  # cancelled flights never do
    table, numbers = cells.table.filter(arrived), numbers.filter(arrived)
    date = pl.date(pl.col("year").cast(int), pl.col("month").cast(int), pl.col("day").cast(int))
    parts = numbers.select(
        weekday=date.dt.weekday().cast(str),
        day=date.cast(pl.Int32).cast(float),
        minute=60 * pl.col("hour") + pl.col("minute"),
        late=(pl.col("arr_delay") > 15).cast(int).cast(str),
    )
    frame = table.select(
        "carrier",
        flight=pl.col("carrier") + " " + pl.col("flight"),
        tailnum="tailnum",
        origin="origin",
        dest="dest",
        route=pl.col("origin") + "-" + pl.col("dest"),
        hour="hour",
    ).with_columns(parts["weekday"])
    seconds = DAY * parts["day"].to_numpy() + 60 * parts["minute"].to_numpy()
    return _encode_in_order(frame, parts["late"], seconds)


FLIGHTS = Source(
    _read_flights,
    "flights",
    {"flights.csv.gz": "505c1818dffe3c2a43d92f15a856509e54770ca0488b8ddf45642b78d12a7e81"},
    metric="auc",
    in_time=True,
)

# ---- Criteo, Avazu -----------------------------------------------------------------------------


def _read_criteo(path: Path) -> Content:
    log = open_log(path, "criteo")
    rows = log.read()
    # The file gives no times, only their order: rows are spread evenly over its seven days.
    seconds = np.linspace(0, 7 * DAY, len(rows), endpoint=False, dtype=np.float64)
    # WHY: two more, so that features keep the order of their texts in published results.
    two_more = (pl.col(list(log.meaning)).cast(int) + 2).cast(str)
    frame = _values(log, rows).with_columns(two_more)
    return _encode_in_order(frame, rows[log.target], seconds)


def _read_avazu(path: Path) -> Content:
    # The day is left out: it would be new for ever.
    log = open_log(path, "avazu", hour="of-day")
    rows = log.read()
    time = (rows["hour"] + "00").str.to_datetime("%y%m%d%H%M")
    seconds = time.dt.epoch("s").to_numpy().astype(np.float64)
    values = _values(log, rows)
    frame = values.select(pl.exclude("hour"), "hour")
    return _encode_in_order(frame, rows[log.target], seconds)


def _values(log: Log, rows: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(
        {name: values_of(rows[name], log.meaning.get(name, "text")) for name in log.fields}
    )


CRITEO_SAMPLE = Source(
    _read_criteo,
    "criteo",
    {
        "criteo_7days_chrono.txt.gz": (
            "0704343d07c99652e891c1f421ac2e01080cf0d7a539aa3a591a1947d7d5f157"
        )
    },
    metric="auc",
    in_time=True,
)
AVAZU_SAMPLE = Source(
    _read_avazu,
    "avazu",
    {
        "avazu_10days_random20k_chrono.csv.gz": (
            "e3cd3ee9e646e2a1fc614117a12d57ea837168a7362e16f630e80710f78ecd2d"
        )
    },
    metric="auc",
    in_time=True,
)
