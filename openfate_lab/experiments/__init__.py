"""The paper's tables and figures, one file each, and the one runner of them all.

    from openfate_lab.experiments import UCI, run
    run(UCI(datasets=("gene",)), out="results/uci")

A new experiment is a file with a subclass of `Experiment` and its name in `EXPERIMENTS`: the file
is the name in small letters, and so is its command.  Names are loaded on first use, so that
`openfate experiment --help` answers at once.
"""

from __future__ import annotations

from openfate._lazy import lazy_names

EXPERIMENTS = (
    "UCI",
    "OpenWorld",
    "CTR",
    "Ablation",
    "Generalization",
    "Scalability",
    "Map",
)

__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "run", *EXPERIMENTS]

__getattr__, __dir__ = lazy_names(
    __name__,
    {f"{__name__}.{name.lower()}": name for name in EXPERIMENTS}
    | {f"{__name__}.runner": "Experiment Outcome run"},
)
