"""`openfate inspect`."""

from __future__ import annotations


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
