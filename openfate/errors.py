"""Every error that a user can cause, each naming the thing, the value and the remedy.

::

    OpenFATEError
    ├── InputError       an argument, a flag or a frame that cannot be used (also a ValueError)
    └── DataFileError    a file or folder that is missing or malformed

    OpenWorldWarning     a new or missing column, or a new value, under the policy "warn"

The command line prints the message on one line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class OpenFATEError(Exception):
    """The base of all errors raised on purpose by this package."""


class InputError(OpenFATEError, ValueError):
    """An argument, a flag or a frame that cannot be used."""


class DataFileError(OpenFATEError):
    """A data file or folder that is missing, unreadable or malformed."""


class OpenWorldWarning(UserWarning):
    """A frame that differs from the training rows, where the policies say "warn"."""


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is none of the choices.

    Examples
    --------
    >>> check_choice("graph", "batches", ["auto", "state", "batch"])
    Traceback (most recent call last):
    openfate.errors.InputError: graph='batches' is unknown: choose 'auto', 'state' or 'batch'.
    """
    known = list(choices)  # WHY: a value of JSON may be a list, which has no hash
    if value not in known:
        *most, last = map(repr, known)
        words = f"{', '.join(most)} or {last}" if most else last
        raise InputError(f"{name}={value!r} is unknown: choose {words}.")


def check_integer(name: str, value: Any, least: int) -> int:
    """Take an integer that is not below the least.

    Examples
    --------
    >>> check_integer("n_ahead", 2, 0)
    2
    """
    if type(value) is not int or value < least:
        raise InputError(f"{name}={value!r}: choose an integer from {least} up.")
    return value


def suggest(word: object, known: Iterable[str]) -> str:
    """Hint at the known name nearest to one that is unknown, as an error appends it.

    Examples
    --------
    >>> f"unknown kind 'numerical'{suggest('numerical', ['numeric', 'datetime'])}"
    "unknown kind 'numerical'; did you mean 'numeric'?"
    >>> suggest("colour", ["numeric", "datetime"])
    ''
    """
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def first_line(error: BaseException) -> str:
    r"""What an error of another library says, without what it adds below, to be put into ours.

    Examples
    --------
    >>> first_line(ValueError("no such column.\n\nThe plan was: ..."))
    'no such column'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def is_memory_full(error: BaseException) -> bool:
    """Whether an error says that memory is full: Python's own, or torch's of a CPU or a GPU.

    Examples
    --------
    >>> is_memory_full(MemoryError()), is_memory_full(RuntimeError("CUDA out of memory."))
    (True, True)
    """
    words = ("allocate memory", "out of memory")
    is_torchs = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return isinstance(error, MemoryError) or is_torchs


MOST_TOLD = 20  # WHY: a screen; whoever sends a file can name 100,000 columns in it


def shorten(parts: Sequence[str], between: str = ", ") -> str:
    """Write a list for people: the first of it, and how many more there are.

    Examples
    --------
    >>> shorten(["age", "job"]), shorten([f"c{at}" for at in range(22)], " ")[-14:]
    ('age, job', 'c19 and 2 more')
    """
    told, n_more = between.join(parts[:MOST_TOLD]), len(parts) - MOST_TOLD
    return f"{told} and {n_more:,} more" if n_more > 0 else told
