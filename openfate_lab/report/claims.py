"""The paper's headline claims, recomputed one by one from the trials of a run.

A claim is a mean over data sets and shares.  Here every seed gives one such mean of differences
between FATE and the baselines (the same seed gives all of them the same split), and the seeds'
means are what is tested.  Whether "7.3 % higher" means points or a ratio is not stated in the
paper: both are computed, and the reading kinder to the paper decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openfate_lab.report.paired import Difference, difference
from openfate_lab.report.paper import CLAIMS, CTR_CLAIMS, Claim, CtrClaim, backbone_name
from openfate_lab.report.results import Results, Run
from openfate_lab.report.tables import signed

__all__ = ["HOLDS", "NOT", "PARTLY", "UNTESTED", "Verdict", "verdicts"]

HOLDS, PARTLY, NOT = "holds", "in part", "does not hold"
UNTESTED = "not tested on the full data"
PAPERS_DATA = ("gene", "protein", "robot", "drive", "calls", "github")


@dataclass(frozen=True)
class Verdict:
    """One claim against one run.

    Parameters
    ----------
    claim, run
        What the paper says; the folder that it was recomputed from.
    claimed
        The paper's figure, a fraction.
    points, ratio
        Ours: the difference in points, and relative to the baseline; None where there is none.
    verdict
        HOLDS: significant, and its 95 % interval reaches the paper's figure; PARTLY: significant
        but smaller; NOT: no significant gain.
    detail
        The numbers in words.
    """

    claim: str
    run: str
    claimed: float | None
    verdict: str
    detail: str
    points: Difference | None = None
    ratio: Difference | None = None
    source: str = ""


def verdicts(results: Results) -> list[Verdict]:
    """Every claim, for every run that can say something about it."""
    found = []
    for run in results.on("uci"):
        if run.trials:
            found += _uci(run)
    return found + _ctr(results) if found or results.on("ctr") else []


# ---- the UCI experiment ------------------------------------------------------------------------


def _uci(run: Run) -> list[Verdict]:
    found, tested = [], []
    for claim in CLAIMS:
        verdict = _recompute(run, claim)
        if verdict is not None:
            found.append(verdict)
            if claim.against == ("base",):
                tested.append(verdict)
        if claim.name == "base-auc" and tested:
            found.append(_significance(run, tested))
    return found


def _recompute(run: Run, claim: Claim) -> Verdict | None:
    cells = _cells(run, claim)
    gains = _gains(run, claim, relative=False)
    if not gains:
        return None
    points, ratio = difference(gains), difference(_gains(run, claim, relative=True))
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    if points.n > 1:
        told = (
            f"{signed(points.mean)} ± {signed(points.standard_error).lstrip('+')} points "
            f"(p = {points.p:.2g}), {ratio.mean:+.1%} relative (p = {ratio.p:.2g})"
        )
        tested = f"paired t over {points.n} splits"
    else:
        told = f"{signed(points.mean)} points, {ratio.mean:+.1%} relative"
        tested = "one split, so no test"
    detail = f"{told}: mean over {len(cells)} cells of {', '.join(datasets)}; {tested}"
    judged = [_judge(found, claim.gain) for found in (points, ratio)]
    verdict = min(judged, key=(HOLDS, PARTLY, NOT).index)
    if judged[0] != judged[1]:
        detail += f"; {verdict} only {'in points' if verdict == judged[0] else 'as a ratio'}"
    return Verdict(
        claim.words,
        run.kind,
        claim.gain,
        verdict,
        detail,
        points,
        ratio,
        f"{run.folder}/**/trial.json",
    )


def _judge(found: Difference, claimed: float) -> str:
    if found.sign != 1:
        return NOT
    return HOLDS if found.interval[1] >= claimed else PARTLY


def _cells(run: Run, claim: Claim) -> dict[tuple[str, float], dict[int, dict[str, float]]]:
    """Data set and share -> seed -> method -> score, for trials that have all methods."""
    wanted = ("fate", *claim.against)
    cells: dict[tuple[str, float], dict[int, dict[str, float]]] = {}
    for trial in run.trials:
        record: dict[str, Any] = trial.record
        results = record.get("results", {})
        if "observed" in record and all(
            results.get(method, {}).get("metric") == claim.metric for method in wanted
        ):
            key = (record["dataset"], record["observed"])
            scores = {method: results[method]["score"] for method in wanted}
            cells.setdefault(key, {})[record["seed"]] = scores
    return dict(sorted(cells.items(), key=lambda item: (_place(item[0][0]), item[0])))


def _place(dataset: str) -> int:
    name = dataset.split("-")[0]
    return PAPERS_DATA.index(name) if name in PAPERS_DATA else len(PAPERS_DATA)


def _gains(run: Run, claim: Claim, *, relative: bool) -> list[float]:
    """One mean gain for each seed that every cell has."""
    cells = list(_cells(run, claim).values())
    seeds = sorted(set.intersection(*(set(cell) for cell in cells))) if cells else []
    return [
        float(np.mean([_gain(cell[seed], claim, relative) for cell in cells])) for seed in seeds
    ]


def _gain(scores: dict[str, float], claim: Claim, relative: bool) -> float:
    gains = []
    for method in claim.against:
        gain = scores["fate"] - scores[method]
        gains.append(gain / scores[method] if relative else gain)
    return float(np.mean(gains))


def _significance(run: Run, tested: Sequence[Verdict]) -> Verdict:
    """Whether "the improvements are statistically significant under 95 % confidence level"."""
    held = [v.points is not None and v.points.sign == 1 for v in tested]
    cells: list[Difference] = []
    for claim in CLAIMS[:2]:
        for seeds in _cells(run, claim).values():
            cells.append(difference([_gain(scores, claim, False) for scores in seeds.values()]))
    surely, surely_not = (sum(cell.sign == way for cell in cells) for way in (1, -1))
    detail = (
        f"on average {'yes' if all(held) else 'not for both metrics'}; cell by cell FATE is "
        f"significantly above Base in {surely} of {len(cells)} and significantly below in "
        f"{surely_not} (paired t over the splits of a cell)"
    )
    verdict = HOLDS if all(held) and not surely_not else PARTLY if any(held) else NOT
    return Verdict(
        "the gains over Base are significant at 95 %",
        run.kind, None, verdict, detail, source=f"{run.folder}/**/trial.json",
    )  # fmt: skip


# ---- the click logs ----------------------------------------------------------------------------


def _ctr(results: Results) -> list[Verdict]:
    found = []
    for claim in CTR_CLAIMS:
        tested = [verdict for run in results.on("ctr") for verdict in _ctr_tested(run, claim)]
        found += tested or [_ctr_untested(results, claim)]
    return found


def _ctr_tested(run: Run, claim: CtrClaim) -> list[Verdict]:
    """FATE minus Base on the claim's own log, a verdict for each way of training."""
    gains: dict[str, list[float]] = {}
    for record in (trial.record for trial in run.trials):
        log, results = record["dataset"], record["results"]
        is_meant = (log, backbone_name(record.get("backbone"))) == (claim.dataset, claim.backbone)
        if is_meant and not record.get("sweep") and {"fate", "base"} <= results.keys():
            gain = results["fate"]["score"] - results["base"]["score"]
            gains.setdefault(str(record.get("kind") or log), []).append(gain)
    return [_ctr_verdict(run, claim, kind, difference(found)) for kind, found in gains.items()]


def _ctr_verdict(run: Run, claim: CtrClaim, kind: str, points: Difference) -> Verdict:
    detail = f"{kind} {signed(points.mean, 4)}"
    if points.n > 1:
        error = signed(points.standard_error, 4).lstrip("+")
        detail += f" ± {error} (p = {points.p:.2g}): paired t over {points.n} seeds"
    else:
        detail += ": one seed, so no test"
    source = f"{run.folder}/**/trial.json"
    verdict = _judge(points, claim.gain) if points.n > 1 else UNTESTED
    return Verdict(claim.words, run.kind, claim.gain, verdict, detail, points, source=source)


def _ctr_untested(results: Results, claim: CtrClaim) -> Verdict:
    runs = results.on("ctr")
    gains = [text for run in runs for text in _ctr_gains(run, claim.dataset, claim.backbone)]
    if any(row.get("dataset") == claim.dataset for run in runs for row in run.rows):
        detail, where = "no trials of FATE and Base on the full data are here", "by the rows"
    else:
        detail, where = "the full data are not here", "on the samples"
    if gains:
        detail += f"; {where}: " + "; ".join(gains)
    sources = ", ".join(run.name for run in runs)
    return Verdict(claim.words, "ctr", claim.gain, UNTESTED, detail, source=sources)


def _ctr_gains(run: Run, dataset: str, backbone: str) -> list[str]:
    """FATE minus Base on what there is of a log, split by split if there is no overall score."""
    rows = [
        row
        for row in run.rows
        if dataset in str(row.get("dataset"))
        and backbone_name(row.get("backbone")) == backbone
        and row.get("metric") == "auc"
        and not {"k", "B"} & row.keys()  # those are sweeps
    ]
    gains = []
    for name, variant in dict.fromkeys((row["dataset"], row.get("variant")) for row in rows):
        means: dict[str, dict[str, float]] = {"fate": {}, "base": {}}
        for row in rows:
            same = (row["dataset"], row.get("variant")) == (name, variant)
            if same and row.get("method") in means:
                means[row["method"]][str(row.get("split"))] = row["mean"]
        splits = sorted(set(means["fate"]) & set(means["base"]))
        splits = [s for s in splits if s == "overall"] or [s for s in splits if s[:1] == "T"]
        if splits:
            gain = float(np.mean([means["fate"][s] - means["base"][s] for s in splits]))
            over = "overall" if splits == ["overall"] else f"mean over {len(splits)} test splits"
            told = f"{name}, {variant}" if variant else name
            gains.append(f"{told} {signed(gain, 4)} ({over}, {run.name})")
    return gains
