"""The public files behind the data sets, where they lie, and how a file is written.

One table serves `datasets` (which reads them) and `fetch` (which downloads them).
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from openfate.errors import DataFileError, InputError

__all__ = [
    "NAMES",
    "SOURCES",
    "DataFile",
    "Source",
    "cache_folder",
    "check_name",
    "find",
    "remedy",
]


@dataclass(frozen=True)
class DataFile:
    """A raw file: its name, the columns of each line, and the hash of the public original.

    Where no hash is known, `n_rows` is checked instead.  `separator` is None for what is no table.
    """

    name: str
    separator: str | None
    n_columns: int
    sha256: str | None
    n_rows: int | None = None


@dataclass(frozen=True)
class Source:
    """The files of a data set, the folder they lie in, and the public address, if it has one."""

    folder: str
    files: tuple[DataFile, ...]
    url: str | None


_UCI = "https://archive.ics.uci.edu"
_PROTEIN = Source(
    "protein",
    (
        DataFile(
            "Data_Cortex_Nuclear.csv",
            ",",
            82,
            "5ec490ae48bf7f2eb958fd33ef5036e58a2933cc05e816064c0ea3b14ad3903b",
        ),
    ),
    # The UCI original is an .xls with the same values.
    "https://raw.githubusercontent.com/pycaret/datasets/main/data/common/mice.csv",
)

SOURCES: dict[str, Source] = {
    "gene": Source(
        "gene",
        (
            DataFile(
                "splice.data",
                ",",
                3,
                "ebbae10c85d3c285e2a2489a37e42bc2ee8d91d15005e391a9962fa3389a114f",
            ),
        ),
        f"{_UCI}/ml/machine-learning-databases/molecular-biology/"
        "splice-junction-gene-sequences/splice.data",
    ),
    "protein": _PROTEIN,
    "protein-noleak": _PROTEIN,
    "robot": Source(
        "robot",
        (
            DataFile(
                "sensor_readings_24.data",
                ",",
                25,
                "1108cbbcac9c119519a3c493358d3084bc619b5aaa688212aa75a777aa7bd5fd",
            ),
        ),
        f"{_UCI}/ml/machine-learning-databases/00194/sensor_readings_24.data",
    ),
    "drive": Source(
        "drive",
        (DataFile("Sensorless_drive_diagnosis.txt", " ", 49, None, n_rows=58_509),),
        f"{_UCI}/static/public/325/dataset%2Bfor%2Bsensorless%2Bdrive%2Bdiagnosis.zip",
    ),
    "drive-sample": Source(
        "drive",
        (
            DataFile(
                "Sensorless_drive_diagnosis.sample2200.txt",
                " ",
                49,
                "e74c74a16d18b702691d4159acf085d23aa5a53ad2685c33d841c2c40e214a33",
            ),
        ),
        None,
    ),
    "calls": Source(
        "calls",
        (
            DataFile(
                "Frogs_MFCCs.csv",
                ",",
                26,
                "8b161e8d8535b871043cce7ecb7a3496e4b8baef377f1fe9bd4bc91b6effca38",
            ),
        ),
        f"{_UCI}/static/public/406/anuran+calls+mfccs.zip",
    ),
    "github": Source(
        "github",
        (
            DataFile(
                "musae_git_features.json",
                None,
                0,
                "47761f93f839d84b213e9f2fa43c056761734b295d6b2e838d8bbc335073cee7",
            ),
            DataFile(
                "musae_git_target.csv",
                ",",
                3,
                "3a8582f0c55d6f605df5f45bde28a90561be9517b40226c5e6bbce253679906a",
            ),
        ),
        "https://snap.stanford.edu/data/git_web_ml.zip",
    ),
    "flights": Source(
        "flights",
        (
            DataFile(
                "flights.csv.gz",
                ",",
                20,
                "505c1818dffe3c2a43d92f15a856509e54770ca0488b8ddf45642b78d12a7e81",
            ),
        ),
        None,
    ),
    "criteo-sample": Source(
        "criteo",
        (
            DataFile(
                "criteo_7days_chrono.txt.gz",
                "\t",
                40,
                "0704343d07c99652e891c1f421ac2e01080cf0d7a539aa3a591a1947d7d5f157",
            ),
        ),
        None,
    ),
    "avazu-sample": Source(
        "avazu",
        (
            DataFile(
                "avazu_10days_random20k_chrono.csv.gz",
                ",",
                24,
                "e3cd3ee9e646e2a1fc614117a12d57ea837168a7362e16f630e80710f78ecd2d",
            ),
        ),
        None,
    ),
}

NAMES: tuple[str, ...] = ("digits", *SOURCES)


def check_name(name: str) -> None:
    """Raise InputError, with a close name, where there is no such data set.

    Examples
    --------
    >>> check_name("gene")
    """
    if name not in NAMES:
        close = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown data set {name!r}{hint} (data sets: {', '.join(NAMES)})")


def cache_folder(cache: str | Path | None = None) -> Path:
    """Give the folder that `fetch` fills: the argument, OPENFATE_CACHE, or the user's cache.

    Examples
    --------
    >>> cache_folder("/tmp/here").as_posix()
    '/tmp/here'
    """
    chosen = cache or os.environ.get("OPENFATE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openfate"


def find(name: str, data: str | Path | None = None) -> list[Path]:
    """Find the files of a data set in `data`, else in OPENFATE_DATA, else in the cache.

    Both DIR/uci/gene/splice.data and DIR/gene/splice.data are accepted.

    Raises
    ------
    DataFileError
        Where the folder or a file is missing; it names the places and the remedy.
    """
    source = SOURCES[name]
    folders = _folders(data)
    found = []
    for file in source.files:
        inner = Path(source.folder) / file.name
        places = [folder / top / inner for folder in folders for top in ("uci", "ctr", "")]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            looked = ", ".join(str(folder) for folder in folders)
            raise DataFileError(
                f"{inner.as_posix()} of the data set {name!r} is not in {looked}; {remedy(name)}."
            )
        found.append(path)
    return found


def _folders(data: str | Path | None) -> list[Path]:
    if data is not None:
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise DataFileError(f"{data}: no such folder; give the data folder with --data DIR.")
        return [folder]
    from_environment = os.environ.get("OPENFATE_DATA")
    # WHY: the cache comes second even where OPENFATE_DATA is set: what was fetched is found.
    return [*([Path(from_environment).expanduser()] if from_environment else []), cache_folder()]


def remedy(name: str) -> str:
    """Say how to get the files of a data set.

    Examples
    --------
    >>> remedy("gene")
    'run `openfate fetch gene`, or give its folder with --data DIR'
    """
    if SOURCES[name].url is None:
        full = ", or use 'drive', the full data set" if name == "drive-sample" else ""
        return f"give its folder with --data DIR{full}"
    fetched = "protein" if name == "protein-noleak" else name
    return f"run `openfate fetch {fetched}`, or give its folder with --data DIR"
