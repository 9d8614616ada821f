"""`openfate inspect` and `export`."""

from __future__ import annotations

import pytest


def test_inspect_shows_fields_and_what_fit_was_told(fitted, openfate):
    text = openfate("inspect", fitted)
    for word in ("rich", "job", "age", "numeric", "never used", "id, rich", "294 rows"):
        assert word in text
    assert openfate("inspect", fitted, "--json")["classes"] == ["false", "true"]


def test_inspect_shows_a_feature(tables, bundle, openfate):
    openfate("observe", bundle, tables / "later.csv")
    result = openfate("inspect", bundle, "--feature", "city=Rome", "--nearest", 3, "--json")
    assert result["new"]
    assert result["rows"] > 0
    assert len(result["nearest"]) == 3
    assert result["effect"].keys() == {"false", "true"}
    assert "a new feature" in openfate("inspect", bundle, "--feature", "city=Rome")
    assert openfate("inspect", bundle, "--feature", "city=", "--json")["rows"] == 20
    assert openfate("inspect", bundle, "--feature", "wage=9.5", "--json")["rows"] > 0


def test_export_writes_the_network_and_the_table(tables, bundle, tmp_path, openfate, refused):
    pytest.importorskip("onnx")
    files = openfate("export", bundle, "--out", tmp_path / "m.onnx", "--json")["files"]
    assert files == [str(tmp_path / "m.onnx"), str(tmp_path / "m.safetensors")]
    openfate("observe", bundle, tables / "later.csv")
    text = openfate("export", bundle, "--format", "table", "--out", tmp_path / "t.safetensors")
    assert text.strip() == str(tmp_path / "t.safetensors")
    assert (tmp_path / "t.safetensors").stat().st_size > (tmp_path / "m.safetensors").stat().st_size
    assert "--format pmml" in refused("export", bundle, "--format", "pmml", "--out", "m.pmml")
