"""Ranks: processes that train one model together, each with its own part of every mini-batch.

All of them run the same loop with the same weights.  A rank computes the gradient of its part of
the rows; what they step with is the mean over all rows,

    g = sum over ranks r of  w_r g_r / sum over ranks of w_r,      w_r the weight of its rows,

so that weights stay equal bit by bit without being sent.  Of the embeddings only the rows that the
mini-batch touches are exchanged.  Random numbers of a step are drawn anew from the seed, the number
of the mini-batch and, where they are of rows, the rank: so a run goes on from a checkpoint, with
any number of ranks, as if it had never stopped.

The graph of a part is its own, as that of a mini-batch is: neighbours in the other parts send no
messages.  With `whole_graph` every rank computes that of all rows, of which its own alone count for
its loss: what one process would compute, at the price of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from openfate.graph import Bipartite
from openfate.table import MultiHot
from openfate.training.batches import Array, Batch
from openfate.training.rows import Rows
from openfate.training.sharded import Routes


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is; by default the only one.

    Parameters
    ----------
    rank, n_ranks
        From 0.  Several are in one process group of `torch.distributed`.
    whole_graph
        Whether each computes the graph of all rows of a mini-batch.
    in_group
        Whether random numbers are drawn for each mini-batch anew; one rank alone may be a group.
    n_sharded
        D, where each rank has its own rows of W alone (`openfate.training.sharded`); else None.
    by_torchrec
        Whether such rows are exchanged by TorchRec.

    Examples
    --------
    >>> Ranks().is_alone, Ranks(1, 4).cut(10, least=2)
    (True, (2, 5))
    """

    rank: int = 0
    n_ranks: int = 1
    whole_graph: bool = False
    in_group: bool = False
    n_sharded: int | None = None
    by_torchrec: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.n_ranks == 1

    # ---- rows --------------------------------------------------------------------------------

    def cut(self, n_rows: int, least: int) -> tuple[int, int] | None:
        """Where its part of so many rows begins and ends; None: of so few each takes all."""
        if self.is_alone or n_rows < least * self.n_ranks:
            return None
        return n_rows * self.rank // self.n_ranks, n_rows * (self.rank + 1) // self.n_ranks

    def own_rows(self, rows: Rows, least: int) -> Rows:
        """Its part of the rows of a mini-batch of a table."""
        n_rows = rows.X.n_rows
        place = self.cut(n_rows, least)
        if place is None or self._is_weightless(rows):
            return rows
        if not self.whole_graph:
            return rows.cut(*place)
        weight = np.ones(n_rows) if rows.weight is None else rows.weight
        inside = np.zeros(n_rows)
        inside[slice(*place)] = 1
        return replace(rows, weight=weight * inside)

    def _is_weightless(self, rows: Rows) -> bool:
        """Whether the rows of some rank weigh nothing: a mean over no weight is not a number."""
        if rows.weight is None:
            return False
        ends = [len(rows.weight) * rank // self.n_ranks for rank in range(self.n_ranks)]
        return bool((np.add.reduceat(rows.weight, ends) == 0).any())

    def cut_ids(self, ids: Array, y: Array) -> tuple[Array, Array]:
        """Its part of a mini-batch of ids, with nothing of the others'."""
        place = self.cut(len(y), least=2)  # BatchNorm needs two
        own = slice(None) if place is None else slice(*place)
        return ids[own], y[own]

    def own_batch(self, batch: Batch) -> Batch:
        """Its part of a mini-batch of ids, over the features of all of it."""
        n_rows = batch.X.n_rows
        place = self.cut(n_rows, least=2)  # BatchNorm needs two
        if place is None:
            return batch
        start, end = place
        if self.whole_graph:
            weight = torch.zeros_like(batch.y)
            weight[start:end] = 1
            return replace(batch, weight=weight)
        d = batch.X.n_edges // n_rows
        ids = batch.X.feature.view(n_rows, d)[start:end].reshape(-1).cpu().numpy()
        part = MultiHot(np.arange(end - start + 1) * d, ids, batch.X.n_features)
        graph = Bipartite.from_multihot(part, batch.y.device)
        assert batch.X.field_of is not None
        return replace(batch, X=graph.with_fields(batch.X.field_of), y=batch.y[start:end])

    def find(self, ids: Tensor) -> Routes:
        """The way to rows (U,) of a sharded W, each once; all ranks ask at the same time."""
        if not self.by_torchrec:
            return Routes(self.n_ranks, ids)
        # WHY here: few have TorchRec.
        from openfate.training.torchrec_routes import TorchRecRoutes  # noqa: PLC0415

        assert self.n_sharded is not None
        return TorchRecRoutes(self.n_ranks, ids, self.n_sharded)

    # ---- numbers -----------------------------------------------------------------------------

    def seed(self, seed: int, number: int, of_rows: bool) -> int:
        """Of mini-batch `number`; what is drawn for rows differs from rank to rank."""
        own = self.rank if of_rows and not self.whole_graph else 0
        return int(np.random.SeedSequence([seed, number, 7, of_rows, own]).generate_state(1)[0])

    def share(self, y: Tensor, weight: Tensor | None) -> float:
        """What its mean counts for in the mean of all ranks."""
        if self.is_alone:
            return 1.0
        own = torch.tensor([float(len(y)) if weight is None else float(weight.sum())])
        total = own.to(_exchanged_on(y), torch.float64)
        dist.all_reduce(total)
        return float(own[0] / total.cpu()[0])

    def add_up_(
        self, parameters: Sequence[Tensor], share: float, rows: Tensor | None = None
    ) -> None:
        """Give parameters the sum of the ranks' gradients, each times its share.

        Parameters
        ----------
        rows
            Of the first parameter only these rows have gradients; None: all.
        """
        if self.is_alone or not parameters:
            return
        given = [parameter.grad for parameter in parameters]
        parts = [
            torch.zeros_like(parameter) if grad is None else grad
            for parameter, grad in zip(parameters, given, strict=True)
        ]
        if rows is not None:
            parts[0] = parts[0].index_select(0, rows)
        # Whether a parameter has a gradient goes along: one without is not stepped.
        there = parts[0].new_tensor([float(grad is not None) for grad in given])
        flat = torch.cat([there, *(share * part.reshape(-1) for part in parts)])
        dist.all_reduce(flat)
        there, *sums = torch.split(flat, [len(given), *(part.numel() for part in parts)])
        for at, (parameter, part) in enumerate(zip(parameters, sums, strict=True)):
            if not there[at]:
                parameter.grad = None
            elif rows is not None and at == 0:
                whole = torch.zeros_like(parameter) if given[0] is None else given[0]
                parameter.grad = whole.index_copy(0, rows, part.view_as(parts[0]))
            else:
                parameter.grad = part.view_as(parameter).clone()

    def mean(self, number: Tensor, share: float) -> Tensor:
        """The mean of a number over the rows of all ranks."""
        if self.is_alone:
            return number
        total = (share * number).detach().reshape(1).double()
        dist.all_reduce(total)
        return total[0]

    @torch.no_grad()
    def agree_(self, model: nn.Module) -> None:
        """Give all ranks the mean of what layers have noted, as BatchNorm does: not of weights."""
        if self.is_alone or self.whole_graph:
            return
        noted = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if not noted:
            return
        flat = torch.cat([buffer.reshape(-1) for buffer in noted]) / self.n_ranks
        dist.all_reduce(flat)
        for buffer, part in zip(noted, torch.split(flat, [b.numel() for b in noted]), strict=True):
            buffer.copy_(part.view_as(buffer))

    def ask_first(
        self, question: Callable[[], tuple[float, float]], like: Tensor
    ) -> tuple[float, float]:
        """What rank 0 finds; the others wait for it."""
        if self.is_alone:
            return question()
        # Where rows of W are sharded, all of them give rank 0 theirs.
        asked = self.rank == 0 or self.n_sharded is not None
        numbers = question() if asked else (0.0, 0.0)
        told = torch.tensor(numbers, dtype=torch.float64, device=_exchanged_on(like))
        dist.broadcast(told, 0)
        one, two = told.tolist()
        return one, two


def _exchanged_on(like: Tensor) -> torch.device:
    """Where numbers must be for the process group: NCCL takes those of a GPU alone."""
    return like.device if like.is_cuda else torch.device("cpu")
