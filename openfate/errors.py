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

__all__ = ["DataFileError", "InputError", "OpenFATEError", "OpenWorldWarning", "suggest"]


class OpenFATEError(Exception):
    """The base of all errors raised on purpose by this package."""


class InputError(OpenFATEError, ValueError):
    """An argument, a flag or a frame that cannot be used."""


class DataFileError(OpenFATEError):
    """A data file or folder that is missing, unreadable or malformed."""


class OpenWorldWarning(UserWarning):
    """A frame that differs from the training rows, where the policies say "warn"."""


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known one that looks like it, if any does.

    Examples
    --------
    >>> suggest("fates", ["fate", "base"])
    " Did you mean 'fate'?"
    >>> suggest("zebra", ["fate", "base"])
    ''
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
