"""How many classes of other people an attacker flips who can send unlabelled rows: poison.json.

    PYTHONPATH=. python benchmarks/poison.py OUT.json --data DATA

A model is fitted on 60 % of the rows with a part of the features, observes half of the others,
which are honest, and predicts the classes of the rest.  Then it observes the attacker's rows too,
and predicts once more:

    values      the row that the model is surest of, again and again, with new values of a known
                column and new columns, ten of each, that nobody else has
    ids         the same, with a value of its own for each row
    many rows   the 200 rows that it is surest of, all of one class, in turn, with the same ten
    hijack      the surest row with new values that other people have too

"uncapped" is the same bank with evidence in which every row counts in full.  With "source" rows
name who sent them: the attacker is one, and ten honest rows in turn are of one.  N rows, C classes.
"""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import numpy as np
import polars as pl
import torch

from openfate import FATEClassifier, OpenWorldClassifier
from openfate.openworld import LiveEvidence, Pooling
from openfate_lab.bench.record import about
from openfate_lab.data import Dataset, load, split_features, split_rows
from openfate_lab.experiments.wrapped_models import make_lightgbm

CELLS = [("digits", 0.3), ("gene", 0.3), ("robot", 0.5)]
MODELS = ("lightgbm", "fate")
ATTACKS = ("values", "ids", "many rows", "hijack")
ROWS = (200, 20_000)
N_COLUMNS = 10  # that the attacker adds
SEED = 0
SOURCE, ROWS_A_SOURCE = "sent by", 10


def make(model: str) -> Any:
    """Not fitted; the wrapped model's evidence is used at its reference strength, without probe."""
    usual = {"random_state": SEED, "exclude": [SOURCE]}
    if model == "lightgbm":
        base = make_lightgbm(SEED, zero_one=True, n_estimators=100)
        return OpenWorldClassifier(base, pooling=Pooling(relative=True), **usual)
    return FATEClassifier(strategy="evidence", **usual)


def attack(kind: str, n_rows: int, known: pl.DataFrame, later: pl.DataFrame, P: Any) -> Any:
    """Rows of an attacker who knows what the model predicts (N, C) for rows of known features."""
    rng = np.random.default_rng(SEED)
    own = P.max(1)
    surest = np.argsort(-own, kind="stable")
    surest = surest[P[surest].argmax(1) == P[surest[0]].argmax()]
    rows = known[np.resize(surest[: 200 if kind == "many rows" else 1], n_rows)]
    if kind == "hijack":
        theirs = later[rng.integers(0, len(later), n_rows)]
        new = [name for name in later.columns if name not in known.columns]
        both = [
            pl.Series(name, [[*a, *b] for a, b in zip(rows[name], theirs[name], strict=True)])
            for name in known.columns
        ]
        return pl.DataFrame([*both, *(theirs[name] for name in new)])
    value = np.arange(n_rows) if kind == "ids" else rng.integers(0, 10, n_rows)
    first = known.columns[0]
    longer = [[*cell, f"mine {v}"] for cell, v in zip(rows[first], value, strict=True)]
    cells = pl.Series([[f"x{v}"] for v in value])
    more = {f"extra {at}": cells for at in range(N_COLUMNS)}
    return rows.with_columns(pl.Series(first, longer), **more)


def with_evidence(fitted: Any, source: str | None) -> Any:
    """A copy whose evidence, of no rows yet, knows who sent a row, or nothing of who votes."""
    other = copy.deepcopy(fitted)
    live = other.bank_.evidence
    settings = live.state.n_outputs, live.state.task, live.pooling, live.batch_pooling
    evidence = LiveEvidence(*settings, by_source=source is not None)
    other.bank_.source = source
    other.bank_._state = other.bank_._state._replace(evidence=evidence)
    return other


def run_cell(dataset: Dataset, observed: float, model: str) -> dict[str, Any]:
    """Shares of classes that flip, for each attack and number of rows."""
    train, validation, test = split_rows(dataset.X.n_rows, seed=SEED)
    _, new = split_features(dataset.X.n_features, observed=observed, seed=SEED)
    whole, known = dataset.to_frame(), dataset.to_frame(hidden=new)
    later = np.random.default_rng(SEED).permutation(np.concatenate([validation, test]))
    first, second = np.array_split(later, 2)
    seen, asked, y = whole[first], whole[second], dataset.y[second]
    honest_sources = pl.Series(SOURCE, np.arange(len(seen)) // ROWS_A_SOURCE).cast(pl.String)
    fitted = make(model).fit(known[train], dataset.y[train])
    P = fitted.predict_proba(known[later], new_features="drop")
    found: dict[str, Any] = {
        "dataset": dataset.name,
        "sha256": dataset.sha256,
        "observed": observed,
        "model": model,
        "honest_rows": len(seen),
        "accuracy_ignoring": _accuracy(fitted.predict_proba(asked, new_features="drop"), y),
    }
    attacks = {(kind, n): attack(kind, n, known[later], seen, P) for kind in ATTACKS for n in ROWS}
    sides = {
        "capped": fitted,
        "uncapped": with_evidence(fitted, None),
        "source": with_evidence(fitted, SOURCE),
    }
    for name, start in sides.items():
        before = copy.deepcopy(start).observe(seen.with_columns(honest_sources))
        honest = before.predict_proba(asked, graph="state")
        side: dict[str, Any] = {
            "accuracy": _accuracy(honest, y),
            "accuracy_batch": _accuracy(start.predict_proba(asked, graph="batch"), y),
            "flipped": {},
            "accuracy_after": {},
        }
        for (kind, n), rows in attacks.items():
            after = copy.deepcopy(before).observe(rows.with_columns(pl.lit("me").alias(SOURCE)))
            moved = after.predict_proba(asked, graph="state")
            flipped = float((moved.argmax(1) != honest.argmax(1)).mean())
            side["flipped"].setdefault(kind, {})[str(n)] = round(flipped, 4)
            side["accuracy_after"].setdefault(kind, {})[str(n)] = _accuracy(moved, y)
        found[name] = side
    return found


def _pool(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the rows that were asked about, all cells together."""
    size = np.array([row["honest_rows"] for row in rows])
    shares = {}
    for side in ("capped", "uncapped", "source"):
        flipped = {
            kind: {
                str(n): round(float(size @ [r[side]["flipped"][kind][str(n)] for r in rows])
                / size.sum(), 4)
                for n in ROWS
            }
            for kind in ATTACKS
        }  # fmt: skip
        honest = {
            name: round(float(size @ [row[side][name] for row in rows]) / size.sum(), 4)
            for name in ("accuracy", "accuracy_batch")
        }
        shares[side] = {**honest, "flipped": flipped}
    worst = {
        kind: max(row["capped"]["flipped"][kind][str(max(ROWS))] for row in rows)
        for kind in ATTACKS
    }
    return {**shares, "worst_cell": worst}


def _accuracy(P: Any, y: Any) -> float:
    return round(float((P.argmax(1) == y).mean()), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--data")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, observed in CELLS:
        for model in MODELS:
            rows.append(run_cell(load(name, asked.data), observed, model))
            print(json.dumps(rows[-1]), flush=True)
    result = {"bench": "poison", **about("cpu"), "seed": SEED, "pooled": _pool(rows), "rows": rows}
    with open(asked.out, "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
