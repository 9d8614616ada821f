"""Networks of one shape as plain arrays, side by side: the predictions of a fit's members at once.

Rows go through in blocks that stay in the processor's cache.  In float64 a prediction does not
depend on the rows beside it, to nine digits; in float32 many rows take half the time.  M members, N
rows, D features, H width, C outputs.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from openfate.models.backbone import MLP, Backbone
from openfate.table import MultiHot

Floats = NDArray[np.float64]
Either = NDArray[np.floating]  # float64, or float32

_BLOCK = 256  # rows at a time: their sums (N, M H) are a megabyte


class StackedMLP:
    """Feed-forward networks of one shape over sums of embeddings; not trained any more.

    Parameters
    ----------
    members
        One or more for which `takes` is true.
    single
        Whether to compute in float32.

    Examples
    --------
    >>> members = [MLP(8, n_outputs=3).eval() for _ in range(2)]
    >>> stacked = StackedMLP(members)
    >>> X = MultiHot.from_rows([[0, 1], []], n_features=2)
    >>> stacked.logits(X, np.zeros((2, 16))).shape
    (2, 2, 3)
    """

    def __init__(self, members: Sequence[Backbone], *, single: bool = False) -> None:
        nets = [member for member in members if isinstance(member, MLP)]
        self.n_members, self.width = len(nets), nets[0].width
        layers = [[_as_arrays(net, at) for net in nets] for at in range(len(nets[0].layers))]
        weights = [np.stack([weight for weight, _ in each]) for each in layers]  # (M, in, out)
        biases = [np.stack([bias for _, bias in each])[:, None] for each in layers]  # (M, 1, out)
        # WHY: relu(h + b) = max(h, -b) + b, and the last b goes through the next weight into its
        # bias: a pass over all rows less for each layer.
        floor: Floats | None = None  # (M H,) -b of the sums
        if nets[0].sum_bias is not None:
            of_sums = [net.sum_bias.detach() for net in nets if net.sum_bias is not None]
            bias = torch.stack(of_sums).double().numpy()[:, None]  # (M, 1, H)
            floor = -bias.reshape(-1)
            biases[0] = biases[0] + bias @ weights[0]
        for at, weight in enumerate(weights[1:]):
            biases[at + 1] = biases[at + 1] + biases[at] @ weight
        self.dtype = np.dtype(np.float32 if single else np.float64)
        self.weights = [weight.astype(self.dtype) for weight in weights]
        self.floor = None if floor is None else floor.astype(self.dtype)
        self.floors = [-bias.astype(self.dtype) for bias in biases[:-1]]
        self.bias = biases[-1].astype(self.dtype)

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
        """(M, N, C) of rows whose features have the embeddings `table` (D, M H)."""
        out = np.empty((self.n_members, X.n_rows, self.weights[-1].shape[2]))
        embeddings = table.astype(self.dtype, copy=False)

        def predict(start: int) -> None:
            end = min(X.n_rows, start + _BLOCK)
            out[:, start:end] = self.forward(_sum_rows(X, start, end, embeddings))

        starts, n_threads = range(0, X.n_rows, _BLOCK), torch.get_num_threads()
        if n_threads == 1 or len(starts) == 1:
            for start in starts:
                predict(start)
            return out
        # WHY: sums of float64 run on one processor otherwise.
        with ThreadPoolExecutor(n_threads) as pool:
            collections.deque(pool.map(predict, starts), maxlen=0)
        return out

    def forward(self, z: Either) -> Either:
        """(M, N, C) logits of rows whose summed embeddings are `z` (N, M H); overwrites them."""
        if self.floor is not None:
            np.maximum(z, self.floor, out=z)
        h = z.reshape(len(z), self.n_members, self.width).transpose(1, 0, 2) @ self.weights[0]
        for floor, weight in zip(self.floors, self.weights[1:], strict=True):
            np.maximum(h, floor, out=h)
            h = h @ weight
        logits: Either = h + self.bias
        return logits


def stack_embeddings(tables: Sequence[NDArray[np.floating]], ids: NDArray[np.int32]) -> Floats:
    """(n, M H) rows of the members' tables (D, H), side by side; zero for ids from D on.

    Examples
    --------
    >>> stack_embeddings([np.ones((2, 1)), np.full((2, 1), 3.0)], np.array([1, 2], np.int32))
    array([[1., 3.],
           [0., 0.]])
    """
    known = ids < len(tables[0])
    if known.all():
        return np.concatenate([table[ids].astype(np.float64) for table in tables], axis=1)
    found = np.zeros((len(ids), sum(table.shape[1] for table in tables)))
    found[known] = np.concatenate([table[ids[known]] for table in tables], axis=1)
    return found


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


def _sum_rows(X: MultiHot, start: int, end: int, table: Either) -> Either:
    """(n, K) the sums of the features' rows of `table` (D, K), times values, over some rows."""
    ends = X.row_ptr[start : end + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last or not table.shape[1]:
        return np.zeros((end - start, table.shape[1]), table.dtype)
    values = None if X.values is None else X.values[first:last].astype(table.dtype)
    sums = torch.embedding_bag(
        torch.from_numpy(table),
        torch.from_numpy(X.ids[first:last].astype(np.int32)),  # WHY a copy: it may be read-only
        torch.from_numpy((ends - first).astype(np.int32)),
        mode=0,
        per_sample_weights=None if values is None else torch.from_numpy(values),
        include_last_offset=True,
    )[0]
    found: Either = sums.numpy()
    return found
