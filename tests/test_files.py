"""A file is written whole or not at all, and what the system refuses is one line."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from openfate.errors import DataFileError, InputError
from openfate.files import check_place, writing


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(DataFileError) as error, writing(path) as file:
        file.write(b"text")
    assert str(error.value) == f"{path}: cannot be written (Is a directory)."
    assert os.listdir(tmp_path) == ["folder"]


def test_a_path_without_a_name_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataFileError, match=r"^\.: cannot be written \("), writing(Path("")):
        pass
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_is_named_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(DataFileError) as error, writing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(error.value) == f"{path}: cannot be written (No space left on device)."
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@contextmanager
def small_files_only():
    """Files of 1000 bytes at most, as on a disk that is full: the write itself fails.

    Not a fixture: pytest writes its own output, perhaps to a file, before a fixture ends.
    """
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_flush_that_fails_after_the_body_is_named(tmp_path):
    path = tmp_path / "file"
    with small_files_only(), pytest.raises(DataFileError) as error, writing(path) as file:
        file.write(b"x" * 2000)  # stays in the buffer until the flush
    assert str(error.value) == f"{path}: cannot be written (File too large)."
    assert os.listdir(tmp_path) == []


def test_an_error_of_the_caller_passes_through(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path / "file"):
        raise KeyError("mine")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_takes_no_files_is_refused(tmp_path, monkeypatch):
    check_place(tmp_path / "page.html")
    with pytest.raises(InputError, match=r"there is no folder .*/no; make it first"):
        check_place(tmp_path / "no" / "page.html")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(InputError, match="cannot be written; choose another"):
        check_place(tmp_path / "page.html")
