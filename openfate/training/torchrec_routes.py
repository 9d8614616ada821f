"""The exchange of `openfate.training.sharded.Routes`, by TorchRec's collectives and kernels.

TorchRec cuts ids into blocks of rows, one for each rank, and sends them there, and embeddings back,
as for an `EmbeddingCollection` that is sharded by row.  Adam is ours: TorchRec's optimizers are
fused into its look-up, step a row once a mini-batch, and know no Adam on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.dist_data import SequenceEmbeddingsAllToAll
from torchrec.distributed.sharding.rw_sharding import RwSparseFeaturesDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from openfate.training.sharded import Routes


class TorchRecRoutes(Routes):
    """As `Routes`.

    Parameters
    ----------
    n_ranks, ids
        As those of `Routes`.
    n_features
        D, of the whole table.
    """

    def __init__(self, n_ranks: int, ids: Tensor, n_features: int) -> None:
        group: Any = dist.group.WORLD
        set_gradient_division(False)  # shares of ranks are weighed before
        block = -(-n_features // n_ranks)
        # Rank r owns the rows r, r + R, ...: named so, they are a block.
        named = ids % n_ranks * block + ids // n_ranks
        wanted = KeyedJaggedTensor(["W"], named, lengths=torch.tensor([len(ids)]).to(ids.device))
        split = RwSparseFeaturesDist(
            group, 1, [block * n_ranks], device=ids.device, is_sequence=True
        )
        asked = split(wanted).wait().wait()
        self.order = split.unbucketize_permute_tensor
        self.lengths = asked.lengths().view(-1, asked.stride())
        self.sent = asked.lengths().tolist()
        self.received = torch.bincount(ids % n_ranks, minlength=n_ranks).tolist()
        self.owned, self.places = torch.unique(asked.values(), return_inverse=True)
        self.move = SequenceEmbeddingsAllToAll(group, [1] * n_ranks, ids.device)
        self.given = self.found = ids

    def fetch(self, rows: Tensor) -> Tensor:
        """(U, C) the rows that this rank needs; `rows` (n, C) are the `owned` ones."""
        self.given = rows.detach().requires_grad_()
        with torch.enable_grad():
            came = self.move(
                self.given[self.places], self.lengths, self.received, self.sent, self.order
            ).wait()
        self.found = came
        found: Tensor = came.detach()
        return found

    def send_back(self, gradients: Tensor) -> Tensor:
        """(n, C) sums of all ranks' gradients of the `owned` rows; (U, C) are this rank's."""
        (total,) = torch.autograd.grad(self.found, self.given, gradients)
        return total
