"""Records of CSV: a line each, but a quoted cell may hold ends of lines and separators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["inside_quotes", "last_end", "record_ends"]


def inside_quotes(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """(n,) whether each byte lies in a quoted cell; a doubled quote leaves and comes back.

    Examples
    --------
    >>> inside_quotes(np.frombuffer(b'a,"b"', np.uint8)).tolist()
    [False, False, True, True, False]
    """
    quotes: NDArray[np.bool_] = codes == ord('"')
    if not quotes.any():
        return quotes
    n_before: NDArray[np.uint8] = np.cumsum(quotes, dtype=np.uint8)  # wraps at 256: even
    return (n_before & 1).astype(np.bool_)


def record_ends(block: bytes) -> NDArray[np.int64]:
    r"""Where each whole record ends, which is where the next one starts.

    Examples
    --------
    >>> record_ends(b'a,b\n"c\n",d\ne').tolist()
    [4, 11]
    """
    codes = np.frombuffer(block, np.uint8)
    return np.flatnonzero((codes == ord("\n")) & ~inside_quotes(codes)) + 1


def last_end(block: bytes) -> int:
    r"""Where the record starts that the block does not hold whole; 0 where it holds none.

    Examples
    --------
    >>> last_end(b"a,b\nc"), last_end(b'"a\nb')
    (4, 0)
    """
    if b'"' not in block:
        return block.rfind(b"\n") + 1
    return int(record_ends(block)[-1:].sum())
