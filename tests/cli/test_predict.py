"""`openfate predict`: batches do not matter, bundles do not change."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cli.tables import QUICK, digest, predictions, process


def test_predictions_are_those_of_the_estimator(tables, fitted, tmp_path, openfate):
    import openfate as package

    table = predictions(openfate, fitted, tables / "later.csv", tmp_path / "p.csv", "--keep", "id")
    assert table.columns == ["row", "prediction", "p_false", "p_true", "id"]
    assert table["row"].to_list() == list(range(1, 121))
    rows = pl.read_csv(tables / "later.csv", schema_overrides={"zip": pl.String})
    p = package.load(fitted).predict_proba(rows)
    assert np.allclose(table.select("p_false", "p_true").to_numpy(), p, atol=1e-12)
    assert table["prediction"].to_list() == (p[:, 1] > 0.5).tolist()


@pytest.mark.parametrize("strategy", ["fate", "evidence"])
@pytest.mark.parametrize("graph", ["auto", "state", "batch"])
@pytest.mark.parametrize("size", [1, 7, 50])
def test_batches_do_not_matter(tables, request, tmp_path, openfate, strategy, graph, size):
    """In the first batches the new column `city` has no value at all."""
    model = request.getfixturevalue("fitted" if strategy == "fate" else "with_evidence")
    flags = ["--graph", graph, "--batch-rows"]
    whole = predictions(openfate, model, tables / "later.csv", tmp_path / "a.csv", *flags, 1000)
    parts = predictions(openfate, model, tables / "later.csv", tmp_path / "b.csv", *flags, size)
    assert np.allclose(whole["p_true"], parts["p_true"], atol=1e-12)
    assert whole["prediction"].equals(parts["prediction"])


def test_a_parquet_of_predictions_holds_the_same(tables, fitted, tmp_path, openfate):
    one = predictions(openfate, fitted, tables / "later.csv", tmp_path / "p.csv")
    two = predictions(openfate, fitted, tables / "later.csv", tmp_path / "p.parquet",
                      "--batch-rows", 50)  # fmt: skip
    assert np.allclose(one["p_true"], two["p_true"], atol=1e-12)
    assert {path.name for path in tmp_path.iterdir()} == {"p.csv", "p.parquet"}


def test_the_target_and_excluded_columns_never_come_back(tables, fitted, tmp_path, openfate):
    """They are in the later file too, and would else be taken for new columns."""
    bare = pl.read_csv(tables / "later.csv", infer_schema=False).drop("id", "rich")
    bare.write_csv(tmp_path / "bare.csv")
    one = predictions(openfate, fitted, tables / "later.csv", tmp_path / "a.csv")
    two = predictions(openfate, fitted, tmp_path / "bare.csv", tmp_path / "b.csv")
    assert one.equals(two)


def test_where_keeps_the_numbers_of_the_rows(tables, fitted, tmp_path, openfate):
    table = predictions(openfate, fitted, tables / "later.csv", tmp_path / "p.csv", "--where",
                        "id >= 100", "--keep", "id")  # fmt: skip
    assert (table["row"] - 1).equals(table["id"], check_names=False)


def test_a_column_of_text_stays_text_in_a_file_of_numbers(tables, fitted, tmp_path, openfate):
    """A later file whose zip codes are all without a leading zero."""
    rows = pl.read_csv(tables / "train.csv", infer_schema=False).filter(pl.col("zip") == "10")
    rows.write_csv(tmp_path / "tens.csv")
    result = openfate(
        "predict", fitted, tmp_path / "tens.csv", "--out", tmp_path / "p.csv", "--json"
    )
    assert result["new_features"] == 0


def test_a_fresh_process_predicts_the_same_bytes(tables, fitted, tmp_path, openfate):
    openfate("predict", fitted, tables / "later.csv", "--out", tmp_path / "here.csv")
    there = process("predict", fitted, tables / "later.csv", "--out", tmp_path / "there.csv")
    assert there.wait() == 0, there.communicate()[1]
    there.communicate()
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def test_prediction_changes_no_bundle(tables, fitted, tmp_path, openfate):
    before = digest(fitted)
    openfate("predict", fitted, tables / "later.csv", "--out", tmp_path / "p.csv")
    openfate("evaluate", fitted, tables / "later.csv")
    assert digest(fitted) == before


def test_by_the_state_alone_new_columns_are_not_used_and_it_says_so(
    tables, fitted, tmp_path, openfate
):
    text = openfate("predict", fitted, tables / "later.csv", "--graph", "state", "--out",
                    tmp_path / "p.csv")  # fmt: skip
    assert "New columns were not used: city, wage (observe them, or give --graph auto)." in text


@pytest.mark.parametrize("size", [7, 1000])
def test_a_new_number_has_the_scale_of_the_whole_file(tables, tmp_path, openfate, size):
    """`wage` is new, and one feature whose value is the number: batches must not move its scale."""
    import openfate as package

    model, out = tmp_path / "model", tmp_path / "p.parquet"
    openfate("fit", tables / "train.csv", "--target", "rich", "--numeric", "value",
             "--exclude", "id", "--out", model, *QUICK)  # fmt: skip
    openfate("predict", model, tables / "later.csv", "--out", out, "--batch-rows", size)
    rows = pl.read_csv(tables / "later.csv", schema_overrides={"zip": pl.String})
    expected = package.load(model).predict_proba(rows)
    np.testing.assert_allclose(pl.read_parquet(out)["p_true"], expected[:, 1], atol=1e-9)


def test_predict_never_replaces_its_own_rows(tables, fitted, tmp_path, refused):
    rows = tmp_path / "later.csv"
    rows.write_bytes((tables / "later.csv").read_bytes())
    link = tmp_path / "link.csv"
    link.symlink_to(rows)
    folder = tmp_path / "parts"
    folder.mkdir()
    for given, out in ((rows, rows), (rows, link), (folder, folder / "p.parquet")):
        line = refused("predict", fitted, given, "--out", out)
        assert f"--out {out}: that would change the rows" in line
    assert rows.read_bytes() == (tables / "later.csv").read_bytes()
    assert list(folder.iterdir()) == []


def test_a_kept_date_beyond_the_calendar_is_one_line(tables, fitted, tmp_path, refused, openfate):
    far = pl.Series([2**30], dtype=pl.Int32).cast(pl.Date)  # polars panics, which is no Exception
    rows = pl.read_csv(tables / "later.csv", schema_overrides={"zip": pl.String})
    rows.with_columns(due=far.new_from_index(0, len(rows))).write_parquet(tmp_path / "a.parquet")
    call = "predict", fitted, tmp_path / "a.parquet", "--keep", "due", "--exclude", "due", "--out"
    line = refused(*call, tmp_path / "p.csv")
    assert "date beyond the calendar" in line and f"--out {tmp_path / 'p'}.parquet" in line
    assert not (tmp_path / "p.csv").exists()
    openfate(*call, tmp_path / "p.parquet")
    assert pl.read_parquet(tmp_path / "p.parquet")["due"].to_physical()[0] == 2**30
