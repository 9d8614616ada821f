"""The backbone h(x; phi, W): rows of summed embeddings to a prediction (paper, section 2.1).

The embedding layer is a sum over the features of a row, z_i = sum_j x_ij w_j, and lives in `FATE`;
what is here is the classifier behind it, FFN(z; phi).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["MLP"]


class MLP(nn.Module):
    """The paper's three-layer feed-forward network over a sum of embeddings.

    Parameters
    ----------
    width
        H, the width of an embedding.
    n_outputs
        1 for a binary target (a sigmoid follows), C for C classes (a softmax follows).
    hidden
        Widths of the hidden layers.  PAPER: appendix, "hidden size 8 in each layer".

    Shapes
    ------
    input (..., H), output (..., n_outputs) logits

    Examples
    --------
    >>> MLP(width=8, n_outputs=3)(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, width: int, n_outputs: int, hidden: Sequence[int] = (8, 8)) -> None:
        super().__init__()
        sizes = [width, *hidden, n_outputs]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self.width, self.n_outputs = width, n_outputs

    def forward(self, z: Tensor) -> Tensor:
        """Logits of rows whose summed embeddings are `z`."""
        # WHY: transposed, (H, N), because thin matrices of many rows are half as fast the other way
        # round on a CPU; the logits are handed on as a view, and the loss reads them in this order.
        h = z.reshape(-1, self.width).T
        *hidden, last = cast("Iterable[nn.Linear]", self.layers)
        for layer in hidden:
            h = torch.addmm(layer.bias[:, None], layer.weight, h).relu()
        h = torch.addmm(last.bias[:, None], last.weight, h)
        return h.T.view(*z.shape[:-1], self.n_outputs)
