"""`openfate fit`: targets, rows, kinds, tasks, formats, policies."""

from __future__ import annotations

import gzip

import polars as pl
import pytest

from cli.tables import QUICK, process
from openfate.estimators.scores import regression_scores

# ---- fit -----------------------------------------------------------------------------------------


def test_fit_tells_what_it_did(tables, tmp_path, openfate):
    result = openfate("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK,
                      "--out", tmp_path / "m", "--json")  # fmt: skip
    assert (result["rows"], result["rows_without_target"]) == (294, 6)
    assert result["fields"] == {"job": "categorical", "age": "numeric", "zip": "categorical"}
    assert result["classes"] == ["false", "true"]
    assert result["validation"].keys() >= {"log_loss", "accuracy"}
    assert (tmp_path / "m" / "meta.json").is_file()


def test_fit_prints_sentences_for_people(tables, tmp_path, openfate):
    text = openfate("fit", tables / "train.csv", "--target", "rich", *QUICK, "--exclude", "id",
                    "--out", tmp_path / "m")  # fmt: skip
    assert "Fitted on 294 rows of" in text
    assert "(6 without a target were left out)" in text
    assert f"Bundle: {tmp_path / 'm'}" in text


def test_an_expression_is_a_target_and_its_columns_are_no_features(tables, tmp_path, openfate):
    result = openfate("fit", tables / "train.csv", "--target", "age > 50", "--exclude", "id,rich",
                      *QUICK, "--out", tmp_path / "m", "--json")  # fmt: skip
    assert (result["target"], result["classes"]) == (["age > 50"], ["false", "true"])
    assert set(result["fields"]) == {"job", "zip"}
    scores = openfate("evaluate", tmp_path / "m", tables / "later.csv", "--json")
    assert scores["rows"] == 120
    assert "age" not in scores["new_columns"]


def test_where_and_null_choose_rows_and_missing_cells(tmp_path, openfate):
    where = "x <> 'b' OR x IS NULL"
    (tmp_path / "t.csv").write_text("x,y\n" + "a,0\nb,1\n-,1\n" * 20 + "c,-\n")
    result = openfate("fit", tmp_path / "t.csv", "--target", "y", "--null", "-", "--where",
                      where, *QUICK, "--out", tmp_path / "m", "--json")  # fmt: skip
    assert (result["rows"], result["rows_without_target"], result["features"]) == (40, 1, 2)


def test_kinds_and_hashes_are_as_told(tables, tmp_path, openfate):
    result = openfate("fit", tables / "train.csv", "--target", "rich", "--kinds",
                      "age=categorical", "--hashed", "job", "--exclude", "id", *QUICK, "--out",
                      tmp_path / "m", "--json")  # fmt: skip
    assert result["fields"]["age"] == "categorical"
    assert not any(b"nurse" in file.read_bytes() for file in (tmp_path / "m").iterdir())
    assert openfate("inspect", tmp_path / "m", "--feature", "job=nurse", "--json")["rows"] > 50


def test_columns_that_are_not_there_yet_are_new_later(tables, tmp_path, openfate):
    fit = openfate("fit", tables / "train.csv", "--target", "rich", "--not-yet", "zip", "--exclude",
                   "id", *QUICK, "--out", tmp_path / "m", "--json")  # fmt: skip
    assert list(fit["fields"]) == ["job", "age"]
    result = openfate("observe", tmp_path / "m", tables / "train.csv", "--json")
    assert result["new_features"] == {"zip": 3}


def test_regression_end_to_end(tables, tmp_path, openfate):
    fit = openfate("fit", tables / "later.csv", "--target", "wage", "--task", "regression",
                   "--exclude", "id,city", "--numeric", "value", *QUICK, "--out", tmp_path / "m",
                   "--json")  # fmt: skip
    assert (fit["task"], fit["classes"]) == ("regression", [])
    openfate("predict", tmp_path / "m", tables / "later.csv", "--out", tmp_path / "p.csv")
    predictions = pl.read_csv(tmp_path / "p.csv")
    assert predictions.columns == ["row", "prediction"]
    scores = openfate("evaluate", tmp_path / "m", tables / "later.csv", "--json")["new_features"]
    truth = pl.read_csv(tables / "later.csv")["wage"].to_numpy()
    expected = regression_scores(predictions["prediction"].to_numpy(), truth)
    assert scores["used"] == pytest.approx(expected)
    assert "prediction" in openfate("inspect", tmp_path / "m", "--feature", "job=cook")


def test_several_columns_are_several_labels(tmp_path, openfate):
    table = pl.DataFrame(
        {"x": ["a", "b", "c"] * 30, "rain": [1, 0, 0] * 30, "snow": [0, 0, 1] * 30}
    )
    table.write_csv(tmp_path / "t.csv")
    fit = openfate("fit", tmp_path / "t.csv", "--target", "rain,snow", *QUICK, "--out",
                   tmp_path / "m", "--json")  # fmt: skip
    assert (fit["task"], list(fit["fields"])) == ("multilabel", ["x"])
    openfate("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert pl.read_csv(tmp_path / "p.csv").columns == ["row", "rain", "snow", "p_rain", "p_snow"]
    scores = openfate("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json")
    assert scores["target"] == ["rain", "snow"]
    assert 0 <= scores["new_features"]["used"]["accuracy"] <= 1


def test_labels_of_any_name_have_columns_of_their_own(tmp_path, openfate):
    table = pl.DataFrame({"x": ["a", "b", "c"] * 30, "row": [1, 0, 0] * 30, "p_y": [0, 0, 1] * 30,
                          "y": [1, 1, 0] * 30})  # fmt: skip
    table.write_csv(tmp_path / "t.csv")
    openfate("fit", tmp_path / "t.csv", "--target", "row,p_y,y", *QUICK, "--out", tmp_path / "m")
    openfate("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    p = pl.read_csv(tmp_path / "p.csv")
    assert p.columns == ["row", "row_2", "p_y", "y", "p_row", "p_p_y", "p_y_2"]
    assert p["row"].to_list() == list(range(1, 91))
    assert p["p_y"].is_in([0, 1]).all()


def test_more_classes_have_a_column_each(tables, tmp_path, openfate):
    openfate("fit", tables / "train.csv", "--target", "job", "--class-weight", "cook=2,nurse=1",
             "--exclude", "id", *QUICK, "--out", tmp_path / "m")  # fmt: skip
    openfate("predict", tmp_path / "m", tables / "train.csv", "--out", tmp_path / "p.csv")
    p = pl.read_csv(tmp_path / "p.csv")
    names = ["p_cook", "p_judge", "p_nurse", "p_pilot"]
    assert p.columns == ["row", "prediction", *names]
    assert p.select(pl.sum_horizontal(names)).to_series().to_list() == pytest.approx([1.0] * 300)


@pytest.mark.parametrize("suffix", ["csv.gz", "tsv", "parquet"])
def test_the_format_of_the_file_does_not_matter(tables, tmp_path, openfate, suffix):
    table = pl.read_csv(tables / "train.csv", schema_overrides={"zip": pl.String})
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        table.write_parquet(path)
    elif suffix == "tsv":
        table.write_csv(path, separator="\t")
    else:
        path.write_bytes(gzip.compress((tables / "train.csv").read_bytes()))
    plain = [*("--target", "rich", "--exclude", "id", *QUICK), "--json", "--out"]
    one = openfate("fit", tables / "train.csv", *plain, tmp_path / "one")
    two = openfate("fit", path, *plain, tmp_path / "two")
    assert one["validation"] == two["validation"]


# ---- policies ------------------------------------------------------------------------------------


def test_policies_are_flags(tables, tmp_path, openfate, refused):
    fit = ["fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK, "--out"]
    openfate(*fit, tmp_path / "strict", "--new-columns", "error")
    line = refused(
        "predict", tmp_path / "strict", tables / "later.csv", "--out", tmp_path / "p.csv"
    )
    assert "'city'" in line
    assert not (tmp_path / "p.csv").exists()
    openfate(*fit, tmp_path / "some", "--new-columns", "ignore,wage=extrapolate")
    result = openfate("observe", tmp_path / "some", tables / "later.csv", "--json")
    assert result["new_columns"] == ["wage"]


def test_a_warning_is_one_line(tables, tmp_path, openfate):
    openfate("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK, "--out",
             tmp_path / "m", "--new-columns", "warn")  # fmt: skip
    _, errors = process("evaluate", tmp_path / "m", tables / "later.csv").communicate()
    assert errors.startswith("openfate: warning: ")
    assert "'city'" in errors
    assert errors.count("\n") == 1


# ---- backbones -----------------------------------------------------------------------------------


def test_a_backbone_comes_by_flag_or_by_config(tables, tmp_path, openfate):
    by_flag = openfate("fit", tables / "train.csv", "--target", "rich", *QUICK, "--exclude", "id",
                       "--backbone", "deepfm", "--linear", "extrapolated", "--out", tmp_path / "a",
                       "--json")  # fmt: skip
    (tmp_path / "fit.toml").write_text('backbone = "deepfm"\nlinear = "extrapolated"\n')
    openfate("fit", tables / "train.csv", "--target", "rich", *QUICK, "--exclude", "id",
             "--config", tmp_path / "fit.toml", "--out", tmp_path / "b")  # fmt: skip
    assert by_flag["backbone"] == "deepfm"
    weights = [next((tmp_path / name).glob("weights-*")).read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    scores = openfate("evaluate", tmp_path / "a", tables / "later.csv", "--json")
    assert scores["rows"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--backbone", "tree"],
            "backbone='tree' is unknown: choose 'mlp', 'deepfm', 'widedeep' or 'dcn'",
        ),
        (["--pool", "mean"], "--pool mean: choose sum or field_linear."),
        (
            ["--backbone", "deepfm", "--pool", "field_linear"],
            "pool='field_linear' is not for backbone='deepfm'",
        ),
    ],
)
def test_a_backbone_that_does_not_fit_is_named(tables, tmp_path, refused, flags, message):
    line = refused("fit", tables / "train.csv", "--target", "rich", *QUICK, *flags, "--out",
                   tmp_path / "m")  # fmt: skip
    assert message in line
    assert not (tmp_path / "m").exists()
