"""What lies in a folder of results: summaries with their trials, other records, figures.

A summary is a `summary.json` with `rows`; the trials below it, up to the next summary, are its own.
Other JSON files with something to show (benchmarks, records of `openfate prepare`) are kept as they
are.  A file that cannot be read is named on the page instead of ending the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openfate.errors import InputError

__all__ = ["Figure", "Results", "Run", "Trial", "find_results"]

Row = dict[str, Any]

# What a row measures; everything else that it has says what was measured.
MEASURED = ("mean", "std", "n_trials", "seconds", "metric", "paper", "lift", "lift_standard_error")
FIGURES = (".svg", ".png")


@dataclass(frozen=True)
class Trial:
    """One record of a trial, with its name for footnotes."""

    name: str
    record: Row


@dataclass(frozen=True)
class Figure:
    """A picture, in the smaller of the formats that there are."""

    name: str
    path: Path


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
    trials: Sequence[Trial] = ()
    figures: Sequence[Figure] = ()

    @property
    def folder(self) -> str:
        """Its folder: `results/uci/default`."""
        return self.name.rpartition("/")[0]

    @property
    def kind(self) -> str:
        """What the folder above says that it is: `uci/default`, `bench/train-cpu`."""
        parts = self.name.removesuffix(".json").removesuffix("/summary").split("/")
        return "/".join(parts[1:]) or parts[0]

    @property
    def rows(self) -> list[Row]:
        """The rows, empty where the file has none."""
        rows = self.content.get("rows")
        rows = rows if isinstance(rows, list) else []
        return [row for row in rows if isinstance(row, dict)]

    def scores(self, row: Mapping[str, Any]) -> dict[int, float]:
        """The scores behind a row, by seed; empty unless their mean is the row's.

        Examples
        --------
        >>> trial = Trial("t", {"dataset": "a", "seed": 0, "results": {"fate": {"score": 0.5}}})
        >>> run = Run("results/summary.json", {}, [trial])
        >>> run.scores({"dataset": "a", "method": "fate", "mean": 0.5})
        {0: 0.5}
        """
        found: dict[int, float] = {}
        for trial in self.trials:
            score = _score(trial.record, row)
            if score is not None:
                found[int(trial.record.get("seed") or 0)] = score
        if not found or not math.isclose(
            math.fsum(found.values()) / len(found), row["mean"], abs_tol=1e-9
        ):
            return {}
        return found


def _score(record: Row, row: Mapping[str, Any]) -> float | None:
    """What a trial says about a row, if it is about it."""
    about = {**record, "variant": record["kind"]} if "kind" in record else record
    for key, value in row.items():
        if key not in MEASURED and key != "split" and key in about and about[key] != value:
            return None
    results, method, variant = record.get("results"), row.get("method"), row.get("variant")
    if not isinstance(results, dict):
        return None
    found = results.get(f"{variant}/{method}") or results.get(method) or results.get(variant)
    if not isinstance(found, dict):
        return None
    metric = row.get("metric", "score")
    for part in (row.get("split"), "measures"):
        inside = found.get("splits", {}).get(part) or found.get(part)
        found = inside if isinstance(inside, dict) else found
    score = found.get(metric, found.get("score"))
    return float(score) if isinstance(score, int | float) else None


@dataclass
class Results:
    """Everything that a report is made of."""

    runs: list[Run] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def named(self, *endings: str) -> Iterator[Run]:
        """The runs whose folder ends so: `named("uci/default")`."""
        for run in self.runs:
            if any(f"/{run.folder}".endswith(f"/{ending}") for ending in endings):
                yield run

    def below(self, folder: str) -> list[Run]:
        """The runs in a folder of this name, at any depth."""
        return [run for run in self.runs if folder in run.name.split("/")[:-1]]


def find_results(folders: Sequence[Path]) -> Results:
    """Read what lies below some folders.

    Raises
    ------
    InputError
        Where a folder does not exist, or there is nothing to report.
    """
    results = Results()
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; name one with results.")
        _read(folder, results)
    if not results.runs:
        names = ", ".join(map(str, folders))
        raise InputError(
            f"{names}: no summary.json nor other results; run `openfate experiment` first."
        )
    return results


def _read(folder: Path, results: Results) -> None:
    root = folder.resolve()
    plain = not folder.is_absolute() and ".." not in folder.parts and folder.parts
    prefix = folder.as_posix() if plain else root.name

    def name(path: Path) -> str:
        return f"{prefix}/{path.relative_to(root).as_posix()}"

    files = {}
    for path in sorted(root.rglob("*.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            content = _json(path)
            if content is None:
                results.unread.append(name(path))
            else:
                files[path] = content
    summaries = {path.parent for path in files if path.name == "summary.json"}
    trials: dict[Path, list[Trial]] = {}
    for path, content in files.items():
        if path.name == "trial.json":
            home = next((above for above in path.parents if above in summaries), None)
            if home is not None:
                trials.setdefault(home, []).append(Trial(name(path), content))
    for path, content in files.items():
        if path.name == "trial.json" or not _has_something(content):
            continue
        own = path.name == "summary.json"
        figures = [Figure(name(p), p) for p in _figures(path)]
        results.runs.append(
            Run(name(path), content, trials.get(path.parent, []) if own else [], figures)
        )


def _json(path: Path) -> Row | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else {}


def _has_something(content: Row) -> bool:
    return bool(content.get("rows")) or "rows_per_second" in content


def _figures(path: Path) -> list[Path]:
    """The pictures of a summary (its folder's), or of another file (those of its name)."""
    own = path.name == "summary.json"
    stems: dict[str, list[Path]] = {}
    for picture in sorted(path.parent.iterdir()):
        if picture.suffix in FIGURES and (own or picture.stem == path.stem):
            stems.setdefault(picture.stem, []).append(picture)
    return [min(same, key=lambda picture: picture.stat().st_size) for same in stems.values()]
