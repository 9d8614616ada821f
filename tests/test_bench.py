import json

import pytest

from openfate import bench


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(bench.CASES, "uci-robot", bench.Case(60, 12, 4.0, 3))


@pytest.mark.parametrize("case", bench.CASES.values(), ids=bench.CASES)
def test_a_case_has_the_shape_that_it_states(case):
    X, y = case.table()
    assert (X.n_rows, X.n_features) == (case.n_rows, case.n_features)
    assert X.nnz / X.n_rows == pytest.approx(case.per_row, rel=0.02)
    assert len(set(y)) == case.n_classes


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
def test_bench_prints_ours_the_peer_and_their_ratio(tiny, capsys):
    pytest.importorskip("torch_geometric", reason="the peer needs the extra `peers`")
    assert bench.main(["train", "--cases", "uci-robot", "--repeats", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    keys = {
        "case",
        "ours",
        "peer",
        "peer_name",
        "unit",
        "ratio",
        "ours_bytes",
        "peer_bytes",
        "parts",
    }
    assert set(row) == keys
    assert row["ratio"] == pytest.approx(row["peer"] / row["ours"], rel=0.02)
    assert set(row["parts"]) == {"drop_edge", "forward", "backward", "optimizer"}


def test_an_unknown_case_is_refused(capsys):
    assert bench.main(["train", "--cases", "robot"]) == 2
    assert "case 'robot' is unknown: choose from uci-robot, uci-github." in capsys.readouterr().err


def test_bench_needs_only_torch_and_numpy():
    """A bare GPU machine has neither polars nor typer."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('polars', 'narwhals', 'typer', 'rich', 'matplotlib', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import openfate.bench, openfate.training.loop, openfate.models.baselines\n"
        "from openfate import FATE, train\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
