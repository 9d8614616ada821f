"""Records that a person edited: every experiment sums them up or refuses them, key by key."""

import copy
import json
from itertools import islice
from pathlib import Path

import pytest
from spoiling import spoilt

from openfate.errors import DataFileError
from openfate_lab.experiments import CTR, UCI, Ablation, Generalization, Map, OpenWorld
from openfate_lab.experiments.ablation import Search
from openfate_lab.experiments.runner import open_record
from openfate_lab.experiments.streaming import Streams

RESULTS = Path(__file__).parents[3] / "results"


EXPERIMENTS = {
    "uci/default": UCI(),
    "ablation/default": Ablation(),
    "ctr": CTR(),
    "map/default": Map(),
    "generalization/fate": Generalization(),
    "openworld/batch": OpenWorld(),
    "openworld/stream": Streams(()),
}


def short(record):
    """The record with few methods and points, which are alike."""
    record["results"] = dict(islice(record["results"].items(), 2))
    return record


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_one_thing_wrong_is_refused_or_does_no_harm(tmp_path, name):
    experiment = EXPERIMENTS[name]
    good = [short(json.loads(path.read_text())) for path in _two_trials(RESULTS / name)]
    path = tmp_path / "trial.json"
    refused = 0
    record = copy.deepcopy(good[0])
    for key in spoilt(record):
        path.write_text(json.dumps(record))
        try:
            read = open_record(path, experiment.record_shape)
        except DataFileError as error:
            assert str(error).startswith(f"{path}: ")
            assert str(error).endswith("; delete it to run the trial again.")
            refused += 1
            continue
        try:
            records = [read, copy.deepcopy(good[1])]
            content = experiment.summary(records)
            list(experiment.cells(content))
            if name == "map/default" and any(record.get("picture") for record in records):
                experiment.figure(content, records)  # of what is read; others draw their rows
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
            open_record(path, Search.record_shape)
        assert f"{path}: {key} is" in str(caught.value)
