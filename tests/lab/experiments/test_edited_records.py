"""Records that a person edited: every experiment sums them up or refuses them, key by key."""

import copy
import json
from itertools import islice
from pathlib import Path

import pytest
from spoiling import spoilt

from openfate.errors import DataFileError
from openfate_lab.experiments import (
    ablation,
    ctr,
    gaps,
    generalization,
    openworld,
    search,
    streaming,
    uci,
)
from openfate_lab.experiments import map as maps
from openfate_lab.experiments.runner import open_record, summarise

RESULTS = Path(__file__).parents[3] / "results"


def uci_summary(records):
    for record in records:
        uci.Plan.completed(None, record)
    return summarise(records, uci.METHODS)


def map_summary(records):
    drawn = [record for record in records if record.get("picture")]
    return maps.summary(records), maps._figure(drawn) if drawn else None  # a run draws one or more


def ablation_summary(records):
    return ablation.rows_of(records), ablation.differences(records)


EXPERIMENTS = {
    "uci/default": (uci.RECORD, uci_summary),
    "ablation/default": (uci.RECORD, ablation_summary),
    "ctr": (ctr.record_shape, ctr.summary),
    "map/default": (maps.RECORD, map_summary),
    "generalization/fate": (generalization.RECORD, gaps.gap_rows),
    "openworld/batch": (openworld.Plan.shape, openworld.gap_closed),
    "openworld/stream": (streaming.RECORD, streaming.summarise),
}


def short(record):
    """The record with few methods and points, which are alike."""
    record["results"] = dict(islice(record["results"].items(), 2))
    return record


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_one_thing_wrong_is_refused_or_does_no_harm(tmp_path, name):
    shape, summary = EXPERIMENTS[name]
    good = [short(json.loads(path.read_text())) for path in _two_trials(RESULTS / name)]
    path = tmp_path / "trial.json"
    refused = 0
    record = copy.deepcopy(good[0])
    for key in spoilt(record):
        path.write_text(json.dumps(record))
        try:
            read = open_record(path, shape)
        except DataFileError as error:
            assert str(error).startswith(f"{path}: ")
            assert str(error).endswith("; delete it to run the trial again.")
            refused += 1
            continue
        try:
            summary([read, copy.deepcopy(good[1])])
        except Exception as error:
            pytest.fail(f"{key} of {name} was let through: {error!r}")
    assert refused > 20


def _two_trials(folder):
    first = next(iter(sorted(folder.rglob("seed-0/trial.json"))), None)
    found = sorted((first.parents[1] if first else folder).rglob("trial.json"))
    assert len(found) > 1
    return found[:2]


def test_candidates_of_a_search_are_checked(tmp_path):
    good = json.loads(_two_trials(RESULTS / "uci/default")[0].read_text())
    path = tmp_path / "trial.json"
    for candidates, key in (
        (None, "candidates"),
        ([{"settings": {}, "own_log_loss": "x"}], "candidates[0].own_log_loss"),
        ([{"own_log_loss": 0.5}], "candidates[0].settings"),
    ):
        path.write_text(json.dumps(good | {"candidates": candidates}))
        with pytest.raises(DataFileError) as caught:
            open_record(path, search.RECORD)
        assert f"{path}: {key} is" in str(caught.value)
