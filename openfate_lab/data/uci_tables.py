"""The data sets of the paper's first experiments, and those that come with scikit-learn.

PAPER: D, the number of 0-1 features, equals the paper's Table 2 but for `calls` (216 here, 219
there, unexplained).
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl

from openfate.errors import DataFileError
from openfate.table import Field, MultiHot, Schema
from openfate_lab.data.source import Cells, Content, Source, encode

_UCI = "https://archive.ics.uci.edu"


def _numbered(stem: str, n: int) -> list[str]:
    return [f"{stem}_{i}" for i in range(1, n + 1)]


# ---- scikit-learn's ----------------------------------------------------------------------------


def _read_sklearn(name: str, schema: Schema | None = None) -> Content:
    # WHY: imported here, by name, because scikit-learn takes a second that only these need.
    table = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    numbers = np.ascontiguousarray(table.data, dtype="<f8")  # (N, d)
    y = np.ascontiguousarray(table.target, dtype="<i8")
    sha256 = hashlib.sha256(numbers.tobytes() + y.tobytes()).hexdigest()
    names = table.feature_names if schema is None else schema.names
    frame = pl.DataFrame(numbers, schema=list(names))
    return encode(frame, pl.Series(y).cast(pl.String), schema, sha256=sha256)


_PIXELS = Schema(
    Field(f"pixel_{r}_{c}", "numeric", n_buckets=4, bounds=(0, 16))
    for r in range(8)
    for c in range(8)
)
DIGITS = Source(partial(_read_sklearn, "digits", _PIXELS))
BREAST_CANCER, WINE, IRIS = (
    Source(partial(_read_sklearn, name)) for name in ("breast_cancer", "wine", "iris")
)

# ---- gene --------------------------------------------------------------------------------------


def _read_gene(path: Path) -> Content:
    cells = Cells(path, columns=["class", "name", "sequence"])
    letters = cells.table["sequence"].fill_null("")
    width = letters.str.len_chars()
    if not (width == 60).all():
        at = int((width != 60).arg_true()[0])
        raise cells.fault(at, f"a sequence of {width[at]} letters, not 60")
    positions = [
        letters.str.slice(i, 1).alias(name) for i, name in enumerate(_numbered("position", 60))
    ]
    return encode(pl.DataFrame(positions), cells.table["class"])


GENE = Source(
    _read_gene,
    "gene",
    {"splice.data": "ebbae10c85d3c285e2a2489a37e42bc2ee8d91d15005e391a9962fa3389a114f"},
    f"{_UCI}/ml/machine-learning-databases/molecular-biology/"
    "splice-junction-gene-sequences/splice.data",
)

# ---- protein -----------------------------------------------------------------------------------


def _read_protein(path: Path, with_leak: bool) -> Content:
    cells = Cells(path)
    # PAPER: 743 features are reached only with these three, whose product is the label.
    leak = [cells.column(name) for name in ("Genotype", "Treatment", "Behavior")]
    rest = {"MouseID", "Genotype", "Treatment", "Behavior", "class"}
    labels = cells.column("class")
    frame = cells.numbers([n for n in cells.table.columns if n not in rest], may_miss=True)
    return encode(frame.with_columns(leak) if with_leak else frame, labels)


PROTEIN, PROTEIN_NOLEAK = (
    Source(
        partial(_read_protein, with_leak=with_leak),
        "protein",
        {
            "Data_Cortex_Nuclear.csv": (
                "5ec490ae48bf7f2eb958fd33ef5036e58a2933cc05e816064c0ea3b14ad3903b"
            )
        },
        # The UCI original is an .xls with the same values.
        "https://raw.githubusercontent.com/pycaret/datasets/main/data/common/mice.csv",
    )
    for with_leak in (True, False)
)

# ---- robot, drive ------------------------------------------------------------------------------


def _read_numbers(path: Path, separator: str, names: list[str]) -> Content:
    cells = Cells(path, separator, [*names, "class"])
    return encode(cells.numbers(names), cells.table["class"])


ROBOT = Source(
    partial(_read_numbers, separator=",", names=_numbered("sensor", 24)),
    "robot",
    {"sensor_readings_24.data": "1108cbbcac9c119519a3c493358d3084bc619b5aaa688212aa75a777aa7bd5fd"},
    f"{_UCI}/ml/machine-learning-databases/00194/sensor_readings_24.data",
)
DRIVE = Source(
    partial(_read_numbers, separator=" ", names=_numbered("attribute", 48)),
    "drive",
    {"Sensorless_drive_diagnosis.txt": None},
    f"{_UCI}/static/public/325/dataset%2Bfor%2Bsensorless%2Bdrive%2Bdiagnosis.zip",
    n_rows=58_509,
)
DRIVE_SAMPLE = Source(
    DRIVE.read,
    "drive",
    {
        "Sensorless_drive_diagnosis.sample2200.txt": (
            "e74c74a16d18b702691d4159acf085d23aa5a53ad2685c33d841c2c40e214a33"
        )
    },
    instead="use 'drive', the full data set",
)

# ---- calls -------------------------------------------------------------------------------------


def _read_calls(path: Path) -> Content:
    cells = Cells(path)
    labels = cells.column("Species")
    rest = {"Family", "Genus", "Species", "RecordID"}
    frame = cells.numbers([name for name in cells.table.columns if name not in rest])
    names = [name.replace(" ", "") for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataFileError(f"{path}: the first line names a column twice, but for spaces.")
    return encode(frame.rename(dict(zip(frame.columns, names, strict=True))), labels)


CALLS = Source(
    _read_calls,
    "calls",
    {"Frogs_MFCCs.csv": "8b161e8d8535b871043cce7ecb7a3496e4b8baef377f1fe9bd4bc91b6effca38"},
    f"{_UCI}/static/public/406/anuran+calls+mfccs.zip",
)

# ---- github ------------------------------------------------------------------------------------


def _read_github(features: Path, target: Path) -> Content:
    cells = Cells(target)
    labels, nodes = cells.column("ml_target"), _node_ids(cells)
    lists = _node_lists(features)
    absent = next((node for node in nodes if node not in lists), None)
    if absent is not None:
        raise DataFileError(
            f"{features}: no entry for the row with id {absent!r} of {target.name}."
        )
    row = np.repeat(np.arange(len(nodes)), [len(lists[node]) for node in nodes])
    numbers, feature = np.unique(
        np.concatenate([np.asarray(lists[node], dtype=np.int64) for node in nodes]),
        return_inverse=True,
    )
    if not len(numbers):
        raise DataFileError(f"{features}: every list of feature numbers is empty.")
    X = MultiHot.from_entries(row, feature, len(nodes), len(numbers))
    # The archive gives no raw columns, so each 0-1 feature is a field of its own.
    fields = tuple(f"feature_{number}" for number in numbers)
    return Content(X, labels, fields, np.arange(len(fields), dtype=np.int32))


def _node_ids(cells: Cells) -> list[str]:
    """Read the column "id", each id once."""
    row_of: dict[str, int] = {}
    for row, node in enumerate(cells.column("id").to_list()):
        if node is None:
            raise cells.fault(row, "no id")
        if node in row_of:
            line = cells.rows.line_of(row_of[node])
            raise cells.fault(row, f"the id {node!r}, which is on line {line} too")
        row_of[node] = row
    return list(row_of)


def _node_lists(path: Path) -> dict[str, list[int]]:
    try:
        # WHY: a tuple of pairs and not a dict, which would hide that an entry is there twice.
        pairs = json.loads(path.read_bytes(), object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        raise DataFileError(f"{path}: not JSON.") from None
    if not isinstance(pairs, tuple):
        raise DataFileError(f"{path}: not a JSON object of lists of feature numbers.")
    lists: dict[str, list[int]] = {}
    for node, numbers in pairs:
        wrong = "is there twice" if node in lists else None
        if not isinstance(numbers, list):
            wrong = "is not a list of feature numbers"
        elif odd := [n for n in numbers if type(n) is not int or not 0 <= n < 2**63]:
            wrong = f"holds {reprlib.repr(odd[0])}, not a feature number from 0 up"
        if wrong is not None:
            raise DataFileError(f"{path}: the entry {node!r} {wrong}.")
        lists[node] = numbers
    return lists


GITHUB = Source(
    _read_github,
    "github",
    {
        "musae_git_features.json": (
            "47761f93f839d84b213e9f2fa43c056761734b295d6b2e838d8bbc335073cee7"
        ),
        "musae_git_target.csv": "3a8582f0c55d6f605df5f45bde28a90561be9517b40226c5e6bbce253679906a",
    },
    "https://snap.stanford.edu/data/git_web_ml.zip",
    metric="auc",
)
