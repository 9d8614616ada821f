"""Downloads from a server on this machine: verified, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openfate.errors import DataFileError, InputError
from openfate_lab.data import SOURCES, fetch, load
from openfate_lab.data.datasets import cache_folder

GENE = b"EI,a," + b"ACGT" * 15 + b"\nIE,b," + b"TGCA" * 15 + b"\n"
HASH = hashlib.sha256(GENE).hexdigest()
NODES, TARGET = b'{"0": [1], "1": [2]}', b"id,name,ml_target\n0,a,0\n1,b,1\n"


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def server(monkeypatch):
    """Serves `pages` (a text is a redirect); counts in `asked` what it was asked for."""
    monkeypatch.setenv("no_proxy", "*")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            page = self.server.pages.get(self.path)
            if page is None:
                self.send_error(404)
                return
            if isinstance(page, str):
                self.send_response(302)
                self.send_header("Location", page)
                self.end_headers()
                return
            promised = len(page) + (10 if self.path == "/short" else 0)
            self.send_response(200)
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.pages, running.asked = {"/gene": GENE}, []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def known_hashes(monkeypatch):
    """Small files in the place of the originals, with the right hashes."""

    def know(name: str, *contents: bytes) -> None:
        source = SOURCES[name]
        small = {
            file: hashlib.sha256(content).hexdigest()
            for file, content in zip(source.files, contents, strict=True)
        }
        monkeypatch.setitem(SOURCES, name, replace(source, files=small))

    return know


def files_in(folder) -> list[str]:
    return sorted(name for _, _, names in os.walk(folder) for name in names)


def test_a_fetched_file_is_found_by_load(server, tmp_path):
    seen = []
    (path,) = fetch(
        "gene", f"{server.url}/gene", HASH, tmp_path, lambda done, total: seen.append((done, total))
    )
    assert path == tmp_path / "uci" / "gene" / "splice.data"
    assert path.read_bytes() == GENE
    assert seen[-1] == (len(GENE), len(GENE))
    assert load("gene", tmp_path).X.n_rows == 2
    assert files_in(tmp_path) == ["splice.data"]


def test_the_cache_folder_comes_from_the_environment(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENFATE_CACHE", str(tmp_path / "own"))
    monkeypatch.delenv("OPENFATE_DATA", raising=False)
    fetch("gene", f"{server.url}/gene", HASH)
    assert load("gene").sha256 == HASH
    monkeypatch.delenv("OPENFATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "openfate"


def test_what_is_there_and_right_is_not_downloaded_again(server, tmp_path):
    for _ in range(2):
        fetch("gene", f"{server.url}/gene", HASH.upper(), tmp_path)
    assert server.asked == ["/gene"]


def test_what_is_there_and_wrong_is_downloaded_again(server, tmp_path):
    (path,) = fetch("gene", f"{server.url}/gene", HASH, tmp_path)
    path.write_bytes(b"damaged")
    fetch("gene", f"{server.url}/gene", HASH, tmp_path)
    assert path.read_bytes() == GENE


def test_a_zip_member_is_found_by_its_base_name_and_never_leaves_the_cache(server, tmp_path):
    server.pages["/zip"] = zipped({"../../evil/splice.data": GENE, "readme": b""})
    fetch("gene", f"{server.url}/zip", HASH, tmp_path / "a" / "b")
    assert files_in(tmp_path) == ["splice.data"]
    assert (tmp_path / "a/b/uci/gene/splice.data").is_file()


def test_two_files_come_out_of_one_archive(server, tmp_path, known_hashes):
    known_hashes("github", NODES, TARGET)
    server.pages["/zip"] = zipped(
        {"git/musae_git_features.json": NODES, "git/musae_git_target.csv": TARGET}
    )
    fetch("github", f"{server.url}/zip", cache=tmp_path)
    assert load("github", tmp_path).X.n_rows == 2
    assert server.asked == ["/zip"]


def test_protein_noleak_fetches_protein(server, tmp_path, known_hashes):
    known_hashes("protein-noleak", GENE)
    (path,) = fetch("protein-noleak", f"{server.url}/gene", cache=tmp_path)
    assert path == tmp_path / "uci" / "protein" / "Data_Cortex_Nuclear.csv"


def test_a_file_without_known_hash_is_checked_by_its_size_and_says_so(
    server, tmp_path, monkeypatch, caplog
):
    source = SOURCES["drive"]
    monkeypatch.setitem(SOURCES, "drive", replace(source, n_rows=2))
    server.pages["/drive"] = (b" ".join([b"1"] * 49) + b"\n") * 2
    (path,) = fetch("drive", f"{server.url}/drive", cache=tmp_path)
    fetch("drive", f"{server.url}/drive", cache=tmp_path)
    assert caplog.messages == [
        f"{path}: not verified against a known hash; its size was checked instead."
    ]
    assert server.asked == ["/drive"]
    server.pages["/drive"] = b"1 2 3\n"
    path.unlink()
    with pytest.raises(DataFileError) as error:
        fetch("drive", f"{server.url}/drive", cache=tmp_path)
    assert str(error.value) == (
        f"{server.url}/drive: Sensorless_drive_diagnosis.txt cannot be read (line 1: 3 cells, but "
        "the table has 49 columns; give every line as many); the download was deleted."
    )
    server.pages["/drive"] = (b" ".join([b"1"] * 49) + b"\n") * 3
    with pytest.raises(DataFileError, match="has 3 rows, not 2; the download was deleted"):
        fetch("drive", f"{server.url}/drive", cache=tmp_path)


# ---- faults ------------------------------------------------------------------------------------


def test_a_wrong_hash_leaves_nothing_and_gives_both(server, tmp_path):
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/gene", "0" * 64, tmp_path)
    assert str(error.value) == (
        f"{server.url}/gene: splice.data has the sha256 {HASH}, not {'0' * 64}; "
        "the download was deleted."
    )
    assert files_in(tmp_path) == []


def test_a_wrong_download_leaves_the_old_file(server, tmp_path):
    path = tmp_path / "uci" / "gene" / "splice.data"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    with pytest.raises(DataFileError):
        fetch("gene", f"{server.url}/gene", "0" * 64, tmp_path)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("page", "content", "what"),
    [
        ("/absent", None, "the server answers 404 Not Found; try again, or give another url."),
        ("/short", GENE, f"the download broke off at {len(GENE)} of {len(GENE) + 10} bytes; "
         "try again."),
        ("/zip", zipped({"other": b""}), "the zip archive holds no file named splice.data."),
        ("/zip", b"PK\x03\x04junk", "the zip archive cannot be read (File is not a zip file)."),
    ],
)  # fmt: skip
def test_a_failed_download_is_one_line_and_leaves_nothing(server, tmp_path, page, content, what):
    if content is not None:
        server.pages[page] = content
    with pytest.raises(DataFileError) as error:
        fetch("gene", server.url + page, HASH, tmp_path)
    assert str(error.value) == f"{server.url}{page}: {what}"
    assert files_in(tmp_path) == []


def test_a_refused_connection_is_one_line(server, tmp_path):
    url = "http://127.0.0.1:1/gene"
    with pytest.raises(DataFileError) as error:
        fetch("gene", url, HASH, tmp_path)
    assert str(error.value) == (
        f"{url}: cannot be downloaded ([Errno 111] Connection refused); try again."
    )


@pytest.mark.parametrize("url", ["", "splice.data", "file:///etc/passwd", "ftp://a/b", "http://"])
def test_only_web_addresses_are_fetched(tmp_path, url):
    with pytest.raises(InputError) as error:
        fetch("gene", url, HASH, tmp_path)
    assert str(error.value) == f"the address {url!r} must start with http:// or https://."


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1:1/gene", "data:,a"])
def test_a_redirect_away_from_the_web_is_refused(server, tmp_path, target):
    server.pages["/moved"] = target
    with pytest.raises(InputError) as error:
        fetch("gene", f"{server.url}/moved", HASH, tmp_path)
    assert str(error.value) == f"the address {target!r} must start with http:// or https://."
    assert files_in(tmp_path) == []


def test_a_redirect_within_the_web_is_followed(server, tmp_path):
    server.pages["/moved"] = "/gene"
    (path,) = fetch("gene", f"{server.url}/moved", HASH, tmp_path)
    assert path.read_bytes() == GENE


def test_a_redirect_to_itself_is_one_line(server, tmp_path):
    server.pages["/loop"] = "/loop"
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/loop", HASH, tmp_path)
    assert str(error.value) == (
        f"{server.url}/loop: the server answers 302 The HTTP server returned a redirect error that "
        "would lead to an infinite loop. The last 30x error message was: Found; try again, or give "
        "another url."
    )


@pytest.mark.parametrize(
    ("how", "at"),
    [
        (zipfile.ZIP_DEFLATED, 0),
        (zipfile.ZIP_BZIP2, 0),
        (zipfile.ZIP_LZMA, 0),
        (zipfile.ZIP_LZMA, 9),
    ],
)
def test_a_corrupt_zip_member_is_one_line_and_leaves_nothing(server, tmp_path, how, at):
    page = bytearray(zipped({"splice.data": GENE}, how))
    first = 30 + len("splice.data") + at  # a local header has 30 bytes and the name
    page[first : first + 8] = b"\xff" * 8
    server.pages["/zip"] = bytes(page)
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/zip", HASH, tmp_path)
    assert str(error.value).startswith(f"{server.url}/zip: the zip archive cannot be read (")
    assert "\n" not in str(error.value)
    assert files_in(tmp_path) == []


def test_a_zip_member_too_large_to_unpack_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr("openfate_lab.data.download._LARGEST", 100)
    server.pages["/zip"] = zipped({"splice.data": GENE})
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/zip", HASH, tmp_path)
    assert str(error.value) == (
        f"{server.url}/zip: splice.data would have {len(GENE)} bytes; at most 100 are unpacked."
    )


def test_no_file_of_two_is_put_where_the_second_is_wrong(server, tmp_path, known_hashes):
    known_hashes("github", NODES, TARGET)
    server.pages["/zip"] = zipped({"musae_git_features.json": NODES, "musae_git_target.csv": b"x"})
    with pytest.raises(DataFileError, match=r"musae_git_target\.csv has the sha256"):
        fetch("github", f"{server.url}/zip", cache=tmp_path)
    assert files_in(tmp_path) == []


def test_a_folder_in_the_place_of_the_file_is_named_once(server, tmp_path):
    path = tmp_path / "uci" / "gene" / "splice.data"
    path.mkdir(parents=True)
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/gene", HASH, tmp_path)
    assert str(error.value) == f"{path}: cannot be written (Is a directory)."


def test_a_silent_server_is_given_up(tmp_path, monkeypatch):
    import socket

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("openfate_lab.data.download._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/gene"
        with pytest.raises(DataFileError) as error:
            fetch("gene", url, HASH, tmp_path)
    assert str(error.value) == f"{url}: cannot be downloaded (timed out); try again."


def test_one_plain_file_cannot_be_a_data_set_of_two(server, tmp_path):
    with pytest.raises(DataFileError) as error:
        fetch("github", f"{server.url}/gene", cache=tmp_path)
    assert str(error.value) == (
        f"{server.url}/gene: not a zip archive; this data set has 2 files, so give the address "
        "of an archive that holds them."
    )


def test_a_cache_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError) as error:
        fetch("gene", f"{server.url}/gene", HASH, tmp_path / "file")
    assert str(error.value) == f"{tmp_path}/file/uci/gene: cannot be written (Not a directory)."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits",), "'digits' comes with scikit-learn; there is nothing to fetch."),
        (
            ("drive-sample",),
            "'drive-sample' has no public address of its own; to use it, give the data folder "
            "that has it, or use 'drive', the full data set.",
        ),
        *(
            (
                (name,),
                f"{name!r} has no public address of its own; to use it, give the data folder "
                "that has it.",
            )
            for name in ("flights", "criteo-sample", "avazu-sample")
        ),
        (
            ("github", "http://127.0.0.1:1/", HASH),
            "'github' has 2 files, so one sha256 cannot name them; leave it out.",
        ),
        (
            ("gene", None, "abc"),
            "sha256 must be 64 hexadecimal digits, not 'abc'.",
        ),
        (
            ("robots",),
            "unknown data set 'robots'; did you mean 'robot'? (data sets: digits, breast_cancer, "
            "wine, iris, gene, protein, protein-noleak, robot, drive, drive-sample, calls, github, "
            "flights, criteo-sample, avazu-sample)",
        ),
    ],
)
def test_what_cannot_be_fetched_is_refused(tmp_path, arguments, message):
    with pytest.raises(InputError) as error:
        fetch(*arguments, cache=tmp_path)
    assert str(error.value) == message
