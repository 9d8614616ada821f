"""A step of which some parts are plain torch's: autograd from one part to the next.

    F0 = W[features], zero where hidden or new            gather            (U, P)
    W_hat = g(F0), recomposed                             kernels or torch  (U, H + n_own)
    z = backbone.sums(W_hat)                              kernels           (B, K) or (B, F K)
    loss = backbone(z)                                    kernels or torch

Where the network has kernels, they give the slope at what it reads and at what is added to its
logits, and autograd takes the way back from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from openfate.graph import full_precision
from openfate.models import FATE, DeepBackbone, GraphSAGE
from openfate.training.fused import mlp, sage
from openfate.training.fused.coverage import Parts, deep_network
from openfate.training.fused.graph import KernelEdges, KernelGraph
from openfate.training.fused.sums import ALL, BatchGraph, Keep
from openfate.training.metrics import mean_loss


class Live:
    """The live tensors of a model: of the parts that have kernels."""

    def __init__(self, model: FATE, parts: Parts) -> None:
        self.W, self.net, self.weights = model.W.detach(), None, None
        self.gradients: sage.Sage | None = None
        self.normalize = True
        if parts.network is None:
            self.net = mlp.Network.of(cast("Any", deep_network(model.backbone)))
        if parts.extrapolator is None:
            g = cast("GraphSAGE", model.extrapolator)
            self.weights, self.normalize = sage.Sage.of(g), g.normalize
            if g.root[0].weight.grad is not None:
                self.gradients = sage.Sage.gradients_of(g)


class Seen(NamedTuple):
    """What a step, or a prediction, sees of a batch."""

    batch: BatchGraph
    F0: Tensor  # (U, P) of W, zero where hidden or new
    may_use: Tensor  # (U,) bool: neither hidden nor new
    own: Tensor | None = None  # (U, P) of W, zero where new, for a backbone that reads it
    to_rows: Keep = ALL  # the edges on which messages travel
    to_features: Keep = ALL
    cells: Keep = ALL  # the edges that the backbone sums over

    def edges(self) -> KernelEdges:
        """Those edges, for an extrapolator that is torch's."""
        return KernelEdges.left_by(self.batch, self.to_rows, self.to_features)


class Composed:
    """The parts of a model, one after the other."""

    def __init__(self, model: FATE, live: Live) -> None:
        self.model, self.live, g = model, live, model.extrapolator
        fused = set[Tensor]()
        if live.net is not None:
            fused |= set(cast("Any", deep_network(model.backbone)).parameters())
        self.theta = [p for p in model.backbone.parameters() if p not in fused]
        self.omega = [] if g is None or live.weights is not None else list(g.parameters())

    def learn(
        self, seen: Seen, y: Tensor, seeds: Tensor, total: Tensor, half: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Add the loss to `total` and see to all gradients; those of the batch's rows of W.

        Returns
        -------
        (U, P), and a second table to be added where the backbone reads what is hidden, too
        """
        leaves = [seen.F0.requires_grad_()]
        if seen.own is not None:
            leaves.append(seen.own.requires_grad_())
        with torch.autocast(y.device.type, torch.bfloat16, enabled=half):
            z = self._sums(seen)
            ends, slopes = self._loss(z, y, seeds, total, half)
        wanted = [*leaves, *self.theta, *self.omega]
        found = torch.autograd.grad(ends, wanted, slopes, allow_unused=True)
        n, end = len(leaves), len(leaves) + len(self.theta)
        _write(self.theta, found[n:end], add=False)
        _write(self.omega, found[end:], add=True)
        two = found[1].contiguous() if n > 1 else None
        return (found[0] * seen.may_use[:, None]).contiguous(), two

    @torch.no_grad()
    def logits(self, seen: Seen) -> Tensor:
        """(B,) of rows that are predicted."""
        z, net = self._sums(seen), self.live.net
        if net is None:
            out: Tensor = self.model.backbone(z)
            return out[:, 0]
        inputs, beside = self._split(z)
        of_network = mlp.logits(net, inputs)
        return of_network if beside is None else of_network + beside

    # ---- part by part ----------------------------------------------------------------------

    def _sums(self, seen: Seen) -> Tensor:
        """What the backbone reads of each row."""
        net = self.model.backbone
        own = None if seen.own is None else seen.own[:, : self.live.W.size(1)]
        return net.sums(KernelGraph.of(seen.batch, seen.cells), self._states(seen), own)

    def _states(self, seen: Seen) -> Tensor:
        """W_hat (U, H + n_own)."""
        model, H, C = self.model, self.model.backbone.width, self.live.W.size(1)
        if model.extrapolator is None:
            return seen.F0[:, :C]
        states = seen.F0[:, :H]
        if self.live.weights is None:
            W_hat: Tensor = model.extrapolator(states, seen.edges())
        else:
            W_hat = _Sage.apply(seen.F0, seen, self.live)[:, :H]  # type: ignore[no-untyped-call]
        if model.recompose == "masked":
            # WHY not only the hidden ones, as `FATE` has it: the host would wait for their number.
            W_hat = torch.where(seen.may_use[:, None], states, W_hat)
        return W_hat if C == H else torch.cat([W_hat, seen.F0[:, H:C]], 1)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the kernels of the network take: (B, P), and (B,) for what is beside it."""
        net, terms = self.model.backbone, list[Tensor]()
        if isinstance(net, DeepBackbone):
            terms, z = net.beside(z), net.inputs(z)
        inputs = F.pad(z, (0, sage.padded(z.size(1)) - z.size(1))).contiguous()
        beside = sum(full_precision(term)[:, 0] for term in terms) if terms else None
        return inputs, cast("Tensor | None", beside)

    def _loss(
        self, z: Tensor, y: Tensor, seeds: Tensor, total: Tensor, half: bool
    ) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
        """From where the way back starts, and the slopes there; None: from the loss."""
        if self.live.net is None:
            outputs = full_precision(self.model.backbone(z))
            loss = mean_loss("log_loss", outputs, y)
            total.add_(loss.detach())
            return [loss], None
        inputs, beside = self._split(z)
        logits = None if beside is None else beside.detach().contiguous()
        dz, slopes = mlp.loss_and_gradients(
            self.live.net, inputs.detach(), y, seeds, total, half, logits
        )
        return ([inputs], [dz]) if beside is None else ([inputs, beside], [dz, slopes])


class _Sage(torch.autograd.Function):
    """F2 (U, P) of F0; the gradients of the weights are added where the optimizer reads them."""

    @staticmethod
    def forward(ctx: Any, F0: Tensor, seen: Seen, live: Live) -> Tensor:
        assert live.weights is not None
        F2, ctx.kept = sage.forward(
            live.weights, seen.batch, F0.detach(), seen.to_rows, live.normalize
        )
        ctx.seen, ctx.live = seen, live
        return F2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        seen, live = ctx.seen, ctx.live
        one, two = sage.backward(
            live.weights, live.gradients, seen.batch, ctx.kept, grads[0].contiguous(),
            seen.may_use, seen.to_rows, live.normalize,
        )  # fmt: skip
        return one.add_(two), None, None


def _write(parameters: Sequence[Tensor], found: Sequence[Tensor | None], add: bool) -> None:
    """Put gradients where the optimizer reads them; what has none has zero.

    `add` to what is there: omega is stepped once for all masks, theta at each.
    """
    own, new = list[Tensor](), list[Tensor]()
    for parameter, gradient in zip(parameters, found, strict=True):
        assert parameter.grad is not None
        if gradient is not None:
            own.append(parameter.grad)
            new.append(gradient)
        elif not add:
            parameter.grad.zero_()
    if own and add:
        torch._foreach_add_(own, new)
    elif own:
        torch._foreach_copy_(own, new)
