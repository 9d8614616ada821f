"""Seeds that every generator here can start from, and every file can keep."""

from __future__ import annotations

from operator import index

from openfate.errors import InputError


def checked_seed(seed: object) -> int:
    """Take a seed that a file can keep as int64.

    Examples
    --------
    >>> checked_seed(7)
    7
    >>> checked_seed(-1)
    Traceback (most recent call last):
        ...
    openfate.errors.InputError: seed must be an integer from 0 to 2**63 - 1, not -1.
    """
    try:
        number = -1 if isinstance(seed, bool) else index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InputError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}.")
    return number
