"""Tables of some hundred rows, and a bundle fitted on one."""

from __future__ import annotations

import pytest

from cli.tables import QUICK, people, run


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    people(300, 0).write_csv(folder / "train.csv")
    people(120, 1, later=True).write_csv(folder / "later.csv")
    return folder


@pytest.fixture(scope="session")
def fitted(tables):
    run("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", *QUICK, "--out",
        tables / "model")  # fmt: skip
    return tables / "model"


@pytest.fixture(scope="session")
def with_evidence(tables):
    # Not QUICK: a model that predicts all rows alike has no evidence to give.
    run("fit", tables / "train.csv", "--target", "rich", "--exclude", "id", "--strategy",
        "evidence", "--epochs", 30, "--out", tables / "evidence")  # fmt: skip
    return tables / "evidence"


@pytest.fixture
def bundle(fitted, tmp_path):
    """A bundle that a test may change."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in fitted.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy
