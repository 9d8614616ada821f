import json
from pathlib import Path

import numpy as np
import pytest
from result_folders import write_run

from openfate_lab.report.paper import RELEASED, TABLE3
from openfate_lab.report.reasons import paper_tables
from openfate_lab.report.results import find_results

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tables():
    return {table.title: table for table in paper_tables(find_results([ROOT / "results"]))}


def scores(folder, method, metric="accuracy"):
    """Every trial's score, the slow way."""
    read = {}
    for path in (ROOT / "results" / folder).glob("*/observed-*/seed-*/trial.json"):
        record = json.loads(path.read_text())
        if record["results"][method]["metric"] == metric:
            key = record["dataset"], record["observed"], record["seed"]
            read[key] = record["results"][method]["score"]
    return read


def gap(one, other):
    return np.array([one[key] - other[key] for key in sorted(one)])


def test_the_leads_are_those_of_the_trials(tables):
    lines = {row[0].text: row for row in tables["Reasons, tested"].rows}
    for name, title in (("default", "our defaults"), ("reference", "released code's way")):
        wanted = gap(scores(f"uci/{name}", "fate"), scores(f"uci/{name}", "base"))
        cell = lines[f"FATE over Base, {title}"][1]
        assert cell.value == pytest.approx(wanted.mean())
        assert f"{wanted.std(ddof=1) / len(wanted) ** 0.5:.3f}".lstrip("0") in cell.text


def test_departures_are_compared_with_the_default(tables):
    rows = {row[0].text: row for row in tables["What each departure is worth"].rows}
    assert len(rows) == 6
    before = scores("departures/default", "fate")
    for name, (_, mean, difference) in rows.items():
        after = scores(f"departures/default-{name}", "fate")
        assert mean.value == pytest.approx(np.mean(list(after.values())))
        assert difference.value == pytest.approx(gap(after, before).mean())


@pytest.mark.parametrize("run", ["default", "reference"])
def test_shares_are_taken_apart(tables, run):
    table = tables["FATE's lead, by share observed"]
    line = next(
        row for row in table.rows if [c.text for c in row[:3]] == [run, "fate - base", "accuracy"]
    )
    one, other = scores(f"uci/{run}", "fate"), scores(f"uci/{run}", "base")
    for place, share in enumerate((0.3, 0.4, 0.5, 0.6, 0.7, 0.8)):
        gaps = [one[key] - other[key] for key in one if key[1] == share]
        wanted = pytest.approx(np.mean(gaps)) if gaps else None
        assert line[3 + place].value == wanted


def test_the_papers_and_the_released_numbers_stand_beside_ours(tables):
    table = tables["Paper, released code, ours"]
    assert len(table.rows) == len(RELEASED)
    gene = table.rows[0]
    assert [cell.text for cell in gene[:2]] == ["gene", "30%"]
    assert gene[2].value == TABLE3["full"]["gene"]
    assert gene[3].value == RELEASED["gene", 0.3]["fate"]
    assert gene[5].value == pytest.approx(
        np.mean([s for key, s in scores("uci/default", "fate").items() if key[:2] == ("gene", 0.3)])
    )


def test_without_trials_there_is_nothing_to_reason_about(results):
    write_run(results / "mine", 0.1)
    assert paper_tables(find_results([results])) == []
