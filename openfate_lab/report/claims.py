"""The paper's headline claims, recomputed one by one from the trials of a run.

A claim is a mean over data sets and shares.  Here every seed gives one such mean of differences
between FATE and the baselines (the same seed gives all of them the same split), and the seeds'
means are what is tested.  Whether "7.3 % higher" means points or a ratio is not stated in the
paper: both are computed, and the reading kinder to the paper decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openfate_lab.report.differences import Difference, difference
from openfate_lab.report.paper import CLAIMS, CTR_CLAIMS, Claim, backbone_name
from openfate_lab.report.results import Key, Results, Row, Run
from openfate_lab.report.tables import number, signed

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
    verdict
        HOLDS: significant, and its 95 % interval reaches the paper's figure; PARTLY: significant
        but smaller; NOT: no significant gain.
    detail
        The numbers in words.
    points, ratio
        Ours: the difference in points, and relative to the baseline; None where there is none.
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
    found = [verdict for run in results.on("uci") for verdict in _uci(run)]
    return found + _ctr(results) if found or results.on("ctr") else []


def _judge(found: Difference, claimed: float) -> str:
    if found.sign != 1:
        return NOT
    return HOLDS if found.interval[1] >= claimed else PARTLY


# ---- the UCI experiment ------------------------------------------------------------------------

# Data set and share -> seed -> FATE's gain over the baselines: in points, as a ratio.
Gains = dict[tuple[str, float], dict[int, tuple[float, float]]]


def _uci(run: Run) -> list[Verdict]:
    gains = {claim: _gains(run, claim) for claim in CLAIMS}
    found = {claim: _recompute(run, claim, gain) for claim, gain in gains.items() if _seeds(gain)}
    base = [claim for claim in CLAIMS if claim.against == ("base",)]
    told = [found.pop(claim) for claim in base if claim in found]
    if told:
        cells = [cell for claim in base for cell in gains[claim].values()]
        told.append(_significance(run, told, cells))
    return [*told, *found.values()]


def _gains(run: Run, claim: Claim) -> Gains:
    """From the trials that have all methods."""
    fate, *others = (run.scores_of(method, claim.metric) for method in ("fate", *claim.against))
    found: Gains = {}
    for key in sorted(set(fate).intersection(*others), key=_place):
        points = [fate[key] - other[key] for other in others]
        ratios = [gain / other[key] for gain, other in zip(points, others, strict=True)]
        found.setdefault(key[:2], {})[key[2]] = float(np.mean(points)), float(np.mean(ratios))
    return found


def _place(key: Key) -> tuple[int, Key]:
    """Data sets in the paper's order, others after them."""
    name = key[0].split("-")[0]
    return PAPERS_DATA.index(name) if name in PAPERS_DATA else len(PAPERS_DATA), key


def _seeds(gains: Gains) -> list[int]:
    """Those that every cell has."""
    return sorted(set.intersection(*map(set, gains.values()))) if gains else []


def _recompute(run: Run, claim: Claim, gains: Gains) -> Verdict:
    points, ratio = (
        difference(
            [float(np.mean([cell[seed][way] for cell in gains.values()])) for seed in _seeds(gains)]
        )
        for way in (0, 1)
    )
    if points.n > 1:
        told = (
            f"{signed(points.mean)} ± {number(points.standard_error)} points "
            f"(p = {points.p:.2g}), {ratio.mean:+.1%} relative (p = {ratio.p:.2g})"
        )
        tested = f"paired t over {points.n} splits"
    else:
        told = f"{signed(points.mean)} points, {ratio.mean:+.1%} relative"
        tested = "one split, so no test"
    datasets = ", ".join(dict.fromkeys(dataset for dataset, _ in gains))
    detail = f"{told}: mean over {len(gains)} cells of {datasets}; {tested}"
    judged = [_judge(found, claim.gain) for found in (points, ratio)]
    verdict = min(judged, key=(HOLDS, PARTLY, NOT).index)
    if judged[0] != judged[1]:
        detail += f"; {verdict} only {'in points' if verdict == judged[0] else 'as a ratio'}"
    return Verdict(
        claim.words, run.kind, claim.gain, verdict, detail, points, ratio, run.trials_name
    )


def _significance(
    run: Run, tested: Sequence[Verdict], cells: Sequence[dict[int, tuple[float, float]]]
) -> Verdict:
    """Whether "the improvements are statistically significant under 95 % confidence level"."""
    held = [v.points is not None and v.points.sign == 1 for v in tested]
    signs = [difference([points for points, _ in cell.values()]).sign for cell in cells]
    detail = (
        f"on average {'yes' if all(held) else 'not for both metrics'}; cell by cell FATE is "
        f"significantly above Base in {signs.count(1)} of {len(cells)} and significantly below in "
        f"{signs.count(-1)} (paired t over the splits of a cell)"
    )
    verdict = HOLDS if all(held) and -1 not in signs else PARTLY if any(held) else NOT
    claim = "the gains over Base are significant at 95 %"
    return Verdict(claim, run.kind, None, verdict, detail, source=run.trials_name)


# ---- the click logs ----------------------------------------------------------------------------


def _ctr(results: Results) -> list[Verdict]:
    found = []
    for claim in CTR_CLAIMS:
        tested = [verdict for run in results.on("ctr") for verdict in _ctr_tested(run, claim)]
        found += tested or [_ctr_untested(results.on("ctr"), claim)]
    return found


def _ctr_tested(run: Run, claim: Claim) -> list[Verdict]:
    """FATE minus Base on the claim's own log, a verdict for each way of training."""
    gains: dict[str, list[float]] = {}
    for trial in run.trials:
        log, results = trial["dataset"], trial["results"]
        is_meant = (log, backbone_name(trial.get("backbone"))) == (claim.dataset, claim.backbone)
        if is_meant and not trial.get("sweep") and {"fate", "base"} <= results.keys():
            gain = results["fate"]["score"] - results["base"]["score"]
            gains.setdefault(str(trial.get("kind") or log), []).append(gain)
    return [_ctr_verdict(run, claim, kind, difference(found)) for kind, found in gains.items()]


def _ctr_verdict(run: Run, claim: Claim, kind: str, points: Difference) -> Verdict:
    detail, verdict = f"{kind} {signed(points.mean, 4)}", UNTESTED
    if points.n > 1:
        verdict, error = _judge(points, claim.gain), number(points.standard_error, 4)
        detail += f" ± {error} (p = {points.p:.2g}): paired t over {points.n} seeds"
    else:
        detail += ": one seed, so no test"
    source = run.trials_name
    return Verdict(claim.words, run.kind, claim.gain, verdict, detail, points, source=source)


def _ctr_untested(runs: Sequence[Run], claim: Claim) -> Verdict:
    gains = [text for run in runs for text in _ctr_gains(run, claim)]
    if any(row.get("dataset") == claim.dataset for run in runs for row in run.rows):
        detail, where = "no trials of FATE and Base on the full data are here", "by the rows"
    else:
        detail, where = "the full data are not here", "on the samples"
    if gains:
        detail += f"; {where}: " + "; ".join(gains)
    sources = ", ".join(run.name for run in runs)
    return Verdict(claim.words, "ctr", claim.gain, UNTESTED, detail, source=sources)


def _ctr_gains(run: Run, claim: Claim) -> list[str]:
    """FATE minus Base on what there is of a log, split by split if there is no overall score."""
    # Data set and variant -> method -> split -> mean.
    means: dict[tuple[str, str | None], dict[str, dict[str, float]]] = {}
    for row in run.rows:
        if _is_about(row, claim):
            methods = means.setdefault((row["dataset"], row.get("variant")), {})
            methods.setdefault(str(row.get("method")), {})[str(row.get("split"))] = row["mean"]
    told = []
    for (name, variant), methods in means.items():
        fate, base = methods.get("fate", {}), methods.get("base", {})
        splits = sorted(set(fate) & set(base))
        splits = [s for s in splits if s == "overall"] or [s for s in splits if s[:1] == "T"]
        if splits:
            gain = float(np.mean([fate[split] - base[split] for split in splits]))
            over = "overall" if splits == ["overall"] else f"mean over {len(splits)} test splits"
            log = f"{name}, {variant}" if variant else name
            told.append(f"{log} {signed(gain, 4)} ({over}, {run.name})")
    return told


def _is_about(row: Row, claim: Claim) -> bool:
    """Whether a row is FATE's or Base's AUC on (a sample of) the log, and none of a sweep."""
    return (
        claim.dataset in str(row.get("dataset"))
        and backbone_name(row.get("backbone")) == claim.backbone
        and row.get("metric") == "auc"
        and row.get("method") in ("fate", "base")
        and not {"k", "B"} & row.keys()
    )
