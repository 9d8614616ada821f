"""What lies in a folder of results: summaries with their trials, other records, figures.

A summary is a `summary.json` with `rows`; the trials below it, up to the next summary, are its own.
Other JSON files with something to show (benchmarks, records of `openfate prepare`) are kept as they
are.  A file that cannot be read, or is not of the shape that the page relies on, is left out and
named there instead of ending the report.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openfate.errors import InputError
from openfate.records import Between, Shape, fault

Row = dict[str, Any]
Key = tuple[str, float, int]  # of a trial: data set, share observed, seed

# What a row measures; everything else that it has says what was measured.
MEASURED = ("mean", "std", "n_trials", "seconds", "metric", "paper", "lift", "lift_standard_error")
FIGURES = (".svg", ".png")
_CLOSED = "cannot be opened"

# Topics in order; what belongs to none of them comes last.
TITLES = {
    "uci": "The paper's first experiment",
    "departures": "Departures of the released code, one by one",
    "ablation": "Ablation (the paper's Table 3)",
    "ctr": "Click logs (the paper's Tables 1 and 4)",
    "map": "Maps of embeddings",
    "generalization": "Generalisation (section 3 of the paper)",
    "labels": "Labels that come later",
    "nothing-new": "Nothing new: FATEClassifier beside LightGBM",
    "openworld": "Beyond the paper",
    "scalability": "Scalability",
    "bench": "Speed, ours beside a peer",
    "prepare": "Preparing click logs",
}


# ---- what the page relies on -------------------------------------------------------------------

_WORD, _NUMBER, _COUNT = (str, None), (float, None), (int, None)
_GAP = {"base": str, "way": str, "metric": str}
_POOLED = {**_GAP, "closed": float, "std": float, "n_cells": int, "n_trials": int}
_HARM = {**_GAP, "dataset": str, "observed": float, "gain": float}
_SIDE = {"ms": Between(1e-9), "peak_gb": _NUMBER}
_SIDES = {"fused": _SIDE, "twin": _SIDE}
ENGINE = {re.compile(r"\d+"): {"train": (_SIDES, None), "infer": (_SIDES, None)}}  # by batch rows


def _row_shape(row: Any) -> Shape:
    """A row of a summary: a method's has a mean, a lift's error has a lift."""
    words = ("metric", "method", "variant", "dataset", "backbone", "base", "split", "case")
    numbers = ("observed", "std", "low", "high", "lift", "lift_standard_error", "paper", "ratio")
    shape: dict[str, Shape] = {**dict.fromkeys(words, _WORD), **dict.fromkeys(numbers, _NUMBER)}
    shape["n_trials"] = _COUNT
    if isinstance(row, dict):
        shape |= {"mean": float} if {"mean", "method"} & row.keys() else {}
        shape |= {"lift": float} if row.get("lift_standard_error") else {}
    return shape


def _content_shape(content: Any) -> Shape:
    """A file with something to show; `rows` are rows, an engine's sizes, or a number of them."""
    rows = content.get("rows") if isinstance(content, dict) else None
    shapes: dict[type, Shape] = {list: [_row_shape], dict: ENGINE}
    gaps = {"cells": ([dict], None), "pooled": ([_POOLED], None), "harms": ([_HARM], None)}
    return {
        "rows": shapes.get(type(rows), (int, str, None)),
        "gap_closed": (gaps, None),
        **{"features": (dict, None), "paper": (dict, None)},
        **dict.fromkeys(("note", "notes", "about"), (str, [str], None)),
    }


def _summary_shape(content: Any) -> Shape:
    return {**_content_shape(content), "rows": [_row_shape]}


def _trial_shape(record: Any) -> Shape:
    """A trial; one of a share observed has a seed."""
    has_share = isinstance(record, dict) and "observed" in record
    own = {"observed": float, "seed": int} if has_share else {"seed": _COUNT}
    result = {"metric": str, "score": float, "splits": ({str: dict}, None)}
    return {"dataset": str, "kind": _WORD, "results": {str: result}, **own}


# ---- what there is -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A picture, in the smaller of the formats that there are."""

    name: str
    path: Path

    @property
    def url(self) -> str:
        """The picture itself, so that a page has to load nothing."""
        kind = "svg+xml" if self.path.suffix == ".svg" else "png"
        return f"data:image/{kind};base64,{base64.b64encode(self.path.read_bytes()).decode()}"


@dataclass(frozen=True)
class Run:
    """A JSON file with something to show, and what lies beside it.

    Parameters
    ----------
    name
        Where it lies, from the folder of the report on: `results/uci/default/summary.json`.
    content
        The file.
    trials
        The records of trials that it sums up.
    figures
        The pictures beside it.
    """

    name: str
    content: Row
    trials: Sequence[Row] = ()
    figures: Sequence[Figure] = ()

    @property
    def folder(self) -> str:
        """Its folder: `results/uci/default`."""
        return self.name.rpartition("/")[0]

    @property
    def trials_name(self) -> str:
        """Where its trials lie, for footnotes."""
        return f"{self.folder}/**/trial.json"

    @property
    def kind(self) -> str:
        """What the folder above says that it is: `uci/default`, `bench/train-cpu`."""
        parts = self.name.removesuffix(".json").removesuffix("/summary").split("/")
        return "/".join(parts[1:]) or parts[0]

    @property
    def topic(self) -> str:
        """What the file says that it is, or else its folder; one of `TITLES` or nothing.

        Examples
        --------
        >>> Run("mine/a/summary.json", {"experiment": "uci"}).topic
        'uci'
        >>> Run("mine/a.json", {"command": "openfate bench train --json"}).topic
        'bench'
        """
        folders = self.name.split("/")[:-1]
        if "departures" in folders:  # which say that they are uci, and have a section of their own
            return "departures"
        command = re.search(r"\bopenfate (?:experiment )?(\w+)", str(self.content.get("command")))
        said = [str(self.content.get("experiment")), command[1] if command else ""]
        said += ["bench"] if "bench" in self.content else []
        return next((name for name in (*said, *folders) if name in TITLES), "")

    @property
    def rows(self) -> list[Row]:
        """The rows, empty where the file has none."""
        rows = self.content.get("rows")
        return rows if isinstance(rows, list) else []

    def scores(self, row: Mapping[str, Any]) -> dict[int, float]:
        """The scores behind a row, by seed; empty unless their mean is the row's.

        Examples
        --------
        >>> trial = {"dataset": "a", "seed": 0, "results": {"fate": {"score": 0.5}}}
        >>> run = Run("results/summary.json", {}, [trial])
        >>> run.scores({"dataset": "a", "method": "fate", "mean": 0.5})
        {0: 0.5}
        """
        scores = ((int(trial.get("seed") or 0), _score(trial, row)) for trial in self.trials)
        found = {seed: score for seed, score in scores if score is not None}
        mean = math.fsum(found.values()) / max(len(found), 1)
        return found if math.isclose(mean, row["mean"], abs_tol=1e-9) else {}

    def scores_of(self, method: str, metric: str = "accuracy") -> dict[Key, float]:
        """Every score of a method, by data set, share observed and seed."""
        return {
            (trial["dataset"], trial["observed"], trial["seed"]): result["score"]
            for trial in self.trials
            if (result := trial["results"].get(method)) is not None
            and result["metric"] == metric
            and "observed" in trial
        }


def _score(record: Row, row: Mapping[str, Any]) -> float | None:
    """What a trial says about a row, if it is about it."""
    about = {**record, "variant": record["kind"]} if "kind" in record else record
    for key, value in row.items():
        if key not in MEASURED and key != "split" and key in about and about[key] != value:
            return None
    results, method, variant = record["results"], row.get("method"), row.get("variant")
    found = results.get(f"{variant}/{method}") or results.get(method) or results.get(variant)
    if found is None:
        return None
    metric = row.get("metric", "score")
    for part in (row.get("split"), "measures"):
        inside = (found.get("splits") or {}).get(part) or found.get(part)
        found = inside if isinstance(inside, dict) else found
    score = found.get(metric, found.get("score"))
    return float(score) if isinstance(score, int | float) else None


@dataclass
class Results:
    """Everything that a report is made of."""

    runs: list[Run] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # "file: what is wrong with it"

    def on(self, topic: str) -> list[Run]:
        """The runs on a topic."""
        return [run for run in self.runs if run.topic == topic]


def find_results(folders: Sequence[Path]) -> Results:
    """Read what lies below some folders.

    Raises
    ------
    InputError
        Where a folder does not exist, or there is nothing to report.
    """
    results = Results()
    for folder in {folder.resolve(): folder for folder in folders}.values():  # each once
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; name one with results.")
        _read(folder, results)
    if not results.runs:
        names = ", ".join(map(str, folders))
        if results.unread:
            raise InputError(f"{names}: nothing that can be read; {results.unread[0]}.")
        raise InputError(
            f"{names}: no summary.json nor other results; run `openfate experiment` first."
        )
    return results


def _read(folder: Path, results: Results) -> None:
    """Add the JSON files below a folder, but for hidden ones; what cannot be read is told."""
    root = folder.resolve()
    plain = not folder.is_absolute() and ".." not in folder.parts and folder.parts
    prefix = folder.as_posix() if plain else root.name

    def name(path: Path) -> str:
        return f"{prefix}/{path.relative_to(root).as_posix()}"

    closed: list[OSError] = []
    paths: list[Path] = []
    for inside, folders, names in os.walk(root, onerror=closed.append):
        folders[:] = [inner for inner in folders if not inner.startswith(".")]
        paths += [Path(inside, n) for n in names if n.endswith(".json") and not n.startswith(".")]
    results.unread += [f"{name(Path(error.filename))}: {_CLOSED}" for error in closed]
    files = {}
    for path in sorted(paths):
        content, wrong = _json(path)
        if wrong is not None:
            results.unread.append(f"{name(path)}: {wrong}")
        elif content is not None:
            files[path] = content
    trials: dict[Path, list[Row]] = {p.parent: [] for p in files if p.name == "summary.json"}
    for path, content in files.items():
        if path.name == "trial.json":
            home = next((above for above in path.parents if above in trials), None)
            if home is not None:
                trials[home].append(content)
    for path, content in files.items():
        if path.name != "trial.json":
            own = trials[path.parent] if path.name == "summary.json" else []
            figures = [Figure(name(picture), picture) for picture in _figures(path)]
            results.runs.append(Run(name(path), content, own, figures))


def _json(path: Path) -> tuple[Row | None, str | None]:
    """The content, where it has something to show, and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None, _CLOSED
    except (ValueError, RecursionError):
        return None, "not JSON that can be read"
    shapes = {"summary.json": _summary_shape, "trial.json": _trial_shape}
    keys = ("rows", "rows_per_second")
    has_something = isinstance(content, dict) and any(content.get(key) for key in keys)
    if path.name not in shapes and not has_something:
        return None, None
    wrong = fault(content, shapes.get(path.name, _content_shape))
    return (content, None) if wrong is None else (None, wrong)


def _figures(path: Path) -> list[Path]:
    """The pictures of a summary (its folder's), or of another file (those of its name)."""
    own = path.name == "summary.json"
    stems: dict[str, list[Path]] = {}
    for picture in sorted(path.parent.iterdir()):
        if picture.suffix in FIGURES and picture.is_file() and (own or picture.stem == path.stem):
            stems.setdefault(picture.stem, []).append(picture)
    return [min(same, key=lambda picture: picture.stat().st_size) for same in stems.values()]
