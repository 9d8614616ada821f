"""`openfate observe --part` in copies of a bundle, and `openfate merge`, are one `observe`."""

from __future__ import annotations

import shutil

import numpy as np
import polars as pl
import pytest

from openfate.bank import FeatureBank


def predictions(openfate, bundle, rows, out):
    openfate("predict", bundle, rows, "--out", out, "--graph", "state")
    return pl.read_csv(out)["p_true"].to_numpy()


@pytest.mark.parametrize("labels", [[], ["--labelled"]])
def test_parts_that_were_observed_apart_are_merged_into_one(
    labels, tables, with_evidence, tmp_path, openfate
):
    later, whole = tables / "later.csv", tmp_path / "whole"
    shutil.copytree(with_evidence, whole)
    # The cuts of the parts: rows without a label follow those with one in each batch.
    openfate("observe", whole, later, "--batch-rows", 40, *labels)
    for part in (3, 1, 2):
        shutil.copytree(with_evidence, tmp_path / f"part{part}")
        openfate("observe", tmp_path / f"part{part}", later, "--part", f"{part}/3", *labels)
    parts = [tmp_path / f"part{part}" for part in (2, 3, 1)]
    result = openfate("merge", *parts, "--out", tmp_path / "merged", "--json")
    assert result["bundles"] == [str(tmp_path / f"part{part}") for part in (1, 2, 3)]
    assert result["labels"] == (117 if labels else 0)
    one, other = (FeatureBank.load(tmp_path / name) for name in ("whole", "merged"))
    assert (one.n_rows, one.encoder.n_features) == (other.n_rows, other.encoder.n_features)
    assert one.meta == other.meta
    names = [
        [bank.encoder.decode(j) for j in range(bank.encoder.n_features)] for bank in (one, other)
    ]
    assert names[0] == names[1]
    for name, array in one.state().items():
        if name.startswith("evidence"):
            np.testing.assert_allclose(other.state()[name], array, rtol=0, atol=1e-12)
    ours, theirs = (
        predictions(openfate, bundle, later, tmp_path / "p.csv")
        for bundle in (tmp_path / "merged", whole)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_parts_that_do_not_make_a_whole_are_refused(
    tables, bundle, fitted, tmp_path, refused, openfate
):
    later, out = tables / "later.csv", tmp_path / "out"
    assert "--part 5/3: give i/N" in refused("observe", bundle, later, "--part", "5/3")
    assert "it keeps no notes" in refused("merge", bundle, "--out", out)
    openfate("observe", bundle, later, "--part", "1/2")
    assert "has observed part 1/2" in refused("observe", bundle, later, "--part", "2/2")
    assert "part 2/2 is missing" in refused("merge", bundle, "--out", out)
    for name, part in (("again", "1/2"), ("thirds", "2/3")):
        shutil.copytree(fitted, tmp_path / name)
        openfate("observe", tmp_path / name, later, "--part", part)
    assert "both part 1/2" in refused("merge", bundle, tmp_path / "again", "--out", out)
    assert "one of 2 parts" in refused("merge", bundle, tmp_path / "thirds", "--out", out)
    assert not out.exists()
    openfate("observe", bundle, later, "--part", "1/2")  # more rows of the same part
