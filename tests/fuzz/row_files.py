"""Files of rows with something odd in them: CSV, TSV and Parquet."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bundle_mutations import spoil_bytes

_CELLS = (
    *("", "1", "-0", "1e400", "nan", "inf", "99999999999999999999", "0x10", "1_000", "01"),
    *("2024-02-30", "2024-03-05", "9999-12-31T23:59:60", "-300000-01-01", "07:30", "true"),
    *('"', '"a""b"', '"open', "a,b", "é", "\ufeff", "\0", "\u2028", "a" * 3000, " 1 "),
)
_NAMES = ("age", "pay", "job", "city", "row", "prediction", "", "age", "\ud7ff", "a b", "x" * 300)


def write_rows(folder: Path, rng: random.Random) -> Path:
    """Write one file; its name tells what it is."""
    return _write_parquet(folder, rng) if rng.random() < 0.5 else _write_text(folder, rng)


def _write_text(folder: Path, rng: random.Random) -> Path:
    separator, suffix = rng.choice([(",", ".csv"), (",", ".csv"), ("\t", ".tsv")])
    names = ["age", "pay", "job", *rng.sample(_NAMES, rng.choice([0, 0, 1, 2]))]
    if rng.random() < 0.2:
        names = rng.sample(names, len(names) - 1)
    lines = [separator.join(names)]
    for _ in range(rng.choice([0, 1, 3, 3, 10, 30])):
        cells = [f"{rng.gauss(40, 9):.2f}", f"{rng.random():.3f}", rng.choice(["cook", "pilot"])]
        cells += [rng.choice(_CELLS) for _ in names[3:]]
        if rng.random() < 0.3:
            cells[rng.randrange(len(cells))] = rng.choice(_CELLS)
        lines.append(separator.join(cells[: len(names)]))
    ending = rng.choices(["\n", "\r\n", "\r"], [8, 4, 1])[0]
    content = ending.join(lines).encode(
        rng.choices(["utf-8", "utf-16", "latin-1"], [8, 1, 1])[0], "replace"
    )
    if rng.random() < 0.3:
        content = spoil_bytes(content, rng)
    if rng.random() < 0.2:
        content, suffix = gzip.compress(content), f"{suffix}.gz"
        if rng.random() < 0.5:
            content = spoil_bytes(content, rng)
    path = folder / f"rows{suffix}"
    path.write_bytes(content)
    return path


def _odd_column(rng: random.Random, n: int) -> pa.Array:
    kinds: list[Any] = [
        lambda: pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([rng.choice([2**30, -(2**30), 0, 2**31 - 1])] * n, pa.int32()).cast(
            pa.date32()
        ),
        lambda: pa.array([rng.choice([2**62, -(2**62), 0])] * n, pa.int64()).cast(
            pa.timestamp(rng.choice(["s", "ms", "us", "ns"]))
        ),
        lambda: pa.array([2**55] * n, pa.int64()).cast(pa.timestamp("us", tz="Europe/Rome")),
        lambda: pa.array([{"a": 1, "b": "x"}] * n),
        lambda: pa.array([[1, None]] * n),
        lambda: pa.array([[["a"]]] * n),
        lambda: pa.array([b"\xff\xfe"] * n, pa.binary()),
        lambda: pa.array([b"ab"] * n, pa.binary(2)),
        lambda: pa.array([None] * n, pa.null()),
        lambda: pa.array([1.5] * n, pa.float16()),
        lambda: pa.array([2**63 + 1] * n, pa.uint64()),
        lambda: pa.array([1] * n, pa.decimal128(38, 10)),
        lambda: pa.array([1] * n, pa.decimal256(60, 2)),
        lambda: (
            pa.array([2**40] * n, pa.time64("us"))
            if rng.random() < 0.5
            else pa.array([1] * n, pa.time32("s"))
        ),
        lambda: pa.array([rng.choice([2**62, 5])] * n, pa.duration(rng.choice(["s", "ns"]))),
        lambda: pa.array(["a", "b"] * n).slice(0, n).dictionary_encode(),
        lambda: pa.array([1, 2] * n).slice(0, n).dictionary_encode(),
        lambda: pa.array([float("nan"), float("inf")] * n).slice(0, n),
        lambda: pa.array([True, None] * n).slice(0, n),
        lambda: pa.array([""] * n),
        lambda: pa.array([[1.0, 2.0]] * n, pa.list_(pa.float64(), 2)),
        lambda: pa.array(["x" * 100_000] * n),
        lambda: pa.array([[]] * n, pa.list_(pa.string())),
    ]
    return rng.choice(kinds)()


def _write_parquet(folder: Path, rng: random.Random) -> Path:
    n = rng.choice([0, 1, 3, 3, 10, 30])
    columns = {
        "age": pa.array([rng.gauss(40, 9) for _ in range(n)]),
        "pay": pa.array([rng.random() for _ in range(n)]),
        "job": pa.array([rng.choice(["cook", "pilot", None]) for _ in range(n)], pa.string()),
    }
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(["age", "pay", "job", "city", "seen"])
        try:
            columns[name] = _odd_column(rng, n)
        except (pa.ArrowException, OverflowError):
            pass  # pyarrow will not make it
    file = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), file)
    except (pa.ArrowException, OverflowError):
        pq.write_table(pa.table({"age": [1.0]}), file)
    content = file.getvalue()
    if rng.random() < 0.3:
        content = spoil_bytes(content, rng)
    path = folder / "rows.parquet"
    path.write_bytes(content)
    return path
