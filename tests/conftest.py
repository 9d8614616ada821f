"""Settings of all tests; its place makes `reference.py` importable (pytest's `prepend` mode)."""

from __future__ import annotations

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
