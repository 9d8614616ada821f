"""What docs/architecture.md computes: the picture of the folders, and the walk of six calls.

`python .ci/architecture.py` brings the page up to date; a test fails where it is not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

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


@dataclass
class Walk:
    """The files that a call goes through.

    `stations` are in the order of first entry; the folder `table` is one station.  `phases` are
    what the file that does the work calls, one after another, repetitions in a row left out.
    """

    hub: str
    stations: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    def enter(self, here: str, caller: str | None) -> None:
        """Note that a function of one station was called from another."""
        if here not in self.stations:
            self.stations.append(here)
        if caller == self.hub and here != self.hub and self.phases[-1:] != [here]:
            self.phases.append(here)


def walk_of(call: Callable[[], Any], hub: str, until: str = "") -> Walk:
    """Trace a call; with `until`, only the files on the stack when that file is first entered."""
    walk = Walk(hub)

    def trace(frame: FrameType, event: str, _: Any) -> None:
        here = _station(frame) if event == "call" else None
        if here is None:
            return
        if until:
            if here == until and not walk.stations:
                walk.stations = _stack(frame)
            return
        walk.enter(here, _caller(frame))

    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def _station(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    parts = path.relative_to(ROOT).parts
    if parts[0] not in PACKAGES or len(parts) < 3 or parts[-1] == "__init__.py":
        return None
    return "openfate/table" if parts[1] == "table" else "/".join(parts)


def _caller(frame: FrameType) -> str | None:
    above = frame.f_back
    while above is not None:
        station = _station(above)
        if station is not None:
            return station
        above = above.f_back
    return None


def _stack(frame: FrameType | None) -> list[str]:
    """The stations on the stack, the outermost first; neighbours that are equal are one."""
    found: list[str] = []
    while frame is not None:
        station = _station(frame)
        if station is not None and found[:1] != [station]:
            found.insert(0, station)
        frame = frame.f_back
    return found
