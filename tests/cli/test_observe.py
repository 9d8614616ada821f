"""`openfate observe`: bundles grow, whatever the batches; labels come late."""

from __future__ import annotations

import io
import shutil
from contextlib import contextmanager, redirect_stdout

import numpy as np
import polars as pl
from interrupted import interrupted

import openfate.cli.observe as command
from cli.tables import QUICK, digest, predictions, run
from openfate import FeatureBank
from openfate.openworld.sources import MOST


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
    updating = command.updating

    @contextmanager
    def late(path):
        monkeypatch.undo()
        with redirect_stdout(io.StringIO()):
            assert run("observe", bundle, tables / "later.csv") == 0
        with updating(path):
            yield

    monkeypatch.setattr(command, "updating", late)
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


def test_labels_that_were_promised_and_have_not_come_are_told_of(
    tables, bundle, tmp_path, openfate
):
    rows = pl.read_csv(tables / "later.csv", infer_schema=False).with_columns(rich=pl.lit(""))
    rows.write_csv(tmp_path / "rows.csv")
    assert "No row had a label." in openfate("observe", bundle, tmp_path / "rows.csv", "--labelled")
    assert "No row" not in openfate("observe", bundle, tmp_path / "rows.csv")


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


def test_labels_of_an_unknown_class_are_counted_when_observed(tables, bundle, openfate):
    result = openfate("observe", bundle, tables / "later.csv", "--target", "job", "--json")
    assert (result["rows"], result["labels"], result["labels_of_unknown_class"]) == (120, 0, 120)
    text = openfate("observe", bundle, tables / "later.csv", "--target", "job")
    assert "120 rows had a label of a class that the model does not know (not used)." in text


def test_ctrl_c_leaves_everything_as_it_was(tables, bundle, tmp_path):
    before, files = digest(bundle), set(tmp_path.iterdir())
    words = ("fit", tables / "train.csv", "--target", "rich", "--out", tmp_path / "new")
    fit = interrupted("openfate.training.engine", "Engine.learn", 40, *words)
    words = ("observe", bundle, tables / "later.csv", "--batch-rows", 10)
    observe = interrupted("openfate.bank.bank", "FeatureBank.observe", 3, *words)
    assert fit == (130, "", "openfate: interrupted; run it again to go on from there.\n")
    assert observe == (130, "", "openfate: interrupted; the bundle is as it was.\n")
    assert (digest(bundle), set(tmp_path.iterdir())) == (before, files | {tmp_path / "new.work"})


def test_a_source_a_half_life_and_bounds_by_field(tables, tmp_path, openfate):
    """The column that names the source is read by observe, and is no feature of any command."""
    later = pl.read_csv(tables / "later.csv", infer_schema=False)
    later.with_columns(sender=pl.lit("me")).write_csv(tmp_path / "sent.csv")
    openfate("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK,
             "--strategy", "evidence", "--source", "sender", "--half-life", 1000,
             "--max-new-features", "city=50,500", "--out", tmp_path / "model")  # fmt: skip
    told = openfate("observe", tmp_path / "model", tmp_path / "sent.csv", "--json")
    assert "sender" not in told["new_columns"]
    bank = FeatureBank.load(tmp_path / "model")
    assert (bank.source, bank.half_life) == ("sender", 1000)
    assert bank.max_new_features == {"city": 50, "*": 500}
    assert 0 < bank.evidence.state.count.max() <= MOST + 1e-9
    flags = ["--graph", "state"]
    one, two = (
        predictions(openfate, tmp_path / "model", rows, tmp_path / f"{rows.stem}-p.csv", *flags)
        for rows in (tables / "later.csv", tmp_path / "sent.csv")
    )
    assert np.array_equal(one["p_true"], two["p_true"])
