import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import assert_near

from openfate.errors import OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE, MLP, GraphSAGE
from openfate_lab.bench import command as bench
from openfate_lab.bench import memory as bench_memory
from openfate_lab.bench import record as bench_record
from openfate_lab.bench import scale as bench_scale
from openfate_lab.bench.cases import CASES, ClickCase, UciCase
from openfate_lab.bench.epoch import Drawers
from openfate_lab.bench.floor import Floor, Peaks, clicks_floor
from openfate_lab.bench.parts import part_of
from openfate_lab.data.synthetic import SyntheticStream

KEYS = {
    *("case", "ours", "peer", "peer_name", "unit", "ratio"),
    *("ours_bytes", "peer_bytes", "parts", "floor_fraction"),
}


@pytest.fixture
def tiny(monkeypatch):
    for name, case in list(CASES.items()):
        monkeypatch.setitem(CASES, name, case.tiny())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if type(case) is UciCase])
def test_a_case_has_the_shape_that_it_states(name):
    case = CASES[name]
    X, y = case.table()
    assert (X.n_rows, X.n_features) == (case.n_rows, case.n_features)
    assert X.nnz / X.n_rows == pytest.approx(case.per_row, rel=0.02)
    assert len(set(y)) == case.n_classes


@pytest.mark.parametrize("case", [ClickCase(50, n_features=100_000), ClickCase(8, 3, 40, 2)])
def test_a_click_case_has_one_id_of_each_field_in_a_row(case):
    field_of, (ids, y) = case.field_of(), next(case.batches())
    assert len(field_of) == case.n_features and (np.diff(field_of) >= 0).all()
    assert ids.shape == (case.n_rows, case.n_fields) and ids.dtype == np.int32
    assert (field_of[ids] == np.arange(case.n_fields)).all()
    assert set(y) <= {0, 1}


def test_click_cases_have_the_paper_s_shape():
    sizes = {"cpu-2k": 2_000, "cpu-10k": 10_000, "gpu-100k": 100_000, "gpu-1m": 1_000_000}
    for name, n_rows in [(f"ctr-{size}", n_rows) for size, n_rows in sizes.items()]:
        case = CASES[name]
        assert (case.n_rows, case.n_fields, case.n_features) == (n_rows, 39, 2_650_000)
        assert (case.n_draws, case.n_kept, case.hidden) == (5, 24, (400, 400))


@pytest.fixture
def quick(tiny, monkeypatch):
    """Tiny cases, and no processes: those that measure memory do not know of tiny cases."""
    pytest.importorskip("torch_geometric", reason="the peer needs the extra `peers`")
    for module in (bench, bench_scale):
        monkeypatch.setattr(module, "peak_bytes", lambda case, name, side: 1000)
    monkeypatch.setattr(bench.Peaks, "measure", lambda device: bench.Peaks(1e10, 1e11))


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
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "bench_sides", interrupted)
    assert bench.main(["train"]) == 130
    assert capsys.readouterr().err == "openfate: interrupted; nothing was written.\n"


def test_the_text_of_a_scan_has_a_line_for_each_size():
    row = {"against": "rows", "n_rows": 200, "n_fields": 39, "bench": "train", "bytes": 10**6}
    rows = [{**row, "side": "ours", "ms": 1.5}, {**row, "side": "peer", "ms": 2.5, "bytes": None}]
    text = bench_scale.describe_scale({"rows": rows, "machine": "a machine", "load_average": 0.5})
    assert text.splitlines()[1].split() == "200 39 train 1.5 ms 2.5 ms 1 MB / ?".split()


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(capsys):
    assert bench.main(["train", "--out", "nowhere/at-all"]) == 2
    assert (
        "--out nowhere/at-all: give a .json file, or a folder that is there."
        in capsys.readouterr().err
    )


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
    monkeypatch.setattr(bench_memory, "_kilobytes", lambda status, key: next(readings))
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


def test_every_kernel_of_ours_is_in_the_part_of_its_file():
    files = {
        "models/_triton_mlp_forward.py": {"network"},
        "models/_triton_mlp_backward.py": {"network"},
        "models/_triton_sage_kernels.py": {"sums"},
        "graph/_triton_kernels.py": {"sort", "sums"},
        "training/_triton_adam.py": {"optimizer"},
    }
    helpers = {"drop", "centred", "pair", "tf32", "mix_bits", "keys", "random_bits", "chunks_of"}
    for file, parts in files.items():
        text = (Path(bench.__file__).parent / file).read_text()
        found = set(re.findall(r"^@jit\ndef (\w+)", text, re.MULTILINE)) - helpers
        kernels = {name for name in found if name.endswith("_kernel") or not name.startswith("_")}
        assert kernels and {part_of(name).split(",")[0] for name in kernels} == parts, file


def test_a_case_of_another_device_is_refused(capsys):
    assert bench.main(["train", "--cases", "ctr-gpu-1m"]) == 2
    assert "case 'ctr-gpu-1m' is for the device cuda" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert bench.main(["train", "--device", "cuda"]) == 2
        assert "no GPU that torch can use" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_memory_on_a_gpu_is_that_of_one_side_alone():
    """In this process, and not that of what else is there: W alone has 16 MB."""
    case = ClickCase(50_000, 3, 400_000, n_kept=2, hidden=(4, 4), device="cuda")
    found = [bench_memory.peak_bytes(case, "infer", side) for side in ("ours", "peer", "ours")]
    much = torch.zeros(2**28, device="cuda")
    assert bench_memory.peak_bytes(case, "infer", "ours") == found[0] == found[2]
    assert 16e6 < found[0] < found[1] < much.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("command", ["train", "infer"])
def test_bench_on_a_gpu(command, quick, capsys):
    words = [command, "--device", "cuda", "--cases", "ctr-gpu-100k", "--repeats", "1", "--json"]
    assert bench.main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ours"] > 0 and row["peer"] > 0 and row["parts"]


# ---- floors --------------------------------------------------------------------------------


def test_the_floor_of_clicks_is_that_of_the_paper_notes():
    """98.6 GFLOP of the network for a step, there and back, at B = 1e5; 36 U H bytes of Adam."""
    floors = clicks_floor(100_000, 39, 200_000, (400, 400), n_steps=1)
    assert floors["network"].flops == pytest.approx(98.6e9, rel=0.01)
    assert floors["optimizer"].n_bytes == 36 * 200_000 * 10
    assert floors["network"].milliseconds(Peaks(1e12, 98.6e12)) == pytest.approx(1.0, rel=0.01)


def test_a_floor_is_the_longer_of_moving_and_multiplying():
    assert Floor(n_bytes=2e9, flops=1e9).milliseconds(Peaks(1e9, 1e9)) == 2000
    assert Floor(n_bytes=1e9, flops=3e9).milliseconds(Peaks(1e9, 1e9)) == 3000


def test_peaks_of_this_machine_are_positive():
    peaks = Peaks.measure(n_numbers=2**16)
    assert peaks.bytes_per_second > 0 and peaks.flops > 0


# ---- scale and epoch -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_scale_measures_every_size_on_both_sides(quick, capsys):
    words = [
        "scale",
        "--rows",
        "10,2e1",
        "--fields",
        "2,3",
        "--features",
        "60",
        "--repeats",
        "1",
        "--json",
    ]
    assert bench.main(words) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[1] == "scale 2 of 4: 20 rows, 39 fields"
    rows = json.loads(printed.out)["rows"]
    assert len(rows) == 4 * 2 * 2
    shapes = {(row["against"], row["n_rows"], row["n_fields"]) for row in rows}
    assert shapes == {("rows", 10, 39), ("rows", 20, 39), ("fields", 10, 2), ("fields", 10, 3)}
    assert all(row["ms"] > 0 and row["bytes"] == 1000 for row in rows)


@pytest.mark.parametrize("text", ["1e5,x", "0", "2.5", "inf", ""])
def test_sizes_that_are_no_whole_numbers_are_refused(text, capsys):
    assert bench.main(["scale", "--rows", text]) == 2
    assert "give whole numbers from 1" in capsys.readouterr().err


def test_an_epoch_learns_from_rows_that_processes_draw(capsys):
    words = ["epoch", "--rows", "5000", "--batch-rows", "1000", "--features", "2000"]
    assert bench.main([*words, "--workers", "2", "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert [line.split(",")[0] for line in printed.err.splitlines()] == [
        f"epoch: mini-batch {number} of 5" for number in range(1, 6)
    ]
    (row,) = json.loads(printed.out)["rows"]
    assert row["n_rows"] == 5000 and row["rows_per_second"] > 0
    assert row["drawing"]["rows_per_second"] > 0 and row["drawing_share"] > 0
    assert 0.2 < row["validation"]["base_rate"] < 0.3
    assert 0 < row["validation"]["auc"] < row["validation"]["auc_of_the_true_logits"]


def test_drawn_batches_are_the_stream_s_own():
    log = {"n_rows": 80_000, "n_features": 2000, "n_days": 2}
    stream = SyntheticStream(**log)
    with Drawers(log, len(stream.fields), n_workers=1) as drawers:
        ours = list(drawers.batches(40_000, 15_000))
    for (ids, y), (want_ids, want_y) in zip(ours, stream.batches("train", 15_000), strict=True):
        assert np.array_equal(ids, want_ids) and np.array_equal(y, want_y)


def test_rows_drawn_with_torch_are_of_the_same_kind():
    """As they are on a GPU."""
    case = ClickCase(2000, 5, 3000, 3)
    (ours, _), (drawn, y) = next(case.batches()), case._draw(torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.int32 and drawn.shape == ours.shape and y.dtype == torch.float32
    assert (case.field_of()[drawn] == np.arange(5)).all()
    assert 0.4 < float(y.mean()) < 0.6 and set(y.tolist()) == {0.0, 1.0}
    for one, other in zip(ours.T, drawn.T, strict=True):  # how often each field's values come
        share = [np.mean(np.asarray(ids) < np.median(ours)) for ids in (one, other)]
        assert share[0] == pytest.approx(share[1], abs=0.05)
        assert len(np.unique(one)) == pytest.approx(len(np.unique(other)), rel=0.2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--threads", "0"], "--threads 0: give 1 or more."),
        (["infer", "--repeats", "-1"], "--repeats -1: give 1 or more."),
        (["scale", "--repeats", "0"], "--repeats 0: give 1 or more."),
        (["scale", "--rows", "1"], "--rows 1: give 2 or more."),
        (["scale", "--features", "0"], "--features 0: for 39 fields give 195 or more."),
        (["epoch", "--device", "cpu", "--workers", "0"], "--workers 0: give 1 or more."),
        (["train", "--device", "cuda:7"], "--device cuda:7: not known here; choose cpu or cuda."),
        (["scale", "--device", "gpu"], "--device gpu: not known here; choose cpu or cuda."),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    assert bench.main(words) == 2
    assert capsys.readouterr().err == f"openfate: {message}\n"


def test_the_command_is_kept_without_the_machine_s_folders(monkeypatch):
    words = ["/opt/x/openfate/bench.py", "train", "--out", "/home/me/a b.json", "--json"]
    monkeypatch.setattr("sys.argv", words)
    assert (
        bench_record.typed_command() == "python -m openfate_lab.bench train --out 'a b.json' --json"
    )
    monkeypatch.setattr("sys.argv", ["/opt/bin/openfate", "bench", "train"])
    assert bench_record.typed_command() == "openfate bench train"
    monkeypatch.setattr("sys.argv", ["benchmarks/gpu_engine.py", "OUT.json"])
    assert bench_record.typed_command() == "python benchmarks/gpu_engine.py OUT.json"


def test_a_copy_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("OPENFATE_COMMIT", "abc123")
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: None)
    assert bench_record.about("cpu")["commit"] == "abc123"
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: "of git")
    assert bench_record.about("cpu")["commit"] == "of git"
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: None)
    monkeypatch.delenv("OPENFATE_COMMIT")
    assert bench_record.about("cpu")["commit"] is None


@pytest.mark.parametrize(
    ("flag", "message"), [("--rows", "--rows 1: give 2"), ("--batch-rows", "--batch-rows 1: give")]
)
def test_an_epoch_of_nothing_is_refused(flag, message, capsys):
    assert bench.main(["epoch", "--device", "cpu", flag, "1"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_the_twin_computes_the_same_logits_as_ours():
    """With the same weights and no edge dropped: a fair peer does the same work."""
    twins = pytest.importorskip(
        "openfate_lab.bench.pyg_twin", reason="the peer needs the extra `peers`"
    )
    case = ClickCase(8, 3, 40, n_kept=2, hidden=(4, 4))
    ids, _ = next(case.batches())
    twin = twins.CtrTwin(torch.from_numpy(case.field_of()), hidden=(4, 4), drop_edge=0.0)
    ours = FATE(40, MLP(10, 1, (4, 4), batch_norm=True), GraphSAGE(10), recompose="all").eval()
    ours.W.data.copy_(twin.W.data)
    for layer, place in zip(ours.backbone.layers, (0, 4, 8), strict=True):
        layer.load_state_dict(twin.net[place].state_dict())
    for layer, conv in enumerate(twin.gnn):
        ours.extrapolator.neighbour[layer].load_state_dict(conv.lin_l.state_dict())
        ours.extrapolator.root[layer].load_state_dict(conv.lin_r.state_dict())
    twin.net.eval()
    kept = torch.tensor([1.0, 0.0, 1.0])
    X, touched = Bipartite.from_fixed(torch.from_numpy(ids))
    logits = ours(X, kept.bool()[X.field_of], Edges.of(X), ours.W[touched.long()])[:, 0]
    assert_near(logits, twin._logits(torch.from_numpy(ids).long(), kept), 1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_the_twin_predicts_later_rows_as_ours_does():
    twins = pytest.importorskip(
        "openfate_lab.bench.pyg_twin", reason="the peer needs the extra `peers`"
    )
    case = UciCase(30, 12, 3.0, 2)
    (X, y), later = case.table(), case.later_rows()
    entries = [torch.from_numpy(part.astype(np.int64)) for part in (X.row_of, X.ids)]
    twin = twins.UciTwin(*entries, (30, 12), torch.from_numpy(y), 2)
    ours = case.model().eval()
    ours.W.data.copy_(twin.W.data)
    for layer, place in zip(ours.backbone.layers, (0, 2, 4), strict=True):
        layer.load_state_dict(twin.net[place].state_dict())
    for P, conv in zip(ours.extrapolator.P, twin.gnn, strict=True):
        P.data.copy_(conv.lin.weight.data.T)
    graph = Bipartite.from_multihot(later)
    entries = [torch.from_numpy(part.astype(np.int64)) for part in (later.row_of, later.ids)]
    theirs = twin.predict(*entries, (later.n_rows, later.n_features))
    assert_near(ours.predict(graph, ours.extrapolate(graph)), theirs, 1e-5)


def test_half_of_the_features_of_later_rows_are_new():
    case = CASES["uci-robot"]
    X = case.later_rows()
    assert (X.n_rows, X.n_features) == (case.n_rows // 3, 2 * case.n_features)
    assert (X.ids >= case.n_features).mean() == pytest.approx(0.5, abs=0.1)


def test_an_unknown_case_is_refused(capsys):
    assert bench.main(["train", "--cases", "robot"]) == 2
    assert f"case 'robot' is unknown: choose from {', '.join(CASES)}." in capsys.readouterr().err


def test_bench_needs_only_torch_and_numpy():
    """A bare GPU machine has neither polars nor typer."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('polars', 'narwhals', 'typer', 'rich', 'matplotlib', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import openfate_lab.bench.command, openfate.training.loop, openfate.training.prediction\n"
        "import openfate.models.baselines\n"
        "from openfate import FATE, train\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
