"""Click logs: raw text to shards, FATE-DeepFM trained on the stream, a kill, a resume, T1 to T8.

Run it with `python examples/05_click_logs.py`; it takes some seconds.
"""

import tempfile
from pathlib import Path

import safetensors.torch
import torch

from openfate import FATE
from openfate.files import writing
from openfate.models import DeepFM, GraphSAGE
from openfate.table import prepare
from openfate.training import Settings, StreamingAUC, predict_batches, train
from openfate_lab.data.synthetic_raw import write_raw_criteo

folder = Path(tempfile.mkdtemp())
write_raw_criteo(folder / "train.txt", n_rows=30_000, n_features=3_000)  # Criteo's format
data = prepare(folder / "train.txt", folder / "prepared", "criteo")
print(f"{data.n_rows:,} rows, {data.n_observed:,} observed and "
      f"{data.n_features - data.n_observed:,} new features")  # fmt: skip


def fit(**options):
    """Train on the first tenth; the weights of the best area on the second are kept."""
    torch.manual_seed(0)
    backbone = DeepFM(10, hidden=(32,), dropout=0.2)
    model = FATE(data.n_observed, backbone, GraphSAGE(10), recompose="all")
    train(
        model,
        lambda epoch: data.batches("train", 500, seed=epoch),  # mixed anew in every epoch
        settings=Settings.clicks(
            n_kept=24, n_draws=2, epochs=4, lr=2e-2, lr_extrapolator=2e-3, checkpoint_every=4
        ),
        validation=lambda: data.batches("validation", 3000),
        **options,
    )
    return model


def write(checkpoint):
    """A file that is there whole, or not at all."""
    with writing(folder / "checkpoint.safetensors") as file:
        file.write(safetensors.torch.save(checkpoint))


def power_cut(step):
    """The end of this process, as far as training can tell."""
    if step.number == 15:
        raise KeyboardInterrupt


try:
    fit(on_step=power_cut, on_checkpoint=write)
except KeyboardInterrupt:
    print("killed at mini-batch 15; the last checkpoint is of mini-batch 12")
model = fit(resume=safetensors.torch.load_file(folder / "checkpoint.safetensors"))
pairs = zip(model.parameters(), fit().parameters(), strict=True)
print(f"resumed, the same as without a kill: {all(torch.equal(a, b) for a, b in pairs)}")

# Every later part brings features that training has never seen. What they are worth depends on the
# log, and on how long one trains: see `openfate experiment ctr`.
for part in data.parts[2:]:
    areas = []
    for drop_new in (False, True):
        score = StreamingAUC()
        for logits, y in predict_batches(model, data.batches(part, 3000), drop_new=drop_new):
            score.add(logits, y)
        areas.append(score.value())
    print(f"{part}: AUC {areas[0]:.3f} with new features, {areas[1]:.3f} without them")
