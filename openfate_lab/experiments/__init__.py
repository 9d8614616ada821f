"""The paper's tables and figures, one file each, and the one runner of them all.

    from openfate_lab.experiments import UCI, run
    run(UCI(datasets=("gene",)), out="results/uci")

A new experiment is a file with a subclass of `Experiment` and its name in `EXPERIMENTS`: the file
is the name in small letters, and so is its command.  Names are loaded on first use, so that
`openfate experiment --help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openfate._lazy import lazy_names, read_homes

if TYPE_CHECKING:
    from openfate_lab.experiments.demo import DEMO_METHODS, run_demo
    from openfate_lab.experiments.display import make_tables, save_figure
    from openfate_lab.experiments.runner import Experiment, Outcome, run

EXPERIMENTS = (
    "UCI",
    "OpenWorld",
    "Labels",
    "CTR",
    "Ablation",
    "Generalization",
    "Scalability",
    "Map",
)

__all__ = [
    "DEMO_METHODS",
    "EXPERIMENTS",
    "Experiment",
    "Outcome",
    "make_tables",
    "run",
    "run_demo",
    "save_figure",
    *EXPERIMENTS,
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {f"{__name__}.{name.lower()}": name for name in EXPERIMENTS} | read_homes(__file__),
)
