"""Beyond the paper: what new features are worth to models that were fitted without them.

Two settings.  Data sets in no order are split at random and their test rows come in one batch
(`openworld_methods`); logs in time order stream, predict first, observe then, labels late
(`streaming`).  Every model is a public estimator.  The summary says what share of the gap between
"new features ignored" and "fitted with all features" is closed, and where using them does harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openfate.errors import InputError
from openfate_lab.data import LOGS
from openfate_lab.experiments.display import draw_panels, rows_by
from openfate_lab.experiments.gaps import Gap, gap_closed, tell_gaps
from openfate_lab.experiments.openworld_methods import METHODS, N_DRAWS, OpenTrial
from openfate_lab.experiments.runner import Experiment, Plan, Record, choose
from openfate_lab.experiments.streaming import Streams
from openfate_lab.experiments.uci import TableExperiment
from openfate_lab.experiments.uci_methods import Novelty
from openfate_lab.experiments.wrapped_models import BASES, ROUNDS

GAPS = [
    Gap(
        base,
        {"batch": f"{base}_evidence", "calls": f"{base}_calls", "rows": f"{base}_rows"},
        *(f"{base}_{way}" for way in ("drop", "oracle", "ceiling")),
    )
    for base in BASES
] + [Gap("fate_auto", {"batch": "fate_auto"}, "fate_auto_drop")]


@dataclass(frozen=True)
class OpenWorld(TableExperiment):
    """Beyond the paper: what new features are worth to models fitted without them.

    Parameters
    ----------
    datasets
        Or logs in time order: flights, criteo-sample, avazu-sample.
    observed
        Shares of observed features.
    methods
        all, or some of: lightgbm_drop, lightgbm_evidence (test rows in one batch), lightgbm_calls
        (in calls of 100), lightgbm_rows (one by one, observed before), lightgbm_ceiling,
        lightgbm_oracle, the same of catboost and logistic, fate, fate_auto, fate_auto_drop; for
        logs: drop, evidence, late_labels, late_labels_alone (without the rows of `fit`), retrain.
    trials
        Seeds 0 .. trials - 1.
    novelty
        values: 0-1 features; columns: whole raw columns.
    base
        Logs: logistic, lightgbm or catboost.
    label_delay
        Logs: when labels come: 30m, 6h, 1d.
    min_rows
        Logs: a feature of fewer training rows counts as new.
    """

    printed = ("rows", "gap_closed")
    known = METHODS
    datasets: tuple[str, ...] = ("gene", "calls", "github", "protein-noleak", "robot")
    observed: tuple[float, ...] = (0.3, 0.5, 0.8)
    methods: tuple[str, ...] | Literal["all"] = "all"
    trials: int = 5
    novelty: Novelty = "values"
    base: str = "logistic"
    label_delay: str = "1d"
    min_rows: int = 3

    @property
    def folder(self) -> str:
        """`batch`, or `batch-columns`."""
        return "batch" if self.novelty == "values" else f"batch-{self.novelty}"

    def resolve(self) -> Experiment:
        """The streams, if logs are asked for."""
        datasets = choose("datasets", self.datasets)
        in_time = [name for name in datasets if name in LOGS]
        if not in_time:
            return self
        if len(in_time) < len(datasets):
            other = next(name for name in datasets if name not in LOGS)
            raise InputError(
                f"datasets: {in_time[0]!r} is in time order and {other!r} is not: "
                "they have other methods, run them apart."
            )
        return Streams(datasets, self.methods, self.base, self.label_delay, self.min_rows)

    def header(self, plan: Plan) -> Record:
        """What a record must agree with before anything is added to it."""
        settings = {"estimators": "public", "n_draws": N_DRAWS, "boosting_rounds": ROUNDS}
        return super().header(plan) | {"settings": settings}

    def restore(self, plan: Plan, record: Record) -> Record:
        """As it is: its settings are of another kind."""
        return record

    def run_trial(self, plan: Plan) -> Record:
        """Run the methods that the record does not have yet."""
        dataset, split = self.load(plan)
        trial = OpenTrial(dataset, split, plan.seed, self.novelty)
        record = plan.record() or plan.begin(split={"sha256": split.sha256})
        return plan.complete(record, trial.result)

    def summary(self, records: Sequence[Record], methods: Sequence[str] = ()) -> Record:
        """Rows of the records, and the gap closed."""
        return {**super().summary(records), "gap_closed": gap_closed(records, GAPS)}

    def figure(self, content: Record, records: Sequence[Record]) -> Figure | None:
        """Share of the gap that evidence closes, a panel a base."""
        cells, pooled = (
            [row for row in content["gap_closed"][part] if _is_drawn(row)]
            for part in ("cells", "pooled")
        )
        cells = [cell for cell in cells if cell.get("gap") is not None]  # some have no oracle
        return gap_plot(cells, pooled) if cells else None

    def remarks(self, content: Record) -> Sequence[str]:
        """What evidence closes of the gap, pooled over all cells, and where it harms."""
        return list(tell_gaps(content["gap_closed"]))


def _is_drawn(row: Record) -> bool:
    """Whether a line stands in the figure: the score of a batch."""
    return (row["way"], row["metric"]) == ("batch", "score")


def gap_plot(cells: Sequence[Record], pooled: Sequence[Record]) -> Figure:
    """Share of the gap that evidence closes: a group a data set, a bar a share observed.

    A gap below half a point is left open: its share would be noise over noise.
    """
    panels = [
        (own, [p for p in pooled if p["base"] == own[0]["base"]]) for own in rows_by(cells, "base")
    ]
    return draw_panels(panels, _gap_panel, columns=1, size=(9.0, 3.4))


def _gap_panel(axis: Axes, panel: tuple[Sequence[Record], Sequence[Record]]) -> None:
    cells, pooled = panel
    about = f"gap closed by evidence on {cells[0]['base']}"
    for whole in pooled:
        spread = f" ± {whole['std']:.0%}" if whole["n_trials"] > 1 else ""
        about += f", pooled {whole['closed']:.0%}{spread}"
    axis.set_title(about)
    datasets = list(dict.fromkeys(cell["dataset"] for cell in cells))
    shares = sorted({cell["observed"] for cell in cells})
    width = 0.8 / len(shares)
    for place, share in enumerate(shares):
        colour = str(0.75 - 0.55 * place / max(1, len(shares) - 1))
        label: str | None = f"{share:.0%} of the features observed"
        for at, dataset in enumerate(datasets):
            found = [c for c in cells if (c["dataset"], c["observed"]) == (dataset, share)]
            if not found:
                continue
            x, cell = at + (place - (len(shares) - 1) / 2) * width, found[0]
            if cell["gap"] < 0.005:
                axis.text(x, 0.01, "no gap", rotation=90, ha="center", va="bottom", fontsize=7)
                continue
            error = cell["standard_error"] / cell["gap"]
            axis.bar(
                x, cell["closed"], 0.9 * width, yerr=error, color=colour, label=label, capsize=2
            )
            label = None  # once is enough
    axis.axhline(0, color="black", lw=0.8)
    axis.axhline(1, color="black", lw=0.8, ls=":")
    axis.set_xticks(range(len(datasets)), datasets)
    axis.set_ylabel("0: ignored, 1: trained on all")
    axis.legend(fontsize=8, frameon=False)
