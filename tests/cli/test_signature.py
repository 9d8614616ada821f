"""Signatures that are read from source, and the flags of `openfate fit` that come from them."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import pytest

from openfate.cli import read_signature
from openfate.cli.flags import make_flag
from openfate.cli.signature import REQUIRED

PLAN = '''
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_that_is_not_there as torch
from {package}.words import METHODS, Word

if TYPE_CHECKING:
    from {package}.words import Masking

@dataclass(frozen=True)
class Study:
    """A study of methods.

    More of it.

    Parameters
    ----------
    out
        Folder of the results.
    trials : int
        How many ``times``.
    methods, masking
        What is compared,
        and how.

    Examples
    --------
    >>> Study()
    """

    out: Path
    trials: int = 5
    methods: tuple[Word, ...] = METHODS
    masking: Masking | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device = "cpu"
    rows: int = 1 << 22
    known: ClassVar[int] = made()
    search: bool = False
'''

WORDS = """
from typing import Literal

Word = str
Masking = Literal["k_shot", "n_fold"]
METHODS = ("base", "fate")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that cannot be imported: its source can be read."""
    name = f"plans_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {name}.study import Study\n")
    (folder / "study.py").write_text(PLAN.format(package=name))
    (folder / "words.py").write_text(WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    assert name not in sys.modules


def test_a_dataclass_is_read_without_importing_it(package):
    study = read_signature(f"{package}:Study")
    assert (study.name, study.summary) == ("Study", "A study of methods.\n\nMore of it.")
    found = {p.name: (p.type, p.default, p.help) for p in study.parameters}
    assert found.pop("device")[1:] == ("cpu", "")
    assert found == {
        "out": (Path, REQUIRED, "Folder of the results."),
        "trials": (int, 5, "How many `times`."),
        "methods": (tuple[str, ...], ("base", "fate"), "What is compared, and how."),
        "masking": (Literal["k_shot", "n_fold"] | None, None, "See --methods."),
        "set": (Mapping[str, Any], {}, ""),
        "rows": (int, 4_194_304, ""),
        "search": (bool, False, ""),
    }


def test_what_another_package_defines_is_no_flag(package):
    (device,) = (p for p in read_signature(f"{package}:Study").parameters if p.name == "device")
    with pytest.raises(TypeError, match=r"device: .* cannot be a flag"):
        make_flag(device)


def test_what_cannot_be_read_is_named(package, tmp_path):
    with pytest.raises(TypeError, match=r"does not define Studie"):
        read_signature(f"{package}:Studie")
    (tmp_path / package / "words.py").write_text("Word = Masking = str\nMETHODS = tuple(made())\n")
    with pytest.raises(TypeError, match=r"words: tuple\(made\(\)\) cannot be read"):
        read_signature(f"{package}.study:Study")


@pytest.mark.parametrize("name", ["FATEClassifier", "FATERegressor"])
def test_an_estimator_is_read_as_it_is(name):
    import openfate

    estimator = getattr(openfate, name)
    read = {p.name: p for p in read_signature(f"openfate.estimators:{name}").parameters}
    real = inspect.signature(estimator).parameters
    assert {p.name: p.default for p in read.values()} == {p.name: p.default for p in real.values()}
    module = sys.modules[estimator.__module__]
    hints = typing.get_type_hints(estimator.__init__, vars(module))
    for parameter in read.keys() - {"schema", "callback", "random_state"}:  # of other packages
        assert read[parameter].type == hints[parameter]
    assert read["hidden"].type == Sequence[int] | None
    assert all(parameter.help for parameter in read.values())


def test_a_dataclass_of_the_library_is_read_as_it_is():
    from openfate.training import Settings

    read = {p.name: p.default for p in read_signature("openfate.training:Settings").parameters}
    assert read == {field.name: field.default for field in fields(Settings)}


def test_every_parameter_of_the_estimators_is_a_flag_of_fit(openfate):
    from openfate import FATEClassifier, FATERegressor

    text = openfate("fit", "--help")
    known = {**FATEClassifier().get_params(), **FATERegressor().get_params()}
    by_hand = {"schema": "kinds", "random_state": "seed", "callback": "json", "progress": "json",
               "cache": "out"}  # fmt: skip
    for name in known:
        assert f"  --{by_hand.get(name, name).replace('_', '-')}" in text
