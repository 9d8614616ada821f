"""Settings of all tests; its place makes `reference.py` importable (pytest's `prepend` mode)."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import settings

# A shared machine may stall for longer than hypothesis' 200 ms; time is not what is tested.
settings.register_profile("openfate", deadline=None)
settings.load_profile("openfate")

# Tensors here are tiny: a second thread only makes the first one wait for it.
torch.set_num_threads(1)

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Every device that there is."""
    return str(request.param)


@pytest.fixture
def openfate(capsys):
    """Run a command that must succeed; what it prints is returned, JSON as values."""
    from cli.tables import run  # WHY: kernels are tested where only torch and numpy are installed

    def call(*arguments):
        capsys.readouterr()
        code = run(*arguments)
        out, errors = capsys.readouterr()
        assert code == 0, errors
        return json.loads(out) if "--json" in arguments else out

    return call


@pytest.fixture
def refused(capsys):
    """Run a command that must fail; its only line is returned."""
    from cli.tables import run

    def call(*arguments):
        capsys.readouterr()
        assert run(*arguments) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert errors.startswith("openfate: ")
        assert errors.count("\n") == 1, errors
        return errors

    return call
