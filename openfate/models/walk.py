"""The walk of a GCN: L steps over the normalised feature-data graph, without a non-linearity.

    A_hat = [[A, S^T], [S, B]]  over features and rows, self-loops in it

in the words of `openfate.models.extrapolator`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from openfate import native
from openfate.graph import Edges, full_precision


def walk(
    states: Tensor, edges: Edges, n_steps: int, constant: bool, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """L steps over the normalised graph with self-loops: A_hat^L's feature block, times states.

    Parameters
    ----------
    wanted
        The features whose rows are returned, (W,) increasing; None: all of them.

    Returns
    -------
    walked
        As `states`: (D, ..., H) or (W, ..., H).
    signal
        (D, L) or (W, L): column l is what a one on every node becomes in the L - 1 - l steps that
        follow layer l, l = 0 .. L - 1 (empty unless `constant`).  It does not depend on the states
        and has no gradient.
    """
    states = full_precision(states)
    walked: Tensor
    signal: Tensor
    if wanted is not None and _few(wanted, states, edges):
        # A_hat is symmetric: its wanted rows are where a walk from each wanted feature ends.
        paths, signal = _steps(states.detach(), edges, edges, n_steps, constant, wanted)
        return paths.T @ states, signal
    walked, signal = _Walk.apply(states, edges, n_steps, constant)  # type: ignore[no-untyped-call]
    if wanted is None:
        return walked, signal
    return walked.index_select(0, wanted), signal.index_select(0, wanted)


def _few(wanted: Tensor, states: Tensor, edges: Edges) -> bool:
    """Whether one walk from the wanted features takes less than two, there and back."""
    # WHY: up to some 32 columns a pass over the edges takes the same time, while a cache holds
    # what it writes; 2^17 numbers of 4 bytes are half of a common one.
    n_wanted = wanted.numel()  # WHY: `len` of a tensor is a function of Python's
    n_states = edges.to_rows.n_rows * n_wanted
    few = states.dim() == 2 and n_wanted <= 4 * states.size(1) and n_states <= 2**17
    return few and edges.to_rows is edges.to_features


class _Walk(torch.autograd.Function):
    """A_hat is symmetric, so backward is the same walk; directed edges swap their directions."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, edges: Edges, n_steps: int, constant: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.edges, ctx.n_steps = edges, n_steps
        walked, signal = _steps(states.detach().flatten(1), edges, edges, n_steps, constant)
        ctx.mark_non_differentiable(signal)
        return walked.view_as(states), signal

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        turned = Edges(ctx.edges.to_features, ctx.edges.to_rows)
        walked, _ = _steps(grads[0].flatten(1), turned, ctx.edges, ctx.n_steps, constant=False)
        return walked.view_as(grads[0]), None, None, None


def _steps(
    states: Tensor,
    edges: Edges,
    counted: Edges,
    n_steps: int,
    constant: bool,
    wanted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`walk` without autograd of states (D, H), or to (D, W) of a one at each `wanted` feature.

    Degrees are those of the `counted` edges.
    """
    states, here, back = states.contiguous(), edges.to_rows, edges.to_features
    if here.is_listed and _fits(states, edges, counted):
        directions = (
            native.Direction.of(here.row_ptr, here.feature, here.value, here.n_features),
            native.Direction.of(back.feature_ptr, back.row, back.value_by_feature, back.n_rows),
        )
        degrees = counted.to_features.feature_ptr, counted.to_rows.row_ptr
        return native.walk(states, wanted, directions, degrees, n_steps, constant)
    if wanted is None:
        return _torch_steps(states, edges, counted, n_steps, constant)
    ones = torch.eye(len(wanted), dtype=states.dtype, device=states.device)
    start = states.new_zeros(len(states), len(wanted)).index_copy_(0, wanted, ones)
    walked, signal = _torch_steps(start, edges, counted, n_steps, constant)
    return walked, signal.index_select(0, wanted)


def _fits(states: Tensor, edges: Edges, counted: Edges) -> bool:
    """Whether the library of `native` takes them."""
    here, back = edges.to_rows, edges.to_features
    integers = [here.row_ptr, here.feature, back.feature_ptr, back.row]
    if counted is not edges:
        integers += counted.to_features.feature_ptr, counted.to_rows.row_ptr
    return native.takes(integers, states, here.value, back.value_by_feature)


def _scales(counted: Edges, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A and B as columns: (D, 1) and (N, 1)."""
    scales = counted.degrees().to(dtype).add_(1).reciprocal_()[:, None]
    n_features = counted.to_features.n_features
    return scales[:n_features], scales[n_features:]


def _torch_steps(
    states: Tensor, edges: Edges, counted: Edges, n_steps: int, constant: bool
) -> tuple[Tensor, Tensor]:
    """`_steps` in torch, for every device and type of number.

    With F' = a F and G' = b G a step is F'_1 = A (F' + X^T G') and G'_1 = B (G' + X F').  Two steps
    share a pass over the edges, side by side in one table:

        X F -> G1;   X^T [G, G1] -> F1, F2;   X [F1, F2] -> G2, G3;   X^T [G2, G3] -> F3, F4;   ...

    G is zero but for the constant, which walks in the last column.
    """
    (A, B), width = _scales(counted, states.dtype), states.size(1)
    n_columns = native.walk_columns(width, constant)
    a, features = A.sqrt(), F.pad(states, (0, n_columns - width))
    features.mul_(a)
    if constant:
        features[:, -1:] = a
    levels = [features, features * A]  # F, F1: as yet without X^T G
    if n_steps > 1:
        rows = edges.to_rows.sum_at_rows(features)
        if constant:
            b = B.sqrt()
            rows[:, -1:].add_(b)
        rows.mul_(B)  # G1
        if constant:
            rows[:, -2:-1] = b  # G, in a column that nobody reads later
        heard = edges.to_features.sum_at_features(rows)
        if constant:
            levels[1][:, -1:].addcmul_(heard[:, -2:-1], A)
        levels += _add_up(heard, levels[1], A)  # F2
        pair = torch.cat(levels[1:], 1)
    for n_left in range(n_steps - 2, 0, -2):
        sums = edges.to_rows.sum_at_rows(pair if n_left > 1 else pair[:, :n_columns])
        rows = _add_up(sums, rows, B)[-1]
        pair = edges.to_features.sum_at_features(sums)
        levels += _add_up(pair, levels[-1], A)
    ones = [level[:, -1:] for level in levels[-2::-1]] if constant else [a[:, :0]]
    return levels[-1][:, :width] / a, torch.cat(ones, 1) / a


def _add_up(totals: Tensor, state: Tensor, scale: Tensor) -> list[Tensor]:
    """The next one or two states, from the sums that stand side by side in `totals`; in place."""
    width, states = state.size(1), []
    for start in range(0, totals.size(1), width):
        state = totals.narrow(1, start, width).add_(state).mul_(scale)
        states.append(state)
    return states
