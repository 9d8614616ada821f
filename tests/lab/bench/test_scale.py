import json

import pytest

from openfate_lab.bench import command as bench
from openfate_lab.bench import scale as bench_scale


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
def test_sizes_that_are_no_integers_are_refused(text, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(["scale", "--rows", text])
    assert stop.value.code == 2
    assert "give integers from 1" in capsys.readouterr().err


def test_the_text_of_a_scan_has_a_line_for_each_size():
    row = {"against": "rows", "n_rows": 200, "n_fields": 39, "bench": "train", "bytes": 10**6}
    rows = [{**row, "side": "ours", "ms": 1.5}, {**row, "side": "peer", "ms": 2.5, "bytes": None}]
    text = bench_scale.describe_scale({"rows": rows, "machine": "a machine", "load_average": 0.5})
    assert text.splitlines()[1].split() == "200 39 train 1.5 ms 2.5 ms 1 MB / ?".split()
