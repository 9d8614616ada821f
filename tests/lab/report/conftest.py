from pathlib import Path

import pytest

from openfate_lab.report import build, render_page


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def whole():
    """The report over the results of this repository, and its page."""
    built = build([Path(__file__).parents[3] / "results"])
    return built, render_page(built)
