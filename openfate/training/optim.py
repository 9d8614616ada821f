"""Optimizers: Adam on the rows of a large table that a mini-batch touches, and on small models.

Dense Adam moves every row at every step: one without a gradient drifts on with its momentum, which
decays.  `RowAdam` makes up for the steps that a row missed when the row is next touched,

    m <- b1^k m,   v <- b2^k v,
    w <- w - lr sum_{i=1..k} (b1^i m / c1_i) / (sqrt(b2^i v / c2_i) + eps),
    c1_i = 1 - b1^(t+i),  c2_i = 1 - b2^(t+i),

so that a step costs what the batch touches (U rows), not the table (D rows).  Nothing here reads
files; `state` and `load_state` are plain dicts of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from openfate.errors import InputError, check_choice
from openfate.training.lines import Lines

AdamMode = Literal["exact", "lazy", "dense"]
OptimizerName = Literal["adam", "adamw", "sgd"]

_BETAS, _EPS = (0.9, 0.999), 1e-8  # as torch's
# After so many steps without a gradient a row has arrived: 0.9^200 of a step is 1e-9 of it.
_SETTLED = 200
# The series below is cut after the fourth power of eps / sqrt(v) <= 1/40: 1e-8 of the drift.
_ORDER, _SMALL = 4, 1 / 40
_UP, _MOST_UP = 0.05, 25  # the share of a run, and the steps, in which the learning rate rises


class RowAdam:
    """Adam over a table (D, C) of which a mini-batch touches some rows.

    ``rows = adam.touch(ids)`` hands out a copy of those rows, a leaf whose gradient each `step`
    uses; `release` writes the rows back.  Several steps between the two are as cheap as one.

    Parameters
    ----------
    table
        (D, C), changed in place.
    lr
        Adam's.
    mode
        "exact": what dense Adam computes, up to rounding; "lazy": rows that are
        not touched stand still, and so do their moments, as torch's SparseAdam; "dense": torch's
        own Adam over all rows, for comparison.
    weight_decay
        Of AdamW, on touched rows; of "lazy" alone.
    lines
        Rows that are knots, which are then the first of all that are touched; of "lazy" alone.

    Examples
    --------
    >>> table = torch.zeros(5, 2)
    >>> adam = RowAdam(table, lr=0.1)
    >>> rows = adam.touch(torch.tensor([1, 3]))
    >>> rows.sum().backward()
    >>> adam.step()
    >>> adam.release()
    >>> table[:, 0].round(decimals=3).tolist()
    [0.0, -0.10000000149011612, 0.0, -0.10000000149011612, 0.0]
    """

    def __init__(
        self,
        table: Tensor,
        lr: float,
        *,
        mode: AdamMode = "exact",
        betas: tuple[float, float] = _BETAS,
        weight_decay: float = 0.0,
        lines: Lines | None = None,
    ) -> None:
        check_choice("adam", mode, get_args(AdamMode))
        if mode != "lazy" and (weight_decay or lines is not None):
            raise InputError(f"adam={mode!r} has no weight_decay and no lines: choose 'lazy'.")
        self.weight_decay, self.lines = weight_decay, lines
        self.table, self.lr, self.betas, self.eps, self.mode = table, lr, betas, _EPS, mode
        self.t = 0  # steps so far
        self.m, self.v = torch.zeros_like(table), torch.zeros_like(table)
        # Steps after which a row last had a gradient, and up to which it was brought forward.
        self.last = torch.zeros(len(table), dtype=torch.int32, device=table.device)
        self.upto = torch.zeros_like(self.last)
        self.ids: Tensor | None = None
        self.rows = self.rows_m = self.rows_v = table[:0]
        self.room = [table[:0]] * 3  # where touched rows and their moments lie

    def touch(self, ids: Tensor) -> Tensor:
        """The rows `ids` (U,), each once, as they are after all steps so far: (U, C), a leaf.

        Its memory is used again: the next `touch` or `settle` overwrites it.
        """
        if self.ids is not None:
            raise InputError("rows are touched already: call release first.")
        self._take(ids)
        if self.mode == "exact":
            self._catch_up()
        self.rows.requires_grad_()
        return self.rows

    @torch.no_grad()
    def step(self, grad: Tensor | None = None) -> None:
        """One step of Adam with the gradient of the touched rows, which is then forgotten.

        Parameters
        ----------
        grad
            (U, C), overwritten; None: the one that autograd left at the rows, or zero.
        """
        if grad is None:
            grad, self.rows.grad = self.rows.grad, None
        self.t += 1
        if grad is None:
            grad = torch.zeros_like(self.rows)
        if self.mode == "dense":
            self._dense_step(grad)
            return
        self._fused_step(self.rows, grad, self.rows_m, self.rows_v)

    @torch.no_grad()
    def release(self) -> None:
        """Write the touched rows back into the table."""
        if self.ids is None:
            return
        self._write(self.ids, touched=True)
        self.ids = None

    @torch.no_grad()
    def settle(self, moments: bool = False) -> None:
        """Bring all rows, and on demand all `moments`, forward to now: the table can be read."""
        self.release()
        if self.mode != "exact":
            return
        moving = (self.upto < self.t) & (self.last > 0)
        if not moments:  # WHY: of a row that has arrived only the moments change
            moving &= self.upto - self.last < _SETTLED
        for ids in torch.split(moving.nonzero()[:, 0], 1 << 16):  # WHY: pieces that a cache holds
            self._take(ids)
            self._catch_up()
            self._write(ids, touched=False)
        self.ids = None

    @torch.no_grad()
    def note_steps(self, n_steps: int) -> None:
        """Note that somebody else took so many dense steps on the table and its moments."""
        self.t += n_steps
        self.upto.fill_(self.t)
        self.last.masked_fill_(self.v.any(1), self.t)

    def state(self) -> dict[str, Tensor]:
        """All that a run needs to go on from here exactly; the tensors are the live ones."""
        t = torch.tensor(self.t)
        return {"t": t, "m": self.m, "v": self.v, "last": self.last, "upto": self.upto}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned; the table is the caller's to restore."""
        self.t, self.ids = int(state["t"]), None
        for name in ("m", "v", "last", "upto"):
            getattr(self, name).copy_(state[name])

    # ---- inside ----------------------------------------------------------------------------

    def _take(self, ids: Tensor) -> None:
        # WHY: memory that is new at each step comes page by page, three times as long as the copy.
        self.ids, n = ids, len(ids)
        if n > len(self.room[0]):
            self.room = [self.table.new_empty(n + n // 4, *self.table.shape[1:]) for _ in range(3)]
        self.rows, self.rows_m, self.rows_v = (
            torch.index_select(whole.detach(), 0, ids, out=room[:n])
            for whole, room in zip((self.table, self.m, self.v), self.room, strict=True)
        )

    def _write(self, ids: Tensor, touched: bool) -> None:
        own = self.rows.detach()
        for whole, part in ((self.table, own), (self.m, self.rows_m), (self.v, self.rows_v)):
            _put_rows(whole, ids, part)
        if self.mode == "lazy":  # whose rows never miss a step
            return
        self.upto.index_fill_(0, ids, self.t)
        if touched:
            self.last.index_fill_(0, ids, self.t)

    def _fused_step(self, w: Tensor, grad: Tensor, m: Tensor, v: Tensor) -> None:
        moved, lines = w.detach(), self.lines
        if self.weight_decay:
            moved.mul_(1 - self.lr * self.weight_decay)
        if lines is None:
            _fused([moved], [grad], [m], [v], [self.t], self.lr, self.betas)
            return
        n = len(lines.ids)
        move = torch.zeros_like(grad[:n])
        split = [lines.to_steps_(grad)[:n], grad[n:]], [m[:n], m[n:]], [v[:n], v[n:]]
        _fused([move, moved[n:]], *split, [self.t, self.t], self.lr, self.betas)
        moved[:n].add_(lines.to_knots_(move))

    def _dense_step(self, grad: Tensor) -> None:
        assert self.ids is not None
        whole = torch.zeros_like(self.table).index_copy_(0, self.ids, grad)
        self._fused_step(self.table, whole, self.m, self.v)
        self._take(self.ids)
        self.rows.requires_grad_()

    @torch.no_grad()
    def _catch_up(self) -> None:
        """Make up, in the taken copy, for the steps that its rows missed."""
        assert self.ids is not None
        last, upto = self.last.index_select(0, self.ids), self.upto.index_select(0, self.ids)
        missed = torch.where(last > 0, self.t - upto, 0)
        # A row moves for _SETTLED steps after its last gradient; from then on only moments decay.
        moves = torch.minimum(missed, (last + _SETTLED - upto).clamp(min=0))
        if not bool(missed.any()):
            return
        root = self.rows_v.sqrt()
        # WHY: elements that never had a gradient (v = 0) do not move and are never in the way.
        tiny = ((root < self.eps / _SMALL) & (root > 0)).any(1) & (moves > 0)
        self._drift(root, upto, torch.where(tiny, 0, moves))
        self._add_up(tiny.nonzero()[:, 0], root, upto, moves)
        b1, b2 = self.betas
        table = torch.arange(int(missed.max()) + 1, dtype=torch.float64, device=missed.device)
        for moment, beta in ((self.rows_m, b1), (self.rows_v, b2)):
            moment.mul_((beta**table).to(moment.dtype)[missed.long(), None])

    def _drift(self, root: Tensor, upto: Tensor, moves: Tensor) -> None:
        """The sum over missed steps in closed form, as a series in eps / sqrt(v)."""
        if not bool(moves.any()):
            return
        # WHY: one number for each (upto, moves); `unique` over two rows takes 25 times as long.
        key = upto.long() * (_SETTLED + 1) + moves
        kinds, which = torch.unique(key, return_inverse=True)
        upto, moves = kinds // (_SETTLED + 1), kinds % (_SETTLED + 1)
        terms = self._terms(upto, moves).to(root.dtype)  # (kinds, _ORDER + 1)
        x = self.eps / root.clamp(min=torch.finfo(root.dtype).tiny)
        x.masked_fill_(root == 0, 0)
        total = terms[which, _ORDER, None].expand_as(x)
        for order in reversed(range(_ORDER)):
            total = torch.addcmul(terms[which, order, None], total, x, value=-1)
        # m x / eps is m / sqrt(v): zero for an element that never had a gradient.
        self.rows.sub_(self.rows_m * x * total, alpha=self.lr / self.eps)

    def _terms(self, upto: Tensor, moves: Tensor) -> Tensor:
        """S_p = sum_{i=1..k} b1^i / c1_i q_i^(p+1), q_i = sqrt(c2_i / b2^i), p = 0 .. _ORDER."""
        b1, b2 = self.betas
        i = torch.arange(1, int(moves.max()) + 1, dtype=torch.float64, device=upto.device)
        at = upto[:, None].double() + i
        q = ((1 - b2**at) / b2**i).sqrt()
        first = b1**i / (1 - b1**at) * (i <= moves[:, None])
        return torch.stack([(first * q ** (p + 1)).sum(1) for p in range(_ORDER + 1)], 1)

    def _add_up(self, rows: Tensor, root: Tensor, upto: Tensor, moves: Tensor) -> None:
        """The sum over missed steps term by term, where gradients are so small that eps rules."""
        b1, b2 = self.betas
        i = torch.arange(1, _SETTLED + 1, dtype=torch.float64, device=rows.device)
        # WHY: pieces of a megabyte, which a cache holds, with all steps of a row side by side.
        for part in torch.split(rows, max(1, (1 << 18) // (_SETTLED * root.size(1)))):
            at = upto[part, None].double() + i  # (n, steps)
            size = b1**i / (1 - b1**at) * (i <= moves[part, None])
            decay = (b2**i / (1 - b2**at)).sqrt()
            size, decay = size.to(root.dtype)[:, None], decay.to(root.dtype)[:, None]
            terms = size / (root[part, :, None] * decay).add_(self.eps)  # (n, C, steps)
            self.rows[part] -= self.lr * self.rows_m[part] * terms.sum(-1)


def _put_rows(whole: Tensor, ids: Tensor, part: Tensor) -> None:
    """Write the rows `ids` (U,) of a table, each once."""
    if whole.device.type != "cpu" or not part.numel():
        whole.index_copy_(0, ids, part)
        return
    # WHY: `index_copy_` goes number by number, three times as long; as one item each, rows are
    # copied in four fifths of the time that numpy takes for rows of numbers.
    item = np.dtype((np.void, part[0].numel() * part.element_size()))
    whole.numpy().view(item)[ids.numpy()] = part.numpy().view(item)


class LeanAdam:
    """torch's fused Adam over a few small tensors, without the bookkeeping of `torch.optim.Adam`.

    WHY: on a model of some hundred numbers the bookkeeping takes longer than the step.

    Parameters
    ----------
    weight_decay
        Of AdamW; None: Adam.
    betas
        Adam's.

    Examples
    --------
    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> adam = LeanAdam([w], lr=0.1)
    >>> w.sum().backward()
    >>> adam.step()
    >>> w.round(decimals=3).tolist()
    [0.8999999761581421]
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float | None = None,
        betas: tuple[float, float] = _BETAS,
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.lr, self.weight_decay, self.betas = float(lr), weight_decay, betas
        # A tensor that has had no gradient has made no step: each counts its own.
        self.m: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.v: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [0] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Step the parameters that have a gradient."""
        at = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not at:
            return
        for i in at:
            self.steps[i] += 1
        w, m, v = ([tensors[i] for i in at] for tensors in (self.parameters, self.m, self.v))
        grads = [cast("Tensor", p.grad) for p in w]
        steps = [self.steps[i] for i in at]
        _fused(w, grads, m, v, steps, self.lr, self.betas, weight_decay=self.weight_decay)

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Adam`'s; the moments are the live ones."""
        state = {
            i: {"step": torch.tensor(float(n)), "exp_avg": self.m[i], "exp_avg_sq": self.v[i]}
            for i, n in enumerate(self.steps)
            if n
        }
        return {"state": state, "param_groups": []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned, ours or torch's."""
        for i, entries in state["state"].items():
            self.steps[i] = int(entries["step"])
            self.m[i].copy_(entries["exp_avg"])
            self.v[i].copy_(entries["exp_avg_sq"])


Optimizer = LeanAdam | torch.optim.Optimizer


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    lr: float,
    name: OptimizerName,
    weight_decay: float,
    betas: tuple[float, float] = _BETAS,
) -> Optimizer:
    """The optimizer of a name, over all of some parameters or none."""
    owned = list(parameters)
    if name == "sgd" and owned:  # torch refuses an empty list
        return torch.optim.SGD(owned, lr)
    return LeanAdam(owned, lr, weight_decay if name == "adamw" else None, betas)


def rate_at(step: int, n_steps: int) -> float:
    """What the learning rate is multiplied with at a step from 0: up, then down along a cosine.

    Examples
    --------
    >>> [round(rate_at(step, 100), 2) for step in (0, 4, 5, 52, 99)]
    [0.2, 1.0, 1.0, 0.51, 0.01]
    """
    n_up = max(1, min(_MOST_UP, round(_UP * n_steps)))
    if step < n_up:
        return (step + 1) / n_up
    return max(0.01, 0.5 + 0.5 * math.cos(math.pi * (step - n_up) / max(1, n_steps - n_up)))


def _fused(
    w: list[Tensor],
    grads: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    steps: list[int],
    lr: float,
    betas: tuple[float, float] = _BETAS,
    weight_decay: float | None = None,
) -> None:
    """Step number `steps` of each tensor, by torch's own kernel: one pass over w, g, m and v."""
    counts = {n: torch.tensor(float(n), device=w[0].device) for n in set(steps)}
    # WHY: `torch.optim.adam.adam`, which calls it, takes three times as long on small tensors.
    kernel = torch._fused_adam_ if weight_decay is None else torch._fused_adamw_
    rates: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": _EPS}
    rates |= {"weight_decay": weight_decay or 0.0, "amsgrad": False, "maximize": False}
    kernel(w, grads, m, v, [], [counts[n] for n in steps], **rates)
