"""What `make release-check` compares; it builds and installs, too, which takes minutes."""

import os
import runpy
import shutil
from pathlib import Path

import pytest

from openfate import native

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "release_check.py"


def check_versions(root):
    script = runpy.run_path(str(SCRIPT))
    script["check_versions"].__globals__["ROOT"] = root
    return script["check_versions"]()


def copied(root, **changes):
    """The files that hold versions, one of them changed."""
    for name in ("pyproject.toml", "openfate/__init__.py", "CHANGELOG.md", "CITATION.cff"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text()
        old, new = changes.get(path.stem, ("", ""))
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text)
    return root


def test_versions_agree():
    from openfate import __version__

    assert check_versions(ROOT) == __version__


@pytest.mark.parametrize(
    "changes",
    [
        {"CHANGELOG": ("## 0.1.0", "## 0.2.0")},
        {"CITATION": ("version: 0.1.0", "version: 0.0.9")},
        {"__init__": ('__version__ = "0.1.0"', '__version__ = "0.1.1"')},
    ],
)
def test_versions_that_differ_are_named(tmp_path, changes):
    with pytest.raises(SystemExit, match="versions differ"):
        check_versions(copied(tmp_path, **changes))


def test_installing_compiles_the_library_where_there_is_a_compiler():
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    assert compiler is None or native.LIBRARY is not None, "see what `pip install -e .` tells of it"
