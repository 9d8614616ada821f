import json

import numpy as np
import pytest

from openfate_lab.bench import command as bench
from openfate_lab.bench.epoch import Drawers, Stored
from openfate_lab.data import SyntheticStream


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric")
@pytest.mark.parametrize("rows", ["drawn", "on disk"])
def test_an_epoch_learns_from_rows_that_processes_draw(capsys, rows):
    pytest.importorskip("torch_geometric", reason="the peer needs the extra `peers`")
    words = ["epoch", "--rows", "5000", "--batch-rows", "1000", "--features", "2000"]
    words += ["--on-disk"] if rows == "on disk" else []
    assert bench.main([*words, "--workers", "2", "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert [line.split(",")[0] for line in printed.err.splitlines()] == [
        f"epoch: mini-batch {number} of 5" for number in range(1, 6)
    ]
    (row,) = json.loads(printed.out)["rows"]
    assert row["n_rows"] == 5000 and row["rows"] == rows and row["rows_per_second"] > 0
    assert row["mini_batches_rows_per_second"] > 0 and row["peer_rows_per_second"] > 0
    assert row["drawing"]["rows_per_second"] > 0 and row["drawing_share"] > 0
    assert 0.2 < row["validation"]["base_rate"] < 0.3
    assert 0 < row["validation"]["auc"] < row["validation"]["auc_of_the_true_logits"]


def test_drawn_and_stored_batches_are_the_stream_s_own(tmp_path):
    log = {"n_rows": 80_000, "n_features": 2000, "n_days": 2}
    stream = SyntheticStream(**log)
    drawers = Drawers(log, n_workers=1)
    assert sum(len(y) for _, y in drawers.batches(50, 20)) == 50
    ours = list(drawers.batches(40_000, 15_000))  # by the same process
    stored = Stored(tmp_path, drawers.batches(40_000, 30_000)).batches(40_000, 15_000)
    twice = [*stream.batches("train", 15_000)] * 2
    for (ids, y), (want_ids, want_y) in zip([*ours, *stored], twice, strict=True):
        assert np.array_equal(ids, want_ids) and np.array_equal(y, want_y)


@pytest.mark.parametrize(
    ("flag", "message"),
    [("--rows", "n_rows=1: choose a number from 2"), ("--batch-rows", "batch_rows=1: choose")],
)
def test_an_epoch_of_nothing_is_refused(flag, message, capsys):
    assert bench.main(["epoch", "--device", "cpu", flag, "1"]) == 2
    assert message in capsys.readouterr().err
