import openfate


def test_public_names_are_pinned_and_load():
    names = ["FATE", "FATEClassifier", "FATERegressor", "FeatureBank", "Field"]
    names += ["OpenWorldClassifier", "OpenWorldRegressor", "Schema", "__version__"]
    names += ["load", "save", "train"]
    assert openfate.__all__ == names
    assert set(dir(openfate)) == set(openfate.__all__)
    for name in names:
        assert getattr(openfate, name) is not None


def test_versions_agree():
    from importlib.metadata import version
    from pathlib import Path

    root = Path(__file__).parents[1]
    assert version("openfate") == openfate.__version__
    assert f"version: {openfate.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"## {openfate.__version__} " in (root / "CHANGELOG.md").read_text()
