import json
import subprocess
import sys

import pytest
import torch

from openfate_lab.bench import command as bench
from openfate_lab.bench.cases import CASES

KEYS = {
    *("case", "ours", "peer", "peer_name", "unit", "ratio"),
    *("ours_bytes", "peer_bytes", "parts", "floor_fraction"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("name", ["uci-robot", "ctr-cpu-2k"])
@pytest.mark.parametrize("command", ["train", "infer"])
def test_bench_prints_ours_the_peer_and_their_ratio(command, name, quick, capsys):
    assert bench.main([command, "--cases", name, "--repeats", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{command} 1 of 1: {name}\n"
    result = json.loads(printed.out)
    (row,) = result["rows"]
    same = {"ours_same_mlp", "ratio_same_mlp"} if (command, name[:3]) == ("train", "ctr") else set()
    assert set(row) == KEYS | same
    assert row["ratio"] == pytest.approx(row["peer"] / row["ours"], rel=0.02, abs=0.01)
    assert {"sums", "network"} <= set(row["parts"])
    assert ("optimizer" in row["parts"]) == (command == "train")
    assert set(row["floor_fraction"]) <= set(row["parts"]) and "sums" in row["floor_fraction"]
    assert name in bench.describe(result)
    floor = 100 * row["floor_fraction"]["sums"]
    line = f"{row['parts']['sums']:.1f} sums (floor {floor:.2g} %)"
    assert line.split() in [text.split() for text in bench.describe(result).splitlines()]
    assert {"machine", "commit", "load_average", "versions", "command", "peaks"} <= set(result)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_a_result_is_written_under_a_name_of_its_own(quick, capsys, tmp_path):
    words = ["train", "--cases", "uci-robot", "--repeats", "1", "--json", "--out", str(tmp_path)]
    assert bench.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text()) == printed
    names = [printed["bench"], "cpu", printed["date"], printed["commit"] or "release"]
    assert path.name == "-".join(names) + ".json"
    first = path.read_bytes()
    assert bench.main(words) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{path.stem}-2.json", path.name]
    assert path.read_bytes() == first


def test_a_bench_that_is_interrupted_is_one_line(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "bench_sides", interrupted)
    assert bench.main(["train"]) == 130
    assert capsys.readouterr().err == "openfate: interrupted; nothing was written.\n"


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(capsys):
    assert bench.main(["train", "--out", "nowhere/at-all"]) == 2
    assert "nowhere/at-all: give a .json file, or a folder that is there" in capsys.readouterr().err


def test_a_case_of_another_device_is_refused(capsys):
    assert bench.main(["train", "--cases", "ctr-gpu-1m"]) == 2
    assert "case 'ctr-gpu-1m' is for the device cuda" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert bench.main(["train", "--device", "cuda"]) == 2
        assert "no GPU that torch can use" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("command", ["train", "infer"])
def test_bench_on_a_gpu(command, quick, capsys):
    words = [command, "--device", "cuda", "--cases", "ctr-gpu-100k", "--repeats", "1", "--json"]
    assert bench.main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ours"] > 0 and row["peer"] > 0 and row["parts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--threads", "0"], "threads=0: choose a number from 1 up."),
        (["infer", "--repeats", "-1"], "repeats=-1: choose a number from 1 up."),
        (["scale", "--repeats", "0"], "repeats=0: choose a number from 1 up."),
        (["scale", "--rows", "1"], "rows=1: choose a number from 2 up."),
        (["scale", "--features", "0"], "n_features=0: for 39 fields give 195 or more."),
        (["epoch", "--device", "cpu", "--workers", "0"], "n_workers=0: choose a number from 1 up."),
        (["train", "--device", "cuda:7"], "device 'cuda:7' is not known: choose cpu or cuda."),
        (["scale", "--device", "gpu"], "device 'gpu' is not known: choose cpu or cuda."),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    assert bench.main(words) == 2
    assert capsys.readouterr().err == f"openfate: {message}\n"


def test_an_unknown_case_is_refused_and_the_process_says_so():
    command = [sys.executable, "-m", "openfate_lab.bench", "train", "--cases", "robot"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"openfate: case 'robot' is unknown: choose from {', '.join(CASES)}.\n"


def test_bench_needs_only_torch_and_numpy():
    """A bare GPU machine has neither polars nor typer."""
    code = (
        "import sys\n"
        "for name in ('polars', 'narwhals', 'typer', 'rich', 'matplotlib', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import openfate_lab.bench.command, openfate_lab.bench.epoch\n"
        "from openfate_lab.data import SyntheticStream\n"
        "from openfate import FATE, train\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
