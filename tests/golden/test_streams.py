"""What is drawn for a given seed: `python tests/golden/test_streams.py` writes streams.json.

Moved code must draw the same numbers from the same generators in the same order.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from frozen import differences

from openfate.estimators.networks import make_model
from openfate.estimators.target import join_classes
from openfate.estimators.target import split_rows as spare_rows
from openfate.graph import Bipartite
from openfate.models import DCN, FATE, GCN, MLP, DeepFM, GraphSAGE, WideDeep
from openfate.openworld.probe import _hide
from openfate.table import MultiHot
from openfate.table.pieces import batches_of
from openfate.training import Settings, array_batches, drop_edges, k_shot, n_fold
from openfate.training.engine import Seeds
from openfate.training.masking import leave_out
from openfate.training.sources import TableSource
from openfate_lab.data import SyntheticStream, load, split_features, split_fields, split_rows
from openfate_lab.experiments.uci_methods import make_split

FILE = Path(__file__).with_name("streams.json")
FIELDS = torch.arange(30) // 3


def rng(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n_rows: int = 50, n_features: int = 20) -> MultiHot:
    draw = random.Random(0)
    return MultiHot.from_rows(
        [sorted(draw.sample(range(n_features), 4)) for _ in range(n_rows)], n_features=n_features
    )


def whole(*arrays: Any) -> dict[str, Any]:
    """Whole numbers: their hash and the first of each array."""
    flat = [np.asarray(array).astype("<i8").ravel() for array in arrays]
    digest = hashlib.sha256(b"|".join(array.tobytes() for array in flat)).hexdigest()
    return {"sha256": digest[:24], "first": [array[:4].tolist() for array in flat[:4]]}


def real(*arrays: Any) -> dict[str, Any]:
    """Real numbers: a mixed sum of each array, and its first."""
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    sums = [float(array @ np.cos(np.arange(len(array)))) for array in flat]
    return {"sums": sums, "first": [array[:2].tolist() for array in flat]}


# ---- masks, edges, splits -----------------------------------------------------------------------


def dropped(directed: bool) -> Any:
    edges = drop_edges(Bipartite.from_multihot(rows()), 0.4, rng(), directed)
    return whole(*_parts(edges.to_rows), *_parts(edges.to_features))


def _parts(graph: Bipartite) -> list[Any]:
    return [graph.feature, graph.row, graph.row_degree]


def parts_of_rows() -> Any:
    return whole(*spare_rows(join_classes([np.arange(80) % 3]), 0.2, 5))


def hidden(novelty: str) -> Any:
    numbers = np.random.default_rng([5, 3])
    return whole(*(_hide(FIELDS.numpy(), 0.3, novelty, numbers) for _ in range(3)))


def split_of_digits(novelty: str) -> Any:
    found = make_split(load("digits"), 0.5, 5, novelty)
    return whole(found.train, found.validation, found.test, found.observed, found.new)


# ---- clicks -------------------------------------------------------------------------------------


def clicks(shape: str) -> Any:
    stream = SyntheticStream(2000, shape, n_features=1500, seed=5)
    block = stream.block(0)
    return {**whole(block.ids, block.y, block.day), "logit": real(block.logit)}


def clicks_in_batches() -> Any:
    stream = SyntheticStream(2000, "avazu", n_features=1500, seed=5)
    return whole(*(array for batch in stream.batches("train", 64, seed=3) for array in batch))


def pieces() -> Any:
    ids = np.arange(50, dtype=np.int32)[:, None]
    cut = [(ids[:30], ids[:30, 0]), (ids[30:], ids[30:, 0])]
    return whole(*(y for _, y in batches_of([30, 20], cut.__getitem__, 8, seed=5)))


# ---- training -----------------------------------------------------------------------------------


def weights(make: Callable[[], FATE]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = make()
    return {name: real(array) for name, array in model.state_dict().items()}


def source_of(**settings: Any) -> TableSource:
    """A table whose targets are the rows' numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = FATE(20, MLP(4, 1), GraphSAGE(4))
    return make_source(model, Settings(loss="squared_error", **settings), np.arange(20) // 2)


def make_source(model: FATE, settings: Settings, field_of: Any = None) -> TableSource:
    table = rows(), np.arange(50.0), None, field_of, None
    return TableSource(model, settings, 5, torch.device("cpu"), *table)


def order_of_batches() -> Any:
    source = source_of(batch_size=16, epochs=2)
    return whole(*(b.y for _, batches in source.steps(1, 0) for b in batches))


def masks_of_run(**settings: Any) -> Any:
    source = source_of(**settings)
    engine, batch = source.engine, source.whole
    masks = [engine._masks(batch) for _ in range(2)]
    edges = [engine.draw_edges(batch.X, 0.5) for _ in range(2)]
    degrees = [part for each in edges for part in _parts(each.to_rows)]
    return whole(*masks, *degrees)


def member() -> Any:
    """The order of a plain network's rows, the cells that it drops, and its start."""
    options = {"backbone": "mlp", "pool": "sum", "width": 4, "hidden": (8, 8)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = make_model(SimpleNamespace(strategy="auto", **options), 20, 1, np.arange(20))
    source = make_source(model, Settings.plain(loss="squared_error"))
    order = [source.order_rng.permutation(50) for _ in range(2)]
    drawn = torch.randint(1000, (8,), generator=source.engine.mask_rng)
    return {**whole(*order, drawn), "W": real(model.W.detach())}


STREAMS: dict[str, Callable[[], Any]] = {
    "n_fold": lambda: whole(n_fold(30, 4, rng()), n_fold(30, 4, rng(6))),
    "n_fold reference": lambda: whole(n_fold(30, 5, rng(), reference=True)),
    "k_shot fields": lambda: whole(k_shot(FIELDS, 4, 3, rng())),
    "k_shot features": lambda: whole(k_shot(torch.arange(30), 11, 3, rng())),
    "leave_out": lambda: whole(leave_out(30, 0.3, rng())),
    "drop_edges": lambda: dropped(False),
    "drop_edges directed": lambda: dropped(True),
    "split_rows": lambda: whole(*split_rows(100, seed=5)),
    "split_features": lambda: whole(*split_features(60, 0.3, seed=5)),
    "split_features reference": lambda: whole(
        *split_features(237, 0.3, seed=5, rounding="reference")
    ),
    "split_fields": lambda: whole(*split_fields(FIELDS.numpy(), 0.5, seed=5)),
    "split of digits, values": lambda: split_of_digits("values"),
    "split of digits, columns": lambda: split_of_digits("columns"),
    "validation rows": parts_of_rows,
    "probe hides values": lambda: hidden("values"),
    "probe hides columns": lambda: hidden("columns"),
    "probe hides both": lambda: hidden("both"),
    "clicks avazu": lambda: clicks("avazu"),
    "clicks criteo": lambda: clicks("criteo"),
    "clicks in batches": clicks_in_batches,
    "batches of pieces": pieces,
    "batches of arrays": lambda: whole(
        *(y for n in (1, 2) for _, y in array_batches(np.zeros((40, 2)), np.arange(40), 16, 5)(n))
    ),
    "seeds of a mini-batch": lambda: whole(Seeds.of(5, 0), Seeds.of(5, 1), Seeds.of(6, 0)),
    "weights sage": lambda: weights(lambda: FATE(30, MLP(4, 3), GraphSAGE(4, 2))),
    "weights gcn": lambda: weights(lambda: FATE(30, MLP(4, 3), GCN(4))),
    "weights deepfm": lambda: weights(lambda: FATE(30, DeepFM(4, 1), GraphSAGE(4))),
    "weights widedeep": lambda: weights(lambda: FATE(30, WideDeep(4, 1), GraphSAGE(4))),
    "weights dcn": lambda: weights(lambda: FATE(30, DCN(4, 1), GraphSAGE(4))),
    "order of mini-batches": order_of_batches,
    "a run, n_fold": lambda: masks_of_run(),
    "a run, k_shot": lambda: masks_of_run(masking="k_shot", n_kept=5, unit="field"),
    "a run, leave_out": lambda: masks_of_run(masking="leave_out"),
    "a member": member,
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_seed_draws_what_it_drew(name):
    was, now = json.loads(FILE.read_text())[name], STREAMS[name]()
    assert list(differences(was, now)) == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    content = {name: draw() for name, draw in STREAMS.items()}
    FILE.write_text(json.dumps(content, indent=1) + "\n")
