"""`openfate export`."""

from __future__ import annotations

import pytest


def test_export_writes_the_network_and_the_table(tables, bundle, tmp_path, openfate, refused):
    pytest.importorskip("onnx")
    files = openfate("export", bundle, "--out", tmp_path / "m.onnx", "--json")["files"]
    assert files == [str(tmp_path / "m.onnx"), str(tmp_path / "m.safetensors")]
    openfate("observe", bundle, tables / "later.csv")
    text = openfate("export", bundle, "--format", "table", "--out", tmp_path / "t.safetensors")
    assert text.strip() == str(tmp_path / "t.safetensors")
    assert (tmp_path / "t.safetensors").stat().st_size > (tmp_path / "m.safetensors").stat().st_size
    assert "--format pmml" in refused("export", bundle, "--format", "pmml", "--out", "m.pmml")
