"""The paper's first experiment: six data sets, 30 to 80 % of the features observed (figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from openfate.errors import InputError
from openfate.records import Shape
from openfate.training import Compat, Settings
from openfate_lab.data import Dataset, Split, load
from openfate_lab.experiments import runner
from openfate_lab.experiments.methods import METHODS, Novelty, Trial, make_split
from openfate_lab.experiments.present import line_plots, save_figure
from openfate_lab.experiments.runner import (
    Recorded,
    choose_all,
    records_in,
    summarise,
    trial_path,
    versions,
    write_json,
)

__all__ = ["METHODS", "RECORD", "Plan", "make_plans", "run_trial", "write_summary"]

Kind = TypeVar("Kind", bound="Plan")

RECORD = {**runner.RECORD, "observed": float, "seed": int, "settings": (dict, None)}

_load = lru_cache(maxsize=2)(load)  # a worker runs many trials of one data set


@dataclass(frozen=True)
class Plan(Recorded):
    """One trial to run: everything that its numbers depend on."""

    shape: ClassVar[Shape] = RECORD
    dataset: str
    observed: float
    seed: int
    methods: tuple[str, ...]
    folder: Path
    data: str | None = None
    compat: Compat = None
    novelty: Novelty = "values"
    split_seed: int | None = None
    settings: Settings = field(default_factory=Settings)
    command: str = ""

    @property
    def path(self) -> Path:
        """The trial's record."""
        return trial_path(self.folder, self.dataset, self.observed, self.seed)

    @property
    def title(self) -> str:
        """For the progress bar."""
        return f"{self.dataset} {self.observed:.0%} seed {self.seed}"

    def header(self) -> dict[str, Any]:
        """What a record must agree with before anything is added to it."""
        return {
            "dataset": self.dataset,
            "observed": self.observed,
            "seed": self.seed,
            "split_seed": self.split_seed,
            "compat": self.compat,
            "novelty": self.novelty,
            "settings": asdict(self.settings),
            "data_sha256": _load(self.dataset, self.data).sha256,
        }

    def completed(self, record: dict[str, Any]) -> dict[str, Any]:
        """A setting that came after the record was written had its default then."""
        record["settings"] = asdict(Settings()) | (record.get("settings") or {})
        return record

    def loaded(self) -> tuple[Dataset, Split]:
        """The data set and its split."""
        dataset = _load(self.dataset, self.data)
        seed = self.seed if self.split_seed is None else self.split_seed
        return dataset, make_split(dataset, self.observed, seed, self.novelty, self.compat)

    def new_record(self, split: Split, trial: Trial) -> dict[str, Any]:
        """A record without results."""
        parts = ("train", "validation", "test", "observed", "new")
        sizes = {name: len(getattr(split, name)) for name in parts}
        return {
            **self.header(),
            "split": {"sha256": split.sha256, **sizes},
            "new_features_without_rows": trial.new_features_without_rows,
            "command": self.command,
            "versions": versions(),
            "results": {},
        }

    def turned_into(self, kind: type[Kind], **changes: Any) -> Kind:
        """A plan of another experiment with the same settings, but for `changes`."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return kind(**known | changes)


def make_plans(
    *,
    datasets: Sequence[str],
    observed: Sequence[float],
    methods: Sequence[str],
    trials: int,
    out: Path,
    data: str | None = None,
    compat: str | None = None,
    novelty: str = "values",
    split_seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    command: str = "",
) -> list[Plan]:
    """Every trial of an experiment, checked: names, folders and files, before anything runs.

    `changes` are settings that differ from those of `compat`; they name the folder.
    """
    choose_all("--datasets", datasets, datasets)
    choose_all("--observed", observed, observed)
    choose_all("--methods", methods, METHODS)
    choose_all("--novelty", [novelty], get_args(Novelty))
    if compat is not None:
        choose_all("--compat", [compat], ("paper", "reference"))
    if split_seed is not None and not 0 <= split_seed < 2**31:
        raise InputError(f"--split-seed {split_seed}: choose a whole number from 0 to 2^31.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: choose a folder.")
    plain = Settings().compat(compat)  # type: ignore[arg-type]
    settings = replace(plain, **(changes or {}))
    folder = out / _variant(compat, novelty, split_seed, plain, settings)
    plans = []
    for name in datasets:
        dataset = _load(name, data)
        for share in observed:
            make_split(dataset, share, 0, novelty)  # type: ignore[arg-type]
            for seed in range(trials):
                plans.append(
                    Plan(
                        name,
                        share,
                        seed,
                        tuple(methods),
                        folder,
                        data,
                        compat,  # type: ignore[arg-type]
                        novelty,  # type: ignore[arg-type]
                        split_seed,
                        settings,
                        command,
                    )
                )
    return plans


def _variant(
    compat: str | None, novelty: str, split_seed: int | None, plain: Settings, settings: Settings
) -> str:
    """The folder of one kind of run: `default`, `reference`, `default-columns`, ..."""
    parts = [compat or "default"]
    parts += ["columns"] if novelty == "columns" else []
    parts += [f"split{split_seed}"] if split_seed is not None else []
    for name, value in asdict(settings).items():
        if value != getattr(plain, name):
            parts.append(f"{name}={value}".lower())
    return "-".join(parts)


def run_trial(plan: Plan) -> dict[str, Any]:
    """Run the methods of a trial that its record does not have yet; returns the whole record."""
    dataset, split = plan.loaded()
    trial = Trial(dataset, split, plan.seed, plan.settings, plan.compat)
    record = plan.record() or plan.new_record(split, trial)
    for method in plan.methods:
        if method not in record["results"]:
            record["results"][method] = trial.result(method)
            split.save(plan.path.with_name("split.npz"))
            write_json(plan.path, record)
    return record


def write_summary(plans: Sequence[Plan]) -> list[Path]:
    """Rows and plots of all trials in the experiment's folder, beside them."""
    folder = plans[0].folder
    rows = summarise(records_in(folder, RECORD), METHODS)
    summary = folder / "summary.json"
    about = {"experiment": "uci", "command": plans[0].command, "versions": versions()}
    write_json(summary, {**about, "rows": rows})
    n_trials = sorted({row["n_trials"] for row in rows})
    over = f"mean and spread over {' or '.join(map(str, n_trials))} trials"
    title = f"UCI, {folder.name}: {'one trial' if n_trials == [1] else over}"
    figure = line_plots(rows, title)
    return [summary, *(save_figure(figure, folder / f"uci.{kind}") for kind in ("png", "svg"))]
