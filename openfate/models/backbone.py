"""The backbone h(x; phi, W): embeddings of a row's features to a prediction (paper, section 2.1).

Every backbone is a sum between two maps:

    t_j = lift(w_hat_j)                 each feature,                 (D, C) -> (D, K)
    z_i = sum_j x_ij t_j                each row, or each field of each row
    y_i = forward(z_i)                  each row,                     (N, K) -> (N, n_outputs)

Interactions of features fit too: a factorization machine needs the sums of w_hat and of its square.
Here are this contract and the feed-forward network; `openfate.models.interactions` has the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from openfate import native
from openfate.errors import InputError, check_choice
from openfate.graph import Bipartite, features_to_cells, features_to_rows
from openfate.models.products import affine, product, products

Pool = Literal["sum", "field_linear"]


class Backbone(nn.Module):
    """What `FATE` asks of a backbone; a subclass has `forward` and, if it needs one, `lift`.

    Parameters
    ----------
    width
        H, the columns of W that the extrapolator computes for hidden and new features.
    n_outputs
        1 for a binary target (a sigmoid follows), C for C classes (a softmax follows).
    n_own
        Columns of W after those: a feature's own, zero where it is hidden or new.
    n_fields
        Sum the fields of a row apart, z (N, F K), over a graph that knows `field_of`; a feature of
        a field from `n_fields` on is not used.  None: one sum a row.
    reads_own
        Whether `lift` reads W as it was before anything was hidden.

    Notes
    -----
    What a new field, a column that training did not have, contributes: where a row is one sum its
    features are summed with the rest; where fields are summed apart there are no weights for it,
    and it contributes nothing until `openfate.models.interactions.with_fields` makes room.
    """

    name: ClassVar[str]
    choices: ClassVar[tuple[str, ...]] = ()  # of an estimator's `pool` and `linear`, those it takes

    def __init__(
        self,
        width: int,
        n_outputs: int,
        *,
        n_own: int = 0,
        n_fields: int | None = None,
        reads_own: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.n_outputs, self.n_own = width, n_outputs, n_own
        self.n_fields, self.reads_own = n_fields, reads_own

    def lift(self, W_hat: Tensor, W: Tensor | None) -> Tensor:
        """What is summed over features: (D, ..., H + n_own) -> (D, ..., K)."""
        return W_hat

    def sums(self, X: Bipartite, W_hat: Tensor, W: Tensor | None = None) -> Tensor:
        """What `forward` reads of rows: (D, ..., H + n_own) -> (N, ..., K) or (N, ..., F K)."""
        table = self.lift(W_hat, W)
        if self.n_fields is None:
            return features_to_rows(X, table)
        cells = features_to_cells(X, table, self.n_fields)  # (N, F, ..., K)
        return cells.movedim(1, -2).flatten(-2)

    def pooled(self, cells: Tensor, values: Tensor) -> Tensor:
        """As `sums`, over rows of d features whose embeddings are at hand, not over a graph.

        Parameters
        ----------
        cells
            (N, d, H + n_own) of W_hat.
        values
            (N, d) of the edges; zero for none.

        Returns
        -------
        (N, K).  For backbones with one sum a row that do not read W.
        """
        return (self.lift(cells, None) * values[:, :, None]).sum(1)

    def about(self) -> dict[str, Any]:
        """Its name and arguments, plain values: what `make_backbone` takes to make one like it."""
        raise InputError(
            f"{type(self).__name__} has no about(): write one, so that a bundle can hold its model."
        )

    def logits(self, X: Bipartite, W_hat: Tensor, W: Tensor | None = None) -> Tensor:
        """Logits (N, ..., n_outputs) of rows from the embeddings of their features."""
        out: Tensor = self(self.sums(X, W_hat, W))
        return out


class MLP(Backbone):
    """The paper's three-layer feed-forward network over a sum of embeddings.

    Parameters
    ----------
    width, n_outputs
        As every backbone's.
    hidden
        Widths of the hidden layers.  PAPER: appendix, "hidden size 8 in each layer" for UCI,
        "10-400-400-1" for clicks.
    batch_norm, dropout
        After each hidden layer, before and after its ReLU.  PAPER: "BatchNorm and Dropout with
        probability 0.5 in each layer" for clicks.
    pool
        "sum": of all embeddings of a row; "field_linear": every field has weights of its own into
        the first layer, which is the same as concatenating the fields' embeddings.
        PAPER: appendix A takes the two for equal; they are not (sum_m z_m V_m is not
        (sum_m z_m) (sum_m V_m)) unless each field's embeddings are multiplied by its own matrix.
    n_fields
        For "field_linear".
    activate_sum
        Add a bias to the sum and pass it through a ReLU before the first layer.  The paper's does
        not: its first layer sees the sum itself.

    Shapes
    ------
    input (..., H), or (..., F H) with "field_linear"; output (..., n_outputs) logits

    Examples
    --------
    >>> MLP(width=8, n_outputs=3)(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    >>> click = MLP(width=10, n_outputs=1, hidden=(400, 400), batch_norm=True, dropout=0.5)
    """

    name = "mlp"
    choices = ("pool",)

    def __init__(
        self,
        width: int,
        n_outputs: int,
        hidden: Sequence[int] = (8, 8),
        *,
        batch_norm: bool = False,
        dropout: float = 0.0,
        pool: Pool = "sum",
        n_fields: int | None = None,
        activate_sum: bool = False,
    ) -> None:
        super().__init__(width, n_outputs, n_fields=pooled_fields(pool, n_fields))
        if not 0 <= dropout <= 0.99:
            raise InputError(f"dropout={dropout}: choose a probability from 0 to 0.99.")
        self.n_inputs, self.dropout = width * (self.n_fields or 1), dropout
        sizes = [self.n_inputs, *hidden, n_outputs]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(h) for h in hidden if batch_norm)
        self.sum_bias = nn.Parameter(torch.zeros(self.n_inputs)) if activate_sum else None

    def forward(self, z: Tensor) -> Tensor:
        """Logits of rows whose summed embeddings are `z`."""
        if self.sum_bias is not None:
            z = (z + self.sum_bias).relu()
        # WHY: transposed, (H, N), because thin matrices of many rows are half as fast the other way
        # round on a CPU, and so is BatchNorm; the logits are handed on as a view, and the loss
        # reads them in this order.
        h = z.T if z.dim() == 2 else z.reshape(-1, self.n_inputs).T
        if self._is_written_out(z):
            parts = itertools.chain(self.layers, self.norms)
            pairs = itertools.chain.from_iterable((part.weight, part.bias) for part in parts)
            h = _WrittenLayers.apply(h, self, *pairs)  # type: ignore[no-untyped-call]
        else:
            h = self._layers(h)
        return h.T if z.dim() == 2 else h.T.view(*z.shape[:-1], self.n_outputs)

    def _is_written_out(self, z: Tensor) -> bool:
        """Whether this is a training step whose way back is written out: in full precision."""
        if not (self.training and torch.is_grad_enabled()):
            return False
        if torch.is_autocast_enabled(z.device.type):
            return False
        # WHY: a GPU has kernels for norms, and one row has no variance, which torch's refuse.
        return not (self.norms or self.dropout) or (z.device.type == "cpu" and len(z) > 1)

    def _layers(self, h: Tensor) -> Tensor:
        """(n_inputs, N) -> (n_outputs, N)."""
        scale = 1.0
        for index, layer in enumerate(cast("Iterable[nn.Linear]", self.layers)):
            # WHY: what is left after Dropout is scaled up in the next weights: fewer numbers.
            weight = layer.weight if scale == 1 else layer.weight * scale
            h = affine(layer.bias, weight, h)
            if index == len(self.layers) - 1:
                break
            if self.norms:
                h = self.norms[index](h[None])[0]
            h = h.relu() if torch.is_grad_enabled() else h.relu_()
            if self.training and self.dropout:
                h, scale = drop(h, self.dropout), 1 / (1 - self.dropout)
        return h

    def about(self) -> dict[str, Any]:
        """As every backbone's."""
        # WHY only then: networks that build on this one have no such argument.
        activated = {} if self.sum_bias is None else {"activate_sum": True}
        return {
            "name": self.name,
            "width": self.width,
            "n_outputs": self.n_outputs,
            "hidden": [cast("nn.Linear", layer).out_features for layer in self.layers[:-1]],
            "batch_norm": bool(self.norms),
            "dropout": self.dropout,
            "pool": "sum" if self.n_fields is None else "field_linear",
            "n_fields": self.n_fields,
            **activated,
        }


class Members(Backbone):
    """Feed-forward networks of one shape side by side, trained as one.

    WHY: one product of small matrices for all, and one sum of embeddings, instead of one training
    after another.  It is never saved: `split` gives the networks.

    Parameters
    ----------
    members
        Over one sum a row, without BatchNorm and Dropout.

    Shapes
    ------
    input (N, M H), the embeddings of the M members side by side; output (N, M, n_outputs)

    Examples
    --------
    >>> Members([MLP(8, n_outputs=3), MLP(8, n_outputs=3)])(torch.zeros(5, 16)).shape
    torch.Size([5, 2, 3])
    """

    name = "members"

    def __init__(self, members: Sequence[MLP]) -> None:
        first = members[0]
        if any(each.about() != first.about() for each in members) or not Members.takes(first):
            raise InputError("members must be of one shape, without fields, BatchNorm and Dropout.")
        super().__init__(len(members) * first.width, first.n_outputs)
        self.n_members, self.one = len(members), first.about()
        layers = [[cast("nn.Linear", layer) for layer in each.layers] for each in members]
        stacked = list(zip(*layers, strict=True))
        self.weights = nn.ParameterList(
            torch.stack([layer.weight.detach().T for layer in each]) for each in stacked
        )
        self.biases = nn.ParameterList(
            torch.stack([layer.bias.detach()[None] for layer in each]) for each in stacked
        )
        self.sum_bias = None
        if first.sum_bias is not None:
            of_sums = [cast("Tensor", each.sum_bias).detach() for each in members]
            self.sum_bias = nn.Parameter(torch.cat(of_sums))  # (M H,)

    @staticmethod
    def takes(backbone: Backbone) -> bool:
        """Whether networks of this kind can be trained as one."""
        if type(backbone) is not MLP:
            return False
        return backbone.n_fields is None and not backbone.norms and not backbone.dropout

    def forward(self, z: Tensor) -> Tensor:
        """Logits of rows whose summed embeddings are `z`."""
        h = z.view(len(z), self.n_members, -1)
        out: Tensor = _MemberLayers.apply(h, self.sum_bias, *self._layers())  # type: ignore[no-untyped-call]
        return out.transpose(0, 1)

    @torch.no_grad()
    def learn(
        self, z: Tensor, loss: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """The loss of rows whose summed embeddings are `z`, and its gradient at them.

        The gradients of the layers are left in `grad` of the parameters.  What `forward` and
        autograd do, which take a fifth of a step of training longer.

        Parameters
        ----------
        loss
            Tells the loss of logits (N, M, n_outputs), and its gradient there.
        """
        parameters, of_sums = list(self._layers()), self.sum_bias
        h = z.view(len(z), self.n_members, -1)
        out, inputs = _run_layers(h, of_sums, parameters)
        value, slope = loss(out.transpose(0, 1))
        at_sums, at_bias, at_layers = _back_layers(
            slope.transpose(0, 1), inputs, parameters[1::2], of_sums is not None
        )
        for parameter, own in zip(parameters, at_layers, strict=True):
            parameter.grad = own
        if of_sums is not None:
            of_sums.grad = at_bias
        return value, at_sums.reshape(len(z), -1)

    def _layers(self) -> Iterator[nn.Parameter]:
        """Bias, weight, bias, weight, ..."""
        # WHY `parameters`: to go through a ParameterList asks for each by name.
        pairs = zip(self.biases.parameters(), self.weights.parameters(), strict=True)
        return itertools.chain.from_iterable(pairs)

    @torch.no_grad()
    def split(self) -> list[MLP]:
        """The networks as they are now."""
        name_and_shape = {**self.one}
        del name_and_shape["name"]
        members = [MLP(**name_and_shape) for _ in range(self.n_members)]
        for at, member in enumerate(members):
            for layer, weight, bias in zip(member.layers, self.weights, self.biases, strict=True):
                cast("nn.Linear", layer).weight.copy_(weight[at].T)
                cast("nn.Linear", layer).bias.copy_(bias[at, 0])
            if member.sum_bias is not None and self.sum_bias is not None:
                member.sum_bias.copy_(self.sum_bias.chunk(self.n_members)[at])
        return members


def _block_(grad: Tensor, out: Tensor) -> None:
    """Let no gradient through where ReLU, or Dropout after it, left nothing.

    In place: memory that is new to the process costs more than the work.
    """
    torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)


class _MemberLayers(torch.autograd.Function):
    """The layers of `Members`, from (N, M, H), the bias (M H,) of activated sums, bias, weight, ...

    WHY: one node of autograd that changes tensors in place, a third faster than torch's own.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, sum_bias: Tensor | None, *parameters: Tensor) -> Tensor:
        out, inputs = _run_layers(z, sum_bias, parameters)
        ctx.is_activated = sum_bias is not None
        ctx.save_for_backward(*inputs, *parameters[1::2])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        inputs, weights = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        at_sums, of_sums, of_layers = _back_layers(grads[0], inputs, weights, ctx.is_activated)
        return at_sums, of_sums, *of_layers


def _run_layers(
    z: Tensor, sum_bias: Tensor | None, parameters: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """What the layers of `Members` give, (M, N, C), and the inputs of each."""
    inputs, last = [], len(parameters) // 2 - 1
    # WHY contiguous: ReLU and its way back take a hundred times as long on a turned tensor.
    h = z.transpose(0, 1)  # (M, N, H)
    if sum_bias is None:
        h = h.contiguous()
    else:
        h = torch.add(h, sum_bias.view(len(h), 1, -1), out=z.new_empty(h.shape)).relu_()
    for index in range(last + 1):
        inputs.append(h)
        h = products(h, parameters[2 * index + 1], parameters[2 * index])
        if index < last:
            h.relu_()
    return h, inputs


def _back_layers(
    grad: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], activated: bool
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The gradients at the sums (N, M, H), of their bias, and of bias, weight, ..."""
    grad, of_parameters = grad.contiguous(), list[Tensor]()
    for index in reversed(range(len(inputs))):
        if index < len(inputs) - 1:
            _block_(grad, inputs[index + 1])
        of_weight = products(inputs[index].transpose(1, 2), grad)
        of_parameters = [grad.sum(1, keepdim=True), of_weight, *of_parameters]
        grad = products(grad, weights[index].transpose(1, 2))
    of_sums = None
    if activated:
        _block_(grad, inputs[0])
        of_sums = grad.sum(1).view(-1)
    return grad.transpose(0, 1), of_sums, of_parameters


class _WrittenLayers(torch.autograd.Function):
    """`MLP._layers`, from (n_inputs, N) and the parameters of its layers, then of its norms.

    WHY: one node of autograd that changes tensors in place.  Its backward never multiplies by a
    thin matrix that lies the slow way round, and takes half as long as torch's own on 20,000 rows.
    BatchNorm and Dropout are passes over memory without branches; what torch has for (H, N) takes
    five times as long.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, net: MLP, *parameters: Tensor) -> Tensor:
        n_layers, p = len(net.layers), net.dropout
        thin = None if p or net.norms else native.Layers.of(h.T, parameters)
        ctx.is_native = thin is not None
        if thin is not None:
            out, natively_kept = native.layers(thin, h.T)
            ctx.save_for_backward(h.T, natively_kept, *parameters)
            return out
        kept, scale = list[Tensor](), 1.0
        for index in range(n_layers):
            weight, bias = parameters[2 * index : 2 * index + 2]
            weight = weight * scale if scale != 1 else weight
            kept += [h, weight]
            h = affine(bias, weight, h)
            if index == n_layers - 1:
                break
            if net.norms:
                gamma, beta = parameters[2 * (n_layers + index) :][:2]
                inverse = _standardize_(h, cast("nn.BatchNorm1d", net.norms[index]))
                kept += [h, inverse * gamma]
                h = (h * gamma[:, None]).add_(beta[:, None])
            h.relu_()
            if p:
                h, scale = h.mul_(_draw_kept(h, p)), 1 / (1 - p)
        ctx.scale, ctx.n_layers, ctx.has_norms = scale, n_layers, bool(net.norms)
        ctx.save_for_backward(*kept)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, kept = grads[0], list(ctx.saved_tensors)
        if ctx.is_native:
            z, natively_kept, *parameters = kept
            at_z, own = native.layers_back(z, natively_kept, grad.contiguous(), parameters)
            return at_z.T, None, *own
        of_layers, of_norms = list[Tensor](), list[Tensor]()
        h = grad
        for index in reversed(range(ctx.n_layers)):
            if index < ctx.n_layers - 1:
                _block_(grad, h)
                if ctx.has_norms:
                    factor, z = kept.pop(), kept.pop()
                    of_beta, of_gamma = grad.sum(1), torch.linalg.vecdot(grad, z)
                    of_norms = [of_gamma, of_beta, *of_norms]
                    share = -factor / z.size(1)
                    grad.mul_(factor[:, None]).addcmul_(z, (share * of_gamma)[:, None])
                    grad.add_((share * of_beta)[:, None])
            weight, h = kept.pop(), kept.pop()
            of_weight = product(grad, h.T)
            if index and ctx.scale != 1:
                of_weight.mul_(ctx.scale)
            of_layers = [of_weight, grad.sum(1), *of_layers]
            grad = product(weight.T, grad)
        return grad, None, *of_layers, *of_norms


def _standardize_(h: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """Bring each row of (H, N) to mean 0 and variance 1; what it was multiplied by, (H,).

    The layer keeps a running mean and variance, as torch's does.
    """
    n, mean = h.size(1), h.mean(1)
    h.sub_(mean[:, None])
    variance = torch.linalg.vecdot(h, h) / n
    inverse: Tensor = (variance + norm.eps).rsqrt()
    h.mul_(inverse[:, None])
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (n / (n - 1)), norm.momentum)
    norm.num_batches_tracked += 1
    return inverse


def drop(h: Tensor, p: float) -> Tensor:
    """Dropout without its scale: zeros with probability `p`, in steps of 2^-16."""
    # WHY a product: on a CPU it takes a tenth of the time of `masked_fill`, which branches.
    return h * _draw_kept(h, p)


def _draw_kept(h: Tensor, p: float) -> Tensor:
    """What Dropout keeps of a tensor, boolean.

    Random numbers are torch's, of the device: `torch.manual_seed` repeats them.
    """
    # WHY: four numbers share one 64-bit draw; `F.dropout` takes twice as long on a CPU.
    draws = torch.empty(h.numel() // 4 + 1, dtype=torch.int64, device=h.device)
    bits = draws.random_(-(2**63), None).view(torch.int16)[: h.numel()]
    return bits.view_as(h) >= round(p * 2**16) - 2**15


def pooled_fields(pool: Pool, n_fields: int | None) -> int | None:
    """The fields that `pool` keeps apart, or None."""
    check_choice("pool", pool, get_args(Pool))
    if pool == "sum":
        return None
    if n_fields is None or n_fields < 1:
        raise InputError(f"pool='field_linear' needs n_fields, one or more, not {n_fields}.")
    return n_fields
