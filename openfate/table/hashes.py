"""Hashes of 64 bits that are the same in every process, on every machine and in every version.

For choosing and for ordering, where nothing may depend on the order in which rows came.  They keep
no secret: the hashes of hashed fields are `fields`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

_TEXTS = 1 << 16  # at a time: what they need besides is some five times their own size
FEW = 16  # keys are hashed one by one: a frame library takes longer to begin
_64_BITS = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15  # of SplitMix64


def mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of the input moves every bit of the output.

    Examples
    --------
    >>> mix_bits(np.array([0, 1], np.uint64))
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """
    x = x + np.uint64(STEP)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def hash_keys(keys: pl.Series) -> NDArray[np.uint64]:
    """(n,) a hash of each key of a vocabulary: texts, or numbers of buckets.

    Examples
    --------
    >>> import polars as pl
    >>> one, other = hash_keys(pl.Series(["Rome", "Oslo"])), hash_keys(pl.Series(["Oslo"]))
    >>> bool(one[1] == other[0]), bool(one[0] == one[1])
    (True, False)
    """
    if keys.dtype.is_integer():
        return mix_bits(keys.to_numpy().astype(np.uint64))
    parts = [_hash_texts(keys[start : start + _TEXTS]) for start in range(0, len(keys), _TEXTS)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def hash_key(key: str | int) -> np.uint64:
    """The hash of one key, by the same arithmetic.

    Examples
    --------
    >>> import polars as pl
    >>> bool(hash_key("Rome") == hash_keys(pl.Series(["Rome"]))[0])
    True
    """
    if isinstance(key, int):
        return np.uint64(_mix(key & _64_BITS))
    content = key.encode()
    total = 0
    for place in range(len(content) // 8 + 1):
        word = int.from_bytes(content[8 * place : 8 * place + 8], "little")
        total += _mix(word ^ _mix(place))
    return np.uint64(_mix((total & _64_BITS) ^ len(content)))


def _mix(x: int) -> int:
    """`mix_bits` of one number."""
    x = (x + STEP) & _64_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return x ^ (x >> 31)


def _hash_texts(texts: pl.Series) -> NDArray[np.uint64]:
    """(n,) of their words of eight bytes, each with its place, and of their lengths."""
    length = texts.str.len_bytes().to_numpy().astype(np.int64)
    n_words = length // 8 + 1
    start = np.cumsum(n_words) - n_words  # in words
    padded = np.zeros(8 * int(n_words.sum()), np.uint8)
    move = 8 * start - (np.cumsum(length) - length)  # from where a text's bytes are to their words
    every = np.frombuffer(texts.str.join("").item().encode(), np.uint8)
    padded[np.arange(len(every)) + np.repeat(move, length)] = every
    place = np.arange(int(n_words.sum())) - np.repeat(start, n_words)
    words = mix_bits(padded.view("<u8") ^ mix_bits(place.astype(np.uint64)))
    total = np.add.reduceat(words, start) if len(texts) else words
    return mix_bits(total ^ length.astype(np.uint64))
