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
from collections.abc import Iterable


class OpenFATEError(Exception):
    """The base of all errors raised on purpose by this package."""


class InputError(OpenFATEError, ValueError):
    """An argument, a flag or a frame that cannot be used."""


class DataFileError(OpenFATEError):
    """A data file or folder that is missing, unreadable or malformed."""


class OpenWorldWarning(UserWarning):
    """A frame that differs from the training rows, where the policies say "warn"."""


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
