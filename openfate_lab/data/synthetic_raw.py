"""The synthetic stream written as a raw Criteo log: what `openfate prepare` is measured on.

A line is the label, 13 integers and 26 hashes of 8 hexadecimal digits, separated by tabs; any of
them but the label may be missing.  Numpy alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openfate.files import writing
from openfate_lab.data.log_shapes import CRITEO
from openfate_lab.data.synthetic import SyntheticStream

_N_INTEGERS = 13
_VARIANTS = 16  # integers that fall into one bucket of the log discretisation
_MISSING_INTEGERS = slice(0, 6)  # the fields in which cells may be empty
_MISSING_HASHES = (15, 16, 24, 28, 31, 32, 33, 34, 37, 38)

Texts = NDArray[np.uint8]  # (..., 8) padded with zeros


def write_raw_criteo(
    path: str | Path, n_rows: int, seed: int = 0, n_features: int = 1_000_000
) -> SyntheticStream:
    r"""Write a raw Criteo text file of the synthetic stream; returns the stream.

    Parameters
    ----------
    path
        The file; it is written whole or not at all.
    n_rows
        Its lines, of about 230 bytes each.
    seed, n_features
        As in `SyntheticStream`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_raw_criteo(f"{folder}/train.txt", n_rows=20, n_features=2000)
    ...     line = Path(folder, "train.txt").read_text().splitlines()[0]
    >>> line.count("\t"), line.split("\t")[0] in ("0", "1")
    (39, True)
    """
    stream = SyntheticStream(n_rows, "criteo", n_features, seed=seed)
    integers, hashes = _integer_texts(), _hash_texts(stream, seed)
    bucket = np.empty(stream.n_features, np.int32)
    for f in range(_N_INTEGERS):  # the commonest value is the first bucket, or missing
        own = np.flatnonzero(stream.field_of == f)
        bucket[own[np.argsort(-stream.base[own], kind="stable")]] = np.arange(len(own))
    with writing(Path(path)) as file:
        for number in range(stream.n_blocks):
            block, rng = stream.block(number), np.random.default_rng([seed, 2, number])
            buckets = bucket[block.ids[:, :_N_INTEGERS]]  # (B, 13)
            numbers = integers[buckets, rng.integers(_VARIANTS, size=buckets.shape)]
            numbers[:, _MISSING_INTEGERS][buckets[:, _MISSING_INTEGERS] == 0] = 0
            cells = np.concatenate([numbers, hashes[block.ids[:, _N_INTEGERS:]]], axis=1)
            file.write(_lines(block.y, cells))
    return stream


def _lines(y: NDArray[np.float32], cells: Texts) -> bytes:
    n, d, width = cells.shape
    text = np.zeros((n, 2 + (width + 1) * d), np.uint8)  # zeros stand for nothing
    text[:, 0] = ord("0") + y.astype(np.uint8)
    inner = text[:, 1:-1].reshape(n, d, width + 1)
    inner[:, :, 0] = ord("\t")
    inner[:, :, 1:] = cells
    text[:, -1] = ord("\n")
    filled: NDArray[np.uint8] = text[text != 0]
    return filled.tobytes()


def _integer_texts() -> Texts:
    """(buckets, variants, 8): -1, 0, 1, 2, then integers v with floor(ln(v)^2) = 1, 2, ..."""
    bucket = np.arange(1, 2 * max(CRITEO[:_N_INTEGERS]))
    low = np.ceil(np.exp(np.sqrt(bucket)))
    high = np.maximum(np.ceil(np.exp(np.sqrt(bucket + 1))) - 1, low)
    table = np.floor(low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _VARIANTS))
    first = np.repeat(np.arange(-1.0, 3)[:, None], _VARIANTS, axis=1)
    numbers = np.minimum(np.concatenate([first, table]), 10**8 - 1).astype(np.int64)
    texts: Texts = numbers.astype("S8").view(np.uint8).reshape(*numbers.shape, 8)
    return texts


def _hash_texts(stream: SyntheticStream, seed: int) -> Texts:
    """(D, 8): the text of each hashed feature, nothing for the missing value."""
    # WHY: an odd factor is a bijection of 32 bits, so no two values share a text.
    mixed = (np.arange(stream.n_features, dtype=np.uint64) * 2654435761 + seed) % 2**32
    digits = (mixed[:, None] >> np.arange(28, -1, -4, dtype=np.uint64)) & 15
    texts = np.frombuffer(b"0123456789abcdef", np.uint8)[digits.astype(np.intp)]
    for f in _MISSING_HASHES:
        own = np.flatnonzero(stream.field_of == f)
        texts[own[np.argmax(stream.base[own])]] = 0
    return texts
