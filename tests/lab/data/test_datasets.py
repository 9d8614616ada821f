"""Small invented files in the shape of the originals, their faults, and the originals."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest

from openfate.errors import DataFileError, InputError
from openfate_lab.data import SOURCES, load

SEQUENCE = "ACGT" * 15
GENE = f"EI,    A-1,    {SEQUENCE}\nIE, A-2, {SEQUENCE[::-1]}\nN, A-3,{SEQUENCE}\n"
ROBOT = "".join(
    ",".join([str(i + j / 10) for j in range(24)] + [c]) + "\n" for i, c in enumerate("abab")
)
DRIVE = "".join(
    " ".join([str(i * j) for j in range(48)] + [c]) + "\n" for i, c in enumerate(["2", "11", "2"])
)
PROTEINS = [f"P{i}_N" for i in range(77)]
PROTEIN = "\ufeff" + "".join(
    ",".join(cells) + "\n"
    for cells in [
        ["MouseID", *PROTEINS, "Genotype", "Treatment", "Behavior", "class"],
        ["m1", "", *["0.5"] * 76, "Control", "Saline", "C/S", "c-CS-s"],
        ["m2", *["1.5"] * 77, "Ts65Dn", "Saline", "C/S", "t-CS-s"],
    ]
)
MFCC = [f"MFCCs_{i:2d}" for i in range(1, 23)]
CALLS = "".join(
    ",".join(cells) + "\r\n"
    for cells in [
        [*MFCC, "Family", "Genus", "Species", "RecordID"],
        [*["0.1"] * 22, "F", "G", "S1", "1"],
        [*["0.9"] * 22, "F", "G", "S2", "2"],
    ]
)
TARGET = "id,name,ml_target\n0,ann,0\n1,bob,1\n2,cy,0\n"
NODES = {"0": [7, 3], "1": [], "2": [3, 3]}
TEXTS = {"gene": GENE, "protein": PROTEIN, "robot": ROBOT, "drive": DRIVE, "calls": CALLS}


def put(folder, name: str, *texts: str) -> str:
    source = SOURCES[name]
    for file, text in zip(source.files, texts, strict=True):
        path = folder / "uci" / source.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return str(path)


@pytest.fixture(autouse=True)
def no_folders_of_the_machine(monkeypatch, tmp_path_factory):
    real = os.environ.get("OPENFATE_DATA")
    monkeypatch.delenv("OPENFATE_DATA", raising=False)
    monkeypatch.setenv("OPENFATE_CACHE", str(tmp_path_factory.mktemp("cache")))
    return real


# ---- what is read ------------------------------------------------------------------------------


def test_digits_needs_no_folder():
    digits = load("digits")
    assert (digits.X.n_rows, digits.X.width, len(digits.classes)) == (1797, 64, 10)
    assert digits.fields[9] == "pixel_1_1"
    assert digits.sha256 == load("digits").sha256


@pytest.mark.parametrize(
    ("name", "shape", "first", "n_classes"),
    [
        ("breast_cancer", (569, 30), "mean radius", 2),
        ("wine", (178, 13), "alcohol", 3),
        ("iris", (150, 4), "sepal length (cm)", 3),
    ],
)
def test_tables_of_scikit_learn_need_no_folder(name, shape, first, n_classes):
    data = load(name)
    assert data.raw.shape == shape
    assert (data.fields[0], len(data.classes)) == (first, n_classes)
    assert data.X.n_rows == len(data.y) == shape[0]


@pytest.mark.parametrize(
    ("name", "n_rows", "n_fields", "classes"),
    [
        ("gene", 3, 60, ("EI", "IE", "N")),
        ("protein", 2, 80, ("c-CS-s", "t-CS-s")),
        ("protein-noleak", 2, 77, ("c-CS-s", "t-CS-s")),
        ("robot", 4, 24, ("a", "b")),
        ("drive", 3, 48, ("2", "11")),
        ("drive-sample", 3, 48, ("2", "11")),
        ("calls", 2, 22, ("S1", "S2")),
    ],
)
def test_small_files_are_read(tmp_path, name, n_rows, n_fields, classes):
    text = TEXTS[name.split("-")[0]]
    put(tmp_path, name, text)
    data = load(name, tmp_path)
    assert (data.name, data.X.n_rows, len(data.fields)) == (name, n_rows, n_fields)
    assert (data.classes, data.metric) == (classes, "accuracy")
    assert data.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert len(data.field_of) == data.X.n_features
    assert set(data.field_of) == set(range(n_fields))


def test_a_missing_protein_gives_no_feature(tmp_path):
    put(tmp_path, "protein", PROTEIN)
    data = load("protein", tmp_path)
    assert data.X.row_degree.tolist() == [79, 80]


def test_github_rows_hold_their_own_features(tmp_path):
    put(tmp_path, "github", json.dumps(NODES), TARGET)
    data = load("github", tmp_path)
    assert data.fields == ("feature_3", "feature_7")
    assert data.X.to_dense().tolist() == [[1, 1], [0, 0], [1, 0]]
    assert (data.y.tolist(), data.metric) == ([0, 1, 0], "auc")


def test_folders_with_and_without_uci_are_found(tmp_path):
    put(tmp_path, "gene", GENE)
    assert load("gene", tmp_path / "uci").sha256 == load("gene", tmp_path).sha256


def test_the_environment_comes_before_the_cache(tmp_path, monkeypatch):
    put(tmp_path / "cache", "gene", GENE)
    monkeypatch.setenv("OPENFATE_CACHE", str(tmp_path / "cache"))
    assert load("gene").X.n_rows == 3
    put(tmp_path / "data", "gene", GENE.replace("N, A-3", "N, A-4"))
    monkeypatch.setenv("OPENFATE_DATA", str(tmp_path / "data"))
    assert load("gene").sha256 != hashlib.sha256(GENE.encode()).hexdigest()


# ---- faults ------------------------------------------------------------------------------------

ROBOT_LINES = ROBOT.splitlines()
CASES = {
    "empty": ("gene", "", ": the file is empty; fetch it again"),
    "blank": ("gene", "\n\n", ": the file has no rows"),
    "columns": (
        "gene",
        GENE + "EI, A-4\n",
        ", line 4: 2 cells, but the table has 3 columns; give every line as many",
    ),
    "letters": ("gene", GENE + "EI, A, ACGT\n", ", line 4: a sequence of 4 letters, not 60"),
    "one class": (
        "gene",
        f"EI,a,{SEQUENCE}\n" * 2,
        ": every row has the class 'EI'; at least 2 classes are needed",
    ),
    "no class": ("gene", GENE + f" ,a,{SEQUENCE}\n", ": 1 rows have no class"),
    "text": (
        "robot",
        ROBOT.replace("1.2,", "one,"),
        ", line 2: column 'sensor_3' holds 'one', not a number",
    ),
    "infinite": (
        "robot",
        ROBOT.replace("1.2,", "inf,"),
        ", line 2: column 'sensor_3' holds 'inf', not a number",
    ),
    "hole": (
        "robot",
        ROBOT.replace("1.2,", ","),
        ", line 2: column 'sensor_3' holds an empty cell",
    ),
    "header": ("calls", CALLS.replace("Species", "Kind"), ": no column 'Species'"),
    "twice": (
        "calls",
        CALLS.replace("MFCCs_ 2", "MFCCs_ 1"),
        ": two columns are called 'MFCCs_ 1'; rename one in the first line",
    ),
    "spaces": (
        "calls",
        CALLS.replace("MFCCs_ 2", "MFCCs_1"),
        ": the first line names a column twice, but for spaces",
    ),
    "nameless": (
        "protein",
        PROTEIN.replace("P1_N", ""),
        ": column 3 has no name; give it one in the first line",
    ),
    "no rows": ("calls", CALLS.splitlines()[0], ": the file has no rows"),
    "after header": (
        "protein",
        PROTEIN.replace("1.5", "x", 1),
        ", line 3: column 'P0_N' holds 'x', not a number",
    ),
}


@pytest.mark.parametrize(("name", "text", "what"), CASES.values(), ids=CASES)
def test_a_malformed_file_is_named_with_its_line_and_a_remedy(tmp_path, name, text, what):
    path = put(tmp_path, name, text)
    with pytest.raises(DataFileError) as error:
        load(name, tmp_path)
    remedy = f"run `openfate fetch {name}`, or give the data folder that has it."
    assert str(error.value) == f"{path}{what}; {remedy}"


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = put(tmp_path, "gene", GENE)
    with open(path, "ab") as file:
        file.write(b"\xff\xfe,\xff,\xff\n")
    with pytest.raises(DataFileError, match=r"splice\.data, line 4: byte 0xff is not UTF-8"):
        load("gene", tmp_path)


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object of lists of feature numbers"),
        ("[" * 100_000, "not JSON"),
        ('{"0": [1], "1": 5}', "the entry '1' is not a list of feature numbers"),
        ('{"0": ["a"]}', "the entry '0' holds 'a', not a feature number from 0 up"),
        ('{"0": [-3]}', "the entry '0' holds -3, not a feature number from 0 up"),
        (
            '{"0": [9223372036854775808]}',
            "the entry '0' holds 9223372036854775808, not a feature number from 0 up",
        ),
        ('{"0": [1], "0": [2]}', "the entry '0' is there twice"),
        ('{"0": [], "1": [], "2": []}', "every list of feature numbers is empty"),
        ('{"0": [1], "1": []}', "no entry for the row with id '2' of musae_git_target.csv"),
    ],
)
def test_malformed_github_features_are_refused(tmp_path, nodes, what):
    put(tmp_path, "github", nodes, TARGET)
    with pytest.raises(DataFileError) as error:
        load("github", tmp_path)
    path = tmp_path / "uci/github/musae_git_features.json"
    remedy = "run `openfate fetch github`, or give the data folder that has it."
    assert str(error.value) == f"{path}: {what}; {remedy}"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (
            "0,a,0\n1,b,1\n2,c,1.0\n",
            ": there are 3 classes ('1.0', '0', '1'); AUC needs 2",
        ),
        ("0,a,0\n,b,1\n2,c,1\n", ", line 3: no id"),
        ("0,a,0\n1,b,1\n0,c,1\n", ", line 4: the id '0', which is on line 2 too"),
    ],
)
def test_malformed_github_targets_are_refused(tmp_path, lines, what):
    path = put(tmp_path, "github", json.dumps(NODES), "id,name,ml_target\n" + lines)
    with pytest.raises(DataFileError) as error:
        load("github", tmp_path)
    remedy = "run `openfate fetch github`, or give the data folder that has it."
    assert str(error.value) == f"{path}{what}; {remedy}"


def test_an_unknown_data_set_is_answered_with_a_close_name():
    with pytest.raises(InputError) as error:
        load("genes")
    assert str(error.value) == (
        "unknown data set 'genes'; did you mean 'gene'? (data sets: digits, breast_cancer, wine, "
        "iris, gene, protein, protein-noleak, robot, drive, drive-sample, calls, github, flights, "
        "criteo-sample, avazu-sample)"
    )


def test_a_missing_folder_is_named():
    with pytest.raises(DataFileError) as error:
        load("gene", "/no/such/folder")
    assert str(error.value) == (
        "/no/such/folder: no such folder; give the folder of the data sets."
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "gene",
            "gene/splice.data of the data set 'gene' is not in {}; run `openfate fetch gene`, "
            "or give the data folder that has it.",
        ),
        (
            "protein-noleak",
            "protein/Data_Cortex_Nuclear.csv of the data set 'protein-noleak' is not "
            "in {}; run `openfate fetch protein-noleak`, or give the data folder that has it.",
        ),
        (
            "drive-sample",
            "drive/Sensorless_drive_diagnosis.sample2200.txt of the data set "
            "'drive-sample' is not in {}; give the data folder that has it, or use 'drive', "
            "the full data set.",
        ),
    ],
)
def test_a_missing_file_is_named_with_the_place_and_the_remedy(tmp_path, name, what):
    with pytest.raises(DataFileError) as error:
        load(name, tmp_path)
    assert str(error.value) == what.format(tmp_path)


# ---- the originals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n_rows", "n_features", "n_fields", "n_classes"),
    [
        ("gene", 3190, 287, 60, 3),
        ("protein", 1080, 743, 80, 8),
        ("protein-noleak", 1080, 737, 77, 8),
        ("robot", 5456, 237, 24, 4),
        ("calls", 7195, 216, 22, 10),
        ("github", 37700, 4005, 4005, 2),
        ("drive-sample", 2200, 337, 48, 11),
    ],
)
def test_the_originals_have_the_counts_of_the_paper(
    no_folders_of_the_machine, name, n_rows, n_features, n_fields, n_classes
):
    if no_folders_of_the_machine is None:
        pytest.skip("OPENFATE_DATA is not set: the original files are not here")
    data = load(name, no_folders_of_the_machine)
    assert (data.X.n_rows, data.X.n_features) == (n_rows, n_features)
    assert (len(data.fields), len(data.classes)) == (n_fields, n_classes)
    assert np.bincount(data.y).min() > 0
    assert data.X.feature_degree.min() > 0
    if len(SOURCES[name].files) == 1:
        assert data.sha256 == next(iter(SOURCES[name].files.values()))
