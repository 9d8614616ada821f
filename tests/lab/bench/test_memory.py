import subprocess
from pathlib import Path

import pytest
import torch

from openfate.errors import OpenFATEError
from openfate_lab.bench import command as bench
from openfate_lab.bench import memory as bench_memory
from openfate_lab.bench.cases import CASES, ClickCase


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ["uci-robot", "ctr-cpu-2k"])
def test_the_peak_memory_of_a_side_is_printed_in_bytes(name, tiny, capsys):
    assert bench.main(["memory", name, "train", "ours"]) == 0
    assert 0 <= int(capsys.readouterr().out) < 1e9


@pytest.mark.parametrize(("after", "n_bytes"), [(5003, 3072), (4996, 0)])
def test_a_peak_that_linux_wrote_down_late_is_not_below_zero(
    after, n_bytes, tiny, monkeypatch, capsys
):
    readings = iter([5000, after])
    monkeypatch.setattr(bench_memory, "_most_kilobytes", lambda status: next(readings))
    monkeypatch.setattr(Path, "write_text", lambda path, text: None)
    assert bench.main(["memory", "uci-robot", "train", "ours"]) == 0
    assert int(capsys.readouterr().out) == n_bytes


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_measured_in_a_process_that_is_told_the_whole_case():
    case = ClickCase(50_000, 3, 400_000, n_kept=2, hidden=(4, 4))
    n_bytes = bench_memory.peak_bytes(case, "infer", "ours")
    # W alone has 16 MB, the ids of a batch 0.6; the rest of the library is not counted.
    assert n_bytes is not None and 8e6 < n_bytes < 3e8


@pytest.mark.parametrize(("code", "text"), [(1, "a\nMemoryError"), (-9, "")])
def test_a_process_that_fails_is_no_unknown_peak(code, text, monkeypatch):
    done = subprocess.CompletedProcess([], code, stdout="", stderr=text)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(OpenFATEError) as error:
        bench_memory.peak_bytes(CASES["uci-robot"], "train", "ours")
    why = "MemoryError" if text else "exit code -9"
    assert str(error.value) == f"memory of ours could not be measured: {why}"
    done.returncode = bench_memory.UNKNOWN
    assert bench_memory.peak_bytes(CASES["uci-robot"], "train", "ours") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_memory_on_a_gpu_is_that_of_one_side_alone():
    """In this process, and not that of what else is there: W alone has 16 MB."""
    case = ClickCase(50_000, 3, 400_000, n_kept=2, hidden=(4, 4), device="cuda")
    found = [bench_memory.peak_bytes(case, "infer", side) for side in ("ours", "peer", "ours")]
    much = torch.zeros(2**28, device="cuda")
    assert bench_memory.peak_bytes(case, "infer", "ours") == found[0] == found[2]
    assert 16e6 < found[0] < found[1] < much.nbytes
