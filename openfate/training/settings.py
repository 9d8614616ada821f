"""Settings of Algorithm 1: the defaults, the paper's own and those of its released code.

The table behind each choice is in `docs/paper-and-code.md`; M1, T1 ... are its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, get_args

import torch

from openfate.errors import InputError
from openfate.training.losses import Loss
from openfate.training.optim import AdamMode

__all__ = ["Compat", "EngineName", "Settings", "StreamSettings", "usable_device"]

Compat = Literal["paper", "reference"] | None
EngineName = Literal["auto", "plain", "fused"]

_CHOICES = {
    "masking": ("n_fold", "k_shot", "leave_out", "none"),
    "unit": ("feature", "field"),
    "reading": ("mask", "columns"),
    "untrained": ("field_mean", "leave"),
    "loss": get_args(Loss),
}
_LEAST = {"n_folds": 2, "n_draws": 1, "epochs": 1, "n_kept": 1, "batch_size": 1, "patience": 1}
_REAL = {"drop_edge": 1.0, "left_out": 1.0, "lr": 1e12, "lr_extrapolator": 1e12}


_FLAGS = (
    *("reference_folds", "drop_edge_directed", "async_updates", "accumulate_backbone"),
    *("overwrite_hidden", "redraw_validation", "mixed_precision"),
)
_OPTIONAL = ("n_kept", "batch_size", "patience")  # None has a meaning


def _check_numbers(settings: object, leasts: dict[str, int], highs: dict[str, float]) -> None:
    """Whole numbers from `leasts` up, where there are any; others from 0 to `highs`."""
    for name, least in leasts.items():
        value = getattr(settings, name)
        if value is None and name in _OPTIONAL:
            continue
        if type(value) is not int or value < least:
            raise InputError(f"{name}={value!r}: choose a whole number from {least} up.")
    for name, high in highs.items():
        value = getattr(settings, name)
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 <= value <= high:
            raise InputError(f"{name}={value!r}: choose a number from 0 to {high:g}.")


def _check_flags(settings: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(settings, name), bool):
            raise InputError(f"{name}={getattr(settings, name)!r}: choose True or False.")


def usable_device(device: torch.device | str) -> torch.device:
    """A device that tensors can be on.

    Raises
    ------
    InputError
        Where torch does not know it, or has none.

    Examples
    --------
    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        at = torch.device(device)
        torch.empty(0, device=at)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):  # all of them torch's
        at = torch.device("meta")
    if at.type == "meta":  # whose tensors have no values
        raise InputError(
            f"device={device!r} is not there: choose 'cpu' or, where torch sees a GPU, 'cuda'."
        )
    return at


def cuda_devices(device: torch.device) -> list[torch.device]:
    """Those whose random numbers a run draws from, beside the CPU's."""
    return [device] if device.type == "cuda" else []


@dataclass(frozen=True)
class Settings:
    """How to train.

    Parameters
    ----------
    masking
        "n_fold": self-supervised, each of `n_folds` parts hidden once an iteration; "k_shot":
        inductive, `n_kept` units kept in each of `n_draws` steps; "leave_out": one fixed share
        `left_out` hidden; "none": a plain network.
    unit
        What k-shot samples: "feature" or "field".
    reading
        Of k-shot.  "mask": hidden features keep their edges and are predicted with (REFERENCE: T6);
        "columns": they are taken out of the table (PAPER: "extract the corresponding columns").
    reference_folds
        REFERENCE: T1, one fold too many.
    drop_edge, drop_edge_directed
        The probability that an edge is removed; directions drawn apart (REFERENCE: T10).
    async_updates
        The backbone steps at every mask, the extrapolator once with the accumulated loss; otherwise
        both step at every mask ("end-to-end joint" in the paper's ablation).
    accumulate_backbone
        REFERENCE: T2, gradients of the backbone pile up over the masks of an iteration.
    overwrite_hidden
        PAPER: T5, Algorithm 1 as printed sets W of hidden features to zero in place, which undoes
        their training; section 2.2 and the default hide a copy.
    redraw_validation
        REFERENCE: new masks at every epoch, and DropEdge, in the validation loss.
    untrained
        What becomes of a feature that no training row has: "field_mean" gives it the mean embedding
        of its field, or zero; "leave" keeps what the model holds (REFERENCE: its random start).
    epochs, lr, lr_extrapolator, batch_size
        Epochs, Adam's two learning rates, rows in a mini-batch (None: all at once).
    patience
        Stop after so many epochs without a better validation loss; None, or without validation
        rows: never.
    mixed_precision
        Layers in bfloat16, where a GPU is made for it; sums over edges, losses and weights stay in
        float32.
    loss
        "log_loss": of classes; "multilabel": of K labels of 0 and 1; "squared_error" and
        "absolute_error": of a number, which is best scaled to about one by the caller.
    """

    masking: Literal["n_fold", "k_shot", "leave_out", "none"] = "n_fold"
    n_folds: int = 5
    n_kept: int | None = None
    n_draws: int = 5
    left_out: float = 0.2
    unit: Literal["feature", "field"] = "feature"
    reading: Literal["mask", "columns"] = "mask"
    reference_folds: bool = False
    drop_edge: float = 0.5
    drop_edge_directed: bool = False
    async_updates: bool = True
    accumulate_backbone: bool = False
    overwrite_hidden: bool = False
    redraw_validation: bool = False
    untrained: Literal["field_mean", "leave"] = "field_mean"
    epochs: int = 200
    lr: float = 1e-2
    lr_extrapolator: float = 1e-3
    batch_size: int | None = None
    patience: int | None = None
    mixed_precision: bool = False
    loss: Loss = "log_loss"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name}={value!r} is unknown: choose one of {choices}.")
        _check_numbers(self, _LEAST, _REAL)
        _check_flags(self, *_FLAGS)
        if self.masking == "k_shot" and self.n_kept is None:
            raise InputError(
                "masking='k_shot' needs n_kept, the number of features or fields to keep."
            )

    @property
    def columns_only(self) -> bool:
        """Whether a step sees nothing of the features that it hides; n-fold keeps their edges."""
        return self.masking == "k_shot" and self.reading == "columns"

    def compat(self, compat: Compat) -> Settings:
        """These settings with the paper's or the released code's departures switched on.

        Examples
        --------
        >>> Settings().compat("reference").accumulate_backbone
        True
        """
        if compat == "paper":
            # Section 2.2 hides initial states; Algorithm 1, taken literally, erases what W learned
            # (mean accuracy .46 instead of .86): `overwrite_hidden` stays an option of its own.
            return replace(self, reading="columns")
        if compat == "reference":
            return replace(
                self,
                reference_folds=True,
                drop_edge_directed=True,
                accumulate_backbone=True,
                redraw_validation=True,
                untrained="leave",
            )
        if compat is not None:
            raise InputError(f"compat={compat!r} is unknown: choose 'paper' or 'reference'.")
        return self


_STREAM_CHOICES = {
    "masking": ("k_shot", "n_fold", "none"),
    "reading": ("mask", "columns"),
    "adam": get_args(AdamMode),
    "engine": get_args(EngineName),
}
_STREAM_LEAST = {
    **{"n_kept": 1, "n_draws": 1, "n_folds": 2, "epochs": 1},
    **{"validate_every": 1, "patience": 1, "checkpoint_every": 1, "n_ahead": 0},
}
_STREAM_REAL = {"drop_edge": 1.0, "lr": 1e12, "lr_extrapolator": 1e12}


@dataclass(frozen=True)
class StreamSettings:
    """How to train on a stream.  PAPER: the defaults are those of its click experiment.

    Parameters
    ----------
    masking
        "k_shot": `n_kept` fields are kept in each of `n_draws` steps of a mini-batch, the others
        hidden; "n_fold": each of `n_folds` parts of its features is hidden once; "none": one step
        with all features.
    n_kept
        For "k_shot".  PAPER: 24 of Criteo's 39 fields, 17 of Avazu's 22.
    reading
        Of "k_shot", as in `Settings`: "mask" or "columns" (T6).
    drop_edge
        The probability that an edge is removed in a step.
    epochs, lr, lr_extrapolator
        Epochs, and Adam's two learning rates.
    adam
        Of the embeddings: "exact", "lazy" or "dense", see `openfate.training.optim.RowAdam`.
    validate_every, patience
        Validate after so many mini-batches; stop after `patience` validations without a better
        ROC-AUC.
    checkpoint_every
        Hand out a checkpoint after so many mini-batches.
    n_ahead
        Mini-batches that a thread reads and prepares in advance; 0: none.
    mixed_precision
        The backbone's products in bfloat16, where a GPU is made for it; sums, losses and weights
        stay in float32.
    engine
        "fused": Triton kernels on a GPU; "plain": torch's own; "auto": fused where it fits, see
        `openfate.training.engine`.  A run may go on from a checkpoint with the other one: masks are
        the same, other random numbers are not.
    """

    masking: Literal["k_shot", "n_fold", "none"] = "k_shot"
    n_kept: int | None = None
    n_draws: int = 5
    n_folds: int = 5
    reading: Literal["mask", "columns"] = "mask"
    drop_edge: float = 0.5
    epochs: int = 1
    lr: float = 1e-4
    lr_extrapolator: float = 1e-4
    adam: AdamMode = "exact"
    validate_every: int = 10
    patience: int | None = None
    checkpoint_every: int = 100
    n_ahead: int = 2
    mixed_precision: bool = False
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        for name, choices in _STREAM_CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name}={value!r} is unknown: choose one of {choices}.")
        _check_numbers(self, _STREAM_LEAST, _STREAM_REAL)
        _check_flags(self, "mixed_precision")
        if self.masking == "k_shot" and self.n_kept is None:
            raise InputError("masking='k_shot' needs n_kept, the number of fields to keep.")
