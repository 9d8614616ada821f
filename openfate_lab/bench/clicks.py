"""`openfate bench clicks`: a raw click log to a scored day, end to end, ours beside the peers.

The log is the synthetic stream as a raw Criteo log, with names in its first line: nine days to
train on, a tenth to score, a tenth of whose values are new.  Every side starts from the two files
and ends with a chance for each row of the day:

    ours         FATEClassifier(backbone="deepfm").fit("train.csv", "label"), then predict_proba
    FuxiCTR      its own preparation, loader and layers: DeepFM, one epoch, same widths and batch
    LightGBM     100 trees, hashes as categories

Each runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import openfate
from openfate.errors import InputError
from openfate_lab.arguments import at_least
from openfate_lab.bench.apart import run_apart
from openfate_lab.bench.memory import watch_peak
from openfate_lab.bench.record import about, megabytes, now, score_chances, tell
from openfate_lab.data import write_raw_criteo

Strategy = Literal["none", "fate"]
NAMES = {"fuxictr": "FuxiCTR", "lightgbm": "LightGBM"}
NUMBERS = tuple(f"I{n}" for n in range(1, 14))
HASHES = tuple(f"C{n}" for n in range(1, 27))
_WIDTH, _HIDDEN, _BATCH, _RATE = 10, (400, 400), 10_000, 1e-3
_RARE = 10  # values of fewer rows are none of their own, as in FuxiCTR's own recipes for Criteo
_TREES, _SHARE_OF_DAY = 100, 10


def bench_clicks(
    rows: int = 5_000_000,
    peers: Sequence[str] = ("fuxictr", "lightgbm"),
    strategy: Strategy = "none",
    threads: int | None = None,
    python: Path | None = None,
) -> dict[str, Any]:
    """A raw click log to a scored day, ours beside FuxiCTR's DeepFM and LightGBM: rows a second.

    Parameters
    ----------
    rows
        Of the log, a tenth of them the day that is scored.
    peers
        fuxictr, lightgbm.
    strategy
        Of ours: "none", the same model as FuxiCTR's; "fate", trained to extrapolate.
    threads
        Of every side; None: all cores.
    python
        That runs FuxiCTR, where it is installed apart; None: the one that runs this.
    """
    at_least(1000, rows=rows)
    for peer in peers:
        if peer not in NAMES:
            raise InputError(f"peer {peer!r} is unknown: choose from {', '.join(NAMES)}.")
    count = threads or os.cpu_count() or 1
    at_least(1, threads=count)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="openfate-clicks-") as folder:
        tell(f"clicks: writing {rows} rows")
        write_log(Path(folder), rows)
        for side in ("ours", *peers):
            tell(f"clicks: {side}")
            own = python if side == "fuxictr" else None
            found[side] = run_apart(["clicks-side", side, folder, strategy], count, side, own)
    ours, lines = found["ours"], []
    for peer in peers:
        other = found[peer]
        lines.append(
            {
                "case": f"clicks-{rows}-{peer}",
                "ours": ours["seconds"],
                "peer": other["seconds"],
                "peer_name": NAMES[peer],
                "unit": "s from raw log to scored day",
                "ratio": float(f"{other['seconds'] / ours['seconds']:.3g}"),
                "ours_bytes": ours["bytes"],
                "peer_bytes": other["bytes"],
                "rows_per_second": {
                    "ours": round(rows / ours["seconds"]),
                    "peer": round(rows / other["seconds"]),
                },
                "scores": {"ours": ours["scores"], "peer": other["scores"]},
                "parts": {"ours": ours["parts"], "peer": other["parts"]},
            }
        )
    run = {"n_rows": rows, "strategy": strategy, "threads": count}
    return {"bench": "clicks", **about("cpu"), **run, "rows": lines}


def describe_clicks(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    lines = [f"{'peer':<10} {'ours':>9} {'peer':>9} {'ratio':>6}   memory, scores of the day"]
    for row in result["rows"]:
        memory = " / ".join(megabytes(row[key]) for key in ("ours_bytes", "peer_bytes"))
        scores = " / ".join(
            f"AUC {of['auc']:.4f}, log-loss {of['log_loss']:.4f}" for of in row["scores"].values()
        )
        figures = f"{row['ours']:>7.1f} s {row['peer']:>7.1f} s {row['ratio']:>6.2f}"
        lines.append(f"{row['peer_name']:<10} {figures}   {memory}   {scores}")
        for side, parts in row["parts"].items():
            told = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in parts.items())
            lines.append(f"{'':<10} {side}: {told}")
    lines.append(
        f"{result['n_rows']:,} rows, {result['threads']} thread(s) each; {result['machine']}"
    )
    return "\n".join(lines)


def write_log(folder: Path, n_rows: int) -> None:
    """Write train.csv and day.csv: label, 13 integers and 26 hashes, with their names."""
    raw = folder / "raw.txt"
    write_raw_criteo(raw, n_rows)
    header = ",".join(("label", *NUMBERS, *HASHES)).encode() + b"\n"
    n_train, number = n_rows - n_rows // _SHARE_OF_DAY, 0
    with (
        raw.open("rb") as lines,
        (folder / "train.csv").open("wb") as train,
        (folder / "day.csv").open("wb") as day,
    ):
        train.write(header)
        day.write(header)
        for number, line in enumerate(lines):
            (train if number < n_train else day).write(line.replace(b"\t", b","))
    raw.unlink()


# ---- one side ----------------------------------------------------------------------------------

Score = Callable[[], tuple[NDArray[np.floating], NDArray[np.integer]]]  # chances and labels


def print_clicks_side(side: str, folder: str, strategy: Strategy, threads: int = 1) -> int:
    """Run a side from the files to the scored day; print seconds, peak of memory and scores."""
    import torch

    torch.set_num_threads(threads)
    train = {"ours": _ours, "fuxictr": _fuxictr, "lightgbm": _lightgbm}[side]
    with watch_peak() as peak:
        started = now("cpu")
        score = train(Path(folder), strategy, threads)
        trained = now("cpu")
        chance, y = score()
        ended = now("cpu")
    found = {
        "seconds": round(ended - started, 3),
        "parts": {"train": round(trained - started, 3), "score": round(ended - trained, 3)},
        "bytes": peak.n_bytes,
        "scores": score_chances(chance, y),
    }
    print(json.dumps(found))
    return 0


def _ours(folder: Path, strategy: Strategy, threads: int) -> Score:
    model = openfate.FATEClassifier(
        strategy=strategy,
        backbone="deepfm",
        width=_WIDTH,
        hidden=_HIDDEN,
        batch_size=_BATCH,
        epochs=1,
        n_members=1,
        lr=_RATE,
        min_count=_RARE,
    )
    model.fit(str(folder / "train.csv"), "label")

    def score() -> tuple[NDArray[np.floating], NDArray[np.integer]]:
        import pandas

        day = pandas.read_csv(folder / "day.csv", dtype=dict.fromkeys(HASHES, "str"))
        y = day.pop("label").to_numpy()
        return model.predict_proba(day)[:, 1], y

    return score


def _lightgbm(folder: Path, strategy: Strategy, threads: int) -> Score:
    import lightgbm
    import pandas

    train = pandas.read_csv(folder / "train.csv", dtype=dict.fromkeys(HASHES, "category"))
    y = train.pop("label").to_numpy()
    for name in HASHES:  # WHY: categories of a row or two each take it hours, and tell it nothing
        counts = train[name].value_counts()
        train[name] = train[name].cat.set_categories(counts.index[counts >= _RARE])
    kinds = {name: train[name].dtype for name in HASHES}
    model = lightgbm.LGBMClassifier(n_estimators=_TREES, n_jobs=threads, verbose=-1).fit(train, y)

    def score() -> tuple[NDArray[np.floating], NDArray[np.integer]]:
        day = pandas.read_csv(folder / "day.csv", dtype=dict.fromkeys(HASHES, "str"))
        y = day.pop("label").to_numpy()
        chance: Any = model.predict_proba(day.astype(kinds))  # new values are missing to it
        return chance[:, 1], y

    return score


def _fuxictr(folder: Path, strategy: Strategy, threads: int) -> Score:
    from openfate_lab.bench.fuxictr_twin import train_deepfm

    return train_deepfm(
        folder,
        NUMBERS,
        HASHES,
        width=_WIDTH,
        hidden=_HIDDEN,
        batch_size=_BATCH,
        lr=_RATE,
        rare=_RARE,
    )
