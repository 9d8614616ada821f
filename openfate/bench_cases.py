"""What `openfate bench train` measures: tables of known shapes, and both sides on each of them.

Tables are generated with the shape of the data set that a case is named after: nothing has to be
downloaded.  A side is a function that trains n times, an epoch or a mini-batch, and returns the
seconds of each.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.data.multihot import MultiHot
from openfate.graph.bipartite import Bipartite
from openfate.models.backbone import MLP, Backbone
from openfate.models.extrapolator import GCN, GraphSAGE
from openfate.models.fate import FATE
from openfate.training.batches import Batch
from openfate.training.dropedge import drop_edges
from openfate.training.loop import train
from openfate.training.masking import k_shot, n_fold
from openfate.training.metrics import log_loss
from openfate.training.optim import RowAdam
from openfate.training.settings import Settings, StreamSettings
from openfate.training.stream import train_stream

__all__ = ["CASES", "ClickCase", "Side", "Sides", "UciCase"]

Side = Callable[[int], list[float]]
Sides = dict[
    str, tuple[Side, int]
]  # by name, and how often a side runs before it is another's turn
WIDTH = 8


@dataclass(frozen=True)
class UciCase:
    """One epoch over a matrix: rows x observed features, ids a row on average, classes."""

    n_rows: int
    n_features: int
    per_row: float
    n_classes: int

    unit = "ms/epoch"

    def tiny(self) -> UciCase:
        """The same kind of case, which takes no time and no memory."""
        return UciCase(64, 16, 4.0, 2)

    def table(self) -> tuple[MultiHot, NDArray[np.int64]]:
        """Random rows whose features have skewed frequencies, and random classes."""
        rng = np.random.default_rng(0)
        weight = 1 / (np.arange(self.n_features) + 5.0)
        n_draws = round(self.n_rows * self.per_row * 1.25)  # repeated entries fall together
        feature = rng.choice(self.n_features, n_draws, p=weight / weight.sum())
        row = rng.integers(0, self.n_rows, n_draws)
        X = MultiHot.from_entries(row, feature, self.n_rows, self.n_features)
        surplus = X.nnz - round(self.n_rows * self.per_row)
        keep = np.sort(rng.permutation(X.nnz)[max(surplus, 0) :])
        X = MultiHot.from_entries(X.row_of[keep], X.ids[keep], self.n_rows, self.n_features)
        return X, rng.integers(0, self.n_classes, self.n_rows)

    def ours(self) -> Side:
        """`train`, without validation."""
        X, y = self.table()

        def run(n_epochs: int) -> list[float]:
            model = FATE(X.n_features, MLP(WIDTH, self.n_classes), GCN(WIDTH))
            ends: list[float] = []
            settings = Settings(epochs=n_epochs + 1)
            train(model, X, y, settings, on_step=lambda _: ends.append(time.perf_counter()))
            return np.diff(ends).tolist()

        return run

    def peer(self) -> Side:
        """The twin of PyTorch Geometric."""
        from openfate.pyg_twin import UciTwin

        X, y = self.table()
        row, feature = torch.from_numpy(X.row_of), torch.from_numpy(X.ids.astype(np.int64))
        shape = (X.n_rows, X.n_features)
        twin = UciTwin(row, feature, shape, torch.from_numpy(y), self.n_classes, width=WIDTH)
        return lambda n_epochs: [_seconds(twin.epoch) for _ in range(n_epochs)]

    def sides(self) -> Sides:
        """Both sides."""
        return {"ours": (self.ours(), 10), "peer": (self.peer(), 2)}

    def parts(self, repeats: int = 20) -> dict[str, float]:
        """Milliseconds an epoch of ours that each part takes, timed on its own."""
        X, y = self.table()
        graph, labels = Bipartite.from_multihot(X), torch.from_numpy(y)
        model = FATE(X.n_features, MLP(WIDTH, self.n_classes), GCN(WIDTH))
        optimizer = torch.optim.Adam([model.W, *model.backbone.parameters()], 1e-2, fused=True)
        rng, watch = torch.Generator().manual_seed(0), _Watch()
        for _ in range(repeats):
            for kept in n_fold(X.n_features, 5, rng):
                edges = drop_edges(graph, 0.5, rng)
                watch("drop_edge")
                optimizer.zero_grad()
                loss = log_loss(model(graph, kept, edges), labels)
                watch("forward")
                loss.backward()  # type: ignore[no-untyped-call]
                watch("backward")
                optimizer.step()
                watch("optimizer")
        return watch.milliseconds(repeats)


@dataclass(frozen=True)
class ClickCase:
    """One mini-batch of clicks: B rows of one id for each field, n steps of k-shot, one outer step.

    PAPER: Criteo's 39 fields and 2.65 million features, k = 24, embeddings of 10, a network of
    10-400-400-1, a 2-layer GraphSAGE, DropEdge of one half.
    """

    n_rows: int
    n_fields: int = 39
    n_features: int = 2_650_000
    n_kept: int = 24
    n_draws: int = 5
    hidden: tuple[int, int] = (400, 400)

    unit = "ms/mini-batch"

    def tiny(self) -> ClickCase:
        """The same kind of case, which takes no time and no memory."""
        return ClickCase(8, 3, 40, n_kept=2, hidden=(4, 4))

    def field_of(self) -> NDArray[np.int64]:
        """(D,) fields with cardinalities that grow geometrically, as Criteo's: 5 to a fifth."""
        size = np.geomspace(5, self.n_features / 5, self.n_fields)
        size = np.maximum(1, size * (self.n_features / size.sum())).astype(np.int64)
        size[-1] += self.n_features - size.sum()
        return np.repeat(np.arange(self.n_fields), size)

    def batches(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Mini-batches without end: value v of a field of n has a frequency of about 1 / v."""
        rng, size = np.random.default_rng(0), np.bincount(self.field_of())
        first = np.cumsum(size) - size
        while True:
            value = size ** rng.random((self.n_rows, self.n_fields)) - 1
            ids = first + np.minimum(value.astype(np.int64), size - 1)
            yield ids.astype(np.int32), rng.integers(0, 2, self.n_rows)

    def model(self, backbone: Backbone | None = None) -> FATE:
        """As the paper's FATE-NN."""
        backbone = backbone or MLP(10, 1, self.hidden, batch_norm=True, dropout=0.5)
        return FATE(self.n_features, backbone, GraphSAGE(10), recompose="all")

    def ours(self, backbone: Backbone | None = None) -> Side:
        """`train_stream`, graphs made in the time that is measured; batches are drawn before."""
        model, source = self.model(backbone), self.batches()
        # WHY: nothing in advance, so that both sides have one thread.
        settings = StreamSettings(n_kept=self.n_kept, n_draws=self.n_draws, n_ahead=0)

        def run(n_batches: int) -> list[float]:
            rows = list(itertools.islice(source, n_batches + 1))  # the first starts the clock
            ends: list[float] = []
            train_stream(
                model, lambda _: rows, settings, on_step=lambda _: ends.append(time.perf_counter())
            )
            return np.diff(ends).tolist()

        return run

    def peer(self) -> Side:
        """The twin of PyTorch Geometric, on the same mini-batches as tensors."""
        from openfate.pyg_twin import CtrTwin

        twin, source = (
            CtrTwin(torch.from_numpy(self.field_of()), hidden=self.hidden),
            self.batches(),
        )
        rng, fields = torch.Generator().manual_seed(0), torch.arange(self.n_fields)

        def mini_batch() -> float:
            ids, y = next(source)
            rows, labels = torch.from_numpy(ids).long(), torch.from_numpy(y).float()
            kept = k_shot(fields, self.n_kept, self.n_draws, rng).float()
            return _seconds(lambda: twin.mini_batch(rows, labels, kept))

        return lambda n_batches: [mini_batch() for _ in range(n_batches)]

    def sides(self) -> Sides:
        """Both sides, and ours with the network of the peer, so that the rest is compared."""
        same = self.ours(_TorchNetwork(self.hidden))
        return {
            "ours": (self.ours(), 3),
            "ours_same_mlp": (same, 2),
            "peer": (self.peer(), 1),
        }

    def parts(self, repeats: int = 3) -> dict[str, float]:
        """Milliseconds a mini-batch of ours that each part takes, timed on its own."""
        model, watch, rng = self.model(), _Watch(), torch.Generator().manual_seed(0)
        table = RowAdam(model.W.detach(), 1e-4)
        theta = torch.optim.Adam(model.backbone.parameters(), 1e-4, fused=True)
        rows = list(itertools.islice(self.batches(), repeats))
        watch.start()
        for ids, y in rows:
            batch = Batch.of(ids, y)
            watch("graph")
            table.touch(batch.ids)
            watch("embeddings")
            assert batch.X.field_of is not None
            fields = torch.arange(self.n_fields)
            for kept in k_shot(fields, self.n_kept, self.n_draws, rng)[:, batch.X.field_of]:
                edges = drop_edges(batch.X, 0.5, rng)
                watch("drop_edge")
                theta.zero_grad()
                z = model.sums(batch.X, kept, edges, table.rows)
                watch("extrapolator")
                leaf = z.detach().requires_grad_()
                log_loss(model.backbone(leaf), batch.y).backward()  # type: ignore[no-untyped-call]
                watch("network, both ways")
                z.backward(leaf.grad)  # type: ignore[no-untyped-call]
                watch("extrapolator, back")
                theta.step()
                table.step()
                watch("optimizer")
            table.release()
            watch("embeddings")
        return watch.milliseconds(repeats)


CASES: dict[str, UciCase | ClickCase] = {
    "uci-robot": UciCase(n_rows=3273, n_features=118, per_row=12.0, n_classes=4),
    "uci-github": UciCase(n_rows=22620, n_features=2002, per_row=9.2, n_classes=2),
    "ctr-cpu-2k": ClickCase(n_rows=2_000),
    "ctr-cpu-10k": ClickCase(n_rows=10_000),
}


class _TorchNetwork(Backbone):
    """The network of the peer as a backbone of ours."""

    def __init__(self, hidden: tuple[int, int]) -> None:
        from openfate.pyg_twin import click_network

        super().__init__(10, 1)
        self.net = click_network(10, hidden, 0.5)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.net(z)
        return out


class _Watch:
    """Adds up the time since the last call by name."""

    def __init__(self) -> None:
        self.total: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        self.at = time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.total[part] = self.total.get(part, 0.0) + now - self.at
        self.at = now

    def milliseconds(self, repeats: int) -> dict[str, float]:
        return {part: round(seconds / repeats * 1e3, 3) for part, seconds in self.total.items()}


def _seconds(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
