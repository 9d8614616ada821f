"""Networks as an estimator's parameters describe them: their backbones, how they are trained.

N rows, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from openfate.bank import Network
from openfate.errors import InputError
from openfate.models import (
    BACKBONES,
    FATE,
    GraphSAGE,
    RunningFATE,
    make_backbone,
    with_fields,
)
from openfate.training import Settings

_STRATEGIES = ("auto", "fate", "evidence", "none")
_PAPER_BATCH = 8192
# Which of an estimator's parameters each backbone takes.
_TAKES = {"mlp": ("pool",), "dcn": ("pool",), "deepfm": ("linear",), "widedeep": ("linear",)}


def read_parameters(estimator: BaseEstimator) -> SimpleNamespace:
    """The parameters as plain values, checked; None stands for what suits the strategy.

    Examples
    --------
    >>> from openfate import FATEClassifier
    >>> read_parameters(FATEClassifier(width=np.int64(8))).width
    8
    """
    params = estimator.get_params(deep=False)
    p = SimpleNamespace(**{name: plain_value(value) for name, value in params.items()})
    if p.strategy not in _STRATEGIES:
        words = ", ".join(map(repr, _STRATEGIES))
        raise InputError(f"strategy={p.strategy!r} is unknown: choose one of {words}.")
    p.hidden = _sizes(p.hidden)
    for name in ("width", "epochs", "batch_size", "patience", "n_members", "n_draws"):
        _check_number(name, getattr(p, name), 1, int)
    _check_number("n_folds", p.n_folds, 2, int)
    for name in ("lr", "lr_extrapolator", "weight_decay", "dropout", "drop_edge", "hidden_share"):
        _check_number(name, getattr(p, name), 0)
    for name in ("dropout", "drop_edge", "hidden_share"):
        if (getattr(p, name) or 0) >= 1:
            raise InputError(f"{name}={getattr(p, name)!r}: choose a share from 0 to below 1.")
    if p.lr == 0:
        raise InputError("lr=0: nothing would be learned; choose a number above 0.")
    for size in p.hidden or ():
        _check_number("hidden", size, 1, int)
    _check_backbone(p)
    return p


def plain_value(value: Any) -> Any:
    """Numpy's numbers, as a grid of parameters has them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _sizes(hidden: Sequence[int] | None) -> tuple[int, ...] | None:
    if hidden is None:
        return None
    try:
        return tuple(plain_value(size) for size in hidden)
    except TypeError:
        raise InputError(f"hidden={hidden!r}: give a list of widths, such as (64,).") from None


def _check_number(name: str, value: Any, least: float, kind: type = float) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    if not is_number or not least <= value < float("inf"):
        noun = "an integer" if kind is int else "a number"
        raise InputError(f"{name}={value!r}: choose {noun} from {least:g} up.")


def _check_backbone(p: SimpleNamespace) -> None:
    if p.backbone not in BACKBONES:
        names = " or ".join(map(repr, BACKBONES))
        raise InputError(f"backbone={p.backbone!r} is unknown: choose {names}.")
    for name, usual in (("pool", "sum"), ("linear", "zero")):
        takes = [key for key, options in _TAKES.items() if name in options]
        if getattr(p, name) != usual and p.backbone not in takes:
            raise InputError(
                f"{name}={getattr(p, name)!r} is not for backbone={p.backbone!r}: leave "
                f"it at {usual!r}, or choose backbone {' or '.join(map(repr, takes))}."
            )
    with torch.random.fork_rng(devices=[]):  # WHY: what else is wrong is told before any work
        make_model(p, 1, 1, np.zeros(1, int))


def make_model(
    p: SimpleNamespace, n_features: int, n_outputs: int, field_of: NDArray[np.integer]
) -> FATE:
    """An untrained model: the paper's with its extrapolator, or a plain network."""
    is_paper = p.strategy == "fate"
    width, hidden = (32, (64,)) if is_paper else (64, (128,))
    # Without BatchNorm and Dropout: tables may be small.
    options: dict[str, Any] = {"batch_norm": False, "dropout": 0.0}
    options |= {name: getattr(p, name) for name in _TAKES[p.backbone]}
    options["hidden"] = hidden if p.hidden is None else p.hidden
    if p.pool == "field_linear":
        options["n_fields"] = _n_fields(field_of)
    backbone = make_backbone(p.backbone, p.width or width, n_outputs, **options)
    if is_paper:
        return FATE(n_features, backbone, GraphSAGE(backbone.width, 2))
    model = FATE(n_features, backbone)
    with torch.no_grad():  # WHY: Xavier's bound shrinks with D and starts slowly
        model.W[:, : backbone.width].normal_(0, 0.1)
    return model


def _n_fields(field_of: NDArray[np.integer]) -> int:
    return int(field_of.max(initial=0)) + 1


def make_settings(p: SimpleNamespace, n_rows: int) -> Settings:
    """How the networks are trained on so many rows."""
    given = {name: getattr(p, name) for name in ("epochs", "lr", "patience", "batch_size")}
    given = {name: value for name, value in given.items() if value is not None}
    if p.strategy != "fate":
        # WHY: 64 steps an epoch are enough; larger batches make each row cheaper.
        usual = {"batch_size": min(max(256, n_rows // 64), 4096)}
        dropped = {"cell_dropout": p.dropout, "weight_decay": p.weight_decay}
        return Settings.plain(loss=p.loss, **dropped, **{**usual, **given})
    batch_size = None if n_rows <= 2 * _PAPER_BATCH else _PAPER_BATCH
    return Settings(
        n_folds=p.n_folds,
        drop_edge=p.drop_edge,
        lr_extrapolator=p.lr_extrapolator,
        mixed_precision=p.mixed_precision,
        loss=p.loss,
        **{"patience": 20, "batch_size": batch_size, **given},
    )


def model_of(member: RunningFATE) -> FATE:
    """The model of a running one, to be trained on."""
    backbone = copy.deepcopy(member.backbone).float().requires_grad_()
    extrapolator = copy.deepcopy(member.extrapolator)
    if extrapolator is not None:
        extrapolator = extrapolator.float().requires_grad_()
    model = FATE(len(member.W), backbone, extrapolator, recompose=member.recompose)
    with torch.no_grad():
        model.W.copy_(member.W)
    return model


def grow_members(network: Network, field_of: NDArray[np.integer]) -> list[FATE]:
    """The models of a network over all features known now, new ones at their extrapolation.

    Parameters
    ----------
    field_of
        (D',) the field of each feature, observed and new.
    """
    every, members = np.arange(len(field_of), dtype=np.int32), []
    for member in network.members:
        model = model_of(member)
        backbone = with_fields(model.backbone, _n_fields(field_of))
        # A `ContextMap` is solved for after training; a GraphSAGE is trained on.
        extrapolator = model.extrapolator if isinstance(model.extrapolator, GraphSAGE) else None
        wider = FATE(len(every), backbone, extrapolator, recompose=model.recompose)
        W = member.embeddings(every, field_of)
        if model.backbone.n_fields is not None:
            # WHY: under the zero weights of a new field zero embeddings would stay so for ever.
            silent = torch.from_numpy(field_of >= model.backbone.n_fields) & ~W.any(1)
            draw = torch.randn(W.shape, generator=torch.Generator().manual_seed(0))
            W = torch.where(silent[:, None], 0.1 * draw, W)
        with torch.no_grad():
            wider.W.copy_(W)
        members.append(wider)
    return members


@contextmanager
def few_threads(work: int) -> Iterator[None]:
    """One thread for small tensors: they would only wait for one another."""
    # WHY: on a busy machine two threads took 50 times as long as one for tables of this size.
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1 if work < 1 << 26 else n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
