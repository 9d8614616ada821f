import pytest
from result_folders import summary_row, trial, write, write_run

from openfate_lab.report import build
from openfate_lab.report.claims import HOLDS, NOT, PARTLY, UNTESTED, verdicts
from openfate_lab.report.paper import CTR, CTR_CLAIMS, K_SWEEP
from openfate_lab.report.results import find_results


def by_claim(results):
    return {verdict.claim: verdict for verdict in verdicts(find_results([results]))}


@pytest.mark.parametrize(
    ("lead", "verdict"), [(0.08, HOLDS), (0.01, PARTLY), (0.0, NOT), (-0.1, NOT), (0.0725, HOLDS)]
)
def test_a_claim_is_judged_by_size_and_significance(results, lead, verdict):
    write_run(results / "uci" / "default", lead)
    found = by_claim(results)["FATE: 7.3 % higher accuracy than Base"]
    assert found.verdict == verdict
    assert found.points.mean == pytest.approx(lead)
    assert found.points.n == 4


def test_points_and_ratio_are_both_computed_and_the_kinder_decides(results):
    write_run(results / "uci" / "default", 0.155)  # 31 % of .5, 29.2 % of .53
    found = by_claim(results)["FATE: 29.8 % higher accuracy than Average, KNN and Pooling"]
    assert found.verdict == HOLDS
    assert "only as a ratio" in found.detail
    wanted = sum(0.155 / (0.5 + 0.01 * seed) for seed in range(4)) / 4
    assert found.ratio.mean == pytest.approx(wanted, abs=1e-4)


def test_accuracy_and_auc_are_claims_apart(results):
    write_run(results / "uci" / "default", 0.02, metric="auc", dataset="github")
    found = by_claim(results)
    assert found["FATE: 1.3 % higher ROC-AUC than Base"].verdict == HOLDS
    assert "FATE: 7.3 % higher accuracy than Base" not in found


def test_a_method_that_was_not_run_gives_no_verdict(results):
    write_run(results / "uci" / "default", 0.1)
    assert "FATE: 4.1 % higher accuracy than INL" not in by_claim(results)


def test_clicks_are_untested_on_the_full_data_and_told_from_samples(results):
    rows = []
    for split, gain in (("T1", 0.01), ("T2", 0.03), ("train", 0.5)):
        for method, mean in (("base", 0.6), ("fate", 0.6 + gain)):
            more = {"split": split, "backbone": "nn"}
            rows.append(summary_row("avazu-sample", None, method, [mean], "auc", **more))
    write(results / "ctr" / "avazu-sample" / "summary.json", {"rows": rows})
    found = by_claim(results)["Avazu, NN: FATE +0.017 ROC-AUC over Base"]
    assert found.verdict == UNTESTED
    assert "avazu-sample +.0200 (mean over 2 test splits" in found.detail
    other = by_claim(results)["Criteo, NN: FATE +0.008 ROC-AUC over Base"]
    assert other.detail == "the full data are not here"


def write_clicks(folder, gains, **more):
    """A trial for each gain of FATE over Base on the full Avazu log."""
    for seed, gain in enumerate(gains):
        record = trial("avazu", None, seed, {"base": 0.7, "fate": 0.7 + gain}, "auc", **more)
        del record["observed"]
        record |= {"backbone": "nn", "kind": "kshot"}
        write(folder / f"seed-{seed}" / "trial.json", record)


@pytest.mark.parametrize(
    ("gains", "verdict", "told"),
    [
        ([0.016, 0.018, 0.017], HOLDS, "kshot +.0170 ± .0006 (p = 0.0012): paired t over 3 seeds"),
        ([0.004, 0.005, 0.006], PARTLY, "kshot +.0050 ± .0006"),
        ([0.01, -0.01, 0.0], NOT, "kshot +.0000"),
        ([0.02], UNTESTED, "kshot +.0200: one seed, so no test"),
    ],
)
def test_clicks_are_judged_where_the_full_log_was_run(results, gains, verdict, told):
    """The verdict was always "not tested", and the full log was called a sample."""
    rows = [
        summary_row("avazu", None, method, [mean], "auc", split="overall", backbone="nn")
        for method, mean in (("base", 0.7), ("fate", 0.717))
    ]
    write(results / "ctr" / "summary.json", {"rows": rows})
    write_clicks(results / "ctr" / "avazu" / "kshot", gains)
    write_clicks(results / "ctr" / "avazu" / "sweep", [0.3, 0.31], sweep="n_kept")
    found = by_claim(results)
    mine = found["Avazu, NN: FATE +0.017 ROC-AUC over Base"]
    assert (mine.verdict, mine.points.n) == (verdict, len(gains))
    assert mine.detail.startswith(told)
    assert found["Criteo, NN: FATE +0.008 ROC-AUC over Base"].verdict == UNTESTED


def test_rows_of_the_full_log_without_trials_are_not_called_samples(results):
    rows = [
        summary_row("avazu", None, method, [mean], "auc", split="overall", backbone="nn")
        for method, mean in (("base", 0.7), ("fate", 0.717))
    ]
    write(results / "ctr" / "summary.json", {"rows": rows})
    found = by_claim(results)["Avazu, NN: FATE +0.017 ROC-AUC over Base"]
    assert found.verdict == UNTESTED
    assert found.detail.startswith("no trials of FATE and Base on the full data are here; by the")
    assert "avazu +.0170 (overall" in found.detail


def test_the_papers_tables_agree_with_its_claims_and_with_each_other():
    for claim in CTR_CLAIMS:
        scores = CTR[claim.dataset][claim.backbone]
        assert scores["fate"][-1] - scores["base"][-1] == pytest.approx(claim.gain)
    tables = [
        numbers for log in CTR.values() for table in log.values() for numbers in table.values()
    ]
    assert len(tables) == 12
    for numbers in tables:
        assert len(numbers) == 9
        assert numbers[-1] == pytest.approx(sum(numbers[:8]) / 8, abs=0.0016)
    assert all(len(numbers) == 10 for log in K_SWEEP.values() for numbers in log.values())
    assert K_SWEEP["avazu"]["17"][2] == pytest.approx(CTR["avazu"]["NN"]["fate"][0], abs=0.001)


def test_clicks_stand_beside_the_papers(results):
    row = {"split": "T2", "backbone": "deepfm"}
    rows = [
        summary_row("criteo-sample", None, "fate", [0.7], "auc", **row, k=k) for k in (None, 24)
    ]
    write(results / "ctr" / "criteo-sample" / "summary.json", {"rows": rows})
    (table,) = build([results]).sections[0].tables
    assert [[cell.text for cell in line[6:]] for line in table.rows] == [
        [".7800", ".7000"],
        [".7694", ".7000"],
    ]
