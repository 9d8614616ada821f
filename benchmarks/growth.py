"""What a bank that keeps meeting new values and columns costs, and what a bound on them loses.

    PYTHONPATH=. python benchmarks/growth.py OUT.json [--cases memory,frame,file,bound]
        [--before CHECKOUT] [--values N] [--columns N] [--rows N] [--bound N]

memory: bytes a new feature, one row predicted, the bundle saved.  frame, file: three rows of many
columns, in memory, and by the command.  bound: a skewed stream with `max_new_features`, without it,
and with new features ignored.  Each measurement has a process of its own; those of an earlier
checkout, where one is given, are of the same run.  Seconds are of the processor: other work on the
machine matters less to them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.metrics import roc_auc_score

from openfate import FATEClassifier

SEED = 0


def resident() -> int:
    """Bytes of memory that the process has now, what it could give back not counted."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _pages()


def _pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seconds(act: Callable[[], Any]) -> float:
    """Of the processor."""
    start = time.process_time()
    act()
    return time.process_time() - start


def most_memory(act: Callable[[], Any]) -> int:
    """Bytes that a call has at most, beyond those before it."""
    before, found, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            found[0] = max(found[0], _pages())

    thread = threading.Thread(target=watch)
    thread.start()
    act()
    done.set()
    thread.join()
    return max(0, found[0] - before)


# ---- memory --------------------------------------------------------------------------------------


def measure_memory(n_values: int) -> dict[str, float]:
    """Values of a new column, each in one unlabelled row; two classes."""
    rng = np.random.default_rng(SEED)
    job = rng.choice(["cook", "nurse", "judge"], 2000)
    y = (rng.random(2000) < np.where(job == "cook", 0.8, 0.3)).astype(int)
    rows = pl.DataFrame({"job": job, "age": rng.normal(40, 9, 2000)})
    model = FATEClassifier(strategy="evidence", epochs=3, random_state=0).fit(rows, y)
    one = pl.DataFrame({"job": ["cook"], "age": [40.0], "user": ["u1"]})
    model.observe(one)
    model.predict_proba(one)
    fresh = seconds(lambda: [model.predict_proba(one) for _ in range(200)]) / 200
    before, taken = resident(), 0.0
    for start in range(0, n_values, 100_000):
        n = min(100_000, n_values - start)
        user = "u" + pl.Series(np.arange(start, start + n)).cast(pl.String)
        age, job = rng.normal(40, 9, n), rng.choice(["cook", "nurse"], n)
        frame = pl.DataFrame({"job": job, "age": age, "user": user})
        taken += seconds(lambda frame=frame: model.observe(frame))
    del frame, user, age, job
    grown = resident() - before
    model.predict_proba(one)
    known = seconds(lambda: [model.predict_proba(one) for _ in range(200)]) / 200
    with tempfile.TemporaryDirectory() as folder:
        save = seconds(lambda: model.save(Path(folder) / "once"))
        peak = most_memory(lambda: model.save(Path(folder) / "again"))
        size = sum(file.stat().st_size for file in (Path(folder) / "once").iterdir())
    return {
        "values": n_values,
        "megabytes": round(grown / 1e6, 1),
        "bytes_a_value": round(grown / n_values, 1),
        "observe_seconds": round(taken, 2),
        "one_row_ms": round(1e3 * known, 3),
        "one_row_of_fresh_bank_ms": round(1e3 * fresh, 3),
        "save_seconds": round(save, 3),
        "save_more_megabytes": round(peak / 1e6, 1),
        "bundle_megabytes": round(size / 1e6, 1),
    }


# ---- many columns --------------------------------------------------------------------------------


def make_wide(n_columns: int) -> tuple[FATEClassifier, pl.DataFrame]:
    """A model, and three rows of new columns, texts and numbers in turn."""
    rng = np.random.default_rng(SEED)
    rows = pl.DataFrame({"job": ["cook", "nurse"] * 30, "age": rng.normal(40, 9, 60)})
    model = FATEClassifier(epochs=3, random_state=0).fit(rows, (rows["job"] == "nurse").to_numpy())
    columns: dict[str, Any] = {"job": ["cook", "judge", "nurse"], "age": [1.0, 2.0, 3.0]}
    for at in range(n_columns):
        columns[f"c{at}"] = [1.5 * at, 2.5, None] if at % 2 else ["a", "b", "a"]
    return model, pl.DataFrame(columns)


def measure_frame(n_columns: int) -> dict[str, float]:
    """A frame that is predicted."""
    model, frame = make_wide(n_columns)
    taken = seconds(lambda: model.predict_proba(frame))
    return {"columns": n_columns, "seconds": round(taken, 2)}


def measure_file(n_columns: int) -> dict[str, float]:
    """A file, by the command, which takes a while to start."""
    model, frame = make_wide(n_columns)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        frame.write_csv(f"{folder}/rows.csv")
        paths = (f"{folder}/model", f"{folder}/rows.csv", "--out", f"{folder}/out.csv")
        before = os.times()
        command = [sys.executable, "-m", "openfate", "predict", *paths]
        # WHY the folder: Python looks for the package where it is started first.
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return {"columns": n_columns, "seconds": round(spent, 2)}


# ---- a bound -------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, n_rows: int) -> tuple[pl.DataFrame, np.ndarray]:
    """Rows of users of whom a few come often, p(rank) ~ 1 / rank; x tells a little of a user."""
    rank = (1e8 ** rng.random(n_rows)).astype(np.int64)
    leaning = (rank * 2654435761 % 2**32) / 2**31 - 1  # within -1 and 1
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-3 * leaning))).astype(int)
    x = leaning + rng.normal(0, 1.5, n_rows)
    return pl.DataFrame({"x": x, "user": pl.Series(rank).cast(pl.String)}), y


def measure_bound(n_rows: int, bound: int) -> dict[str, float]:
    """A stream without labels, and how well rows after it are predicted; bound 0: none."""
    rng = np.random.default_rng(SEED)
    rows, y = draw(rng, 20_000)
    model = FATEClassifier(strategy="evidence", epochs=5, random_state=0, exclude=[])
    model.set_params(max_new_features=bound or None).fit(rows.select("x"), y)
    bank, before, most, taken = model.bank_, resident(), 0, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(n_rows // 50_000):
            part, _ = draw(rng, 50_000)
            taken += seconds(lambda part=part: model.observe(part))
            most = max(most, bank.encoder.n_features - bank.n_observed)
    del part
    test, truth = draw(np.random.default_rng(SEED + 1), 50_000)
    P, P0 = (
        model.predict_proba(test, graph="state", new_features=use)[:, 1] for use in ("use", "drop")
    )
    return {
        "rows": n_rows,
        "bound": bound,
        "most_new_features": most,
        "evicted": bank.n_evicted,
        "megabytes": round((resident() - before) / 1e6, 1),
        "seconds": round(taken, 1),
        "auc": round(roc_auc_score(truth, P), 5),
        "auc_without_new_features": round(roc_auc_score(truth, P0), 5),
    }


# ---- one run -------------------------------------------------------------------------------------


def apart(checkout: str, case: str, *numbers: int) -> dict[str, float]:
    """A measurement in a process of its own, by the package of a checkout."""
    arguments = [sys.executable, __file__, "--alone", case, *map(str, numbers)]
    environment = {**os.environ, "PYTHONPATH": checkout, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure the cases that were asked for, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--cases", default="memory,frame,file,bound")
    parser.add_argument("--before", help="a checkout of an earlier commit")
    parser.add_argument("--values", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--bound", type=int, default=100_000)
    given = parser.parse_args()
    here, out = str(Path(__file__).resolve().parents[1]), Path(given.out)
    found = json.loads(out.read_text()) if out.exists() else {}
    sides = {"ours": here, **({"before": given.before} if given.before else {})}
    for case in given.cases.split(","):
        if case == "bound":
            sizes = {"bound": given.bound, "no_bound": 0}
            found[case] = {s: apart(here, case, given.rows, n) for s, n in sizes.items()}
        else:
            size = given.values if case == "memory" else given.columns
            found[case] = {side: apart(path, case, size) for side, path in sides.items()}
            if case != "memory":  # a quarter of the columns, to tell how time grows
                found[case]["ours_quarter"] = apart(here, case, size // 4)
        print(case, json.dumps(found[case], indent=1), flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        measures = {
            "memory": measure_memory,
            "frame": measure_frame,
            "file": measure_file,
            "bound": measure_bound,
        }
        print(json.dumps(measures[sys.argv[2]](*map(int, sys.argv[3:]))))
    else:
        main()
