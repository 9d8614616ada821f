"""When a GPU pays for a table: training from rows on disk, on both devices, with the same call.

    PYTHONPATH=. python benchmarks/gpu_table.py OUT.json [ROWS ...]

What `FATEClassifier(n_members=2, strategy="none")` does once its rows are encoded, with torch and
numpy alone: the same network, settings and `train`, whose `device` the estimator passes on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openfate.models import FATE, MLP, Members
from openfate.table import DiskRows, MultiHot, RowWriter
from openfate.training import Settings, train
from openfate_lab.bench.record import about

FIELDS, VALUES, WIDTH, HIDDEN = 10, 24, 128, (64, 64)
SPARED, EPOCHS, BATCH = 10_000, 2, 1024


def make_rows(n_rows: int, folder: Path) -> tuple[DiskRows, NDArray[np.int64]]:
    """Rows of ten fields on disk, and labels that depend on pairs of them."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, VALUES, (n_rows, FIELDS))
    effects = np.random.default_rng(1).normal(size=(FIELDS, VALUES))
    score = effects[np.arange(FIELDS), values]  # (N, d)
    logit = score.sum(1) + score[:, 0] * score[:, 1] + score[:, 2] * score[:, 3]
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    ids = (values + VALUES * np.arange(FIELDS)).astype(np.int32)
    writer = RowWriter(folder, has_values=False)
    row_ptr = FIELDS * np.arange(n_rows + 1, dtype=np.int64)
    writer.append(MultiHot(row_ptr, ids.reshape(-1), FIELDS * VALUES))
    return DiskRows(folder, FIELDS * VALUES), y


def fit(X: DiskRows, y: NDArray[np.int64], device: str) -> dict[str, float]:
    """Train on all rows but the last; seconds and the loss of those."""
    torch.manual_seed(0)
    nets = [MLP(WIDTH, 1, hidden=HIDDEN, batch_norm=False, dropout=0.0, activate_sum=True)] * 2
    model = FATE(X.n_features, Members(nets))
    with torch.no_grad():
        model.W.normal_(0, 0.5 / FIELDS**0.5)
    cut = X.n_rows - SPARED
    settings = Settings.plain(epochs=EPOCHS, batch_size=BATCH, lr=8e-3, patience=EPOCHS)
    spared = X.select_rows(np.arange(cut, X.n_rows)), y[cut:]
    field_of = np.repeat(np.arange(FIELDS), VALUES)
    started = time.perf_counter()
    history = train(
        *(model, X.select_rows(np.arange(cut)), y[:cut], settings),
        seed=0,
        validation=spared,
        field_of=field_of,
        device=device,
    )
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    losses = [step.validation_loss for step in history.steps if step.validation_loss is not None]
    return {"seconds": round(seconds, 2), "loss": round(float(min(losses)), 5)}


def main(out: str, *sizes: str) -> None:
    """Measure each size on each device; the first call of a device is not counted."""
    rows: list[dict[str, Any]] = []
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for n_rows in [20_000, *map(int, sizes or ("20000", "200000", "2000000"))]:
        with tempfile.TemporaryDirectory() as folder:
            X, y = make_rows(n_rows, Path(folder))
            found = {device: fit(X, y, device) for device in devices}
        rows.append({"rows": n_rows, **found})
        print(rows[-1], flush=True)
        Path(out).write_text(json.dumps({**about(devices[-1]), "rows": rows[1:]}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
