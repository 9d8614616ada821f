"""What `openfate bench` measures: tables of known shapes, and both sides on each of them.

Tables are generated with the shape of the data set that a case is named after: nothing has to be
downloaded.  A side is a function that trains or predicts n times, an epoch or a mini-batch, and
returns the seconds of each.  A new case is an entry of `CASES`; a new kind of case is a dataclass
with the methods of `UciCase` that `Case` names.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.graph import Bipartite
from openfate.models import FATE, GCN, MLP, Backbone, GraphSAGE, make_backbone
from openfate.table import MultiHot
from openfate.training import EngineName, Settings, k_shot, n_fold, predict_batches, train
from openfate_lab.bench import parts
from openfate_lab.bench.floor import Floor, clicks_floor, table_floor
from openfate_lab.bench.record import now

Bench = Literal["train", "infer"]
Side = Callable[[int], list[float]]
# By name, and how often a side runs before it is another's turn.
Sides = dict[str, tuple[Side, int]]
WIDTH = 8


@dataclass(frozen=True)
class UciCase:
    """One epoch over a matrix, or the prediction of later rows that have new features.

    Rows x observed features, ids a row on average, classes.
    """

    n_rows: int
    n_features: int
    per_row: float
    n_classes: int

    device = "cpu"

    def unit(self, bench: Bench) -> str:
        """Of the times of `bench`."""
        return "ms/epoch" if bench == "train" else "ms/prediction"

    def tiny(self) -> UciCase:
        """The same kind of case, which takes no time and no memory."""
        return UciCase(64, 16, 4.0, 2)

    def table(self, seed: int = 0) -> tuple[MultiHot, NDArray[np.int64]]:
        """Random rows whose features have skewed frequencies, and random classes."""
        rng = np.random.default_rng(seed)
        weight = 1 / (np.arange(self.n_features) + 5.0)
        n_draws = round(self.n_rows * self.per_row * 1.25)  # repeated entries fall together
        feature = rng.choice(self.n_features, n_draws, p=weight / weight.sum())
        row = rng.integers(0, self.n_rows, n_draws)
        X = MultiHot.from_entries(row, feature, self.n_rows, self.n_features)
        surplus = X.nnz - round(self.n_rows * self.per_row)
        keep = np.sort(rng.permutation(X.nnz)[max(surplus, 0) :])
        X = MultiHot.from_entries(X.row_of[keep], X.ids[keep], self.n_rows, self.n_features)
        return X, rng.integers(0, self.n_classes, self.n_rows)

    def later_rows(self) -> MultiHot:
        """A third as many rows, over twice as many features: every second one is new."""
        later = replace(
            self, n_rows=self.n_rows // 3, n_features=2 * self.n_features, per_row=2 * self.per_row
        )
        X, _ = later.table(seed=1)
        # WHY: ids go by frequency; the new ones have to be as frequent as the others.
        ids = X.ids // 2 + np.where(X.ids % 2, self.n_features, 0)
        return MultiHot.from_entries(X.row_of, ids, X.n_rows, X.n_features)

    def model(self) -> FATE:
        """As the paper's."""
        return FATE(self.n_features, MLP(WIDTH, self.n_classes), GCN(WIDTH))

    def ours(self, bench: Bench = "train") -> Side:
        """`train` without validation; or a graph, `FATE.extrapolate` and `FATE.predict`."""
        if bench == "infer":
            model, later = self.model().eval(), self.later_rows()

            @torch.no_grad()
            def predict() -> None:
                graph = Bipartite.from_multihot(later)
                model.predict(graph, model.extrapolate(graph))

            return lambda n_times: [_seconds(predict) for _ in range(n_times)]
        X, y = self.table()

        def run(n_epochs: int) -> list[float]:
            ends: list[float] = []
            settings = Settings(epochs=n_epochs + 1)
            train(self.model(), X, y, settings, on_step=lambda _: ends.append(now("cpu")))
            return np.diff(ends).tolist()

        return run

    def peer(self, bench: Bench = "train") -> Side:
        """The twin of PyTorch Geometric."""
        from openfate_lab.bench.pyg_twin import UciTwin

        X, y = self.table()
        shape = (X.n_rows, X.n_features)
        twin = UciTwin(*_entries(X), shape, torch.from_numpy(y), self.n_classes, width=WIDTH)
        if bench == "train":
            return lambda n_epochs: [_seconds(twin.epoch) for _ in range(n_epochs)]
        later = self.later_rows()
        entries, size = _entries(later), (later.n_rows, later.n_features)
        return lambda n_times: [
            _seconds(lambda: twin.predict(*entries, size)) for _ in range(n_times)
        ]

    def sides(self, bench: Bench = "train") -> Sides:
        """Both sides."""
        return {"ours": (self.ours(bench), 10), "peer": (self.peer(bench), 2)}

    def parts(self, bench: Bench = "train") -> dict[str, float]:
        """Milliseconds of each part of ours."""
        if bench == "infer":
            return parts.table_prediction_parts(self.model().eval(), self.later_rows())
        return parts.table_parts(self.model(), *self.table())

    def floors(self, bench: Bench = "train") -> dict[str, Floor]:
        """The least that each part must do."""
        X = self.table()[0] if bench == "train" else self.later_rows()
        n_steps = 5 if bench == "train" else 0
        return table_floor(X.n_rows, X.n_features, X.nnz, self.n_classes, n_steps)


@dataclass(frozen=True)
class ClickCase:
    """One mini-batch of clicks: B rows of one id for each field, n steps of k-shot, one outer step.

    Or its prediction from its own graph.  PAPER: Criteo's 39 fields and 2.65 million features, k =
    24, embeddings of 10, a network of 10-400-400-1, a 2-layer GraphSAGE, DropEdge of one half.

    Or with another backbone, or n-fold splits of the features, as many as `n_draws`: on a GPU the
    fused engine, which "auto" takes for the paper's alone, and plain torch beside it.
    """

    n_rows: int
    n_fields: int = 39
    n_features: int = 2_650_000
    n_kept: int = 24
    n_draws: int = 5
    hidden: Sequence[int] = (400, 400)
    device: str = "cpu"
    backbone: Literal["mlp", "deepfm", "dcn"] = "mlp"
    masking: Literal["k_shot", "n_fold"] = "k_shot"

    def unit(self, bench: Bench) -> str:
        """Of the times of `bench`."""
        return "ms/mini-batch"

    def tiny(self) -> ClickCase:
        """The same kind of case, which takes no time and no memory."""
        return replace(self, n_rows=8, n_fields=3, n_features=40, n_kept=2, hidden=(4, 4))

    @property
    def is_papers(self) -> bool:
        """Whether model and masks are those of the paper's click experiment."""
        return self.backbone == "mlp" and self.masking == "k_shot"

    @property
    def n_warm(self) -> int:
        """Mini-batches of a run that come before the clock: a GPU's kernels are recorded first."""
        return 1 if self.device == "cpu" else 4

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

    def source(self) -> Iterator[tuple[NDArray[np.int32] | Tensor, NDArray[np.int64] | Tensor]]:
        """The same, or on a GPU a few of the same kind, drawn there, over and over."""
        if self.device == "cpu":
            return self.batches()
        rng = torch.Generator(self.device).manual_seed(0)
        return itertools.cycle([self._draw(rng) for _ in range(3)])

    def _draw(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """A mini-batch on the device of `rng`: numpy would take seconds for a million rows."""
        size = torch.from_numpy(np.bincount(self.field_of())).to(rng.device)
        shape = (self.n_rows, self.n_fields)
        draws = torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)
        value = (size**draws - 1).long().minimum(size - 1)
        y = torch.randint(2, (self.n_rows,), generator=rng, device=rng.device)
        return (value + size.cumsum(0) - size).int(), y.float()

    def model(self, backbone: Backbone | None = None) -> FATE:
        """As the paper's FATE-NN, or with the backbone of the case."""
        network: dict[str, Any] = {"hidden": self.hidden, "batch_norm": True, "dropout": 0.5}
        backbone = backbone or make_backbone(self.backbone, 10, 1, **network)
        return FATE(self.n_features, backbone, GraphSAGE(10), recompose="all").to(self.device)

    def ours(
        self,
        bench: Bench = "train",
        backbone: Backbone | None = None,
        engine: EngineName | None = None,
    ) -> Side:
        """`train` or `predict_batches`; batches are drawn before, graphs made in the time."""
        model, source = self.model(backbone), self.source()
        if engine is None:
            engine = "auto" if self.is_papers or self.device == "cpu" else "fused"
        # WHY: nothing in advance, so that both sides have one thread.
        settings = Settings.clicks(
            n_kept=self.n_kept, n_draws=self.n_draws, n_ahead=0, engine=engine,
            masking=self.masking, n_folds=self.n_draws,
        )  # fmt: skip

        def run(n_batches: int) -> list[float]:
            rows: Any = list(itertools.islice(source, n_batches + self.n_warm))
            ends: list[float] = []

            def note(_: object) -> None:
                ends.append(now(self.device))

            if bench == "train":
                train(model, lambda _: rows, settings=settings, device=self.device, on_step=note)
            else:
                options: dict[str, Any] = {"device": self.device, "n_ahead": 0, "engine": engine}
                for logits in predict_batches(model, rows, **options):
                    note(logits)
            return np.diff(ends[self.n_warm - 1 :]).tolist()

        return run

    def peer(self, bench: Bench = "train") -> Side:
        """The twin of PyTorch Geometric, on the same mini-batches as tensors."""
        from openfate_lab.bench.pyg_twin import CtrTwin

        at = self.device
        field_of = torch.from_numpy(self.field_of()).to(at)
        twin = CtrTwin(field_of, hidden=self.hidden, backbone=self.backbone)
        source, rng = self.source(), torch.Generator().manual_seed(0)
        fields = torch.arange(self.n_fields)

        def mini_batch() -> float:
            ids, y = (torch.as_tensor(part, device=at) for part in next(source))
            rows, labels = ids.long(), y.float()
            if self.masking == "n_fold":  # of all features: it knows no others
                kept = n_fold(self.n_features, self.n_draws, rng).float().to(at)
            else:
                kept = k_shot(fields, self.n_kept, self.n_draws, rng).float().to(at)
            if bench == "train":
                return _seconds(lambda: twin.mini_batch(rows, labels, kept), at)
            return _seconds(lambda: twin.predict(rows), at)

        def run(n_batches: int) -> list[float]:
            return [mini_batch() for _ in range(n_batches)]

        return run

    def sides(self, bench: Bench = "train") -> Sides:
        """Both sides, and ours with the network of the peer, so that the rest is compared."""
        sides = {"ours": (self.ours(bench), 3), "peer": (self.peer(bench), 1)}
        if bench == "train" and self.device == "cpu":
            sides["ours_same_mlp"] = (self.ours(bench, _TorchNetwork(self.hidden)), 2)
        if self.device == "cuda" and not self.is_papers:
            sides["ours_plain"] = (self.ours(bench, engine="plain"), 1)
        return sides

    def parts(self, bench: Bench = "train") -> dict[str, float]:
        """Milliseconds a mini-batch of each part of ours."""
        if self.device == "cuda":
            run, n_batches = self.ours(bench), 6
            run(1)
            return parts.kernel_parts(lambda: run(n_batches - self.n_warm), n_batches)
        rows = list(itertools.islice(self.batches(), 3))
        if bench == "infer":
            return parts.click_prediction_parts(self.model(), rows)
        return parts.click_parts(self.model(), rows, self.n_kept, self.n_draws)

    def floors(self, bench: Bench = "train") -> dict[str, Floor]:
        """The least that each part must do."""
        n_touched = torch.unique(torch.as_tensor(next(self.source())[0])).numel()
        n_steps = self.n_draws if bench == "train" else 0
        return clicks_floor(self.n_rows, self.n_fields, n_touched, self.hidden, n_steps)


Case = UciCase | ClickCase
CASES: dict[str, Case] = {
    "uci-robot": UciCase(n_rows=3273, n_features=118, per_row=12.0, n_classes=4),
    "uci-github": UciCase(n_rows=22620, n_features=2002, per_row=9.2, n_classes=2),
    "ctr-cpu-2k": ClickCase(n_rows=2_000),
    "ctr-cpu-10k": ClickCase(n_rows=10_000),
    "ctr-gpu-100k": ClickCase(n_rows=100_000, device="cuda"),
    "ctr-gpu-1m": ClickCase(n_rows=1_000_000, device="cuda"),
    "ctr-gpu-100k-deepfm": ClickCase(n_rows=100_000, device="cuda", backbone="deepfm"),
    "ctr-gpu-100k-dcn": ClickCase(n_rows=100_000, device="cuda", backbone="dcn"),
    "ctr-gpu-100k-n-fold": ClickCase(n_rows=100_000, device="cuda", masking="n_fold"),
}


def cases_of(device: str) -> tuple[str, ...]:
    """The names of the cases that are for a device.

    Examples
    --------
    >>> cases_of("cuda")[:2]
    ('ctr-gpu-100k', 'ctr-gpu-1m')
    """
    return tuple(name for name, case in CASES.items() if case.device == device)


def milliseconds(sides: Sides, repeats: int) -> dict[str, float]:
    """The median time of each side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side, _ in sides.values():
        side(1)  # warm up
    for _ in range(repeats):  # in turn: a machine that grows busy slows them all down
        for name, (side, n_times) in sides.items():
            times[name] += side(n_times)
    return {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()}


class _TorchNetwork(Backbone):
    """The network of the peer as a backbone of ours."""

    def __init__(self, hidden: Sequence[int]) -> None:
        from openfate_lab.bench.pyg_twin import click_network

        super().__init__(10, 1)
        self.net = click_network(10, hidden, 0.5)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.net(z)
        return out


def _entries(X: MultiHot) -> tuple[Tensor, Tensor]:
    """Row and feature of each entry, int64."""
    return torch.from_numpy(X.row_of), torch.from_numpy(X.ids.astype(np.int64))


def _seconds(run: Callable[[], object], device: str = "cpu") -> float:
    started = now(device)
    run()
    return now(device) - started
