"""The paper's second experiment: click logs by day, new values every day (tables 1 and 4).

One trial is one log, one backbone and one seed; its record has the ROC-AUC and log-loss of every
method on T1 .. T8 and over all of them.  A sweep runs FATE for several k or B.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import polars as pl

from openfate.errors import InputError
from openfate.records import Between, Shape
from openfate_lab.arguments import at_least
from openfate_lab.experiments.click_data import (
    NAMES,
    THRESHOLD,
    Clicks,
    Synthetic,
    load_clicks,
)
from openfate_lab.experiments.click_methods import BACKBONES, METHODS, ClickTrial
from openfate_lab.experiments.click_settings import ClickSettings
from openfate_lab.experiments.display import Cell, mark_best, rows_by
from openfate_lab.experiments.runner import (
    RECORD,
    RESULT,
    Experiment,
    Plan,
    Record,
    choose,
    summarise,
)

KEYS = ("dataset", "backbone", "variant")
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


_load = lru_cache(maxsize=1)(load_clicks)


@dataclass(frozen=True)
class Case:
    """What tells a trial of one log from others: backbone, settings, and what is drawn."""

    backbone: str
    settings: ClickSettings
    synthetic: Synthetic


@dataclass(frozen=True)
class CTR(Experiment):
    """The paper's second experiment: clicks by day, new values every day, T1 to T8.

    Parameters
    ----------
    datasets
        Also: synthetic; criteo, avazu where DATA/NAME is prepared.
    backbones
        Some of: nn, deepfm, widedeep, dcn.
    methods
        all, or some of: base, pooling, fate, base_dropout, fate_drop_new, oov, hash, evidence,
        late_labels.
    trials
        Seeds 0 .. trials - 1.
    masking
        kshot, the paper's, or nfold, ours [default: nfold if synthetic].
    sweep
        k (fields kept, the paper's table 4) or B (batch rows).
    values
        What the sweep takes, such as 11,14,17,20 [default: around the data set's own].
    set
        A setting, such as lrs=0.001,0.003 or epochs=5; repeatable. Names: masking, n_kept, n_draws,
        n_folds, drop_edge, batch_rows, plain_batch_rows, predict_rows, lrs, lr_factor, epochs,
        patience, validations, hidden, dropout, normalize, prior_rows, recompose.
    rows
        Synthetic: rows.
    features
        Synthetic: features.
    shape
        Synthetic: criteo or avazu.
    affinity
        Synthetic: how much co-occurrence tells.
    """

    record_shape = staticmethod(record_shape)
    printed = ("rows", "gains")
    settable = ClickSettings
    datasets: tuple[str, ...] = ("criteo-sample", "avazu-sample", "flights")
    backbones: tuple[str, ...] = ("nn", "deepfm")
    methods: tuple[str, ...] | Literal["all"] = "all"
    trials: int = 3
    masking: str | None = None
    sweep: str | None = None
    values: tuple[int, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 4_000_000
    features: int = 1_000_000
    shape: Literal["criteo", "avazu"] = "avazu"
    affinity: float = 1.0

    @property
    def swept(self) -> str | None:
        """The setting that a sweep varies."""
        return {"k": "n_kept", "B": "batch_rows", None: None}[self.sweep]

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked; each draws a synthetic log of its own."""
        datasets = choose("datasets", self.datasets, NAMES)
        backbones = choose("backbones", self.backbones, BACKBONES)
        methods = choose("methods", self.methods, METHODS)
        if self.sweep is not None and self.methods == "all":
            methods = ("fate", "fate_drop_new")
        for name, known in {"masking": tuple(MASKING), "sweep": ("k", "B")}.items():
            if getattr(self, name) is not None:
                choose(name, [getattr(self, name)], known)
        if self.values and self.sweep is None:
            raise InputError(f"values={self.values}: of what? Give a sweep, k or B.")
        if self.set:
            choose("set", list(self.set), list(asdict(ClickSettings())))
        at_least(1000, rows=self.rows)
        at_least(1, features=self.features, values=min(self.values, default=1))
        drawn = Synthetic(self.rows, self.shape, self.features, self.affinity)
        for dataset in datasets:
            clicks = _load(dataset, data, drawn)
            for settings in self.settings(dataset, clicks.n_fields):
                for backbone, seed in itertools.product(backbones, range(trials)):
                    log = replace(drawn, seed=drawn.seed + seed)
                    case = Case(backbone, settings, log)
                    place = f"{dataset}/{backbone}/{self.kind(dataset, case)}/seed-{seed}"
                    yield Plan(self, dataset, seed, methods, place, case=case)

    def settings(self, dataset: str, n_fields: int) -> list[ClickSettings]:
        """Those of a log, as many as the sweep has values."""
        masking = self.masking or ("nfold" if dataset == "synthetic" else "kshot")
        settings = replace(ClickSettings(), **{**USUAL[dataset], **MASKING[masking], **self.set})
        # PAPER: table 4 goes from half of the fields to nearly all of them.
        some_k = sorted({round(share * n_fields) for share in np.linspace(0.5, 0.9, 5)})
        B = settings.batch_rows
        some = {"k": some_k, "B": [B // 4, B // 2, B, 2 * B], None: []}[self.sweep]
        for k in [settings.n_kept, *(self.values if self.sweep == "k" else ())]:
            if not 1 <= k <= n_fields:
                raise InputError(f"k={k}: {dataset} has {n_fields} fields to keep.")
        if self.swept is None:
            return [settings]
        found: list[dict[str, Any]] = [{self.swept: value} for value in self.values or some]
        return [replace(settings, **change) for change in found]

    def kind(self, dataset: str, case: Case) -> str:
        """The masking, and what differs from its usual settings: `kshot`, `kshot-n_kept=20`, ..."""
        masking = "kshot" if case.settings.masking == "k_shot" else "nfold"
        usual = replace(ClickSettings(), **{**USUAL[dataset], **MASKING[masking]})
        plain, own = asdict(usual), asdict(case.settings)
        if dataset == "synthetic":  # the seed of what is drawn goes with the trial's
            plain, own = plain | asdict(Synthetic()), own | asdict(case.synthetic)
            del own["seed"]
        different = [f"{k}={_text(v)}" for k, v in own.items() if v != plain[k] or k == self.swept]
        return "-".join([masking, *(["sweep"] if self.sweep else []), *different])

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        settings = asdict(plan.case.settings)
        return {
            "dataset": plan.dataset,
            "backbone": plan.case.backbone,
            "seed": plan.seed,
            "kind": self.kind(plan.dataset, plan.case),
            "sweep": self.swept,
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()},
            "data_sha256": _load(plan.dataset, plan.data, plan.case.synthetic).sha256,
        }

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the record does not have yet."""
        case, record = plan.case, plan.record()
        clicks = _load(plan.dataset, plan.data, case.synthetic)
        check_parts(clicks)
        if record is None:
            about: Record = {"n_features": clicks.n_features, "n_observed": clicks.n_observed}
            about["new_cells"] = {part: new_share(clicks, part) for part in clicks.parts[1:]}
            if plan.dataset == "synthetic":
                about |= {"synthetic": asdict(case.synthetic), "ceiling": ceiling(case.synthetic)}
            record = plan.begin(**about)
        trial = ClickTrial(clicks, case.backbone, plan.seed, case.settings)
        return plan.complete(record, trial.result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Rows by log, backbone, method and split; what each method gains over base and oov."""
        lines = [line for record in records for line in _lines(record)]
        lines.sort(key=_order)  # stable: splits as they came
        rows = summarise(lines, (*KEYS, "k", "B", "method", "split", "metric"))
        gains = sorted(_gains(lines), key=_order) if lines else []
        return {"rows": list(map(_drop_none, rows)), "gains": list(map(_drop_none, gains))}

    def cells(self, content: Record) -> Iterator[Cell]:
        """The paper's table 1: a table a log and backbone, methods down, test splits across."""
        rows = [row for row in content["rows"] if row["metric"] == "auc"]
        for group in rows_by(rows, *KEYS):
            key = tuple(group[0][name] for name in KEYS)
            title = f"{', '.join(key)}: ROC-AUC, mean over {group[0]['n_trials']} seeds"
            means = {(row["method"], row["split"]): row["mean"] for row in group}
            splits = sorted(
                {row["split"] for row in group} - {"train"},
                key=lambda s: (s == "overall", s != "validation", s),
            )
            for method, split in itertools.product(dict.fromkeys(m for m, _ in means), splits):
                mean = means.get((method, split))
                best = max(m for (_, s), m in means.items() if s == split)
                text = "" if mean is None else mark_best(f"{mean:.3f}"[1:], mean == best)
                yield title, method, "valid." if split == "validation" else split, text
            for gain in sorted(content["gains"], key=lambda gain: str(gain["over"])):
                if tuple(gain[name] for name in KEYS) == key:
                    yield title, gain["method"], f"-{gain['over']}", f"{gain['mean']:+.3f}"


def _text(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


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


def _lines(record: Record) -> Iterator[Record]:
    """One for each method, split and metric; `room` is what the ceiling leaves to gain."""
    sweep, top = record.get("sweep"), record.get("ceiling")
    about = {"dataset": record["dataset"], "backbone": record["backbone"]}
    about |= {"variant": record["kind"], "seed": int(record["seed"])}
    for name, setting in {"k": "n_kept", "B": "batch_rows"}.items():
        about[name] = record["settings"][setting] if sweep == setting else None
    about["room"] = float(top["all"] - top["observed"]) if top else None
    for method in (name for name in METHODS if name in record["results"]):
        result = record["results"][method]
        overall = {"auc": result["score"], "log_loss": result["log_loss"]}
        for split, found in {**result["splits"], "overall": overall}.items():
            for metric in ("auc", "log_loss"):
                score = {"score": float(found[metric]), "seconds": float(result["seconds"])}
                yield about | {"method": method, "split": split, "metric": metric} | score


def _drop_none(row: Record) -> Record:
    """A row without what it does not have: k or B of a sweep, the ceiling of a drawn log."""
    return {key: value for key, value in row.items() if value is not None}


def _order(line: Record) -> tuple[Any, ...]:
    return (*(line[key] for key in KEYS), METHODS.index(line["method"]), line.get("seed", 0))


def _gains(lines: Sequence[Record]) -> Iterator[Record]:
    """AUC over base and over oov, paired by seed and test split."""
    frame = pl.DataFrame(lines, infer_schema_length=None).filter(pl.col("metric") == "auc")
    gain, split, of = pl.col("gain"), pl.col("split"), [*KEYS, "method"]
    for other in ("base", "oov"):
        theirs = frame.filter(pl.col("method") == other)
        theirs = theirs.select(*KEYS, "seed", "split", gain=-pl.col("score"))
        paired = frame.filter(pl.col("method") != other)
        paired = paired.join(theirs, on=[*KEYS, "seed", "split"], maintain_order="left")
        paired = paired.with_columns(gain=pl.col("score") + gain)
        by_split = paired.filter(split.str.contains(r"^T\d+$")).group_by(*of, "split")
        won = (gain > 0).sum().alias("splits_won")
        splits = by_split.agg(gain.mean()).group_by(of).agg(won, n_splits=pl.len())
        overall = paired.filter(split == "overall").group_by(of, maintain_order=True)
        found = overall.agg(
            *(pl.col("k").first(), pl.col("B").first(), gain.mean().alias("mean")),
            *(gain.std().fill_null(0.0).alias("std"), pl.len().alias("n_trials")),
            share_of_ceiling=gain.mean() / pl.col("room").mean(),
        ).join(splits, on=of, how="left")
        yield from ({"over": other, **row} for row in found.to_dicts())
