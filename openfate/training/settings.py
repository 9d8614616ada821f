"""Settings of Algorithm 1: the defaults, the paper's own and those of its released code.

The table behind each choice is in `docs/paper-and-code.md`; M1, T1 ... are its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from openfate.errors import InputError, check_choice, check_integer
from openfate.training.metrics import Loss
from openfate.training.optim import AdamMode, OptimizerName

Compat = Literal["paper", "reference"] | None
EngineName = Literal["auto", "plain", "fused"]

_LEAST = {"n_folds": 2, "n_ahead": 0}  # of the integers; of others 1
_SHARES = (
    "drop_edge",
    "left_out",
    "cell_dropout",
    "beta2",
    "tolerance",
)  # numbers up to 1, others up to 1e12
# What mini-batches of ids must leave at these values: it is of a table in memory.
_OF_TABLES = {
    **{"batch_size": None, "optimizer": "adam", "loss": "log_loss", "accumulate_backbone": False},
    **{"overwrite_hidden": False, "redraw_validation": False, "schedule": "constant"},
    **{"tolerance": 0.0, "round_size": None, "averaging": False},
}


def check_device(device: torch.device | str) -> torch.device:
    """Take a device that tensors can be on.

    Raises
    ------
    InputError
        Where torch does not know it, or has none.

    Examples
    --------
    >>> check_device("cpu")
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


@dataclass(frozen=True)
class Settings:
    """How to train; `clicks` and `plain` have the defaults of other tasks.

    A step is what is counted, validated and told to `on_step`: an epoch of a table in memory, or
    `round_size` mini-batches of it; a mini-batch of a stream of ids.

    Parameters
    ----------
    masking
        "n_fold": self-supervised, each of `n_folds` parts hidden once an iteration; "k_shot":
        inductive, `n_kept` units kept in each of `n_draws` steps; "leave_out": one fixed share
        `left_out` hidden (of a table); "none": nothing is hidden.
    n_kept
        Of "k_shot".  PAPER: 24 of Criteo's 39 fields, 17 of Avazu's 22.
    unit
        What k-shot samples: "feature" (of a table) or "field".
    reading
        Of k-shot.  "mask": hidden features keep their edges and are predicted with (REFERENCE: T6);
        "columns": they are taken out of the table (PAPER: "extract the corresponding columns").
    reference_folds
        REFERENCE: T1, one fold too many.
    cell_dropout
        The probability that a cell of a training row is dropped; the others are scaled up.
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
        What becomes of a feature that no row of a table has: "field_mean" gives it the mean
        embedding of its field, or zero; "zero"; "leave" keeps what the model holds (REFERENCE: its
        random start).
    epochs, lr, lr_extrapolator
        Epochs, and the two learning rates.
    optimizer, weight_decay
        "adam", "adamw", whose `weight_decay` it is, or plain "sgd".  A stream takes "adam".
    beta2
        Adam's, for all but the embeddings of a stream: how slowly squares of gradients are
        forgotten.
    schedule
        Of a table: "constant" learning rates, or "cosine", up in the first twentieth of all
        mini-batches, or 25 of them, and down to a hundredth until the last.
    adam
        Of the embeddings in a stream: "exact", "lazy" or "dense", see
        `openfate.training.optim.RowAdam`.  Of a plain network in mini-batches of a table: "lazy"
        steps the rows that a mini-batch touches, and the knots of numbers along their lines
        (`openfate.training.lines.Lines`); with the others W is stepped as a whole.
    batch_size
        Rows of a table in a mini-batch; None: all at once.
    round_size
        Mini-batches of a table in a step; None: an epoch.
    averaging
        Of a table: validate and keep not the weights of a step but their mean over about the last
        third of the run so far, which tells early when more steps are of no use.
    validate_every, patience, tolerance
        Validate after so many steps; stop after `patience` validations without a better one (None,
        or without validation rows: never).  Better is a loss that is lower by more than the share
        `tolerance` of it.
    checkpoint_every
        Hand out a checkpoint after so many steps.
    n_ahead
        Mini-batches of a stream that a thread reads and prepares in advance; 0: none.
    mixed_precision
        Layers in bfloat16, where a GPU is made for it; sums over edges, losses and weights stay in
        float32.
    engine
        "fused": Triton kernels on a GPU, of mini-batches of ids; what has no kernels, such as a
        network of three hidden layers or a GCN, is left to torch part by part, and the log says
        which (INFO, once).  "plain": torch's own.  "auto": fused for the paper's click model alone,
        since nothing else of it was measured, or run on a GPU at all, so far: its numbers were
        compared with plain torch's by Triton's interpreter.  See `openfate.training.engine`.  A run
        may go on from a checkpoint with the other one: masks are the same, other random numbers are
        not.
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
    cell_dropout: float = 0.0
    drop_edge: float = 0.5
    drop_edge_directed: bool = False
    async_updates: bool = True
    accumulate_backbone: bool = False
    overwrite_hidden: bool = False
    redraw_validation: bool = False
    untrained: Literal["field_mean", "zero", "leave"] = "field_mean"
    epochs: int = 200
    lr: float = 1e-2
    lr_extrapolator: float = 1e-3
    optimizer: OptimizerName = "adam"
    weight_decay: float = 0.0
    beta2: float = 0.999
    schedule: Literal["constant", "cosine"] = "constant"
    adam: AdamMode = "exact"
    batch_size: int | None = None
    validate_every: int = 1
    patience: int | None = None
    tolerance: float = 0.0
    round_size: int | None = None
    averaging: bool = False
    checkpoint_every: int = 100
    n_ahead: int = 2
    mixed_precision: bool = False
    engine: EngineName = "auto"
    loss: Loss = "log_loss"

    @classmethod
    def clicks(cls, **changes: Any) -> Settings:
        """Of a stream of clicks.  PAPER: the defaults are those of its click experiment.

        Examples
        --------
        >>> Settings.clicks(n_kept=24).lr
        0.0001
        """
        usual = {"masking": "k_shot", "unit": "field", "epochs": 1, "validate_every": 10}
        return cls(**{**usual, "lr": 1e-4, "lr_extrapolator": 1e-4, **changes})

    @classmethod
    def plain(cls, **changes: Any) -> Settings:
        """Of networks without an extrapolator; the defaults were chosen on tables of their own.

        Examples
        --------
        >>> Settings.plain().schedule
        'cosine'
        """
        usual = {"masking": "none", "untrained": "zero", "epochs": 30, "patience": 6}
        usual |= {"averaging": True, "tolerance": 0.005}
        adam = {"optimizer": "adamw", "lr": 4e-3, "weight_decay": 0.1, "beta2": 0.95}
        rest = {"schedule": "cosine", "adam": "lazy", "batch_size": 256}
        return cls(**{**usual, **adam, **rest, **changes})

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            _check_kind(name, getattr(self, name), kind)
        if self.masking == "k_shot" and self.n_kept is None:
            raise InputError(
                "masking='k_shot' needs n_kept, the number of features or fields to keep."
            )
        if self.cell_dropout == 1:
            raise InputError("cell_dropout=1: nothing would be left; choose a number below 1.")
        if self.beta2 == 1:
            raise InputError("beta2=1: no square would be noted; choose a number below 1.")
        if self.schedule == "cosine" and self.optimizer == "sgd":
            raise InputError("schedule='cosine' is of 'adam' and 'adamw': choose one of them.")
        if self.weight_decay and self.optimizer != "adamw":
            raise InputError(
                f"weight_decay={self.weight_decay!r} is of optimizer='adamw', "
                f"not of {self.optimizer!r}: choose that one, or leave it at 0."
            )

    @property
    def columns_only(self) -> bool:
        """Whether a step sees nothing of the features that it hides; n-fold keeps their edges."""
        return self.masking == "k_shot" and self.reading == "columns"

    def check_stream(self) -> None:
        """Refuse what mini-batches of ids cannot do."""
        of_tables: dict[str, Any] = dict(_OF_TABLES)
        if self.masking == "k_shot":
            of_tables["unit"] = "field"
        for name, value in of_tables.items():
            if (given := getattr(self, name)) != value:
                raise InputError(
                    f"{name}={given!r} is of a table in memory: mini-batches of ids take "
                    f"{name}={value!r}."
                )
        if self.masking == "leave_out":
            raise InputError(
                "masking='leave_out' is of a table in memory: mini-batches of ids take 'k_shot', "
                "'n_fold' or 'none'."
            )

    def compat(self, compat: Compat) -> Settings:
        """These settings with the paper's or the released code's departures switched on.

        Examples
        --------
        >>> Settings().compat("reference").accumulate_backbone
        True
        """
        if compat is None:
            return self
        check_choice("compat", compat, ("paper", "reference"))
        if compat == "paper":
            # Section 2.2 hides initial states; Algorithm 1, taken literally, erases what W learned
            # (mean accuracy .46 instead of .86): `overwrite_hidden` stays an option of its own.
            return replace(self, reading="columns")
        return replace(
            self,
            reference_folds=True,
            drop_edge_directed=True,
            accumulate_backbone=True,
            redraw_validation=True,
            untrained="leave",
        )


_KINDS = get_type_hints(Settings)


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of the kind that its annotation tells."""
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    elif kind is bool:
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r}: choose True or False.")
    elif kind is float:
        high = 1.0 if name in _SHARES else 1e12
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 <= value <= high:
            raise InputError(f"{name}={value!r}: choose a number from 0 to {high:g}.")
    elif value is not None or NoneType not in get_args(kind):  # None has a meaning in some
        check_integer(name, value, _LEAST.get(name, 1))
