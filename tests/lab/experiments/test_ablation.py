import json

import numpy as np
import pytest

from openfate.errors import DataFileError, InputError
from openfate.training import Settings
from openfate_lab.data import load
from openfate_lab.experiments import Ablation, ablation, run
from openfate_lab.experiments.ablation import VARIANTS, settings_of, variant_rows, variant_scores
from openfate_lab.experiments.runner import make_plans
from openfate_lab.experiments.uci_methods import Trial, make_split
from openfate_lab.report import TABLE3

PAPERS_OWN = list(TABLE3)
DATASETS = Ablation().datasets


def digits(**changes):
    small = {"datasets": ("digits",), "variants": ("full", "k_shot_5"), "trials": 1, "epochs": 1}
    return Ablation(**small | changes)


def plan(out, **changes):
    (only,) = make_plans(digits(**changes), out)
    return only


def run_trial(plan):
    return plan.experiment.run_trial(plan)


def test_the_papers_table_has_nine_rows_of_six_numbers():
    assert len(PAPERS_OWN) == 9
    assert set(TABLE3) < set(VARIANTS)
    assert all(set(scores) == set(DATASETS) for scores in TABLE3.values())
    assert ablation.papers_number("github", "n_fold_2") == 0.8771
    assert ablation.papers_number("drive-sample", "joint") == 0.1073  # of the whole of drive
    assert ablation.papers_number("digits", "full") is None
    best = {name: max(TABLE3, key=lambda variant: TABLE3[variant][name]) for name in DATASETS}
    assert best == {
        "gene": "k_shot_10", "protein": "full", "robot": "n_fold_10", "drive": "full",
        "calls": "n_fold_10", "github": "n_fold_2",
    }  # fmt: skip


def test_each_variant_changes_what_its_name_says():
    plain = Settings(epochs=7)
    assert settings_of("full", plain, 99) == plain
    assert settings_of("no_drop_edge", plain, 99).drop_edge == 0
    assert not settings_of("joint", plain, 99).async_updates
    k_shot = settings_of("k_shot_10", plain, 99)
    assert (k_shot.n_kept, k_shot.n_draws, k_shot.unit) == (79, 10, "feature")  # floor(0.8 x 99)
    assert settings_of("leave_out_long", plain, 99).epochs == 35
    assert len({settings_of(name, plain, 99) for name in VARIANTS}) == len(VARIANTS)


def test_a_trial_has_a_control_beside_every_variant_and_full_is_the_uci_experiments_fate(tmp_path):
    own = plan(tmp_path)
    record = run_trial(own)
    keys = ["base", "full/fate", "full/fate_drop_new", "k_shot_5/fate", "k_shot_5/fate_drop_new"]
    assert list(record["results"]) == keys
    digits = load("digits")
    uci = Trial(digits, make_split(digits, 0.5, 0), 0, Settings(epochs=1))
    assert record["results"]["full/fate"]["score"] == uci.result("fate")["score"]
    assert own.finished() is not None


def test_a_variant_that_is_there_is_not_run_again(tmp_path):
    before = run_trial(plan(tmp_path, variants=("full",)))["results"]
    wider = plan(tmp_path, variants=("full", "joint"))
    assert wider.finished() is None
    after = run_trial(wider)["results"]
    assert {key: after[key] for key in before} == before  # seconds too: copied, not measured
    assert "joint/fate_drop_new" in after


def record(seed, **scores):
    results = {key: {"metric": "accuracy", "score": s, "seconds": 1.0} for key, s in scores.items()}
    return {"dataset": "gene", "observed": 0.5, "seed": seed, "results": results}


def test_rows_carry_the_papers_number_and_differences_are_paired():
    records = [
        record(0, **{"base": 0.5, "full/fate": 0.6, "joint/fate": 0.5, "full/fate_drop_new": 0.6}),
        record(1, **{"base": 0.7, "full/fate": 0.8, "joint/fate": 0.7, "full/fate_drop_new": 0.8}),
    ]
    rows = {(row["variant"], row["method"]): row for row in variant_rows(variant_scores(records))}
    assert rows["full", "fate"]["paper"] == 0.9345
    assert rows["full", "fate_drop_new"]["paper"] is rows["base", "base"]["paper"] is None
    assert rows["joint", "fate"]["mean"] == pytest.approx(0.6)
    (difference,) = ablation.differences(variant_scores(records))
    assert difference["difference"] == pytest.approx(-0.1)
    assert difference["standard_error"] == pytest.approx(0)
    assert difference["paper"] == pytest.approx(0.9257 - 0.9345)


def test_summary_and_figure_stand_beside_the_trials(tmp_path):
    found = run(digits(), tmp_path, jobs=1)
    assert [path.name for path in found.files] == ["summary.json", "ablation.png", "ablation.svg"]
    content = json.loads(found.files[0].read_text())
    wanted = {"dataset", "observed", "variant", "method", "metric", "mean", "std", "n_trials"}
    assert wanted | {"seconds", "paper"} == set(content["rows"][0])
    assert set(found.to_json()) == {"experiment", "folder", "replaced", "notes", "rows"}
    before = [path.read_bytes() for path in found.files]
    assert [path.read_bytes() for path in run(digits(), tmp_path).files] == before


def test_the_sample_of_drive_takes_its_place_where_the_whole_is_not_there(tmp_path):
    with pytest.raises(DataFileError, match="of the data set 'drive' is not in"):
        ablation.replace_missing(["drive"], str(tmp_path))
    sample = tmp_path / "drive" / "Sensorless_drive_diagnosis.sample2200.txt"
    sample.parent.mkdir()
    sample.touch()
    with pytest.warns(match="drive is not there: drive-sample takes its place"):
        used = ablation.replace_missing(["gene", "drive"], str(tmp_path))
    assert used == {"gene": "gene", "drive": "drive-sample"}
    rows = [{"dataset": "gene"}, {"dataset": "drive-sample"}]
    assert "2,200 of the 58,509" in ablation.notes(rows)[-1]
    assert digits(datasets=("gene", "drive")).replaced(rows) == {"drive": "drive-sample"}


def test_an_unknown_variant_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"variants: 'joined' is unknown.*did you mean 'joint'\?"):
        plan(tmp_path, variants=("joined",))
    assert list(tmp_path.iterdir()) == []


# ---- the grid ------------------------------------------------------------------------------------


def test_a_search_notes_every_candidate_chooses_by_validation_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation, "GRID", {"lr": (0.1, 0.01), "n_folds": (2, 5)})
    own = plan(tmp_path, search=True)
    assert own.folder == tmp_path / "default-epochs=1" / "search"
    record = run_trial(own)
    losses = [candidate["common_log_loss"] for candidate in record["candidates"]]
    assert len(losses) == 4
    assert record["chosen"] == record["candidates"][int(np.argmin(losses))]["settings"]
    assert all("score" not in candidate for candidate in record["candidates"])
    kept = dict(record, candidates=record["candidates"][:2], results={})
    own.path.write_text(json.dumps(kept))
    again = run_trial(own)
    assert again["candidates"][:2] == record["candidates"][:2]  # seconds too
    assert [c["common_log_loss"] for c in again["candidates"]] == losses
    found = run(digits(search=True), tmp_path)
    summary = json.loads((own.folder / "summary.json").read_text())
    assert summary["experiment"] == "ablation" and len(summary["chosen"]) == 1
    assert {row["variant"] for row in found.content["rows"]} == {"full", "searched"}
    assert list(found.experiment.cells(found.content))


def test_a_candidate_that_diverges_is_noted_and_never_chosen():
    good = {"settings": {"lr": 0.01}, "common_log_loss": 0.5}
    bad = {"settings": {"lr": 0.1}, "common_log_loss": None, "failed": "training diverged"}
    assert ablation.least([bad, good], "common_log_loss") == {"lr": 0.01}


def test_the_common_loss_is_the_mean_over_the_same_five_masks():
    digits = load("digits")
    trial = Trial(digits, make_split(digits, 0.5, 0), 0, Settings(epochs=1, n_folds=2))
    model = trial.fate_fit[0]
    plain = Trial(digits, trial.split, 0, Settings(epochs=1))
    assert ablation.common_loss(trial, model) == ablation.common_loss(plain, model)
    best = trial.fate_fit[1].steps[0].validation_loss  # half of the features hidden
    assert ablation.common_loss(trial, model) != pytest.approx(best)
