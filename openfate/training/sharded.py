"""Embeddings of which every rank has some rows: a table that no single process holds.

Rank r of R owns the rows r, r + R, r + 2 R, ... of W, and Adam's moments of them.  The rows that a
rank's part of a mini-batch touches come from their owners, and their gradients go back to them:

    touch     owners -> users    rows of W
    step      users -> owners    gradients, added up there;  Adam;  owners -> users, the new rows

Before that, users ask owners for the rows: no rank has to look at the features of another's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from openfate.errors import InputError
from openfate.training.optim import AdamMode, RowAdam

# The parts of a checkpoint that have a row for each feature.
BY_ROW = ("model.W", "best.W", "mean.W", "rows.m", "rows.v", "rows.last", "rows.upto")


class Routes:
    """Which rows this rank needs and whose they are, and which of its own the others need.

    Parameters
    ----------
    n_ranks
        R; all of them ask at the same time.
    ids
        (U,) of the rows that this one needs, each once.
    """

    def __init__(self, n_ranks: int, ids: Tensor) -> None:
        owner = ids % n_ranks
        self.order = torch.argsort(owner, stable=True)  # of what comes, by owner
        wanted = torch.bincount(owner, minlength=n_ranks)
        given = torch.empty_like(wanted)
        dist.all_to_all_single(given, wanted)
        self.received, self.sent = wanted.tolist(), given.tolist()
        asked = ids.new_empty(sum(self.sent))
        dist.all_to_all_single(asked, ids[self.order] // n_ranks, self.sent, self.received)
        self.owned = torch.unique(asked)  # (n,) places in this rank's shard
        self.places = torch.searchsorted(self.owned, asked)  # of what is sent, by receiver

    def fetch(self, rows: Tensor) -> Tensor:
        """(U, C) the rows that this rank needs; `rows` (n, C) are the `owned` ones."""
        found = rows.new_empty(len(self.order), rows.size(1))
        came = torch.empty_like(found)
        dist.all_to_all_single(came, rows[self.places], self.received, self.sent)
        found[self.order] = came
        return found

    def send_back(self, gradients: Tensor) -> Tensor:
        """(n, C) sums of all ranks' gradients of the `owned` rows; (U, C) are this rank's."""
        came = gradients.new_empty(sum(self.sent), gradients.size(1))
        dist.all_to_all_single(came, gradients[self.order], self.sent, self.received)
        total = gradients.new_zeros(len(self.owned), gradients.size(1))
        return total.index_add_(0, self.places, came)


class ShardedRowAdam:
    """`RowAdam` over this rank's rows; those of others are fetched and sent back.

    Parameters
    ----------
    shard
        (D / R, C) its rows, changed in place.
    find
        Finds the way to rows (U,) of the whole table.
    lr, mode
        As `RowAdam`'s.
    """

    def __init__(
        self, shard: Tensor, find: Callable[[Tensor], Routes], lr: float, mode: AdamMode
    ) -> None:
        if mode == "dense":
            raise InputError("adam='dense' is of one process: a sharded table takes 'exact'.")
        self.own, self.find = RowAdam(shard, lr, mode=mode), find
        self.routes: Routes | None = None
        self.rows = shard[:0]

    def touch(self, ids: Tensor) -> Tensor:
        """The rows that this rank needs, as they are after all steps so far: (U, C), a leaf."""
        self.routes = routes = self.find(ids)
        self.own.touch(routes.owned)
        self.rows = routes.fetch(self.own.rows.detach()).requires_grad_()
        return self.rows

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step with the gradients of all ranks, this one's times its share."""
        assert self.routes is not None
        grad, self.rows.grad = self.rows.grad, None
        grad = torch.zeros_like(self.rows) if grad is None else share * grad
        self.own.rows.grad = self.routes.send_back(grad)
        self.own.step()
        self.rows.detach().copy_(self.routes.fetch(self.own.rows.detach()))

    def release(self) -> None:
        """Write the touched rows back into the shard."""
        self.own.release()
        self.routes = None


def cut_checkpoint(checkpoint: Mapping[str, Tensor], rank: int, n_ranks: int) -> dict[str, Tensor]:
    """One rank's part of a whole checkpoint."""
    return {
        name: tensor[rank::n_ranks].clone() if name in BY_ROW else tensor
        for name, tensor in checkpoint.items()
    }


def join_checkpoints(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The whole checkpoint of which each rank has a part: what one process would write.

    Examples
    --------
    >>> whole = {"model.W": torch.arange(5.0), "steps": torch.ones(2)}
    >>> joined = join_checkpoints([cut_checkpoint(whole, rank, 2) for rank in range(2)])
    >>> joined["model.W"].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    joined = dict(parts[0])
    for name in BY_ROW:
        if name in joined:
            joined[name] = join_rows([part[name] for part in parts])
    return joined


def join_rows(shards: Sequence[Tensor]) -> Tensor:
    """(D, ...) of which each rank has the rows rank, rank + R, ..."""
    first = shards[0]
    whole = first.new_empty((sum(map(len, shards)), *first.shape[1:]))
    for rank, shard in enumerate(shards):
        whole[rank :: len(shards)] = shard
    return whole
