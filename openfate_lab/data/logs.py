"""Logs in time order: flights from New York, and small public samples of Criteo and Avazu.

What is known before the outcome becomes fields; what is measured after it (departure, air time) is
left out.  Numbers of Criteo go by the squared logarithm, as the winners of that challenge cut them,
so that no bucket edge depends on rows that come later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

if TYPE_CHECKING:
    from openfate_lab.data.datasets import _Raw

__all__ = ["READERS"]

Read = tuple[pl.DataFrame, pl.Series, NDArray[np.float64]]  # fields, classes, seconds
DAY = 86_400.0


def _read_flights(raw: _Raw) -> Read:
    table = raw.table(None)
    when = raw.numbers(table, ["year", "month", "day", "hour", "minute"])
    numbers = when.hstack(raw.numbers(table, ["arr_delay"], may_miss=True))
    arrived = numbers["arr_delay"].is_not_null()  # cancelled flights never do
    table, numbers = table.filter(arrived), numbers.filter(arrived)
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
    return frame, parts["late"], seconds


def _read_criteo(raw: _Raw) -> Read:
    integers, hashes = _numbered("I", 13), _numbered("C", 26)
    table = raw.table(["label", *integers, *hashes])
    numbers = raw.numbers(table, integers, may_miss=True)
    cut = [
        pl.when(pl.col(name) > 2)
        .then(pl.col(name).clip(1).log().pow(2).floor() + 2)
        .otherwise(pl.col(name))
        .cast(int)
        .cast(str)
        for name in integers
    ]
    # The file gives no times, only their order: rows are spread evenly over its seven days.
    seconds = np.linspace(0, 7 * DAY, len(table), endpoint=False, dtype=np.float64)
    return numbers.select(cut).hstack(table.select(hashes)), table["label"], seconds


def _read_avazu(raw: _Raw) -> Read:
    table = raw.table(None)
    clicks = raw.column(table, "click")
    when = raw.column(table, "hour")  # YYMMDDHH
    time = (when + "00").str.to_datetime("%y%m%d%H%M", strict=False)
    if time.null_count():
        bad = when[time.is_null().to_list().index(True)]
        raise raw.fault(f"column 'hour' holds {bad!r}, not a time such as 14102100")
    # `id` names the row, and the day is left out: it would be new for ever.
    frame = table.drop("id", "click", "hour").with_columns(hour=when.str.slice(6))
    return frame, clicks, time.dt.epoch("s").to_numpy().astype(np.float64)


def _numbered(stem: str, n: int) -> list[str]:
    return [f"{stem}{i}" for i in range(1, n + 1)]


READERS: dict[str, Callable[[_Raw], Read]] = {
    "flights": _read_flights,
    "criteo-sample": _read_criteo,
    "avazu-sample": _read_avazu,
}
