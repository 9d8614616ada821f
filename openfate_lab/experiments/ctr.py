"""The paper's second experiment: click logs by day, new values every day (tables 1 and 4).

One trial is one log, one backbone and one seed; its record has the ROC-AUC and log-loss of every
method on T1 .. T8 and over all of them.  A sweep runs FATE for several k or B.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from openfate.errors import InputError
from openfate.records import Between, Shape
from openfate_lab.experiments.click_data import (
    NAMES,
    THRESHOLD,
    Clicks,
    Synthetic,
    load_clicks,
)
from openfate_lab.experiments.click_methods import BACKBONES, METHODS, ClickTrial
from openfate_lab.experiments.click_settings import ClickSettings
from openfate_lab.experiments.runner import (
    RECORD,
    RESULT,
    Recorded,
    choose_all,
    records_in,
    versions,
    write_json,
)

__all__ = ["Plan", "make_plans", "run_trial", "summary", "write_summary"]

SCORES = {"auc": Between(0, 1), "log_loss": Between(0)}

# What differs from `ClickSettings` on each log.  Batches: of FATE, whose graph they are (PAPER:
# 100,000 rows), and of networks without one, which learn more from smaller ones.
USUAL: dict[str, dict[str, Any]] = {
    "criteo": {"n_kept": 24, "batch_rows": 100_000, "plain_batch_rows": 10_000, "lrs": (1e-4,)},
    "avazu": {"n_kept": 17, "batch_rows": 100_000, "plain_batch_rows": 10_000, "lrs": (1e-4,)},
    "criteo-sample": {"n_kept": 24, "batch_rows": 1000, "plain_batch_rows": 250},
    "avazu-sample": {"n_kept": 17, "batch_rows": 500, "plain_batch_rows": 100},
    "flights": {"n_kept": 6, "batch_rows": 4000, "plain_batch_rows": 500},
    # Its answer is a sum: a small network learns it, in minutes on a CPU.
    "synthetic": {
        **{"n_kept": 17, "batch_rows": 5000, "plain_batch_rows": 2000, "predict_rows": 400_000},
        **{"lrs": (1e-3,), "hidden": (64, 64), "dropout": 0.0, "epochs": 3},
    },
}
# "kshot" is the paper's model.  "nfold" goes beyond it: hidden features are drawn one by one, as
# new ones come, kept ones use W itself, and a feature of few rows says little (`prior_rows`).  The
# extrapolator learns fast, because it takes one step where the rest takes five.
MASKING: dict[str, dict[str, Any]] = {
    "kshot": {},
    "nfold": {
        **{"masking": "n_fold", "recompose": "masked", "normalize": False, "prior_rows": 100.0},
        **{"drop_edge": 0.0, "lr_factor": 30.0},
    },
}


def record_shape(record: Any) -> Shape:
    """What is relied on in a record: every result has every test part of the log."""
    parts = record.get("new_cells") if isinstance(record, dict) else None
    tests = [part for part in parts if part != "validation"] if isinstance(parts, dict) else []
    splits = {**dict.fromkeys(tests, SCORES), str: SCORES}
    return {
        **RECORD,
        **{"backbone": str, "seed": int, "kind": str, "sweep": ("n_kept", "batch_rows", None)},
        **{"settings": {"n_kept": int, "batch_rows": int}, "new_cells": {str: float}},
        "ceiling": ({"observed": float, "all": float}, None),
        "results": {str: {**RESULT, "log_loss": float, "splits": splits}},
    }


@lru_cache(maxsize=1)
def _load(name: str, data: str | None, synthetic: Synthetic) -> Clicks:
    return load_clicks(name, data, synthetic)


@dataclass(frozen=True)
class Plan(Recorded):
    """One trial to run: everything that its numbers depend on."""

    shape: ClassVar[Shape] = staticmethod(record_shape)
    dataset: str
    backbone: str
    seed: int
    methods: tuple[str, ...]
    folder: Path
    settings: ClickSettings
    data: str | None = None
    synthetic: Synthetic = field(default_factory=Synthetic)
    sweep: str | None = None  # the setting that a sweep varies
    command: str = ""

    @property
    def path(self) -> Path:
        """The trial's record."""
        place = self.folder / self.dataset / self.backbone / self.kind
        return place / f"seed-{self.seed}" / "trial.json"

    @property
    def kind(self) -> str:
        """The masking, and what differs from its usual settings: `kshot`, `kshot-n_kept=20`, ..."""
        masking = "kshot" if self.settings.masking == "k_shot" else "nfold"
        usual = replace(ClickSettings(), **{**USUAL[self.dataset], **MASKING[masking]})
        settings = {**asdict(self.settings), **self._drawn()}
        plain = {**asdict(usual), **asdict(Synthetic())}
        different = [
            f"{k}={_text(v)}" for k, v in settings.items() if v != plain[k] or k == self.sweep
        ]
        swept = ["sweep"] if self.sweep else []
        return "-".join([masking, *swept, *different])

    def _drawn(self) -> dict[str, Any]:
        """The drawn log, without its seed, which goes with the trial's."""
        if self.dataset != "synthetic":
            return {}
        return {k: v for k, v in asdict(self.synthetic).items() if k != "seed"}

    @property
    def title(self) -> str:
        """For the progress bar."""
        swept = f" {self.sweep} {getattr(self.settings, self.sweep)}" if self.sweep else ""
        return f"{self.dataset} {self.backbone}{swept} seed {self.seed}"

    def clicks(self) -> Clicks:
        """The log."""
        return _load(self.dataset, self.data, self.synthetic)

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        settings = asdict(self.settings)
        return {
            "dataset": self.dataset,
            "backbone": self.backbone,
            "seed": self.seed,
            "kind": self.kind,
            "sweep": self.sweep,
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()},
            "data_sha256": self.clicks().sha256,
        }


def make_plans(
    *,
    datasets: Sequence[str],
    backbones: Sequence[str],
    methods: Sequence[str],
    trials: int,
    out: Path,
    data: str | None = None,
    masking: str | None = None,
    sweep: str | None = None,
    values: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
    synthetic: Synthetic | None = None,
    command: str = "",
) -> list[Plan]:
    """Every trial of the experiment, checked before anything runs.

    Parameters
    ----------
    masking
        "kshot", the paper's, or "nfold", ours; by default the first, the second for `synthetic`.
    sweep, values
        "k" or "B" and what it takes, by default a range around the data set's own.
    changes
        Settings that differ from `ClickSettings`.
    """
    choose_all("--datasets", datasets, NAMES)
    choose_all("--backbones", backbones, BACKBONES)
    choose_all("--methods", methods, METHODS)
    if masking is not None:
        choose_all("--masking", [masking], tuple(MASKING))
    if sweep is not None:
        choose_all("--sweep", [sweep], ("k", "B"))
    elif values:
        raise InputError(f"--values {','.join(map(str, values))}: of what? Give --sweep k or B.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: choose a folder.")
    drawn, swept = synthetic or Synthetic(), {"k": "n_kept", "B": "batch_rows", None: None}[sweep]
    plans = []
    for dataset in dict.fromkeys(datasets):
        clicks = _load(dataset, data, drawn)
        usual = masking or ("nfold" if dataset == "synthetic" else "kshot")
        for settings in _settings(dataset, clicks.n_fields, usual, sweep, values, changes or {}):
            for backbone, seed in itertools.product(dict.fromkeys(backbones), range(trials)):
                log = replace(drawn, seed=drawn.seed + seed)  # a stream of its own for each trial
                same = (dataset, backbone, seed, tuple(methods), out, settings, data)
                plans.append(Plan(*same, log, swept, command))
    return plans


def _settings(
    dataset: str,
    n_fields: int,
    masking: str,
    sweep: str | None,
    values: Sequence[int],
    changes: Mapping[str, Any],
) -> list[ClickSettings]:
    settings = replace(ClickSettings(), **{**USUAL[dataset], **MASKING[masking], **changes})
    if not 1 <= settings.n_kept <= n_fields:
        raise InputError(f"k = {settings.n_kept}: {dataset} has {n_fields} fields to keep.")
    if sweep is None:
        return [settings]
    if sweep == "k":
        # PAPER: table 4 goes from half of the fields to nearly all of them.
        shares = np.linspace(0.5, 0.9, 5)
        chosen = values or sorted({round(share * n_fields) for share in shares})
        wrong = [k for k in chosen if not 1 <= k <= n_fields]
        if wrong:
            raise InputError(f"--values {wrong[0]}: {dataset} has {n_fields} fields to keep.")
        return [replace(settings, n_kept=k) for k in chosen]
    B = settings.batch_rows
    chosen = values or [B // 4, B // 2, B, 2 * B]
    return [replace(settings, batch_rows=rows) for rows in chosen]


def _text(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def run_trial(plan: Plan) -> dict[str, Any]:
    """Run the methods of a trial that its record does not have yet; returns the whole record."""
    record = plan.record()
    clicks = plan.clicks()
    check_parts(clicks)
    if record is None:
        about = {
            "n_features": clicks.n_features,
            "n_observed": clicks.n_observed,
            "new_cells": {part: new_share(clicks, part) for part in clicks.parts[1:]},
        }
        if plan.dataset == "synthetic":
            about |= {"synthetic": asdict(plan.synthetic), "ceiling": ceiling(plan.synthetic)}
        about |= {"command": plan.command, "versions": versions()}
        record = {**plan.header(), **about, "results": {}}
    trial = ClickTrial(clicks, plan.backbone, plan.seed, plan.settings)
    for method in plan.methods:
        if method not in record["results"]:
            record["results"][method] = trial.result(method)
            write_json(plan.path, record)
    return record


def check_parts(clicks: Clicks) -> None:
    """Refuse a log with a part that has no rows, or rows of one class alone: it has no AUC."""
    for part in clicks.parts:
        seen = {float(y) for _, labels in clicks.batches(part, 100_000) for y in np.unique(labels)}
        if len(seen) != 2:
            held = f"only labels {sorted(seen)}" if seen else "no rows"
            raise InputError(
                f"{part} of {clicks.name} holds {held}: give more rows, so that every part has "
                "clicks and others."
            )


def new_share(clicks: Clicks, part: str) -> float:
    """The share of a part's cells whose feature is new."""
    new = cells = 0
    for ids, _ in clicks.batches(part, 100_000):
        table = np.asarray(ids)
        new, cells = new + int((table >= clicks.n_observed).sum()), cells + table.size
    return new / cells


def ceiling(synthetic: Synthetic) -> dict[str, float]:
    """What knowing more and more of the true weights would reach on T1 .. T8, as mean AUC.

    "observed" knows those of features with enough training rows, "all" knows every one.
    """
    stream = synthetic.stream()
    known = stream.training_counts() >= THRESHOLD
    tops = [stream.ceiling(part, known, max_rows=50_000) for part in stream.parts[2:]]
    return {name: float(np.mean([top[name] for top in tops])) for name in tops[0]}


# ---- gathering ---------------------------------------------------------------------------------


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows by log, backbone, method and split; what each method gains over base and over oov."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda r: int(r["seed"])):
        key = (record["dataset"], record["backbone"])
        groups.setdefault((*key, record["kind"]), []).append(record)
    rows, gains = [], []
    for key in sorted(groups):
        about = _about(groups[key][0])
        for method in METHODS:
            results = [r["results"][method] for r in groups[key] if method in r["results"]]
            rows += _rows(about, method, results)
            gains += _gains(about, method, groups[key])
    return {"rows": rows, "gains": gains}


def _about(record: dict[str, Any]) -> dict[str, Any]:
    sweep, settings = record.get("sweep"), record["settings"]
    swept = {"n_kept": "k", "batch_rows": "B"}
    about = {"dataset": record["dataset"], "backbone": record["backbone"]}
    about["variant"] = record["kind"]
    return {**about, swept[sweep]: settings[sweep]} if sweep else about


def _rows(
    about: dict[str, Any], method: str, results: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for split in (*results[0]["splits"], "overall") if results else ():
        for metric in ("auc", "log_loss"):
            scores = [_score(result, split, metric) for result in results]
            rows.append(
                {
                    **about,
                    "split": split,
                    "method": method,
                    "metric": metric,
                    "mean": float(np.mean(scores)),
                    "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
                    "n_trials": len(scores),
                    "seconds": float(np.mean([result["seconds"] for result in results])),
                }
            )
    return rows


def _score(result: dict[str, Any], split: str, metric: str) -> float:
    if split == "overall":
        return float(result["score"] if metric == "auc" else result["log_loss"])
    return float(result["splits"][split][metric])


def _gains(
    about: dict[str, Any], method: str, records: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """AUC over base and over oov, paired by seed and test split."""
    gains = []
    for other in ("base", "oov"):
        paired = [r for r in records if {method, other} <= r["results"].keys()]
        if method == other or not paired:
            continue
        both = [r["results"] for r in paired]
        overall = [r[method]["score"] - r[other]["score"] for r in both]
        splits = [s for s in both[0][other]["splits"] if s.startswith("T") and s[1:].isdigit()]
        by_split = np.array(
            [
                [_score(r[method], s, "auc") - _score(r[other], s, "auc") for s in splits]
                for r in both
            ]
        ).mean(0)
        gain = {
            **about,
            "method": method,
            "over": other,
            "mean": float(np.mean(overall)),
            "std": float(np.std(overall, ddof=1)) if len(overall) > 1 else 0.0,
            "n_trials": len(overall),
            "splits_won": int((by_split > 0).sum()),
            "n_splits": len(splits),
        }
        tops = [r["ceiling"] for r in paired if r.get("ceiling")]  # each seed has its own log
        if tops:
            most = float(np.mean([top["all"] - top["observed"] for top in tops]))
            gain["share_of_ceiling"] = gain["mean"] / most
        gains.append(gain)
    return gains


def write_summary(plans: Sequence[Plan]) -> list[Path]:
    """Rows of all trials in the experiment's folder, beside them."""
    folder = plans[0].folder
    content = summary(records_in(folder, record_shape, below="*/*/*/*"))
    path = folder / "summary.json"
    about = {"experiment": "ctr", "command": plans[0].command, "versions": versions()}
    write_json(path, {**about, **content})
    return [path]
