"""JSON records read back: of the shape that was written, or one line that says what is wrong.

A person may have edited a record, or another program may have cut it.  Whoever reads one states
the shape that it relies on, and then indexes without fear.
"""

from __future__ import annotations

import inspect
import json
import math
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from openfate.errors import DataFileError

# A type: str, int, bool, float (any finite number), dict, or object (anything at all).
# A string: itself.  A tuple: one of these; with None among them, null or nothing at all too.
# [shape]: a list of such; [a, b, ...]: a list of just these.
# {"key": shape, ...}: a mapping with at least these keys; {str: shape}: any keys, such values;
# {pattern: shape}: keys that match it.
# A function: what it gives for the content at hand.
Shape = Any

_MOST = sys.float_info.max
_WORDS = {
    str: "text",
    int: "an integer",
    bool: "true or false",
    float: "a number",
    dict: "a mapping",
    object: "something",
}


@dataclass(frozen=True)
class Between:
    """A shape: a finite number from `low` to `high`."""

    low: float
    high: float = math.inf


def fault(content: Any, shape: Shape) -> str | None:
    """What is first found wrong with some content, by its key; None where it has the shape.

    Examples
    --------
    >>> shape = {"seed": int, "results": {str: {"score": Between(0, 1)}}, "note": (str, None)}
    >>> fault({"seed": 0, "results": {"fate": {"score": 0.5}}}, shape)
    >>> fault({"seed": 0, "results": {"fate": {"score": 7}}}, shape)
    'results.fate.score is 7, not a number from 0 to 1'
    >>> fault({"seed": 0}, shape)
    'results is missing'
    """
    return next(_faults("", content, shape), None)


def read_record(path: Path, shape: Shape, remedy: str) -> Any:
    """Read a JSON file of a known shape.

    Raises
    ------
    DataFileError
        Where it cannot be read or has another shape: file, key and remedy.
    FileNotFoundError
        Where there is none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        wrong = fault(content, shape)
    except FileNotFoundError:
        raise
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        wrong = "is not JSON" if path.stat().st_size else "is empty"
    if wrong is not None:
        raise DataFileError(f"{path}: {wrong}; {remedy}.")
    return content


def versions(*packages: str) -> dict[str, str]:
    """The software and machine behind a number; packages that are not installed are left out.

    Examples
    --------
    >>> list(versions("numpy", "no-such-package"))
    ['numpy', 'python', 'machine']
    """
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return {**found, "python": platform.python_version(), "machine": platform.machine()}


def _faults(key: str, content: Any, shape: Shape) -> Iterator[str]:
    if inspect.isfunction(shape):
        shape = shape(content)
    if isinstance(shape, tuple):
        yield from _faults_of_choice(key, content, shape)
    elif isinstance(shape, list):
        yield from _faults_of_list(key, content, shape)
    elif isinstance(shape, dict):
        yield from _faults_of_mapping(key, content, shape)
    elif not _fits(content, shape):
        yield f"{_at(key)} is {_short(content)}, not {_words(shape)}"


def _faults_of_choice(key: str, content: Any, shape: tuple[Shape, ...]) -> Iterator[str]:
    wanted = [one for one in shape if one is not None]
    if content is None and None in shape:
        return
    if len(wanted) == 1:  # what is wrong inside says more
        yield from _faults(key, content, wanted[0])
    elif all(any(_faults(key, content, one)) for one in wanted):
        yield f"{_at(key)} is {_short(content)}, not {' or '.join(map(_words, wanted))}"


def _faults_of_list(key: str, content: Any, shape: list[Shape]) -> Iterator[str]:
    if not isinstance(content, list):
        yield f"{_at(key)} is {_short(content)}, not a list"
        return
    if len(shape) > 1 and len(content) != len(shape):
        yield f"{_at(key)} has {len(content)} entries, not {len(shape)}"
    shapes = shape if len(shape) > 1 else shape * len(content)
    for place, (one, wanted) in enumerate(zip(content, shapes, strict=False)):
        yield from _faults(f"{key}[{place}]", one, wanted)


def _faults_of_mapping(key: str, content: Any, shape: Mapping[Any, Shape]) -> Iterator[str]:
    if not isinstance(content, dict):
        yield f"{_at(key)} is {_short(content)}, not a mapping"
        return
    for name, one in shape.items():
        inner = _inside(key, name)
        if name is str or isinstance(name, re.Pattern):
            for found in content:
                if isinstance(name, re.Pattern) and not name.fullmatch(found):
                    yield f"{_at(key)} has {_short(found)}, which is none of its names"
                yield from _faults(_inside(key, found), content[found], one)
        elif name in content:
            yield from _faults(inner, content[name], one)
        elif not (isinstance(one, tuple) and None in one):
            yield f"{inner} is missing"


def _fits(content: Any, shape: Shape) -> bool:
    if isinstance(shape, str):
        return bool(content == shape)
    if shape is float or isinstance(shape, Between):
        if isinstance(content, bool) or not isinstance(content, int | float):
            return False
        low, high = (shape.low, shape.high) if isinstance(shape, Between) else (-_MOST, _MOST)
        return bool(low <= content <= min(high, _MOST))
    if shape is int:
        return type(content) is int
    return isinstance(content, shape)


def _words(shape: Shape) -> str:
    if isinstance(shape, Between):
        end = f"to {shape.high:g}" if math.isfinite(shape.high) else "up"
        return f"a number from {shape.low:g} {end}"
    if isinstance(shape, type):
        return _WORDS[shape]
    return repr(shape) if isinstance(shape, str) else f"a {type(shape).__name__}"


def _inside(key: str, name: object) -> str:
    """A key of a key, as one line tells it."""
    text = str(name)
    text = text if text.isprintable() and len(text) <= 40 else _short(text)
    return f"{key}.{text}" if key else text


def _at(key: str) -> str:
    return key or "the whole"


def _short(content: Any) -> str:
    if isinstance(content, dict | list):
        return "a mapping" if isinstance(content, dict) else "a list"
    text = "null" if content is None else repr(content)
    return text if len(text) <= 40 else f"{text[:37]}..."
