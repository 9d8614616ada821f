"""Networks as an estimator's parameters describe them: their backbones, how they are trained.

N rows, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from openfate.bank import Network
from openfate.errors import InputError, check_choice
from openfate.models import (
    BACKBONES,
    FATE,
    MLP,
    Backbone,
    GraphSAGE,
    Members,
    WideDeep,
    make_backbone,
    with_fields,
)
from openfate.table import MultiHot, Numeric
from openfate.training import Lines, Settings

_STRATEGIES = ("auto", "fate", "evidence", "none")
_PAPER_BATCH = 8192
# Mini-batches between two validations, without a better one before training stops, and in all: of
# a large table two epochs though, of a small one 30 at most.
_ROUND, _WAIT, _MOST = 48, 60, 1500
# Epochs of fewer mini-batches are short: there may be more of them, where validation rows tell
# when to stop, which tables of a few rows do not have.
_SHORT, _FEW = 16, 40
# How far all steps may move a weight (`how_far`): below the first no way is left over; the second
# is what a linear weight, the log-odds of a value, wants; by at most the third it is scaled.
_SHORT_REACH, _LINEAR_REACH, _MOST_SCALE = 0.2, 0.5, 20.0


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
    check_choice("strategy", p.strategy, _STRATEGIES)
    p.hidden = _sizes(p.hidden)
    for name in ("width", "epochs", "batch_size", "patience", "n_members", "n_draws", "min_count"):
        _check_number(name, getattr(p, name), 1, int)
    _check_number("memory_limit", p.memory_limit, 0, int)
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


def usual_numeric(strategy: str) -> Numeric:
    """How numbers become features where ``numeric=None`` leaves it to the strategy.

    Examples
    --------
    >>> usual_numeric("auto"), usual_numeric("fate")
    ('linear', 'buckets')
    """
    return "buckets" if strategy == "fate" else "linear"  # PAPER: "10 even buckets"


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
    check_choice("backbone", p.backbone, BACKBONES)
    for name, usual in (("pool", "sum"), ("linear", "zero")):
        takes = [key for key, kind in BACKBONES.items() if name in kind.choices]
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
    width, hidden = (32, (64,)) if is_paper else (128, (64, 64))
    # Without BatchNorm and Dropout: tables may be small.
    options: dict[str, Any] = {"batch_norm": False, "dropout": 0.0}
    if p.backbone == "mlp":
        options["activate_sum"] = not is_paper
    options |= {name: getattr(p, name) for name in BACKBONES[p.backbone].choices}
    options["hidden"] = hidden if p.hidden is None else p.hidden
    if p.pool == "field_linear":
        options["n_fields"] = _n_fields(field_of)
    backbone = make_backbone(p.backbone, p.width or width, n_outputs, **options)
    if is_paper:
        return FATE(n_features, backbone, GraphSAGE(backbone.width, 2), centred=True)
    model = FATE(n_features, backbone)
    # WHY: Xavier's bound shrinks with D.  Larger, and the products of all pairs of a log's columns
    # start as noise that rare values never lose.
    with torch.no_grad():
        model.W[:, : backbone.width].normal_(0, 0.01)
    return model


@torch.no_grad()
def start_sums(model: FATE, X: MultiHot, lines: Lines | None) -> None:
    """Draw the start of a plain network whose sums are activated, for rows such as these.

    Sums of a row's embeddings start at a quarter of variance one, however many its features are,
    and the biases of the ReLU cut them at all heights.
    """
    net = model.backbone
    if not isinstance(net, MLP) or net.sum_bias is None:
        return
    model.W.normal_(0, 0.5 / max(1.0, X.mass / max(1, X.n_rows)) ** 0.5)
    if lines is not None:
        lines.start(model.W)
    net.sum_bias.uniform_(-1, 1)
    *hidden, last = (cast("nn.Linear", layer) for layer in net.layers)
    for layer in hidden:
        layer.weight.normal_(0, (2 / layer.in_features) ** 0.5)
        layer.bias.zero_()
    last.weight.normal_(0, 0.5 / last.in_features**0.5)
    last.bias.zero_()


def start_linear(p: SimpleNamespace, model: FATE, reach: float) -> None:
    """Let the linear weights of a plain network come as far as they need in a short training.

    Parameters
    ----------
    reach
        As `how_far` tells.
    """
    if isinstance(model.backbone, WideDeep) and p.strategy != "fate" and p.lr is not None:
        model.backbone.linear_scale = min(_MOST_SCALE, max(1.0, _LINEAR_REACH / reach))


def fold_linear(model: FATE) -> None:
    """The same network with linear weights as they are used."""
    if isinstance(model.backbone, WideDeep):
        model.backbone.fold_linear(model.W)


def join_members(models: Sequence[FATE]) -> FATE | None:
    """Plain networks as one model that is trained at once; None where there are none that can."""
    nets = [model.backbone for model in models]
    is_plain = all(model.extrapolator is None for model in models)
    if not nets or not is_plain or not all(map(Members.takes, nets)):
        return None
    return _with_embeddings(Members(cast("list[MLP]", nets)), torch.cat([m.W for m in models], 1))


def split_members(joined: FATE) -> list[FATE]:
    """The networks that `join_members` put together, as they are now."""
    assert isinstance(joined.backbone, Members)
    nets = joined.backbone.split()
    parts = joined.W.chunk(len(nets), 1)
    return [_with_embeddings(net, W).eval() for net, W in zip(nets, parts, strict=True)]


def narrow(model: FATE, features: NDArray[np.integer]) -> FATE:
    """The same plain network over some of its features, numbered anew."""
    return _with_embeddings(model.backbone, model.W[torch.from_numpy(features)]).eval()


def _with_embeddings(backbone: Backbone, W: Tensor) -> FATE:
    """A plain network with these embeddings; nothing is drawn."""
    with torch.device("meta"):
        model = FATE(len(W), backbone)
    model.W = nn.Parameter(W.detach().clone(memory_format=torch.contiguous_format))
    return model


def _n_fields(field_of: NDArray[np.integer]) -> int:
    return int(field_of.max(initial=0)) + 1


def how_far(settings: Settings, n_rows: int) -> float:
    """How far all steps together move a weight at most: Adam moves it by the rate in each."""
    size = settings.batch_size or n_rows
    return settings.lr * settings.epochs * -(-n_rows // size)


def make_settings(p: SimpleNamespace, n_rows: int, n_fields: int, n_lines: int = 0) -> Settings:
    """How the networks are trained on so many rows of so many columns, some of them lines."""
    given = {name: getattr(p, name) for name in ("epochs", "lr", "patience", "batch_size")}
    given = {name: value for name, value in given.items() if value is not None}
    if p.strategy != "fate":
        # WHY: some 30 steps an epoch are enough; larger batches make each row cheaper, and bear
        # larger steps.
        size = max(16, n_rows // 8) if n_rows < 1024 else min(max(256, n_rows // 32), 1024)
        size = min(given.get("batch_size", size), n_rows)
        per_epoch = -(-n_rows // size)
        in_round = _ROUND if per_epoch >= 2 * _ROUND else per_epoch
        # WHY: rounds of a large table see new rows, so that what they gain comes and goes.
        patience = max(1, _WAIT // in_round) + min(6, per_epoch // (2 * _ROUND))
        usual = {"batch_size": size, "lr": 4e-3 * max(1.0, size / 256) ** 0.5}
        usual |= {"epochs": min(30, max(2, -(-_MOST // per_epoch)))}
        usual |= {"round_size": in_round, "patience": patience}
        if per_epoch < _SHORT and n_rows >= _FEW:
            usual |= {"epochs": 100, "patience": 20, "tolerance": 0.0}
        # WHY: one of few columns tells what no other does; of many, others tell it as well.  Less
        # for numbers: a dropped one moves a sum by more than the two knots differ in.
        most = (0.1 * n_lines + 0.3 * (n_fields - n_lines)) / max(1, n_fields)
        usual |= {"cell_dropout": most * max(0.0, 1 - 8 / max(1, n_fields))}
        if p.dropout is not None:
            usual["cell_dropout"] = p.dropout
        settings = Settings.plain(loss=p.loss, weight_decay=p.weight_decay, **{**usual, **given})
        if p.lr is None or how_far(settings, n_rows) >= _SHORT_REACH:
            return settings
        # WHY: a rate that falls, and a mean of weights, take half of the way where none of it is
        # left over: one epoch of 30 mini-batches of a log.  The usual rate goes with its schedule.
        return replace(settings, schedule="constant", averaging=False)
    batch_size = None if n_rows <= 2 * _PAPER_BATCH else _PAPER_BATCH
    return Settings(
        n_folds=p.n_folds,
        # WHY: it helps the extrapolation; see what each departure is worth in paper-and-code.md.
        accumulate_backbone=True,
        drop_edge=p.drop_edge,
        lr_extrapolator=p.lr_extrapolator,
        mixed_precision=p.mixed_precision,
        loss=p.loss,
        **{"patience": 20, "batch_size": batch_size, **given},
    )


def count_members(p: SimpleNamespace, n_rows: int) -> int:
    """The networks whose predictions are averaged; the more rows, the less each is in doubt."""
    if p.strategy == "fate":
        return 1
    if p.n_members is not None:
        return int(p.n_members)
    return 4 if n_rows <= 10_000 else 2


def grow_members(network: Network, field_of: NDArray[np.integer]) -> list[FATE]:
    """The models of a network over all features known now, new ones at their extrapolation.

    Parameters
    ----------
    field_of
        (D',) the field of each feature, observed and new.
    """
    every, members = np.arange(len(field_of), dtype=np.int32), []
    for member in network.members:
        old = copy.deepcopy(member.backbone).float().requires_grad_()
        # A `ContextMap` is solved for after training; a GraphSAGE is trained on.
        extrapolator = None
        if isinstance(member.extrapolator, GraphSAGE):
            extrapolator = copy.deepcopy(member.extrapolator).float().requires_grad_()
        backbone = with_fields(old, _n_fields(field_of))
        wider = FATE(
            len(every),
            backbone,
            extrapolator,
            recompose=member.recompose,
            centred=member.centred,
        )
        W = member.embeddings(every, field_of)
        if old.n_fields is not None:
            # WHY: under the zero weights of a new field zero embeddings would stay so for ever.
            silent = torch.from_numpy(field_of >= old.n_fields) & ~W.any(1)
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
