"""What docs/architecture.md computes: the picture of the folders, and the walk of six calls.

`python .ci/architecture.py` brings the page up to date; a test fails where it is not.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl

from openfate import FATE, FATEClassifier, train
from openfate.models import MLP, GraphSAGE
from openfate.table import PreparedData, prepare
from openfate.training import Settings
from openfate_lab.data import write_raw_criteo
from openfate_lab.experiments import OpenWorld
from openfate_lab.experiments.runner import make_plans

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("openfate", "openfate_lab")


# ---- the picture -------------------------------------------------------------------------------


def edges_between_folders() -> set[tuple[str, str]]:
    """Which folder imports from which, by the import statements of all files."""
    edges = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            here = _folder(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for module in _imports(path):
                there = _folder(module)
                if here and there and here != there:
                    edges.add((here, there))
    return edges


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # A folder may be what is imported: `from openfate import serving`.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _folder(module: str) -> str | None:
    """The folder of a module of ours; None for the few files that lie under all folders."""
    package, *rest = module.split(".")
    if package not in PACKAGES or not rest or not (ROOT / package / rest[0]).is_dir():
        return None
    return f"{package}.{rest[0]}"


def picture() -> str:
    """A Mermaid graph: an arrow leads from a folder to one that it imports.

    An arrow that follows from two others is left out, as in any picture of layers.
    """
    edges = edges_between_folders()
    below = {start: {end for first, end in edges if first == start} for start, _ in edges}

    def reaches(start: str, end: str) -> bool:
        return end in below.get(start, ()) or any(reaches(n, end) for n in below.get(start, ()))

    needed = [
        (start, end)
        for start, end in sorted(edges)
        if not any(reaches(other, end) for other in below[start] - {end})
    ]
    lines = ["```mermaid", "graph TD"]
    for package in PACKAGES:
        folders = sorted({f for edge in edges for f in edge if f.split(".")[0] == package})
        lines.append(f"  subgraph {package}")
        lines += [f"    {f}[{f.split('.')[1]}]" for f in folders]
        lines.append("  end")
    lines += [f"  {start} --> {end}" for start, end in needed]
    return "\n".join([*lines, "```"])


# ---- the walks ---------------------------------------------------------------------------------


def walk_of(call: Callable[[], Any], until: str = "") -> list[str]:
    """The files that a call enters, in order, each once.

    With `until`, a method such as "GraphSAGE.forward", the files on the stack when it is called.
    The folder `table` is one station.
    """
    stations: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        here = _station(frame) if event == "call" else None
        if here is None:
            return
        if until and frame.f_code.co_qualname == until:
            stations[:] = _stack(frame)
            sys.setprofile(None)  # WHY: the rest of a fit would take minutes under a tracer
        elif not until and here not in stations:
            stations.append(here)

    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return stations


def _station(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    parts = path.relative_to(ROOT).parts
    if parts[0] not in PACKAGES or len(parts) < 3 or parts[-1] == "__init__.py":
        return None
    return "openfate/table" if parts[1] == "table" else "/".join(parts)


def _stack(frame: FrameType | None) -> list[str]:
    """The stations on the stack, the outermost first; neighbours that are equal are one."""
    found: list[str] = []
    while frame is not None:
        station = _station(frame)
        if station is not None and found[:1] != [station]:
            found.insert(0, station)
        frame = frame.f_back
    return found


MESSAGES = "GraphSAGE.forward"  # messages pass along the edges
ESTIMATOR = "FATEEstimator.fit"


def walks() -> dict[str, list[str]]:
    """The walk of each of six calls, on tiny tables."""
    rows = pl.DataFrame({"age": [23, 61, 35, 52] * 30, "job": ["cook", "nurse"] * 60})
    y = np.array([0, 1] * 60)
    later = rows.with_columns(city=pl.Series(["Rome", "Oslo"] * 60))
    small: dict[str, Any] = {"epochs": 2, "n_draws": 1, "n_members": 1}
    auto = FATEClassifier(**small).fit(rows, y)
    found = {
        "fit": walk_of(
            lambda: FATEClassifier(strategy="fate", **small).fit(rows, y), until=MESSAGES
        ),
        "predict_proba": walk_of(lambda: auto.predict_proba(later)),
        "observe": walk_of(lambda: auto.observe(later, y, refit="never")),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_raw_criteo(folder / "log.txt", n_rows=3000, n_features=800)
        found["prepare"] = walk_of(lambda: prepare(folder / "log.txt", folder / "shards", "criteo"))
        data = PreparedData(folder / "shards")
        backbone = MLP(4, 1, hidden=(4,))
        model = FATE(data.n_observed, backbone, GraphSAGE(4), recompose="all")
        found["train"] = walk_of(
            lambda: train(
                model,
                lambda epoch: data.batches("train", 100, seed=epoch),
                settings=Settings.clicks(n_kept=24, n_draws=1, epochs=1, n_ahead=0),
            ),
            until=MESSAGES,
        )
        experiment = OpenWorld(("digits",), (0.5,), ("fate",), trials=1)
        plan = make_plans(experiment, folder / "results")[0]
        found["experiment"] = walk_of(lambda: experiment.run_trial(plan), until=ESTIMATOR)
    return found


_CALLS = {
    "fit": '`FATEClassifier(strategy="fate").fit(rows, y)`, down to message passing',
    "predict_proba": "`predict_proba(rows)` with a new column",
    "observe": "`observe(rows, y)`: rows with labels",
    "prepare": "`openfate.table.prepare`: a raw log to shards",
    "train": "`openfate.training.train` on shards, down to message passing",
    "experiment": "a trial of `openfate experiment openworld`, down to the public estimator",
}


def lists(found: dict[str, list[str]]) -> str:
    """The walks as Markdown lists."""
    parts = []
    for name, title in _CALLS.items():
        stations = (f"{n}. `{station}`" for n, station in enumerate(found[name], 1))
        parts.append("\n".join([f"**{title}**", "", *stations]))
    return "\n\n".join(parts)


def with_computed(text: str, found: dict[str, list[str]]) -> str:
    """The page with its computed parts brought up to date."""
    for name, made in (("picture", picture()), ("walks", lists(found))):
        pattern = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    return text


if __name__ == "__main__":
    PAGE.write_text(with_computed(PAGE.read_text(), walks()))
