"""How the methods of the click experiment are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openfate.errors import InputError


@dataclass(frozen=True)
class ClickSettings:
    """How the methods of a trial are trained.

    Parameters
    ----------
    masking, n_kept, n_draws, n_folds
        As `Settings`', of `fate` and `base_dropout`.
    drop_edge
        Of `fate`.
    batch_rows, plain_batch_rows
        B of `fate`, whose graph it is, and of networks without a graph, which learn faster from
        smaller ones.  PAPER: 100,000, of logs with millions of training rows.
    predict_rows
        Rows that are predicted together: the graph of the paper's model, and of pooling.
    lrs, lr_factor
        Learning rates to choose from, for each method on its own; the extrapolator's is
        `lr_factor` times that.
    epochs, patience, validations
        At most so many epochs, each validated so many times; stop after `patience` validations
        without a better AUC.
    hidden, dropout
        Of the network.  PAPER: 400-400 and 0.5.
    normalize, prior_rows, recompose
        Of the GraphSAGE and of FATE.
    """

    masking: Literal["k_shot", "n_fold"] = "k_shot"
    n_kept: int = 17
    n_draws: int = 5
    n_folds: int = 5
    drop_edge: float = 0.5
    batch_rows: int = 1000
    plain_batch_rows: int = 1000
    predict_rows: int = 100_000
    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    lr_factor: float = 1.0
    epochs: int = 20
    patience: int = 5
    validations: int = 2
    hidden: tuple[int, ...] = (400, 400)
    dropout: float = 0.5
    normalize: bool = True
    prior_rows: float | None = None
    recompose: Literal["all", "masked"] = "all"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name}={value!r} is unknown: choose one of {known}.")
        for name, (least, most) in _RANGES.items():
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and not least <= value <= most:
                    raise InputError(f"{name}={value}: choose a number from {least:g} to {most:g}.")
            if given == ():
                raise InputError(f"{name} is empty: give one number or more.")


_CHOICES = {"masking": ("k_shot", "n_fold"), "recompose": ("all", "masked")}
_MANY = 1e9
_RANGES: dict[str, tuple[float, float]] = {
    **{"n_kept": (1, _MANY), "n_draws": (1, _MANY), "n_folds": (2, _MANY), "drop_edge": (0, 0.99)},
    **{"batch_rows": (2, _MANY), "plain_batch_rows": (2, _MANY), "predict_rows": (1, _MANY)},
    **{"lrs": (1e-9, 1.0), "lr_factor": (1e-9, _MANY), "epochs": (1, _MANY)},
    **{"patience": (1, _MANY), "validations": (1, _MANY), "hidden": (1, _MANY)},
    **{"dropout": (0, 0.99), "prior_rows": (1e-9, _MANY)},
}
