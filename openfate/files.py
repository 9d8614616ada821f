"""How a file is written: whole or not at all, and where it may be."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from openfate.errors import DataFileError, InputError

__all__ = ["check_place", "writing"]


def check_place(out: Path) -> None:
    """Refuse, before the work, a path whose folder is not there or takes no files.

    Examples
    --------
    >>> check_place(Path("report.html"))
    """
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{out}: there is no folder {folder}; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{out}: the folder {folder} cannot be written; choose another.")


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file whole or not at all: a temporary name, fsync, rename.

    Raises
    ------
    DataFileError
        For every OSError, the body's too: a full disk, a folder of that name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder) / "new" / "a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'whole'
    """
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # WHY: not tempfile, whose files only their owner may read; a cache may be shared.
        file = temporary.open("xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataFileError(f"{path}: cannot be written ({error.strerror or error}).") from None
