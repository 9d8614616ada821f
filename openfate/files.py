"""How a file is written: whole or not at all, entry by entry, and by one writer at a time.

And how one is read that somebody else may have put there: a regular file, and no more of it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from openfate.errors import DataFileError, InputError, first_line


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most so many bytes.

    A link is not followed, a pipe is not waited for, a device is not read.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        Where there is none.
    DataFileError
        Where it is something else, longer, or cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.txt").write_text("whole")
    ...     read_regular(Path(folder) / "a.txt", most=5)
    b'whole'
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DataFileError(f"{path}: has {size} bytes; at most {most} are read.")
        return file.read(most)


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as `read_regular` does, to read it in pieces."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataFileError(f"{path}: is no regular file; put the file itself there.")
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DataFileError(f"{path}: is a link; put the file itself there.") from None
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error}).") from None


def absolute(path: Path) -> Path:
    """The path from the root; refuses to look from a folder that is gone.

    Examples
    --------
    >>> absolute(Path("/tmp/report.html"))
    PosixPath('/tmp/report.html')
    """
    try:
        return path.absolute()
    except FileNotFoundError:
        raise InputError(f"{path}: the folder you are in was removed; go to another.") from None


def check_place(out: Path) -> None:
    """Refuse, before the work, a path whose folder is not there or takes no files.

    Examples
    --------
    >>> check_place(Path("report.html"))
    """
    folder = absolute(out).parent
    if not folder.is_dir():
        raise InputError(f"{out}: there is no folder {folder}; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{out}: the folder {folder} cannot be written; choose another.")


def unwritable(path: Path, error: Exception) -> DataFileError:
    """The error of a place that takes no files, or no more of them; polars has its own words."""
    reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
    return DataFileError(f"{path}: cannot be written ({reason}).")


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
        raise unwritable(path, error) from None


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write some bytes as a file, whole or not at all."""
    with writing(path) as file:
        file.write(content)


def add_entry(journal: Path, entry: Any) -> None:
    """Append a dataclass to a journal; it survives a power cut."""
    with journal.open("a") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_journal(journal: Path) -> list[dict[str, Any]]:
    """Read the entries of a journal; cut off one that a killed process left half-written.

    Examples
    --------
    >>> read_journal(Path("nowhere.jsonl"))
    []
    """
    entries: list[dict[str, Any]] = []
    if not journal.exists():
        return entries
    whole = journal.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):  # WHY: half a line would spoil the next one
        write_whole(journal, whole[:end])
    return [json.loads(line) for line in whole[:end].splitlines()]


@contextmanager
def hold_folder(folder: Path, lock: Path | None = None, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder, so that no other process or thread writes there.

    Parameters
    ----------
    folder
        What is written.
    lock
        The file that says so, which stays; by default .lock in the folder.  Its own folder is made.
    wait
        Wait for the other writer, and let the same thread hold it more than once; by default
        both are refused.

    Raises
    ------
    InputError
        Where another writer holds it.
    DataFileError
        Where the lock cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, hold_folder(Path(folder)):
    ...     with hold_folder(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    openfate.errors.InputError: ...: another process is writing there; wait for it, or give \
another folder.
    """
    path = absolute(folder / ".lock" if lock is None else lock)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # WHY: a link would have its target made or emptied, a pipe would be waited for.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise DataFileError(f"{path}: is no regular file; remove it.")
        held = FileLock(path, timeout=-1 if wait else 0, is_singleton=wait)
        held.acquire()
    except Timeout:
        raise InputError(
            f"{folder}: another process is writing there; wait for it, or give another folder."
        ) from None
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        yield
    finally:
        held.release()
