"""`openfate predict`, `observe`, `evaluate`: batches do not matter, bundles change or do not."""

from __future__ import annotations

import io
import shutil
from contextlib import contextmanager, redirect_stdout

import numpy as np
import polars as pl
import pytest
from interrupted import interrupted

from cli.tables import QUICK, digest, process, run
from openfate.bank import persistence
from openfate.estimators.scores import classification_scores

# ---- predict -------------------------------------------------------------------------------------


def predictions(openfate, bundle, rows, out, *flags):
    openfate("predict", bundle, rows, "--out", out, *flags)
    return pl.read_parquet(out) if out.suffix == ".parquet" else pl.read_csv(out)


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


# ---- observe and evaluate ------------------------------------------------------------------------


def test_observe_grows_the_bundle_whatever_the_batches(tables, bundle, fitted, tmp_path, openfate):
    result = openfate("observe", bundle, tables / "later.csv", "--batch-rows", 7, "--json")
    assert (result["rows"], result["new_columns"]) == (120, ["city", "wage"])
    assert result["new_features"] == {"job": 1, "city": 4, "wage": 10}
    other = tmp_path / "other"
    openfate("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK, "--out",
             other)  # fmt: skip
    openfate("observe", other, tables / "later.csv")
    flags = ["--graph", "state"]
    one = predictions(openfate, bundle, tables / "later.csv", tmp_path / "a.csv", *flags)
    two = predictions(openfate, other, tables / "later.csv", tmp_path / "b.csv", *flags)
    assert np.allclose(one["p_true"], two["p_true"], atol=1e-12)


def test_what_another_writer_added_meanwhile_is_not_reported_again(
    tables, bundle, openfate, monkeypatch
):
    """What was there before was read before the lock was held."""
    updating = persistence.updating

    @contextmanager
    def late(path):
        monkeypatch.undo()
        with redirect_stdout(io.StringIO()):
            assert run("observe", bundle, tables / "later.csv") == 0
        with updating(path):
            yield

    monkeypatch.setattr(persistence, "updating", late)
    result = openfate("observe", bundle, tables / "later.csv", "--json")
    assert (result["new_columns"], result["new_features"]) == ([], {})


def test_observed_columns_are_read_alike_later(tables, bundle, tmp_path, openfate):
    rows = pl.read_csv(tables / "later.csv", infer_schema=False)
    rows.with_columns(ward=pl.lit("07")).write_csv(tmp_path / "a.csv")
    rows.with_columns(ward=pl.lit("10")).write_csv(tmp_path / "b.csv")
    openfate("observe", bundle, tmp_path / "a.csv")
    gained = openfate("observe", bundle, tmp_path / "b.csv", "--json")["new_features"]
    assert gained == {"ward": 1}
    assert openfate("inspect", bundle, "--feature", "ward=07", "--json")["rows"] == 120


def test_a_label_that_is_named_is_no_new_column(tables, bundle, openfate):
    result = openfate("observe", bundle, tables / "later.csv", "--target", "wage > 9", "--json")
    assert result["new_columns"] == ["city"]


def test_labels_that_have_come_are_counted_and_rows_without_one_still_observed(
    tables, bundle, openfate
):
    result = openfate("observe", bundle, tables / "later.csv", "--labelled", "--batch-rows", 9,
                      "--json")  # fmt: skip
    assert (result["rows"], result["labels"], result["labels_used"]) == (120, 117, True)
    assert openfate("inspect", bundle, "--feature", "city=", "--json")["rows"] == 20
    text = openfate("observe", bundle, tables / "later.csv", "--labelled", "--seen")
    assert "117 rows had a label (used)." in text
    assert openfate("inspect", bundle, "--feature", "city=", "--json")["rows"] == 20


def test_rows_seen_before_need_labels(tables, bundle, refused):
    assert "--labelled or --target" in refused("observe", bundle, tables / "later.csv", "--seen")


def test_evidence_of_observed_rows_is_used_by_the_state(tables, with_evidence, tmp_path, openfate):
    model = tmp_path / "model"
    shutil.copytree(with_evidence, model)
    openfate("observe", model, tables / "later.csv", "--batch-rows", 13)
    flags = ["--graph", "state"]
    one = predictions(openfate, with_evidence, tables / "later.csv", tmp_path / "a.csv", *flags)
    two = predictions(openfate, model, tables / "later.csv", tmp_path / "b.csv", *flags)
    assert not np.allclose(one["p_true"], two["p_true"])


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


def test_labels_of_an_unknown_class_are_counted_when_observed(tables, bundle, openfate):
    result = openfate("observe", bundle, tables / "later.csv", "--target", "job", "--json")
    assert (result["rows"], result["labels"], result["labels_of_unknown_class"]) == (120, 0, 120)
    text = openfate("observe", bundle, tables / "later.csv", "--target", "job")
    assert "120 rows had a label of a class that the model does not know (not used)." in text


def test_evaluate_takes_another_target(tables, fitted, openfate):
    result = openfate("evaluate", fitted, tables / "later.csv", "--target", "wage > 9", "--json")
    assert result["target"] == ["wage > 9"]
    assert result["rows"] == 120
    assert "wage" not in result["new_columns"]


# ---- interruption --------------------------------------------------------------------------------


def test_ctrl_c_leaves_everything_as_it_was(tables, bundle, tmp_path):
    before, files = digest(bundle), set(tmp_path.iterdir())
    words = ("fit", tables / "train.csv", "--target", "rich", "--out", tmp_path / "new")
    fit = interrupted("openfate.training.engine", "PlainEngine.learn", 40, *words)
    words = ("observe", bundle, tables / "later.csv", "--batch-rows", 10)
    observe = interrupted("openfate.bank.bank", "FeatureBank.observe", 3, *words)
    assert fit == (130, "", "openfate: interrupted; nothing was written.\n")
    assert observe == (130, "", "openfate: interrupted; the bundle is as it was.\n")
    assert (digest(bundle), set(tmp_path.iterdir())) == (before, files)


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
