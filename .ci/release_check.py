"""Is this a release?  Versions agree; the wheel holds both packages alone, installs and works.

`python .ci/release_check.py [PYTHON ...]` builds the wheel and, for each Python (by default those
of 3.11 to 3.14 that are at hand), installs it without extras in a clean environment and runs a
small story: import, command line, fit, predict, observe, save, load, report.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("openfate", "openfate_lab")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")

STORY = """
import importlib.util, sys, tempfile
from pathlib import Path
import numpy as np, polars as pl
import openfate
assert Path(openfate.__file__).is_relative_to(sys.prefix), openfate.__file__
for extra in ("pandas", "pyarrow", "lightgbm", "torch_geometric", "fastapi", "onnx", "pytest"):
    assert importlib.util.find_spec(extra) is None, f"{extra} is here: not a clean environment"
assert all(hasattr(openfate, name) for name in openfate.__all__)
rng = np.random.default_rng(0)
y = rng.integers(0, 2, 300)
hint = lambda: np.where(rng.random(300) < 0.4, rng.integers(0, 2, 300), y).astype(str)
rows = pl.DataFrame({"a": hint(), "b": hint(), "c": hint()})
clf = openfate.FATEClassifier(epochs=10).fit(rows[["a", "b"]], y)
p = clf.observe(rows).predict_proba(rows)
assert p.shape == (300, 2) and ((p.argmax(1) == y).mean() > 0.7)
clf.save("bundle")
assert (openfate.load("bundle").predict_proba(rows) == p).all()
rows.with_columns(y=pl.Series(y)).write_csv("rows.csv")
print(openfate.__version__)
"""
COMMANDS = (
    ("--help",),
    ("fit", "rows.csv", "--target", "y", "--not-yet", "c", "--epochs", "5", "--out", "model"),
    ("predict", "model", "rows.csv", "--out", "p.parquet"),
    ("evaluate", "model", "rows.csv", "--json"),
    ("experiment", "uci", "--datasets", "digits", "--observed", "0.5", "--methods", "base,fate",
     "--trials", "2", "--epochs", "2", "--out", "results/uci", "--jobs", "1"),
    ("report", "results", "--out", "report.html"),
)  # fmt: skip


def main() -> None:
    """Check everything; the first fault ends it with its reason."""
    version = check_versions()
    print(f"version {version}: package, CHANGELOG and CITATION agree")
    pythons = sys.argv[1:] or at_hand()
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        n_files = check_contents(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB, {n_files} files, nothing else")
        for python in pythons:
            started = time.monotonic()
            about = smoke(python, wheel, Path(tempfile.mkdtemp(dir=folder)), version)
            seconds = time.monotonic() - started
            print(f"{about}: installed without extras and used, {seconds:.0f} s", flush=True)
    print(f"release check passed on {len(pythons)} Python{'s' * (len(pythons) != 1)}")


def fail(reason: str) -> None:
    """End with the reason."""
    sys.exit(f"release check: {reason}")


def check_versions() -> str:
    """The version of the package, if CHANGELOG's first entry and CITATION.cff say the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = project["tool"]["hatch"]["version"]["path"]
    found = {
        source: _first(source, r'(?m)^__version__ = "(.+)"$'),
        "CHANGELOG.md": _first("CHANGELOG.md", r"(?m)^## (\S+)"),
        "CITATION.cff": _first("CITATION.cff", r"(?m)^version: (\S+)$"),
    }
    if len(set(found.values())) != 1:
        fail(f"versions differ: {', '.join(f'{name} {v}' for name, v in found.items())}")
    return found[source]


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text())
    if match is None:
        sys.exit(f"release check: no version in {path}")
    return match[1]


def at_hand() -> list[str]:
    """One interpreter of each supported version, on PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in SUPPORTED:
        names = [f"python{version}", *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
        found += [name for name in names if works(name)][:1]
    return found


def works(python: str) -> bool:
    """Whether an interpreter is there and starts (a shim may be there without one)."""
    if shutil.which(python) is None:
        return False
    done = subprocess.run([python, "-c", "import venv"], capture_output=True, check=False)
    return done.returncode == 0


def build(folder: Path) -> Path:
    """The wheel, built in an environment of its own."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> int:
    """The number of files; it ends where one is missing or does not belong into a wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = tuple(f"{package}/" for package in PACKAGES)
    strays = [n for n in names if not n.startswith(inside) and ".dist-info/" not in n]
    strays += [n for n in names if "__pycache__" in n or "/tests/" in n]
    package = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if strays or (missing := package - names):
        fail(
            f"the wheel holds {strays[:3]}" if strays else f"the wheel lacks {sorted(missing)[:3]}"
        )
    return len(names)


def smoke(python: str, wheel: Path, folder: Path, version: str) -> str:
    """Install the wheel alone and use it; what Python it was."""
    run(python, "-m", "venv", folder / "venv")
    inside = folder / "venv" / "bin"
    constraints = ("-c", ROOT / "constraints.txt")
    run(inside / "python", "-m", "pip", "install", "-q", *constraints, wheel)
    told = run(inside / "python", "-I", "-W", "error", "-c", STORY, cwd=folder)
    if told.strip() != version:
        fail(f"{python}: the wheel says it is {told.strip()}, not {version}")
    for command in COMMANDS:
        run(inside / "openfate", *command, cwd=folder)
    return run(inside / "python", "--version").strip()


def run(*words: object, cwd: Path | None = None) -> str:
    """What a command prints; it ends where the command fails."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        shown = " ".join(str(word) for word in words)[:200]
        fail(f"{shown}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
