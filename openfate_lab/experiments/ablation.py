"""The paper's Table 3: FATE without one of its parts, or with other masks, on six data sets.

Every variant starts from the same split and seed, so that its difference from the full model is
paired.  `fate_drop_new` is the control of each: the same trained model, its new features dropped.
The paper does not state its share of observed features, nor how many features "leave-one-out"
leaves out (a fifth here, as n-fold's five parts do).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openfate.errors import DataFileError, OpenFATEError
from openfate.graph import Bipartite, Edges
from openfate.models import FATE
from openfate.table import MultiHot
from openfate.training import Compat, Settings, log_loss, n_fold
from openfate_lab.data import find
from openfate_lab.experiments.display import COLOURS, Cell, draw_panels, mean_and_spread, rows_by
from openfate_lab.experiments.runner import (
    Experiment,
    Plan,
    Record,
    choose,
    scores,
    summarise,
    write_json,
)
from openfate_lab.experiments.uci import RECORD, TableExperiment
from openfate_lab.experiments.uci_methods import Trial
from openfate_lab.report import TABLE3

CONTROLS = ("fate", "fate_drop_new")  # of each variant, from one trained model


@dataclass(frozen=True)
class Variant:
    """What differs from the full model."""

    label: str
    changes: dict[str, Any] = field(default_factory=dict)
    longer: int = 1  # times the epochs


_K_SHOT = {"masking": "k_shot", "unit": "feature", "reading": "mask"}

# Those of the paper's `TABLE3`, and two of ours.
VARIANTS = {
    "full": Variant("FATE: n-fold, n = 5"),
    "no_drop_edge": Variant("without DropEdge", {"drop_edge": 0.0}),
    "joint": Variant("joint updates", {"async_updates": False}),
    "leave_out": Variant("leave-one-out", {"masking": "leave_out"}),
    "n_fold_2": Variant("n-fold, n = 2", {"n_folds": 2}),
    "n_fold_10": Variant("n-fold, n = 10", {"n_folds": 10}),
    "k_shot_1": Variant("k-shot, 1 draw", {**_K_SHOT, "n_draws": 1}),
    "k_shot_5": Variant("k-shot, 5 draws", {**_K_SHOT, "n_draws": 5}),
    "k_shot_10": Variant("k-shot, 10 draws", {**_K_SHOT, "n_draws": 10}),
    # An epoch of these two has one step, of the full model five; five times the epochs make the
    # number of steps the same.
    "leave_out_long": Variant("leave-one-out, 5 x epochs", {"masking": "leave_out"}, 5),
    "k_shot_1_long": Variant("k-shot, 1 draw, 5 x epochs", {**_K_SHOT, "n_draws": 1}, 5),
}


# ---- trials --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ablation(TableExperiment):
    """The paper's Table 3: FATE without one of its parts, or with other masks.

    Parameters
    ----------
    datasets
        drive: its sample where the whole file is not there.
    observed
        Shares of observed features; all: 0.3 to 0.8.
    variants
        all (the paper's), or some of: full, no_drop_edge, joint, leave_out, n_fold_2, n_fold_10,
        k_shot_1, k_shot_5, k_shot_10, leave_out_long, k_shot_1_long.
    trials
        Seeds 0 .. trials - 1.
    compat
        reference: the released code; paper: its words.
    epochs
        Passes over the training rows.
    search
        The paper's grid instead, chosen on validation rows.
    search_trials
        Seeds to search with.
    """

    printed = ("replaced", "notes", "rows")
    datasets: tuple[str, ...] = ("gene", "protein", "robot", "drive", "calls", "github")
    observed: tuple[float, ...] | Literal["all"] = (0.5,)
    variants: tuple[str, ...] | Literal["all"] = "all"
    trials: int = 5
    compat: Compat = None
    epochs: int = 200
    search: bool = False
    search_trials: int = 1

    def resolve(self) -> Experiment:
        """The search, if it is asked for."""
        if not self.search or isinstance(self, Search):
            return self
        return Search(**{field.name: getattr(self, field.name) for field in fields(self)})

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked; the data sets being those that are there."""
        used = tuple(replace_missing(choose("datasets", self.datasets), data).values())
        return super(Ablation, replace(self, datasets=used)).plan(data, trials)

    def methods_of(self, plan: Plan) -> tuple[str, ...]:
        """Each variant and its control, and the network alone."""
        known = list(TABLE3 if self.variants == "all" else VARIANTS)
        variants = choose("variants", self.variants, known)
        return ("base", *(f"{name}/{method}" for name in variants for method in CONTROLS))

    def run_trial(self, plan: Plan) -> Record:
        """Run the variants that the record does not have yet."""
        full, record = self.open(plan)

        @cache
        def trial_of(variant: str) -> Trial:
            settings = settings_of(variant, self.settings, full.n_observed)
            # PAPER: k-shot "masks the remaining" features here, as n-fold does (T9): kept ones
            # use W.
            return Trial(
                full.dataset, full.split, plan.seed, settings, self.compat, recompose="masked"
            )

        def result(name: str) -> Record:
            variant, _, method = name.rpartition("/")
            if not variant:
                return full.result(method)
            found = trial_of(variant).result(method)
            del found["features_without_training_rows"]  # the same for all: base has them
            return found

        return plan.complete(record, result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Rows with the paper's numbers, and paired differences from the full model."""
        lines = variant_scores(records)
        rows = variant_rows(lines)
        return {
            "settings": {name: dict(variant.changes) for name, variant in VARIANTS.items()},
            "replaced": self.replaced(rows),
            "notes": notes(rows),
            "rows": rows,
            "differences": differences(lines),
        }

    def replaced(self, rows: Sequence[Record]) -> dict[str, str]:
        """The data sets that were asked for and not there, and what took their place."""
        used = {row["dataset"] for row in rows}
        samples = {name: f"{name}-sample" for name in self.datasets}
        return {n: other for n, other in samples.items() if n not in used and other in used}

    def figure(self, content: Record, records: Sequence[Record]) -> Figure | None:
        """One panel a data set and share."""
        title = f"Table 3 of the paper, {self.folder}"
        return draw_panels(
            rows_by(content["rows"], "dataset", "observed"), _panel, size=(5.0, 3.4), title=title
        )

    def cells(self, content: Record) -> Iterator[Cell]:
        """One table a data set and share: ours, its control and the paper's."""
        for own in rows_by(content["rows"], "dataset", "observed"):
            about = f"{own[0]['dataset']}, {own[0]['observed']:.0%} observed: {own[0]['metric']}"
            spread = " ± spread over trials" if any(row["n_trials"] > 1 for row in own) else ""
            cells = {(row["variant"], row["method"]): mean_and_spread(row) for row in own}
            # Base drops the new features too.
            cells["base", "fate_drop_new"] = cells.get(("base", "base"), "-")
            for variant in dict.fromkeys(row["variant"] for row in own):
                label = VARIANTS[variant].label if variant in VARIANTS else variant
                paper = papers_number(own[0]["dataset"], variant)
                texts = [cells.get((variant, method), "-") for method in CONTROLS]
                texts.append("-" if paper is None else f"{paper:.4f}")
                for column, text in zip((*CONTROLS, "paper"), texts, strict=True):
                    yield f"{about}{spread}", label, column, text


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
            warnings.warn("drive is not there: drive-sample takes its place.", stacklevel=2)
    return used


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


# ---- summary -------------------------------------------------------------------------------------


def variant_scores(records: Sequence[Record]) -> list[Record]:
    """One line for each trial, variant and method; base is a variant of its own."""
    names = [f"{variant}/{method}" for variant in (*VARIANTS, "searched") for method in CONTROLS]
    lines = []
    for line in scores(records, ["base", *names]):
        variant, _, method = line["method"].rpartition("/")
        lines.append(line | {"variant": variant or "base", "method": method})
    return lines


def variant_rows(lines: Sequence[Record]) -> list[Record]:
    """Mean and spread of each variant and control, with the paper's number beside them."""
    rows = summarise(lines, ("dataset", "observed", "variant", "method", "metric"))
    for row in rows:
        own = row["method"] == "fate"
        row["paper"] = papers_number(row["dataset"], row["variant"]) if own else None
    return rows


def papers_number(dataset: str, variant: str) -> float | None:
    """What Table 3 has for a cell; for drive-sample, what it has for the whole of drive."""
    name = "drive" if dataset == "drive-sample" else dataset
    return TABLE3.get(variant, {}).get(name)


def differences(lines: Sequence[Record]) -> list[Record]:
    """How far each variant is from the full model, paired over trials, and how far in the paper."""
    if not lines:
        return []
    frame, keys = pl.DataFrame(lines), ("dataset", "observed", "seed", "method")
    full = frame.filter(pl.col("variant") == "full").select(*keys, full="score")
    gain = pl.col("score") - pl.col("full")
    found = (
        frame.filter(~pl.col("variant").is_in(["base", "full"]))
        .join(full, on=keys, maintain_order="left")
        .group_by("dataset", "observed", "variant", "method", maintain_order=True)
        .agg(
            gain.mean().alias("difference"),
            (gain.std() / pl.len().sqrt()).alias("standard_error"),
            pl.len().alias("n_trials"),
        )
        .to_dicts()
    )
    for row in found:
        theirs, most = (papers_number(row["dataset"], v) for v in (row["variant"], "full"))
        both = row["method"] == "fate" and theirs is not None and most is not None
        row["paper"] = round(theirs - most, 4) if both else None  # type: ignore[operator]
    return found


def notes(rows: Sequence[Record]) -> list[str]:
    """What a reader of the numbers must know."""
    said = ["The paper does not state the share of observed features of its Table 3."]
    if any(row["dataset"] == "drive-sample" for row in rows):
        said.append("drive-sample is 2,200 of the 58,509 rows of drive; the paper's is all of it.")
    return said


def _panel(axis: Axes, own: Sequence[Record]) -> None:
    """Ours and its control with spread, the paper's as a cross."""
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


# ---- the paper's grid ----------------------------------------------------------------------------

# PAPER: appendix D.1, "Hyperparameters": both learning rates, rho and n; its k and B are settings
# of the click experiment, here every step sees all rows.
GRID: dict[str, tuple[Any, ...]] = {
    "lr": (0.1, 0.01, 0.001),
    "lr_extrapolator": (0.1, 0.01, 0.001),
    "drop_edge": (0.0, 0.2, 0.5),
    "n_folds": (2, 5, 10),
}
N_FOLDS = 5  # of the masks that all candidates are compared on
CANDIDATE = {"settings": dict, "own_log_loss": (float, None), "common_log_loss": (float, None)}
SEARCH_RECORD = {**RECORD, "candidates": [CANDIDATE]}


@dataclass(frozen=True)
class Search(Ablation):
    """The paper's grid of settings, chosen on validation rows: `Ablation(search=True)`.

    Each trial chooses for itself, so that no test row of it has a say.  A candidate's own
    validation loss hides 1 / n of the features: it would favour a large n.  So all candidates are
    compared on the same five masks, and the choice by their own loss is noted beside it.
    """

    record_shape = SEARCH_RECORD

    @property
    def name(self) -> str:
        """Of the command that runs it."""
        return "ablation"

    @property
    def folder(self) -> str:
        """Beside the variants."""
        return f"{super().folder}/search"

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked; it has a number of trials of its own."""
        return super().plan(data, self.search_trials)

    def methods_of(self, plan: Plan) -> tuple[str, ...]:
        """The full model and what was chosen, each with its control."""
        return tuple(f"{variant}/{m}" for variant in ("full", "searched") for m in CONTROLS)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return super().header(plan) | {"grid": {name: list(tried) for name, tried in GRID.items()}}

    def run_trial(self, plan: Plan) -> Record:
        """Train the candidates that the record does not have yet, choose, score."""
        full, record = self.open(plan)
        candidates = record.setdefault("candidates", [])

        def changed(changes: Record) -> Trial:
            settings = replace(self.settings, **changes)
            return Trial(full.dataset, full.split, plan.seed, settings, self.compat)

        tried = [candidate["settings"] for candidate in candidates]
        for values in itertools.product(*GRID.values()):
            changes = dict(zip(GRID, values, strict=True))
            if changes not in tried:
                candidates.append({"settings": changes, **_candidate(changed(changes))})
                write_json(plan.path, record)
        for key, loss in (("chosen", "common_log_loss"), ("chosen_by_own_loss", "own_log_loss")):
            record[key] = least(candidates, loss)
        trials = {"full": full, "searched": changed(record["chosen"])}

        def result(name: str) -> Record:
            variant, method = name.split("/")
            return trials[variant].result(method)

        return plan.complete(record, result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Rows and choices of all searches that came to an end."""
        done = [record for record in records if record["results"]]
        rows = variant_rows(variant_scores(done))
        names = ("dataset", "observed", "seed", "chosen", "chosen_by_own_loss")
        chosen = [{name: record.get(name) for name in names} for record in done]
        about = {"replaced": self.replaced(rows), "notes": notes(rows)}
        return {"grid": GRID, "chosen": chosen, **about, "rows": rows}

    def figure(self, content: Record, records: Sequence[Record]) -> None:
        """None."""


def _candidate(trial: Trial) -> Record:
    """What is known of a candidate without a look at test rows."""
    try:
        with torch.random.fork_rng(devices=[]):
            model, history = trial.fate_fit
    except OpenFATEError as error:  # a step size too large
        return {"own_log_loss": None, "common_log_loss": None, "failed": str(error)}
    best = history.steps[history.best - 1]
    return {
        "own_log_loss": best.validation_loss,
        "common_log_loss": common_loss(trial, model),
        "best_epoch": history.best,
        "seconds": round(history.seconds, 3),
    }


@torch.no_grad()
def common_loss(trial: Trial, model: FATE) -> float:
    """The validation log-loss over masks that depend on the trial's seed alone."""
    X, validation = map(trial.observed_only, (trial.train_all, trial.validation_all))
    edges = Edges.of(Bipartite.from_multihot(MultiHot.stack([X, validation])))
    masks = n_fold(trial.n_observed, N_FOLDS, torch.Generator().manual_seed(trial.seed))
    logits = model(Bipartite.from_multihot(validation), masks.T, edges)  # (N, S, C)
    return float(log_loss(logits, torch.from_numpy(trial.y_validation)))


def least(candidates: Sequence[Record], loss: str) -> Record:
    """The settings with the least loss; of equals, the first of the grid."""
    found = [candidate for candidate in candidates if candidate.get(loss) is not None]
    if not found:
        raise OpenFATEError("every candidate of the grid diverged: the data set cannot be learnt.")
    settings: Record = min(found, key=lambda candidate: float(candidate[loss]))["settings"]
    return settings
