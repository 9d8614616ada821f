"""Bundles of the format of version 0.1.0: they are read, and predict what they predicted.

`python tests/golden/test_bundles.py` made them.  It is not run again: bundles of a new format go
beside these, or the old ones are no longer tested.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from golden_tables import figures, known, people
from sklearn.linear_model import LogisticRegression

from openfate import FATEClassifier, FeatureBank, OpenWorldClassifier, load, save

FOLDER = Path(__file__).with_name("bundles")
SMALL: dict[str, Any] = {"width": 4, "hidden": (4,), "epochs": 15, "lr": 0.02, "n_draws": 1}
PREPARED = {"fate": known, "auto": known, "logistic": figures}
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def rows() -> pl.DataFrame:
    return pl.read_csv(
        FOLDER / "rows.csv", try_parse_dates=True, schema_overrides={"zip": pl.String}
    )


def predictions(path: Path, name: str) -> dict[str, Any]:
    """Of all rows in every way, and after half of them were observed."""
    frame, model = PREPARED[name](rows()), load(path)
    found = {graph: model.predict_proba(frame, graph=graph) for graph in ("auto", "state", "batch")}
    found["bank"] = FeatureBank.load(path).predict(frame)
    model.observe(frame[:15])
    found["observed"] = model.predict_proba(frame)
    model.observe(frame[15:], rows()["rich"][15:])
    found["labels"] = model.predict_proba(frame)
    return {key: np.round(P, 9).tolist() for key, P in found.items()}


def needs_skops(name: str) -> None:
    if name == "logistic":
        pytest.importorskip("skops")


def closeness(name: str, key: str) -> dict[str, float]:
    """As it was, but for late labels: those of format 1 are dropped, and new ones count otherwise.

    What they had taught these bundles is below .01.
    """
    if key == "labels":
        return {"rtol": 0, "atol": 1}
    return CLOSE if name == "fate" else {"rtol": 0, "atol": 0.01}


pytestmark = pytest.mark.filterwarnings("ignore:the bundle is of an earlier format")


@pytest.mark.parametrize("name", PREPARED)
def test_a_bundle_predicts_what_it_did(name):
    needs_skops(name)
    was = json.loads((FOLDER / "predictions.json").read_text())[name]
    now = predictions(FOLDER / name, name)
    assert list(now) == list(was)
    for key, expected in was.items():
        np.testing.assert_allclose(now[key], expected, **closeness(name, key), err_msg=key)


@pytest.mark.parametrize("name", PREPARED)
def test_a_bundle_that_is_written_again_predicts_the_same(name, tmp_path):
    needs_skops(name)
    save(load(FOLDER / name), tmp_path / "again")
    was = json.loads((FOLDER / "predictions.json").read_text())[name]
    for key, now in predictions(tmp_path / "again", name).items():
        np.testing.assert_allclose(now, was[key], **closeness(name, key), err_msg=key)


def make() -> None:
    train, later = people(120, 0), people(60, 1, later=True)
    people(30, 2, later=True).write_csv(FOLDER / "rows.csv")
    fate = FATEClassifier(strategy="fate", **SMALL).fit(known(train), train["rich"])
    save(fate, FOLDER / "fate")
    auto = FATEClassifier(**SMALL).fit(known(train), train["rich"])
    auto.observe(known(later)[:30]).observe(known(later)[30:], later["rich"][30:])
    save(auto, FOLDER / "auto")
    logistic = OpenWorldClassifier(LogisticRegression(), n_draws=1)
    logistic.fit(figures(train), train["rich"]).observe(figures(later), later["rich"])
    save(logistic, FOLDER / "logistic")
    found = {name: predictions(FOLDER / name, name) for name in PREPARED}
    (FOLDER / "predictions.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there: bundles of an old format are not made again.")
    FOLDER.mkdir()
    make()
