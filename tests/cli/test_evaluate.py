"""`openfate evaluate`: scores with new features used and dropped."""

from __future__ import annotations

import polars as pl
import pytest

from openfate.estimators.scores import classification_scores


def test_evaluate_scores_new_features_used_and_dropped(tables, fitted, tmp_path, openfate):
    import openfate as package

    result = openfate("evaluate", fitted, tables / "later.csv", "--batch-rows", 30, "--json")
    assert (result["rows"], result["rows_without_target"]) == (117, 3)
    rows = pl.read_csv(tables / "later.csv", schema_overrides={"zip": pl.String})
    rows = rows.filter(pl.col("rich").is_not_null())
    for name, flag in (("used", "use"), ("dropped", "drop")):
        p = package.load(fitted).predict_proba(rows, new_features=flag)
        expected = classification_scores(p, rows["rich"].cast(int).to_numpy())
        assert result["new_features"][name] == pytest.approx(expected)
    text = openfate("evaluate", fitted, tables / "later.csv")
    for word in ("new features used", "dropped", "accuracy", "auc", "log loss", "brier",
                 "calibration error", "3 rows without a target were left out."):  # fmt: skip
        assert word in text


def test_rows_of_an_unknown_class_are_left_out_and_counted(tables, fitted, tmp_path, openfate):
    rows = pl.read_csv(tables / "later.csv", infer_schema=False)
    rows = rows.with_columns(
        rich=pl.when(pl.col("id") == "3").then(pl.lit("maybe")).otherwise("rich")
    )
    rows.write_csv(tmp_path / "odd.csv")
    result = openfate("evaluate", fitted, tmp_path / "odd.csv", "--json")
    assert (result["rows"], result["rows_of_unknown_class"]) == (116, 1)


def test_evaluate_takes_another_target(tables, fitted, openfate):
    result = openfate("evaluate", fitted, tables / "later.csv", "--target", "wage > 9", "--json")
    assert result["target"] == ["wage > 9"]
    assert result["rows"] == 120
    assert "wage" not in result["new_columns"]
