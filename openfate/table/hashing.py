"""Values as keyed hashes, for vocabularies that must not hold names of people and the like.

The key keeps the hashes from being looked up in a table of all emails; it is secret and random.
"""

from __future__ import annotations

import hashlib
import secrets

import polars as pl

from openfate.errors import InputError

__all__ = ["HASH_LENGTH", "checked_key", "hashed", "in_neutral_order", "random_key"]

_BYTES = 16
HASH_LENGTH = 2 * _BYTES  # hexadecimal digits


def random_key() -> bytes:
    """Draw a key that nobody knows."""
    return secrets.token_bytes(32)


def checked_key(key: object) -> bytes:
    """Take a key that BLAKE2 can use.

    Examples
    --------
    >>> checked_key(b"a secret")
    b'a secret'
    """
    if not isinstance(key, bytes) or not 1 <= len(key) <= 64:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InputError(
            f"hash_key must be 1 to 64 bytes, not {what}; e.g. secrets.token_bytes(32)."
        )
    return key


def hashed(texts: pl.Series, key: bytes) -> pl.Series:
    """Hash each text with the key: 32 hexadecimal digits.

    Examples
    --------
    >>> import polars as pl
    >>> hashed(pl.Series(["ann"]), b"key")[0] == hashed(pl.Series(["ann"]), b"other")[0]
    False
    """
    return pl.Series(
        texts.name,
        [hashlib.blake2b(t.encode(), digest_size=_BYTES, key=key).hexdigest() for t in texts],
        dtype=pl.String,
    )


def in_neutral_order(texts: pl.Series) -> pl.Series:
    """Order texts so that their order tells nothing of them, nor depends on any key.

    Examples
    --------
    >>> import polars as pl
    >>> in_neutral_order(pl.Series(["ann", "bob", "cy"])).to_list()
    ['bob', 'cy', 'ann']
    """
    # WHY: ids follow this order.  By the keyed hash, the same seed would give another result.
    return pl.Series(
        texts.name,
        sorted(texts, key=lambda t: hashlib.blake2b(t.encode(), digest_size=_BYTES).digest()),
        dtype=pl.String,
    )
