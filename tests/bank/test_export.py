"""The exported network says in onnxruntime what the bank says, for a grown table too."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
import torch

from openfate import FATEClassifier, FATERegressor
from openfate.bank import export_onnx, export_table, left_out
from openfate.bank.export import padded, table_of
from openfate.errors import InputError
from openfate.table import MultiHot

onnxruntime = pytest.importorskip("onnxruntime")

ROWS = pl.DataFrame({"job": ["cook", "nurse", "judge"] * 20, "age": [float(i) for i in range(60)]})
TARGETS = {
    "binary": ROWS["job"] == "cook",
    "multiclass": ROWS["job"],
    "multilabel": np.stack([ROWS["job"] == "cook", ROWS["age"] > 30], axis=1).astype(int),
    "regression": ROWS["age"] * 2,
}
LATER = ROWS.with_columns(city=pl.Series(["Rome", "Oslo"] * 30))


def fitted(task, numeric="buckets", strategy="fate"):
    kind = FATERegressor if task == "regression" else FATEClassifier
    model = kind(strategy=strategy, epochs=3, width=8, hidden=(8,), numeric=numeric)
    return model.fit(ROWS, TARGETS[task]).bank_


def run(path, table, X):
    session = onnxruntime.InferenceSession(path)
    ids, values = padded(X)
    return session.run(None, {"table": table, "ids": ids, "values": values})[0]


def read_table(path):
    return safetensors.numpy.load_file(path)["table"]


@pytest.mark.parametrize("task", list(TARGETS))
def test_onnxruntime_predicts_what_the_bank_predicts(task, tmp_path):
    bank = fitted(task)
    network, table = export_onnx(bank, tmp_path / "model.onnx")
    assert (network.name, table.name) == ("model.onnx", "model.safetensors")
    for rows in (ROWS, ROWS[:1], ROWS.head(0), ROWS.select("age"), ROWS.select(pl.lit("x"))):
        expected = bank.predict(rows, graph="state")
        found = run(network, read_table(table), bank.encoder.encode(rows))
        assert found.shape == expected.shape
        assert np.allclose(found, expected, atol=1e-4 if task == "regression" else 1e-5)


def test_a_grown_table_needs_no_new_network(tmp_path):
    bank = fitted("binary")
    network, _ = export_onnx(bank, tmp_path / "model.onnx")
    bank.observe(LATER)
    table = export_table(bank, tmp_path / "grown.safetensors")
    assert len(read_table(table)) == bank.encoder.n_features
    found = run(network, read_table(table), bank.encoder.encode(LATER))
    assert np.allclose(found, bank.predict(LATER, graph="state"), atol=1e-5)


def test_numbers_as_values_travel_as_values(tmp_path):
    bank = fitted("binary", numeric="value")
    network, table = export_onnx(bank, tmp_path / "model.onnx")
    found = run(network, read_table(table), bank.encoder.encode(ROWS))
    assert np.allclose(found, bank.predict(ROWS, graph="state"), atol=1e-5)


@pytest.mark.parametrize("backbone", ["deepfm", "widedeep", "dcn"])
def test_every_backbone_that_sums_is_exported(backbone, tmp_path):
    model = FATEClassifier(strategy="fate", backbone=backbone, numeric="value", epochs=3, width=4)
    bank = model.fit(ROWS, TARGETS["multiclass"]).bank_
    with torch.no_grad():
        for parameter in bank.model.members[0].backbone.parameters():
            torch.nn.init.normal_(parameter, std=0.3)  # the machine of a DeepFM starts silent
    bank.observe(LATER)
    network, table = export_onnx(bank, tmp_path / "model.onnx")
    found = run(network, read_table(table), bank.encoder.encode(LATER))
    assert np.allclose(found, bank.predict(LATER, graph="state"), atol=1e-5)


@pytest.mark.parametrize("backbone", ["mlp", "dcn"])
def test_fields_side_by_side_are_refused(backbone, tmp_path):
    options = {"backbone": backbone, "pool": "field_linear", "epochs": 1}
    bank = FATEClassifier(strategy="fate", **options).fit(ROWS, TARGETS["binary"]).bank_
    with pytest.raises(InputError) as error:
        export_onnx(bank, tmp_path / "model.onnx")
    assert str(error.value) == (
        f"backbone='{backbone}' with pool='field_linear' is not written as ONNX, whose input does "
        "not tell the fields: fit with pool='sum'."
    )
    assert not list(tmp_path.iterdir())


def test_members_are_averaged_and_evidence_is_left_out(tmp_path):
    bank = fitted("multiclass", strategy="evidence")
    bank.observe(LATER)
    network, table = export_onnx(bank, tmp_path / "model.onnx")
    found = run(network, read_table(table), bank.encoder.encode(LATER))
    assert np.allclose(found, bank.predict(LATER, new_features="drop"), atol=1e-5)


@pytest.mark.parametrize("strategy", ["fate", "evidence"])
def test_what_labels_taught_is_left_out_and_the_export_says_so(strategy, tmp_path):
    bank = fitted("binary", strategy=strategy)
    sentences = left_out(bank)
    assert len(sentences) == (strategy == "evidence")
    bank.observe(LATER, TARGETS["binary"].to_numpy().astype(int))
    with pytest.warns(UserWarning, match="What labels have taught since training is not in it"):
        network, table = export_onnx(bank, tmp_path / "model.onnx")
    told = onnxruntime.InferenceSession(network).get_modelmeta().custom_metadata_map
    assert told["left_out"] == " ".join(left_out(bank)) != " ".join(sentences)
    if strategy == "fate":
        found = run(network, read_table(table), bank.encoder.encode(LATER))
        assert found.shape == bank.predict(LATER).shape
        assert not np.allclose(found, bank.predict(LATER, graph="state"), atol=1e-3)


def test_the_network_tells_its_task_and_classes(tmp_path):
    network, _ = export_onnx(fitted("multiclass"), tmp_path / "model.onnx")
    told = onnxruntime.InferenceSession(network).get_modelmeta().custom_metadata_map
    assert told["task"] == "multiclass"
    assert told["classes"] == '["cook", "judge", "nurse"]'


def test_padding_keeps_rows_of_any_length():
    X = MultiHot.from_rows([[], [0, 2, 1], [1]], n_features=3)
    ids, values = padded(X)
    assert ids.tolist() == [[-1, -1, -1], [0, 1, 2], [1, -1, -1]]
    assert values.tolist() == [[0, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert padded(MultiHot.from_rows([], n_features=3))[0].shape == (0, 1)


def test_the_table_is_that_of_every_feature():
    bank = fitted("binary")
    bank.observe(LATER)
    table = table_of(bank)
    assert table.dtype == np.float32
    assert table.shape == (bank.encoder.n_features, 8)
    assert np.allclose(table[: bank.n_observed], bank.model.members[0].W.numpy())


@pytest.mark.parametrize(
    ("export", "name", "word"),
    [(export_onnx, "model.bin", ".onnx"), (export_table, "table.npy", ".safetensors")],
)
def test_other_suffixes_are_refused(export, name, word, tmp_path):
    with pytest.raises(InputError, match=rf"{name}: .* {word} file"):
        export(fitted("binary"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused_and_not_made(tmp_path):
    for export, name in ((export_onnx, "m.onnx"), (export_table, "m.safetensors")):
        with pytest.raises(InputError, match=r"there is no folder .*no; make it first"):
            export(fitted("binary"), tmp_path / "no" / name)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_error_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import polars as pl\n"
        "from openfate import FATEClassifier\n"
        "from openfate.bank.export import export_onnx\n"
        "rows = pl.DataFrame({'x': ['a', 'b'] * 10})\n"
        f"export_onnx(FATEClassifier(epochs=1).fit(rows, rows['x']).bank_, '{tmp_path}/m.onnx')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "openfate.errors.OpenFATEError: the ONNX export needs onnx: pip install 'openfate[export]'."
    )
    assert list(tmp_path.iterdir()) == []
