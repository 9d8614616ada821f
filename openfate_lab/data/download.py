"""Download the public data sets into the cache, each file verified by its hash.

A file appears under its name only when it is whole and right: it is written under a temporary
name, checked, synced and renamed.  Members of an archive are found by base name and never
unpacked by a path of the archive's own.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Any

from openfate.errors import DataFileError, InputError
from openfate.files import unwritable, writing
from openfate_lab.data.datasets import cache_folder, source_of
from openfate_lab.data.source import Source

Progress = Callable[[int, int | None], None]

_log = logging.getLogger(__name__)
_TIMEOUT = 60  # seconds without a byte
_CHUNK = 1 << 20
_LARGEST = 1 << 30  # bytes of an unpacked file


def fetch(
    name: str,
    url: str | None = None,
    sha256: str | None = None,
    cache: str | Path | None = None,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Download a data set where it is not in the cache yet.

    Parameters
    ----------
    name
        One of `openfate_lab.data.NAMES` that has a public address.
    url
        Another address of the file, or of a zip archive with all files of the data set; http or
        https.
    sha256
        Another hash of the file, for a data set of one file.
    cache
        The cache folder; by default OPENFATE_CACHE, then the user's cache.
    on_progress
        Called with the bytes received and, where the server says it, their total.

    Returns
    -------
        The files, which `openfate_lab.data.load` now finds.

    Raises
    ------
    InputError
        For an unknown data set, one without a public address, or an address of another kind.
    DataFileError
        Where the download fails or a file is not the known one; nothing is left behind.

    Examples
    --------
    >>> fetch("digits")
    Traceback (most recent call last):
    openfate.errors.InputError: 'digits' comes with scikit-learn; there is nothing to fetch.
    """
    source = source_of(name)
    address = source.url if url is None else url
    if not source.files:
        raise InputError(f"{name!r} comes with scikit-learn; there is nothing to fetch.")
    if address is None:
        raise InputError(
            f"{name!r} has no public address of its own; to use it, {source.remedy(name)}."
        )
    _check_address(address)
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}.")
    if sha256 is not None and len(source.files) > 1:
        raise InputError(
            f"{name!r} has {len(source.files)} files, so one sha256 cannot name them; leave it out."
        )
    folder = cache_folder(cache) / "uci" / source.folder
    hashes = {
        folder / file: sha256.lower() if sha256 else known for file, known in source.files.items()
    }
    if all(p.is_file() and _fault(p, known, source) is None for p, known in hashes.items()):
        return list(hashes)
    with _temporary_in(folder) as download:
        _download(address, download, on_progress)
        _put_all(download, address, hashes, source)
    for path, known in hashes.items():
        if known is None:
            _log.warning(
                "%s: not verified against a known hash; its size was checked instead.", path
            )
    return list(hashes)


def _put_all(download: IO[bytes], url: str, hashes: dict[Path, str | None], source: Source) -> None:
    """Take the files out of the download; none gets its name before all are right."""
    with ExitStack() as stack:
        for path, known in hashes.items():
            out = stack.enter_context(writing(path))
            _unpack(download, url, path.name, out, n_files=len(hashes))
            out.flush()
            if (fault := _fault(Path(out.name), known, source)) is not None:
                raise DataFileError(f"{url}: {path.name} {fault}; the download was deleted.")


def _check_address(address: str) -> None:
    if not re.match(r"https?://\S", address, re.IGNORECASE):
        raise InputError(f"the address {address!r} must start with http:// or https://.")


class _CheckRedirects(urllib.request.BaseHandler):
    """Refuses a redirect to anything but http and https, before urllib follows it."""

    handler_order = 100  # before HTTPErrorProcessor, which follows

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        if 300 <= response.status < 400 and (target := response.headers.get("Location")):
            try:
                _check_address(urllib.parse.urljoin(request.full_url, target))
            except InputError:
                response.close()
                raise
        return response

    https_response = http_response


def _temporary_in(folder: Path) -> IO[bytes]:
    # WHY: in the cache and not in /tmp, which may be small; it has no name and leaves nothing.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise unwritable(folder, error) from None


def _download(url: str, into: IO[bytes], on_progress: Progress | None) -> None:
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "openfate"})
        opener = urllib.request.build_opener(_CheckRedirects)
        with opener.open(request, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            while chunk := response.read(_CHUNK):
                into.write(chunk)
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done, total)
    except urllib.error.HTTPError as error:
        error.close()
        reason = _one_line(error.reason).removesuffix(".")
        raise DataFileError(
            f"{url}: the server answers {error.code} {reason}; try again, or give another url."
        ) from None
    except InputError:  # WHY: it is a ValueError
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = _one_line(getattr(error, "reason", None) or error)
        raise DataFileError(f"{url}: cannot be downloaded ({reason}); try again.") from None
    if total is not None and done != total:
        raise DataFileError(f"{url}: the download broke off at {done} of {total} bytes; try again.")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _unpack(download: IO[bytes], url: str, name: str, out: IO[bytes], n_files: int) -> None:
    download.seek(0)
    is_zip = download.read(4) == b"PK\x03\x04"
    download.seek(0)
    if not is_zip and n_files > 1:
        raise DataFileError(
            f"{url}: not a zip archive; this data set has {n_files} files, so give the address "
            "of an archive that holds them."
        )
    if not is_zip:
        shutil.copyfileobj(download, out)
        return
    for chunk in _member(download, url, name):
        out.write(chunk)


def _member(download: IO[bytes], url: str, name: str) -> Iterator[bytes]:
    """Read one file of an archive; what fails outside, in writing it, is not caught here."""
    try:
        with zipfile.ZipFile(download) as archive:
            found = [m for m in archive.infolist() if PurePosixPath(m.filename).name == name]
            members = [member for member in found if not member.is_dir()]
            if not members:
                raise DataFileError(f"{url}: the zip archive holds no file named {name}.")
            if members[0].file_size > _LARGEST:
                raise DataFileError(
                    f"{url}: {name} would have {members[0].file_size} bytes; "
                    f"at most {_LARGEST} are unpacked."
                )
            with archive.open(members[0]) as content:
                while chunk := content.read(_CHUNK):
                    yield chunk
    except DataFileError:
        raise
    except Exception as error:  # WHY: zipfile and the decompressors raise a dozen kinds
        reason = _one_line(error)
        raise DataFileError(f"{url}: the zip archive cannot be read ({reason}).") from None


def _fault(path: Path, known: str | None, source: Source) -> str | None:
    """Say what is wrong with a file, or None: another hash or, where none is known, other rows."""
    if known is not None:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        return None if found == known else f"has the sha256 {found}, not {known}"
    try:
        n_rows = source.read(path).X.n_rows
    except DataFileError as error:
        return f"cannot be read ({str(error).removeprefix(str(path)).strip(',:. ')})"
    return None if n_rows == source.n_rows else f"has {n_rows} rows, not {source.n_rows}"
