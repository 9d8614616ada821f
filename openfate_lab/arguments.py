"""What a bench or an experiment was asked for: numbers in their range, the command as typed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from openfate.errors import InputError


def at_least(least: float, **numbers: float) -> None:
    """Refuse numbers below `least`, by the names of their arguments.

    Examples
    --------
    >>> at_least(1, batch_rows=0)
    Traceback (most recent call last):
        ...
    openfate.errors.InputError: batch_rows=0: choose a number from 1 up.
    """
    for name, number in numbers.items():
        if not number >= least:
            raise InputError(f"{name}={number}: choose a number from {least:g} up.")


def typed_command() -> str:
    """As it was typed, but without the folders of this machine.

    Through the command line, as a module where that is not installed, or as a script.
    """
    program = Path(sys.argv[0])
    start = ["openfate"]
    if program.parts[-2:] == ("bench", "__main__.py"):
        start = ["python", "-m", "openfate_lab.bench"]
    elif program.suffix == ".py" and not program.is_absolute():
        start = ["python", str(program)]
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join([*start, *words])
