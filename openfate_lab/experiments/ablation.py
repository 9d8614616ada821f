"""The paper's Table 3: FATE without one of its parts, or with other masks, on six data sets.

Every variant starts from the same split and seed, so that its difference from the full model is
paired.  `fate_drop_new` is the control of each: the same trained model, its new features dropped.
The paper does not state its share of observed features, nor how many features "leave-one-out"
leaves out (a fifth here, as n-fold's five parts do).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from openfate.errors import DataFileError
from openfate.training import Settings
from openfate_lab.data import find
from openfate_lab.experiments import uci
from openfate_lab.experiments.methods import Trial
from openfate_lab.experiments.present import COLOURS, mean_and_spread, save_figure
from openfate_lab.experiments.runner import choose_all, records_in, summarise, versions, write_json
from openfate_lab.experiments.uci import Plan

__all__ = [
    "CONTROLS",
    "VARIANTS",
    "make_plans",
    "print_rows",
    "replace_missing",
    "rows_of",
    "run_trial",
    "settings_of",
    "write_summary",
]

DATASETS = ("gene", "protein", "robot", "drive", "calls", "github")
CONTROLS = ("fate", "fate_drop_new")  # of each variant, from one trained model


@dataclass(frozen=True)
class Variant:
    """What differs from the full model, and the paper's number for each of `DATASETS`."""

    label: str
    paper: tuple[float, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    longer: int = 1  # times the epochs


_K_SHOT = {"masking": "k_shot", "unit": "feature", "reading": "mask"}

# PAPER: Table 3, appendix E.2, "Ablation Studies"; mean over five seeds, no spread given.
# Accuracy, ROC-AUC for github.  Its rows "FATE (ours)" and "n-fold split (n=5)" are one model.
VARIANTS = {
    "full": Variant("FATE: n-fold, n = 5", (0.9345, 0.9178, 0.8815, 0.6440, 0.9839, 0.8743)),
    "no_drop_edge": Variant(
        "without DropEdge",
        (0.9226, 0.9031, 0.8062, 0.5261, 0.9760, 0.8688),
        {"drop_edge": 0.0},
    ),
    "joint": Variant(
        "joint updates",
        (0.9257, 0.8963, 0.8454, 0.1073, 0.9762, 0.7557),
        {"async_updates": False},
    ),
    "leave_out": Variant(
        "leave-one-out",
        (0.8564, 0.6574, 0.7641, 0.4448, 0.9334, 0.8533),
        {"masking": "leave_out"},
    ),
    "n_fold_2": Variant(
        "n-fold, n = 2", (0.9298, 0.8398, 0.8359, 0.5234, 0.9514, 0.8771), {"n_folds": 2}
    ),
    "n_fold_10": Variant(
        "n-fold, n = 10", (0.8884, 0.8426, 0.8888, 0.5910, 0.9851, 0.8723), {"n_folds": 10}
    ),
    "k_shot_1": Variant(
        "k-shot, 1 draw",
        (0.9304, 0.8778, 0.8568, 0.5408, 0.9611, 0.8722),
        {**_K_SHOT, "n_draws": 1},
    ),
    "k_shot_5": Variant(
        "k-shot, 5 draws",
        (0.9379, 0.9102, 0.8802, 0.6060, 0.9819, 0.8712),
        {**_K_SHOT, "n_draws": 5},
    ),
    "k_shot_10": Variant(
        "k-shot, 10 draws",
        (0.9404, 0.9046, 0.8839, 0.5559, 0.9812, 0.8712),
        {**_K_SHOT, "n_draws": 10},
    ),
    # Ours: an epoch of these two has one step, of the full model five; five times the epochs make
    # the number of steps the same.
    "leave_out_long": Variant(
        "leave-one-out, 5 x epochs", changes={"masking": "leave_out"}, longer=5
    ),
    "k_shot_1_long": Variant(
        "k-shot, 1 draw, 5 x epochs", changes={**_K_SHOT, "n_draws": 1}, longer=5
    ),
}
PAPERS_OWN = tuple(name for name, variant in VARIANTS.items() if variant.paper)


# ---- plans ---------------------------------------------------------------------------------------


def replace_missing(datasets: Sequence[str], data: str | None) -> dict[str, str]:
    """The data set to use for each name: `drive-sample` where only that file of drive is there.

    Examples
    --------
    >>> replace_missing(["digits"], None)
    {'digits': 'digits'}
    """
    used = {name: name for name in datasets}
    if "drive" in used:
        try:
            find("drive", data)
        except DataFileError as missing:
            try:
                find("drive-sample", data)
            except DataFileError:
                raise missing from None
            used["drive"] = "drive-sample"
    return used


def make_plans(
    *, variants: Sequence[str], changes: dict[str, Any] | None = None, **shared: Any
) -> list[Plan]:
    """Every trial, checked before anything runs; `shared` are arguments of `uci.make_plans`."""
    choose_all("--variants", variants, list(VARIANTS))
    methods = ("base", *(f"{variant}/{method}" for variant in variants for method in CONTROLS))
    plans = uci.make_plans(methods=["fate"], changes=changes, **shared)
    return [replace(plan, methods=methods) for plan in plans]


def settings_of(variant: str, plain: Settings, n_observed: int) -> Settings:
    """The settings of a variant of the full model.

    Examples
    --------
    >>> settings_of("k_shot_5", Settings(), n_observed=99).n_kept
    79
    """
    changes = dict(VARIANTS[variant].changes)
    changes["epochs"] = plain.epochs * VARIANTS[variant].longer
    if changes.get("masking") == "k_shot":
        changes["n_kept"] = max(1, 8 * n_observed // 10)  # PAPER: floor(0.8 D) features
    return replace(plain, **changes)


def run_trial(plan: Plan) -> dict[str, Any]:
    """Run the variants of a trial that its record does not have yet; returns the whole record."""
    dataset, split = plan.loaded()
    full = Trial(dataset, split, plan.seed, plan.settings, plan.compat)
    record = plan.record() or plan.new_record(split, full)
    variants = [key.partition("/")[0] for key in plan.methods if "/" in key]
    if "base" not in record["results"]:
        record["results"]["base"] = full.result("base")
        write_json(plan.path, record)
    for variant in dict.fromkeys(variants):
        if all(f"{variant}/{method}" in record["results"] for method in CONTROLS):
            continue
        settings = settings_of(variant, plan.settings, full.n_observed)
        # PAPER: k-shot "masks the remaining" features here, as n-fold does (T9): kept ones use W.
        trial = Trial(dataset, split, plan.seed, settings, plan.compat, recompose="masked")
        for method in CONTROLS:
            result = trial.result(method)
            del result["features_without_training_rows"]  # the same for all: base has them
            record["results"][f"{variant}/{method}"] = result
        write_json(plan.path, record)
    return record


# ---- summary -------------------------------------------------------------------------------------


def rows_of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of each variant and control, with the paper's number beside them."""
    names = [f"{variant}/{method}" for variant in (*VARIANTS, "searched") for method in CONTROLS]
    rows = []
    for row in summarise(records, ["base", *names]):
        variant, _, method = row["method"].rpartition("/")
        paper = papers_number(row["dataset"], variant) if method == "fate" else None
        rows.append(row | {"variant": variant or "base", "method": method, "paper": paper})
    return rows


def papers_number(dataset: str, variant: str) -> float | None:
    """What Table 3 has for a cell; for drive-sample, what it has for the whole of drive."""
    name = "drive" if dataset == "drive-sample" else dataset
    paper = VARIANTS[variant].paper if variant in VARIANTS else ()
    return paper[DATASETS.index(name)] if paper and name in DATASETS else None


def differences(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far each variant is from the full model, paired over trials, and how far in the paper."""
    cells: dict[tuple[str, float, str, str], list[float]] = {}
    for record in sorted(records, key=lambda record: int(record["seed"])):
        results = record["results"]
        for key, result in results.items():
            variant, _, method = key.rpartition("/")
            if variant not in ("", "full") and f"full/{method}" in results:
                cell = (record["dataset"], record["observed"], variant, method)
                gain = result["score"] - results[f"full/{method}"]["score"]
                cells.setdefault(cell, []).append(gain)
    found = []
    for (dataset, observed, variant, method), gains in cells.items():
        theirs, full = papers_number(dataset, variant), papers_number(dataset, "full")
        has_paper = method == "fate" and theirs is not None and full is not None
        found.append(
            {
                "dataset": dataset,
                "observed": observed,
                "variant": variant,
                "method": method,
                "difference": float(np.mean(gains)),
                "standard_error": _standard_error(gains),
                "n_trials": len(gains),
                "paper": round(theirs - full, 4) if has_paper else None,  # type: ignore[operator]
            }
        )
    return sorted(found, key=lambda d: (d["dataset"], d["observed"]))


def _standard_error(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def write_summary(plans: Sequence[Plan]) -> list[Path]:
    """Rows, paired differences and the figure of all trials in the folder, beside them."""
    folder = plans[0].folder
    records = records_in(folder, uci.RECORD)
    rows = rows_of(records)
    content = {
        "experiment": "ablation",
        "command": plans[0].command,
        "versions": versions(),
        "settings": {name: dict(variant.changes) for name, variant in VARIANTS.items()},
        "notes": notes(rows),
        "rows": rows,
        "differences": differences(records),
    }
    write_json(folder / "summary.json", content)
    figure = _figure(rows, f"Table 3 of the paper, {folder.name}")
    kinds = ("png", "svg")
    pictures = [save_figure(figure, folder / f"ablation.{kind}") for kind in kinds]
    return [folder / "summary.json", *pictures]


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader of the numbers must know."""
    said = ["The paper does not state the share of observed features of its Table 3."]
    if any(row["dataset"] == "drive-sample" for row in rows):
        said.append("drive-sample is 2,200 of the 58,509 rows of drive; the paper's is all of it.")
    return said


def _figure(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """One panel a data set and share: ours and its control with spread, the paper's as a cross."""
    panels = list(dict.fromkeys((row["dataset"], row["observed"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns + 1, 3.4 * lines + 1), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, [row for row in rows if (row["dataset"], row["observed"]) == panel])
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title)
    return figure


def _panel(axis: Axes, own: Sequence[dict[str, Any]]) -> None:
    variants = [v for v in VARIANTS if any(row["variant"] == v for row in own)]
    place = {variant: -at for at, variant in enumerate(variants)}
    for method, shift, face in (("fate", 0.12, None), ("fate_drop_new", -0.12, "white")):
        cells = [r for r in own if r["variant"] in place and r["method"] == method]
        axis.errorbar(
            [r["mean"] for r in cells], [place[r["variant"]] + shift for r in cells],
            xerr=[r["std"] for r in cells], fmt="o", ms=5, mfc=face, capsize=2,
            color=COLOURS[method], label=f"ours, {method}",
        )  # fmt: skip
    paper = [(r["paper"], place[r["variant"]]) for r in own if r["paper"] is not None]
    if paper:
        axis.plot(*zip(*paper, strict=True), "kx", label="paper")
    for base in (r for r in own if r["method"] == "base"):
        axis.axvline(base["mean"], color=COLOURS["base"], lw=1, ls=":", label="ours, base")
    labels = [VARIANTS[variant].label for variant in variants]
    axis.set_yticks(list(place.values()), labels, fontsize=8)
    axis.set_title(
        f"{own[0]['dataset']}, {own[0]['observed']:.0%} observed: {own[0]['metric']}", fontsize=10
    )
    axis.grid(alpha=0.3)


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """One table a data set and share: ours, its control and the paper's."""
    for dataset, observed in dict.fromkeys((row["dataset"], row["observed"]) for row in rows):
        own = [r for r in rows if (r["dataset"], r["observed"]) == (dataset, observed)]
        cells = {(row["variant"], row["method"]): row for row in own}
        metric = own[0]["metric"]
        spread = " ± spread over trials" if any(row["n_trials"] > 1 for row in own) else ""
        table = Table(title=f"{dataset}, {observed:.0%} observed: {metric}{spread}")
        for name in ("variant", *CONTROLS, "paper"):
            table.add_column(name, justify="left" if name == "variant" else "right")
        for variant in dict.fromkeys(row["variant"] for row in own):
            found = [cells.get((variant, method)) for method in CONTROLS]
            if variant == "base":  # it drops the new features too
                found = [None, cells["base", "base"]]
            texts = ["-" if row is None else mean_and_spread(row) for row in found]
            paper = papers_number(dataset, variant)
            label = VARIANTS[variant].label if variant in VARIANTS else variant
            table.add_row(label, *texts, "-" if paper is None else f"{paper:.4f}")
        console.print(table)
