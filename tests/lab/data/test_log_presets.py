"""Criteo's raw format as a preset of the one path: the features of the paper, and a bundle."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from openfate.table import PRESETS, Encoder, Schema, open_log, values_of
from openfate.table.fields import LogBuckets
from openfate_lab.data import write_raw_criteo


@pytest.fixture
def raw(tmp_path):
    write_raw_criteo(tmp_path / "train.txt", 600, n_features=2000)
    return tmp_path / "train.txt"


def test_the_preset_tells_apart_what_the_paper_tells_apart(raw):
    """A feature for each value of each field: the slow way is the texts of the click path."""
    rows = PRESETS["criteo"].open(raw).read()
    encoder = Encoder(Schema(PRESETS["criteo"].fields)).fit(rows)
    log = open_log(raw, "criteo")
    texts = log.read()
    for index, name in enumerate(log.fields):
        own = Encoder(Schema([encoder.schema[name]])).fit(rows).encode(rows)
        values = values_of(texts[name], log.meaning.get(name, "text")).fill_null("missing")
        pairs = set(zip(own.ids.tolist(), values.to_list(), strict=True))
        assert len(pairs) == values.n_unique() == own.n_features
        assert (encoder.field_of == index).sum() == own.n_features


def test_log_intervals_hold_their_numbers():
    numbers = np.array([-70.0, -2.0, 0.0, 1.0, 2.0, 2.5, 3.0, 100.0, 1e300, np.inf])
    found = LogBuckets().place(numbers)
    for number, bucket in zip(numbers[1:-1], found[1:-1], strict=True):
        low, high = LogBuckets().decode(int(bucket))
        assert low <= number < high or number == 2
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() < LogBuckets.n_buckets


def test_a_raw_log_becomes_a_bundle_that_predicts_raw_rows(raw, tmp_path, openfate):
    words = ["--format", "criteo", "--target", "label", "--strategy", "fate", "--width", 4]
    fit = openfate("fit", raw, *words, "--epochs", 2, "--out", tmp_path / "m", "--json")
    assert (fit["rows"], len(fit["fields"])) == (600, 39)
    openfate("predict", tmp_path / "m", raw, "--out", tmp_path / "p.csv")
    assert len(pl.read_csv(tmp_path / "p.csv")) == 600
    assert openfate("evaluate", tmp_path / "m", raw, "--json")["rows"] == 600
