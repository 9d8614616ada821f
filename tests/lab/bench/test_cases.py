import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from openfate_lab.bench import command as bench
from openfate_lab.bench import memory as bench_memory
from openfate_lab.bench.cases import CASES, ClickCase, UciCase
from openfate_lab.bench.floor import Floor


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


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ctr-gpu-100k-")])
def test_cases_beside_the_papers_have_plain_torch_beside_them(name):
    case = replace(CASES[name].tiny(), device="cpu")
    assert CASES[name].device == "cuda" and not case.is_papers
    assert case.model().backbone.name == case.backbone
    for engine in (None, "plain"):
        assert len(case.ours("train", engine=engine)(2)) == 2
    assert len(case.ours("infer")(2)) == 2


def test_half_of_the_features_of_later_rows_are_new():
    case = CASES["uci-robot"]
    X = case.later_rows()
    assert (X.n_rows, X.n_features) == (case.n_rows // 3, 2 * case.n_features)
    assert (X.ids >= case.n_features).mean() == pytest.approx(0.5, abs=0.1)


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


@dataclass(frozen=True)
class Sleep:
    """The least that a case has to have: a class, an entry of `CASES`, and this test."""

    milliseconds: float
    device = "cpu"

    def unit(self, bench):
        return "ms/nap"

    def tiny(self):
        return Sleep(1.0)

    def ours(self, bench="train"):
        return lambda n_times: [self.milliseconds / 1e3] * n_times

    def peer(self, bench="train"):
        return lambda n_times: [2 * self.milliseconds / 1e3] * n_times

    def sides(self, bench="train"):
        return {"ours": (self.ours(bench), 3), "peer": (self.peer(bench), 1)}

    def parts(self, bench="train"):
        return {"nap": self.milliseconds}

    def floors(self, bench="train"):
        return {"nap": Floor(n_bytes=1e7)}


def test_a_new_kind_of_case_is_a_class_and_an_entry(quick, monkeypatch, capsys):
    monkeypatch.setitem(CASES, "sleep", Sleep(4.0))
    assert bench.main(["train", "--cases", "sleep", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["ours"], row["peer"], row["ratio"], row["unit"]) == (4.0, 8.0, 2.0, "ms/nap")
    assert row["floor_fraction"] == {"nap": 0.25}  # 1e7 bytes at 1e10 a second
    text = json.dumps({"kind": "Sleep", "milliseconds": 1.0})
    assert bench_memory._case_of(text) == Sleep(1.0)  # as the process that measures memory is told
