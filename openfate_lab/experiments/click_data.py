"""Click logs in the paper's parts: train, validation, T1 .. T8, as rows of one feature id a field.

    criteo, avazu       prepared folders of the full logs (`openfate prepare`), read as they stream
    criteo-sample, avazu-sample, flights      small real logs, in memory
    synthetic           drawn, with a known answer

PAPER: Avazu goes by calendar day, Criteo (and flights) in ten equal parts in order; values seen one
to three times in training share their field's rare id; a value that no training row has is new.
Ids are: observed features, the rare ids of the fields, then new features.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from openfate.errors import DataFileError
from openfate.table import PreparedData
from openfate.training import Batches, array_batches
from openfate_lab.data import DAY, SyntheticStream, load

Ids = NDArray[np.int32]
Rows = tuple[Ids, NDArray[np.float32]]  # (N, d) and (N,)

NAMES = ("criteo", "avazu", "criteo-sample", "avazu-sample", "flights", "synthetic")
THRESHOLD = 4  # PAPER: values of fewer training rows are rare


@dataclass(frozen=True)
class Synthetic:
    """The drawn log, as `SyntheticStream` takes it; u . v has a variance of one."""

    n_rows: int = 4_000_000
    shape: Literal["criteo", "avazu"] = "avazu"
    n_features: int = 1_000_000
    affinity: float = 1.0
    seed: int = 1  # settings were found on the stream of seed 0

    def stream(self) -> SyntheticStream:
        """The generator."""
        return SyntheticStream(**asdict(self))


@dataclass(frozen=True)
class ClicksInMemory:
    """A log that fits in memory."""

    name: str
    rows: Mapping[str, Rows]  # by part
    field_of: NDArray[np.int32]
    n_observed: int
    sha256: str

    @property
    def n_fields(self) -> int:
        """d, how many fields a row has."""
        return int(self.rows["train"][0].shape[1])

    @property
    def n_features(self) -> int:
        """D'."""
        return len(self.field_of)

    @property
    def parts(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.rows)

    def epochs(self, batch_rows: int, seed: int) -> Callable[[int], Batches]:
        """The mini-batches of training, shuffled, as a function of the epoch."""
        return array_batches(*self.rows["train"], batch_rows, seed=seed)

    def batches(self, part: str, batch_rows: int) -> Batches:
        """The rows of a part in order."""
        return array_batches(*self.rows[part], batch_rows)(1)


class PreparedClicks:
    """A folder that `openfate prepare` wrote, read as it streams."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.data = name, PreparedData(folder)
        self.n_fields, self.parts = len(self.data.fields), self.data.parts
        self.n_observed, self.n_features = self.data.n_observed, self.data.n_features
        self.field_of = self.data.field_of
        self.sha256 = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()

    def epochs(self, batch_rows: int, seed: int) -> Callable[[int], Batches]:
        """The mini-batches of training, shuffled, as a function of the epoch."""
        return lambda epoch: self.data.batches("train", batch_rows, seed=seed * 100_003 + epoch)

    def batches(self, part: str, batch_rows: int) -> Batches:
        """The rows of a part in order."""
        return self.data.batches(part, batch_rows)


Clicks = ClicksInMemory | PreparedClicks


def load_clicks(name: str, data: str | None = None, synthetic: Synthetic | None = None) -> Clicks:
    """A log by its name.

    Parameters
    ----------
    name
        One of `NAMES`.
    data
        The folder of the data; for `criteo` and `avazu` their prepared folder lies in it, under
        that name.
    synthetic
        What is drawn for `synthetic`.
    """
    if name == "synthetic":
        return _draw(synthetic or Synthetic())
    if name in ("criteo", "avazu"):
        folder = Path(data or os.environ.get("OPENFATE_DATA", ".")) / name
        if not (folder / "manifest.json").is_file():
            raise DataFileError(
                f"{folder} holds no prepared data: run `openfate prepare RAW --format {name} "
                f"--out {folder}` on the raw log, which is yours to download."
            )
        return PreparedClicks(name, folder)
    return _read(name, data)


def _read(name: str, data: str | None) -> ClicksInMemory:
    log = load(name, data)
    assert log.time is not None
    n, d = log.X.n_rows, len(log.fields)
    # A field without a value has one more feature, of missing cells.
    ids = np.tile(log.X.n_features + np.arange(d, dtype=np.int32), (n, 1))
    ids[log.X.row_of, log.field_of[log.X.ids]] = log.X.ids
    field_of = np.concatenate([log.field_of, np.arange(d)]).astype(np.int32)
    if name == "avazu-sample":
        day = (log.time // DAY).astype(np.int64)
        part = day - day[0]
    else:
        part = np.arange(n) * 10 // n
    return in_parts(name, ids, log.y.astype(np.float32), part, field_of, log.sha256)


def _draw(synthetic: Synthetic) -> ClicksInMemory:
    stream = synthetic.stream()
    blocks = [stream.block(number) for number in range(stream.n_blocks)]
    ids, y, day = (
        np.concatenate([getattr(block, name) for block in blocks]) for name in ("ids", "y", "day")
    )
    sha256 = hashlib.sha256(json.dumps(asdict(synthetic)).encode()).hexdigest()
    return in_parts("synthetic", ids, y, day, stream.field_of, sha256)


def in_parts(
    name: str,
    ids: Ids,
    y: NDArray[np.float32],
    part: NDArray[np.int64],
    field_of: NDArray[np.int32],
    sha256: str = "",
    threshold: int = THRESHOLD,
) -> ClicksInMemory:
    """Rows in time order to parts, features renumbered by what training rows show of them.

    Parameters
    ----------
    ids, y
        (N, d) features, column f being field f's, and (N,) labels.
    part
        (N,) 0 for training, 1 for validation, 2 for T1 and so on, increasing.
    field_of
        (D,) the field of each feature.

    Examples
    --------
    >>> ids, field_of = np.array([[0], [0], [1], [2], [0]], np.int32), np.zeros(3, np.int32)
    >>> clicks = in_parts(
    ...     "small", ids, np.zeros(5, np.float32), np.array([0, 0, 0, 1, 1]), field_of, threshold=2
    ... )
    >>> clicks.rows["train"][0].ravel(), clicks.rows["validation"][0].ravel(), clicks.n_observed
    (array([0, 0, 1], dtype=int32), array([2, 0], dtype=int32), 2)
    """
    d, D = ids.shape[1], len(field_of)
    count = np.bincount(ids[part == 0].ravel(), minlength=D)
    frequent, new = np.flatnonzero(count >= threshold), np.flatnonzero(count == 0)
    rare = len(frequent) + np.arange(d)
    number = rare[field_of]  # (D,)
    number[frequent] = np.arange(len(frequent))
    number[new] = len(frequent) + d + np.arange(len(new))
    fields = np.concatenate([field_of[frequent], np.arange(d), field_of[new]]).astype(np.int32)
    names = ["train", "validation", *(f"T{t}" for t in range(1, int(part.max())))]
    ends = np.searchsorted(part, np.arange(len(names) + 1))
    rows = {
        name: (number[ids[a:b]].astype(np.int32), y[a:b])
        for name, a, b in zip(names, ends[:-1], ends[1:], strict=True)
    }
    return ClicksInMemory(name, rows, fields, len(frequent) + d, sha256)
