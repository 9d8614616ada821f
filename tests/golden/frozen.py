"""Named cases of frozen behaviour: how they are registered, computed and compared.

A case is a function without arguments that returns numbers and texts (nested lists and dicts), made
through the command line or the public estimators alone, so that it outlives any move of code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from openfate.cli import main

SCORES = Path(__file__).with_name("scores.json")
TIGHT = {"rel_tol": 1e-6, "abs_tol": 1e-8}
# Other processors and versions sum in another order, which training amplifies.
LOOSE = {"rel_tol": 0.05, "abs_tol": 0.05}

CASES: dict[str, Callable[[], Any]] = {}
NEED_DATA: set[str] = set()


def case(name: str, *, data: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a case; `data`: it needs the folder that OPENFATE_DATA names."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        assert name not in CASES, name
        CASES[name] = function
        if data:
            NEED_DATA.add(name)
        return function

    return register


def is_missing_data(name: str) -> bool:
    return name in NEED_DATA and not os.environ.get("OPENFATE_DATA")


@cache
def computed(name: str) -> Any:
    """What a case gives now, as JSON would give it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # The variable is for the processes of experiments.
    with threadpool_limits(1), mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        scores = CASES[name]()
    torch.set_num_threads(before)
    return json.loads(json.dumps(_rounded(scores)))


# ---- what a case returns -----------------------------------------------------------------------


def command(*arguments: object) -> Any:
    """Run a command with --json in this process; what it prints."""
    out, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["openfate", *map(str, arguments), "--json"]
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            main()
    except SystemExit as end:
        assert not end.code, errors.getvalue()
    finally:
        sys.argv = before
    return json.loads(out.getvalue())


def numbers(array: Any) -> list[float]:
    """A few numbers that tell an array from others: mean, a mixed sum, first and last row."""
    P = np.asarray(array, dtype=np.float64)
    P = P.reshape(len(P), -1)
    mixed = P.ravel() @ np.cos(np.arange(P.size)) / math.sqrt(P.size)
    return [float(P.mean()), float(mixed), *P[0].tolist(), *P[-1].tolist()]


def texts(values: Any) -> str:
    """A short hash of values in their order."""
    return hashlib.sha256("\n".join(map(str, values)).encode()).hexdigest()[:16]


def table(rows: list[dict[str, Any]], keys: tuple[str, ...], values: tuple[str, ...]) -> Any:
    """Rows of an experiment as a dict: the words of `keys` to the numbers of `values`."""
    found = {}
    for row in rows:
        name = " ".join(str(row[key]) for key in keys if key in row)
        assert name not in found, name
        found[name] = [row.get(value) for value in values]
    return found


def without(value: Any, *names: str) -> Any:
    """The same without some keys of its dicts: times, paths, versions."""
    if isinstance(value, dict):
        return {key: without(each, *names) for key, each in value.items() if key not in names}
    return [without(each, *names) for each in value] if isinstance(value, list) else value


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, np.generic):
        return _rounded(value.item())
    return float(f"{value:.9g}") if isinstance(value, float) else value


# ---- comparing ---------------------------------------------------------------------------------


@cache
def machine() -> dict[str, str]:
    """What the last digits depend on."""
    info = Path("/proc/cpuinfo")
    # WHY all of it: a name such as "AMD EPYC" is that of processors of several generations.
    told = r"^(?:cpu family|model|model name|stepping)\s*: (.*)$"
    model = re.findall(told, info.read_text(), re.MULTILINE)[:4] if info.exists() else None
    packages = ("torch", "numpy", "scipy", "scikit-learn", "polars", "lightgbm")
    found = {name: version(name) for name in packages if _is_there(name)}
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        **found,
        "processor": " ".join(model) if model else platform.machine(),
        "torch_cpu": capability,
    }


def _is_there(package: str) -> bool:
    try:
        return bool(version(package))
    except ModuleNotFoundError:
        return False


def differences(was: Any, now: Any, *, tight: bool = True, at: str = "") -> Iterator[str]:
    """Each place where two values differ, in words; loosely only names and numbers are compared."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            if key not in was or key not in now:
                yield f"{at}/{key}: only {'now' if key in now else 'before'}"
            else:
                yield from differences(was[key], now[key], tight=tight, at=f"{at}/{key}")
    elif isinstance(was, list) and isinstance(now, list):
        if len(was) != len(now):
            yield f"{at}: {len(was)} entries were, {len(now)} are"
        for place, (old, new) in enumerate(zip(was, now, strict=False)):
            yield from differences(old, new, tight=tight, at=f"{at}[{place}]")
    elif isinstance(was, float) or isinstance(now, float):
        if not _close(was, now, tight):
            yield f"{at}: {was} was, {now} is"
    elif tight and was != now:
        yield f"{at}: {was!r} was, {now!r} is"


def _close(was: Any, now: Any, tight: bool) -> bool:
    if not all(isinstance(value, int | float) for value in (was, now)):
        return False
    if math.isnan(was) or math.isnan(now):
        return math.isnan(was) and math.isnan(now)
    return math.isclose(was, now, **(TIGHT if tight else LOOSE))


def dump(content: Any) -> str:
    """JSON, innermost lists on one line."""
    text = json.dumps(content, indent=1, sort_keys=True)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: re.sub(r"\s+", " ", m[0]), text) + "\n"
