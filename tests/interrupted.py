"""Commands that a signal stops, at a moment that is the same on fast machines and slow ones."""

from __future__ import annotations

import os
import subprocess
import sys

_CODE = """
import importlib, signal, sys

sent, before = sys.argv.pop(1), sys.argv.pop(1)
module, name, at = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
exec(before)
owner = importlib.import_module(module)
*classes, name = name.split(".")
for part in classes:
    owner = getattr(owner, part)
work, n_calls = getattr(owner, name), 0

def counted(*args, **options):
    global n_calls
    n_calls += 1
    if n_calls == at:
        signal.raise_signal(getattr(signal, sent))
    return work(*args, **options)

setattr(owner, name, counted)
from openfate.cli import main
main()
"""


def interrupted(
    module: str, name: str, at: int, *arguments: object, sent: str = "SIGINT", before: str = ""
) -> tuple[int, str, str]:
    """Exit code and output of a command, interrupted when a function is called for the at-th time.

    Parameters
    ----------
    module, name
        Where the command finds the function: `function`, or `Class.method`.
    sent
        The signal; SIGKILL cannot be caught.
    before
        Code that is run first.
    """
    words = [sent, before, module, name, at, *arguments]
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
