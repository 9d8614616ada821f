import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import assert_near

from openfate import bench
from openfate.bench_cases import CASES, ClickCase, UciCase
from openfate.graph.bipartite import Bipartite, Edges
from openfate.models import FATE, MLP, GraphSAGE

KEYS = {
    *("case", "ours", "peer", "peer_name", "unit", "ratio"),
    *("ours_bytes", "peer_bytes", "parts"),
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
    for name, n_rows in [("ctr-cpu-2k", 2_000), ("ctr-cpu-10k", 10_000)]:
        case = CASES[name]
        assert (case.n_rows, case.n_fields, case.n_features) == (n_rows, 39, 2_650_000)
        assert (case.n_draws, case.n_kept, case.hidden) == (5, 24, (400, 400))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("name", ["uci-robot", "ctr-cpu-2k"])
def test_bench_prints_ours_the_peer_and_their_ratio(name, tiny, capsys, monkeypatch):
    pytest.importorskip("torch_geometric", reason="the peer needs the extra `peers`")
    # Memory is measured in processes of their own, which do not know of tiny cases.
    monkeypatch.setattr(bench, "_peak_bytes", lambda case, side: None)
    assert bench.main(["train", "--cases", name, "--repeats", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    clicks = {"ours_same_mlp", "ratio_same_mlp"} if name != "uci-robot" else set()
    assert set(row) == KEYS | clicks
    assert row["ratio"] == pytest.approx(row["peer"] / row["ours"], rel=0.02)
    assert {"drop_edge", "optimizer"} <= set(row["parts"])
    assert name in bench.describe({"rows": [row], "threads": 1})


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ["uci-robot", "ctr-cpu-2k"])
def test_the_peak_memory_of_a_side_is_printed_in_bytes(name, tiny, capsys):
    assert bench.main(["memory", name, "ours"]) == 0
    assert int(capsys.readouterr().out) >= 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_the_twin_computes_the_same_logits_as_ours():
    """With the same weights and no edge dropped: a fair peer does the same work."""
    twins = pytest.importorskip("openfate.pyg_twin", reason="the peer needs the extra `peers`")
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
        "import openfate.bench, openfate.training.loop, openfate.training.stream\n"
        "import openfate.models.baselines\n"
        "from openfate import FATE, train\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
