"""Cases that take no time."""

import pytest

from openfate_lab.bench import command as bench
from openfate_lab.bench import scale as bench_scale
from openfate_lab.bench.cases import CASES


@pytest.fixture
def tiny(monkeypatch):
    for name, case in list(CASES.items()):
        monkeypatch.setitem(CASES, name, case.tiny())


@pytest.fixture
def quick(tiny, monkeypatch):
    """Tiny cases, and no processes: those that measure memory do not know of tiny cases."""
    pytest.importorskip("torch_geometric", reason="the peer needs the extra `peers`")
    for module in (bench, bench_scale):
        monkeypatch.setattr(module, "peak_bytes", lambda case, name, side: 1000)
    monkeypatch.setattr(bench.Peaks, "measure", lambda device: bench.Peaks(1e10, 1e11))
