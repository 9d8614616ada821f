"""`openfate bench table`: the estimator beside LightGBM, on tables of numbers and text.

A side of a case runs in a process of its own, which is `python -m openfate_lab.bench side CASE
SIDE`: its peak of memory is its own, and no thread of the other side is in its way.  Sides run in
turn, first with one thread and then with all; the best of some rounds counts.  Beside the times of
a fit stand the scores of both sides on rows that neither has seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

import openfate
from openfate.errors import InputError, OpenFATEError
from openfate_lab.arguments import at_least
from openfate_lab.bench.apart import run_apart
from openfate_lab.bench.memory import watch_peak
from openfate_lab.bench.record import about, megabytes, now, score_chances, tell

Side = Literal["ours", "peer"]
Frame = Any  # of pandas, which is an extra
_TREES = 100
_FITTED = 20_000  # rows of the model that predicts, observes or answers
_HELD_OUT = 50_000
_LOW, _HIGH = 8, 2_000  # values of a column of text
_CALLS = 300  # one-row predictions of a round


@dataclass(frozen=True)
class TableCase:
    """What is timed, and how large the table is.

    Parameters
    ----------
    job
        "fit"; "predict" or "observe" rows after a fit of 20,000; "row": predict one row, of ours a
        dict, of the peer a frame.
    n_rows, n_columns
        Of the table that is timed.
    n_known
        New features that ours has observed before.
    unseen
        Whether the row has a value that nobody has ever seen.
    rounds
        Processes of a side, at most.
    """

    job: Literal["fit", "predict", "observe", "row"]
    n_rows: int
    n_columns: int = 10
    n_known: int = 0
    unseen: bool = False
    rounds: int = 3

    @property
    def has_peer(self) -> bool:
        """LightGBM knows no new features and cannot observe."""
        return self.job != "observe" and not self.n_known and not self.unseen

    @property
    def unit(self) -> str:
        """Of the times."""
        return {"fit": "s/fit", "row": "ms/row"}.get(self.job, f"s/{self.n_rows:,} rows")


CASES = {
    "fit-20k": TableCase("fit", 20_000),
    "fit-200k": TableCase("fit", 200_000),
    "fit-2m": TableCase("fit", 2_000_000, n_columns=20, rounds=1),
    "predict-200k": TableCase("predict", 200_000),
    "observe-200k": TableCase("observe", 200_000),
    "one-row": TableCase("row", _CALLS),
    "one-row-1m-known": TableCase("row", _CALLS, n_known=1_000_000),
    "one-row-unseen": TableCase("row", _CALLS, unseen=True),
}


def bench_table(
    cases: Sequence[str] | None = None, repeats: int = 3, threads: Sequence[int] | None = None
) -> dict[str, Any]:
    """Ours beside LightGBM (100 trees): fit, bulk prediction, one row; time and peak memory.

    Parameters
    ----------
    cases
        Names from `CASES`; None for all.
    repeats
        Rounds of both sides in turn, of which the best counts; of the largest cases one.
    threads
        Of both sides; the first is what `ours`, `peer` and `ratio` are of.  None: 1, then all.
    """
    at_least(1, repeats=repeats)
    cases = tuple(CASES) if cases is None else cases
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        raise InputError(f"case {unknown[0]!r} is unknown: choose from {', '.join(CASES)}.")
    for package in ("lightgbm", "pandas"):
        if find_spec(package) is None:
            raise OpenFATEError(
                f"the peer needs {package}: pip install 'openfate[peers]' pandas -c "
                "constraints.txt."
            )
    counts = list(dict.fromkeys(threads or (1, os.cpu_count() or 1)))
    at_least(1, threads=min(counts))
    rows = []
    for number, name in enumerate(cases, 1):
        tell(f"table {number} of {len(cases)}: {name}")
        rows.append(_bench_case(name, repeats, counts))
    _add_factors(rows)
    return {"bench": "table", **about("cpu"), "threads": counts, "rows": rows}


def _bench_case(name: str, repeats: int, counts: Sequence[int]) -> dict[str, Any]:
    case = CASES[name]
    sides = get_args(Side) if case.has_peer else ("ours",)
    first, *others = [
        _compare(name, sides, min(repeats, case.rounds), n_threads) for n_threads in counts
    ]
    row = {"case": name, **first, "peer_name": "LightGBM" if case.has_peer else None}
    return {**row, "unit": case.unit, "more_threads": others}


def _compare(name: str, sides: Sequence[str], repeats: int, n_threads: int) -> dict[str, Any]:
    """Best time and least peak of each side over some rounds, and the ratio."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(repeats):  # in turn: a machine that grows busy slows them all down
        for side in sides:
            found[side].append(run_apart(["side", name, side], n_threads, f"{name}: {side}"))
    best = {side: min(rounds, key=lambda one: one["time"]) for side, rounds in found.items()}
    time = {side: best[side]["time"] if side in best else None for side in get_args(Side)}
    row: dict[str, Any] = {**time, "ratio": None, "n_threads": n_threads}
    if "peer" in best:
        row["ratio"] = float(f"{best['peer']['time'] / best['ours']['time']:.3g}")
    for side in get_args(Side):
        peaks = [one["bytes"] for one in found.get(side, ()) if one["bytes"] is not None]
        row[f"{side}_bytes"] = min(peaks, default=None)
    scores = {side: one["scores"] for side, one in best.items() if one["scores"]}
    return {**row, **({"scores": scores} if scores else {})}


def _add_factors(rows: list[dict[str, Any]]) -> None:
    """How many times as long as a plain row those take that have no peer."""
    plain = next((row for row in rows if row["case"] == "one-row"), None)
    for row in rows:
        if plain is not None and row["case"].startswith("one-row-"):
            row["times_one_row"] = float(f"{row['ours'] / plain['ours']:.3g}")


def describe_table(result: dict[str, Any]) -> str:
    """The result as a few lines of text."""
    lines = [f"{'case':<17} {'threads':>7} {'ours':>9} {'peer':>9} {'ratio':>6}   memory, scores"]
    for row in result["rows"]:
        for part in (row, *row["more_threads"]):
            memory = " / ".join(megabytes(part[key]) for key in ("ours_bytes", "peer_bytes"))
            scores = "".join(
                f"  {side} AUC {of['auc']:.4f}, log-loss {of['log_loss']:.4f}"
                for side, of in part.get("scores", {}).items()
            )
            figures = " ".join(
                f"{'-':>{size}}" if part[key] is None else f"{part[key]:>{size}.{digits}f}"
                for key, size, digits in (("ours", 9, 3), ("peer", 9, 3), ("ratio", 6, 2))
            )
            name = row["case"] if part is row else ""
            unit = f"{memory}   {row['unit']}{scores}"
            lines.append(f"{name:<17} {part['n_threads']:>7} {figures}   {unit}")
        if "times_one_row" in row:
            lines.append(f"{'':<17} {row['times_one_row']:.2f} times one-row")
    lines.append(f"peer: LightGBM, {_TREES} trees; {result['machine']}")
    return "\n".join(lines)


# ---- one side ----------------------------------------------------------------------------------


def print_side(case: str, side: Side, threads: int = 1) -> int:
    """Time a side of a case in this process; print its time, peak of memory and scores."""
    found = CASES.get(case)
    if found is None:
        raise InputError(f"case {case!r} is unknown: choose from {', '.join(CASES)}.")
    make = _ours if side == "ours" else _peer
    make(threads).fit(*make_table(500, found.n_columns))  # what is loaded on first use
    print(json.dumps(_JOBS[found.job](found, lambda: make(threads))))
    return 0


def _ours(threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    return openfate.FATEClassifier()


def _peer(threads: int) -> Any:
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=_TREES, n_jobs=threads, verbose=-1)


def _timed(run: Callable[[], object]) -> tuple[float, int | None]:
    """Seconds, and the peak of memory over what was held before."""
    with watch_peak() as peak:
        started = now("cpu")
        run()
        seconds = now("cpu") - started
    return round(seconds, 4), peak.n_bytes


def _found(seconds: float, n_bytes: int | None, **scores: float) -> dict[str, Any]:
    return {"time": seconds, "bytes": n_bytes, "scores": scores}


def _fit(case: TableCase, make: Callable[[], Any]) -> dict[str, Any]:
    rows, y = make_table(case.n_rows, case.n_columns)
    model = make()
    seconds, n_bytes = _timed(lambda: model.fit(rows, y))
    later, truth = make_table(_HELD_OUT, case.n_columns, seed=1)
    return _found(seconds, n_bytes, **score_chances(model.predict_proba(later)[:, 1], truth))


def _predict(case: TableCase, make: Callable[[], Any]) -> dict[str, Any]:
    model = make().fit(*make_table(_FITTED, case.n_columns))
    rows, _ = make_table(case.n_rows, case.n_columns, seed=1)
    model.predict_proba(rows[:1000])
    return _found(*_timed(lambda: model.predict_proba(rows)))


def _observe(case: TableCase, make: Callable[[], Any]) -> dict[str, Any]:
    """Rows of which one column and some values are new."""
    rows, y = make_table(_FITTED, case.n_columns)
    model = make().fit(rows.drop(columns=rows.columns[-1]), y)
    later, _ = make_table(case.n_rows, case.n_columns, seed=1)
    model.observe(later[:1000])
    return _found(*_timed(lambda: model.observe(later)))


def _row(case: TableCase, make: Callable[[], Any]) -> dict[str, Any]:
    """The median of calls with a row each, in milliseconds."""
    import pandas

    model = make().fit(*make_table(_FITTED, case.n_columns))
    later, _ = make_table(case.n_rows, case.n_columns, seed=1)
    text = later.columns[-1]  # of many values
    if case.n_known:
        numbers = np.arange(case.n_known)
        values = pandas.Series(numbers).map("new-{}".format).astype("category")
        model.observe(pandas.DataFrame({text: values}))
    if isinstance(model, openfate.FATEClassifier):
        asked: list[Any] = [dict(zip(later, row, strict=True)) for row in later.itertuples(False)]
        for number, row in enumerate(asked if case.unseen or case.n_known else ()):
            row[text] = f"never-{number}" if case.unseen else f"new-{number}"
    else:
        asked = [later.iloc[[number]] for number in range(len(later))]
    for row in asked[:20]:
        model.predict_proba(row)
    times: list[float] = []

    def call_each() -> None:
        for row in asked:
            started = now("cpu")
            model.predict_proba(row)
            times.append(1e3 * (now("cpu") - started))

    _, n_bytes = _timed(call_each)
    return _found(round(float(np.median(times)), 4), n_bytes)


_JOBS = {"fit": _fit, "predict": _predict, "observe": _observe, "row": _row}


# ---- the table ---------------------------------------------------------------------------------


def make_table(n_rows: int, n_columns: int, seed: int = 0) -> tuple[Frame, NDArray[np.int64]]:
    """Rows of numbers and of text of few and of many values (categories), and classes 0 and 1.

    Half of the columns are numbers, three of ten have 8 values, two of ten up to 2,000 whose
    frequencies fall as those of words.  The chance of class 1 depends on numbers, bent and in
    pairs, on values, and on what a number means together with a value.  Rows of another seed follow
    the same law.

    Examples
    --------
    >>> rows, y = make_table(100, 10)
    >>> rows.shape, sorted(set(y.tolist()))
    ((100, 10), [0, 1])
    """
    import pandas

    law, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    n_numbers, n_high = n_columns // 2, n_columns // 5
    n_low = n_columns - n_numbers - n_high
    logit, columns = np.zeros(n_rows), {}
    numbers = rng.normal(size=(n_numbers, n_rows))
    for at, column in enumerate(numbers):
        columns[f"number_{at}"] = np.exp(column) if at % 3 == 2 else column.copy()
        bend, slope = law.uniform(1, 2), law.normal(0, 0.5)
        logit += slope * column + 0.4 * np.sin(bend * column + at)
    logit += 0.7 * numbers[0] * numbers[1]
    for at in range(n_low + n_high):
        n_values, kind = (_LOW, "low") if at < n_low else (_HIGH, "high")
        effect, turn = law.normal(0, 0.5, n_values), law.normal(0, 0.5, n_values)
        value = (n_values ** rng.random(n_rows) - 1).astype(np.int64)  # frequency about 1 / rank
        logit += effect[value] + turn[value] * numbers[at % n_numbers]
        names = [f"{kind}-{number}" for number in range(n_values)]
        columns[f"{kind}_{at}"] = pandas.Categorical.from_codes(value, names)
    chance = 1 / (1 + np.exp(-1.5 * logit / np.sqrt(n_columns / 5)))
    return pandas.DataFrame(columns), (rng.random(n_rows) < chance).astype(np.int64)
