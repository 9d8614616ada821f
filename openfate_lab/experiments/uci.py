"""The paper's first experiment: six data sets, 30 to 80 % of the features observed (figure 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openfate.errors import InputError
from openfate.records import Shape
from openfate.training import Compat, Settings
from openfate_lab.data import Dataset, Split, load
from openfate_lab.experiments import runner
from openfate_lab.experiments.display import COLOURS, Cell, draw_panels, rows_by, score_cells
from openfate_lab.experiments.runner import Experiment, Plan, Record, choose, scores, summarise
from openfate_lab.experiments.uci_methods import METHODS, Novelty, Trial, make_split

RECORD = {**runner.RECORD, "observed": float, "seed": int, "settings": (dict, None)}
CONTROLS = ("fate_drop_new", "base_dropout")

load_once = lru_cache(maxsize=2)(load)  # a worker runs many trials of one data set


class TableExperiment(Experiment):
    """Trials of one data set, one share of observed features and one seed.

    A subclass has fields for some of these settings; the others are as they are here.
    """

    record_shape: ClassVar[Shape] = RECORD
    known: ClassVar[tuple[str, ...]] = METHODS  # all methods, in the order of tables
    datasets: tuple[str, ...]
    methods: tuple[str, ...] | Literal["all"] = "all"
    observed: tuple[float, ...] | Literal["all"] = (0.5,)
    compat: Compat = None
    novelty: Novelty = "values"
    split_seed: int | None = None
    seed: int = 0  # of the first trial
    epochs: int = 200
    set: Mapping[str, Any] = {}

    @cached_property
    def settings(self) -> Settings:
        """How models are trained."""
        if self.set:
            choose("set", list(self.set), [field.name for field in fields(Settings)])
        return replace(Settings().compat(self.compat), **{"epochs": self.epochs, **self.set})

    @property
    def is_centred(self) -> bool:
        """Whether `fate` takes the mean from the embeddings of new features."""
        return False

    @property
    def folder(self) -> str:
        """Named after what differs: `default`, `reference`, `default-columns`, ..."""
        parts: list[str] = [self.compat or "default"]
        parts += ["columns"] if self.novelty == "columns" else []
        parts += [f"split{self.split_seed}"] if self.split_seed is not None else []
        plain = asdict(Settings().compat(self.compat))
        changed = {k: v for k, v in asdict(self.settings).items() if v != plain[k]}
        return "-".join([*parts, *(f"{k}={v}".lower() for k, v in changed.items())])

    def plan(self, data: str | None, trials: int) -> Iterator[Plan]:
        """Every trial, checked."""
        choose("novelty", [self.novelty], get_args(Novelty))
        for name, number in {"split_seed": self.split_seed, "seed": self.seed}.items():
            if number is not None and not 0 <= number < 2**31:
                raise InputError(f"{name}={number}: choose an integer from 0 to 2^31.")
        shares = check_shares(self.observed)
        for name in choose("datasets", self.datasets):
            dataset = load_once(name, data)
            for share in shares:
                make_split(dataset, share, 0, self.novelty)  # refuses what is no share
                for seed in range(self.seed, self.seed + trials):
                    plan = Plan(self, name, seed, (), place_of(name, share, seed), share, data=data)
                    yield replace(plan, methods=self.methods_of(plan))

    def methods_of(self, plan: Plan) -> tuple[str, ...]:
        """Names of the results of a trial."""
        return choose("methods", self.methods, self.known)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return {
            "dataset": plan.dataset,
            "observed": plan.observed,
            "seed": plan.seed,
            "split_seed": self.split_seed,
            "compat": self.compat,
            "novelty": self.novelty,
            "settings": asdict(self.settings),
            "data_sha256": load_once(plan.dataset, plan.data).sha256,
        }

    def restore(self, plan: Plan, record: Record) -> Record:
        """A setting that came after the record was written had its default then."""
        record["settings"] = asdict(Settings()) | (record.get("settings") or {})
        return record

    def load(self, plan: Plan) -> tuple[Dataset, Split]:
        """The data set of a trial and its split."""
        dataset = load_once(plan.dataset, plan.data)
        seed = plan.seed if self.split_seed is None else self.split_seed
        return dataset, make_split(dataset, plan.observed, seed, self.novelty, self.compat)

    def open(self, plan: Plan) -> tuple[Trial, Record]:
        """The models of a trial, and its record so far."""
        dataset, split = self.load(plan)
        trial = Trial(
            dataset, split, plan.seed, self.settings, self.compat, centred=self.is_centred
        )
        parts = ("train", "validation", "test", "observed", "new")
        sizes = {name: len(getattr(split, name)) for name in parts}
        return trial, plan.record() or plan.begin(
            split={"sha256": split.sha256, **sizes},
            new_features_without_rows=trial.new_features_without_rows,
        )

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Mean and spread of each data set, share and method."""
        return {"rows": summarise(scores(records, methods or self.known))}

    def cells(self, content: Record) -> Iterable[Cell]:
        """One table a data set."""
        return score_cells(content["rows"])


def check_shares(observed: Sequence[float] | Literal["all"]) -> tuple[float, ...]:
    """The shares of observed features, each once."""
    if observed == "all":
        return (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    if not observed:
        raise InputError("observed is empty: give one share or more.")
    return tuple(dict.fromkeys(map(float, observed)))


def place_of(dataset: str, observed: float, seed: int) -> str:
    """Where the record of a trial lies."""
    return f"{dataset}/observed-{observed!r}/seed-{seed}"


@dataclass(frozen=True)
class UCI(TableExperiment):
    """The paper's first experiment: accuracy against the share of observed features.

    Parameters
    ----------
    datasets
        Also: digits, protein-noleak, drive-sample.
    observed
        Shares of observed features.
    methods
        all, or some of: fate, fate_drop_new, base, base_dropout, average, knn, pooling, inl,
        oracle.
    trials
        Seeds 0 .. trials - 1.
    compat
        reference: the released code; paper: its words.
    novelty
        values: 0-1 features; columns: whole raw columns.
    centred
        fate takes from the embeddings of new features what they have in common; never with
        --compat.
    epochs
        Passes over the training rows.
    split_seed
        One split for all trials: spread of inits only.
    set
        A training setting, such as drop_edge=0.2; repeatable. Names: masking, n_folds, n_kept,
        n_draws, left_out, unit, reading, reference_folds, cell_dropout, drop_edge,
        drop_edge_directed, async_updates, accumulate_backbone, overwrite_hidden, redraw_validation,
        untrained, epochs, lr, lr_extrapolator, optimizer, weight_decay, beta2, schedule,
        adam, batch_size, validate_every, patience, tolerance, round_size, averaging,
        checkpoint_every, n_ahead, mixed_precision, engine, loss.
    """

    settable = Settings
    datasets: tuple[str, ...] = ("gene", "protein", "robot", "drive", "calls", "github")
    observed: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    methods: tuple[str, ...] | Literal["all"] = "all"
    trials: int = 5
    compat: Compat = None
    novelty: Novelty = "values"
    centred: bool = True
    epochs: int = 200
    split_seed: int | None = None
    set: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_centred(self) -> bool:
        """As asked for; neither the paper nor its released code does it."""
        return self.centred and self.compat is None

    @property
    def folder(self) -> str:
        """As every table experiment's, `default-uncentred` where the mean is left in."""
        uncentred = self.compat is None and not self.centred
        return super().folder.replace("default", "default-uncentred" if uncentred else "default", 1)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        return super().header(plan) | {"centred": self.is_centred}

    def restore(self, plan: Plan, record: Record) -> Record:
        """Records from before there was a mean to take: only `fate` has to be made again."""
        if "centred" not in record:
            record["centred"] = self.is_centred
            if self.is_centred:
                record["results"].pop("fate", None)
        return super().restore(plan, record)

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the record does not have yet."""
        trial, record = self.open(plan)

        def result(method: str) -> Record:
            found = trial.result(method)
            trial.split.save(plan.path.with_name("split.npz"))
            return found

        return plan.complete(record, result)

    def figure(self, content: Record, records: Sequence[Record]) -> Figure:
        """The paper's figure 4: one panel a data set, a line a method, mean and spread."""
        rows = content["rows"]
        n_trials = sorted({row["n_trials"] for row in rows})
        over = f"mean and spread over {' or '.join(map(str, n_trials))} trials"
        title = f"UCI, {self.folder}: {'one trial' if n_trials == [1] else over}"
        return draw_panels(rows_by(rows, "dataset"), _panel, title=title)


def _panel(axis: Axes, rows: Sequence[Record]) -> None:
    methods = rows_by(rows, "method")
    for place, own in enumerate(methods):
        method, points = own[0]["method"], sorted((r["observed"], r["mean"], r["std"]) for r in own)
        x, mean, std = zip(*points, strict=True)
        aside = 0.002 * (place - len(methods) / 2)  # so that bars do not hide one another
        colour = COLOURS[method]
        face, style = ("white", "--") if method in CONTROLS else (colour, "-")
        axis.errorbar(
            [share + aside for share in x], mean, std, color=colour, ls=style, label=method,
            marker="o", ms=4, mfc=face, capsize=2, lw=1.3, elinewidth=0.8,
        )  # fmt: skip
    axis.set(
        title=rows[0]["dataset"], xlabel="share of observed features", ylabel=rows[0]["metric"]
    )
    axis.set_xlim(min(r["observed"] for r in rows) - 0.05, max(r["observed"] for r in rows) + 0.05)
    axis.grid(alpha=0.3)
