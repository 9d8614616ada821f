"""Networks of one shape as plain arrays, side by side: the predictions of a fit's members at once.

Rows go through in blocks that stay in the processor's cache, in float64.  M members, N rows, D
features, H width, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from openfate.models.backbone import MLP, Backbone
from openfate.table import MultiHot

Floats = NDArray[np.float64]

_BLOCK = 512  # rows at a time: their sums (N, M H) are two megabytes
_FEW = 256  # rows, of which a second thread would cost more than it saves


class StackedMLP:
    """Feed-forward networks of one shape over sums of embeddings; not trained any more.

    Parameters
    ----------
    members
        One or more for which `takes` is true.

    Examples
    --------
    >>> members = [MLP(8, n_outputs=3).eval() for _ in range(2)]
    >>> stacked = StackedMLP(members)
    >>> X = MultiHot.from_rows([[0, 1], []], n_features=2)
    >>> stacked.logits(X, np.zeros((2, 16))).shape
    (2, 2, 3)
    """

    def __init__(self, members: Sequence[Backbone]) -> None:
        nets = [member for member in members if isinstance(member, MLP)]
        self.n_members, self.width = len(nets), nets[0].width
        self.sum_bias: Floats | None = None  # (M H,)
        if nets[0].sum_bias is not None:
            biases = [net.sum_bias for net in nets if net.sum_bias is not None]
            self.sum_bias = torch.cat(biases).detach().double().numpy()
        layers = [[_as_arrays(net, at) for net in nets] for at in range(len(nets[0].layers))]
        self.weights = [np.stack([weight for weight, _ in each]) for each in layers]  # (M, in, out)
        self.biases = [np.stack([bias for _, bias in each])[:, None] for each in layers]

    @staticmethod
    def takes(members: Sequence[Backbone]) -> bool:
        """Whether these are networks of one shape and one sum a row, on the CPU."""
        first = members[0]
        if type(first) is not MLP or first.n_fields is not None or first.training:
            return False
        on_cpu = all(p.device.type == "cpu" for member in members for p in member.parameters())
        same = all(type(net) is MLP and net.about() == first.about() for net in members)
        return on_cpu and same

    def logits(self, X: MultiHot, table: Floats) -> Floats:
        """(M, N, C) of rows whose features have the embeddings `table` (D, M H).

        WHY threads: sums of float64 run on one processor otherwise; products use all by themselves.
        """
        n_threads = torch.get_num_threads() if X.n_rows > _FEW else 1
        out = np.empty((self.n_members, X.n_rows, self.weights[-1].shape[2]))
        with ThreadPoolExecutor(n_threads) if n_threads > 1 else nullcontext() as pool:
            for start in range(0, X.n_rows, _BLOCK):
                part = slice(start, min(X.n_rows, start + _BLOCK))
                z = _sum_rows(X, part, table, pool, n_threads)
                out[:, part] = self.forward(z)
        return out

    def forward(self, z: Floats) -> Floats:
        """(M, N, C) logits of rows whose summed embeddings are `z` (N, M H), which is overwritten."""
        if self.sum_bias is not None:
            z += self.sum_bias
            np.maximum(z, 0, out=z)
        h = z.reshape(len(z), self.n_members, self.width).transpose(1, 0, 2)  # (M, N, H)
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if at:
                np.maximum(h, 0, out=h)
            h = h @ weight
            h += bias
        return h


def _as_arrays(net: MLP, at: int) -> tuple[Floats, Floats]:
    """Weight (in, out) and bias (out,) of a layer, with the BatchNorm after it worked in."""
    layer = net.layers[at]
    assert isinstance(layer, nn.Linear)
    weight, bias = (p.detach().double() for p in (layer.weight.T, layer.bias))
    if at < len(net.norms):
        norm = net.norms[at]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = weight * scale
        bias = (bias - norm.running_mean.double()) * scale + norm.bias.detach().double()
    return np.ascontiguousarray(weight.numpy()), bias.numpy().copy()


def _sum_rows(
    X: MultiHot, part: slice, table: Floats, pool: ThreadPoolExecutor | None, n_threads: int
) -> Floats:
    """(n, K) the sums of the features' rows of `table` (D, K), times values, over some rows."""
    if pool is None:
        return _sum_some(X, part, table)
    cuts = np.linspace(part.start, part.stop, n_threads + 1).astype(int)
    parts = [slice(int(start), int(end)) for start, end in zip(cuts, cuts[1:], strict=False)]
    return np.concatenate(list(pool.map(lambda some: _sum_some(X, some, table), parts)))


def _sum_some(X: MultiHot, part: slice, table: Floats) -> Floats:
    ends = X.row_ptr[part.start : part.stop + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last or not table.shape[1]:
        return np.zeros((len(ends) - 1, table.shape[1]))
    values = None if X.values is None else X.values[first:last].astype(np.float64)
    sums = torch.embedding_bag(
        torch.from_numpy(table),
        torch.from_numpy(X.ids[first:last].astype(np.int64)),
        torch.from_numpy(ends - first),
        mode=0,
        per_sample_weights=None if values is None else torch.from_numpy(values),
        include_last_offset=True,
    )[0]
    return sums.numpy()
