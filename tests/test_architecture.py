"""The page of the architecture is computed, and folders use each other by their faces alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {p.name for p in (ROOT / "openfate").iterdir() if (p / "__init__.py").is_file()}


@pytest.fixture(scope="module")
def architecture():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / ".ci"))
        import architecture

        yield architecture


@pytest.fixture(scope="module")
def walks(architecture):
    return architecture.walks()


def test_the_page_is_up_to_date(architecture, walks):
    page = architecture.PAGE.read_text()
    assert page == architecture.with_computed(page, walks), "run python .ci/architecture.py"


@pytest.mark.parametrize(("call", "most"), [("fit", 5), ("predict_proba", 8), ("observe", 8)])
def test_walks_are_short_and_come_to_no_station_twice(walks, call, most):
    assert len(walks[call]) == len(set(walks[call])) <= most


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", ["openfate", "openfate_lab"])
def test_outside_a_folder_only_its_face_is_imported(package):
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        here = path.relative_to(ROOT).parts[:2]
        for module in imports_of(path):
            parts = module.split(".")
            inner = parts[0] == "openfate" and len(parts) > 2 and parts[1] in FOLDERS
            if inner and here != ("openfate", parts[1]):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_library_never_imports_the_lab():
    names = [m for p in (ROOT / "openfate").rglob("*.py") for m in imports_of(p)]
    assert not [name for name in names if name.split(".")[0] == "openfate_lab"]


def test_folders_of_the_lab_use_each_other_by_their_faces():
    lab, wrong = ROOT / "openfate_lab", []
    folders = {path.name for path in lab.iterdir() if (path / "__init__.py").is_file()}
    for path in lab.rglob("*.py"):
        here = path.relative_to(lab).parts[0]
        for module in imports_of(path):
            package, *inner = module.split(".")
            if package == lab.name and len(inner) > 1 and inner[0] in folders - {here}:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []
