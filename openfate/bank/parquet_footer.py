"""What a Parquet file would become, told by its footer and the headers of its pages.

A page that says nothing but "300 million times the same" takes a few bytes.  polars makes room for
what a file says, so what it says is looked at here first.  Footer and headers are structs of
Thrift's compact protocol, of which a dozen numbers are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MARK = b"PAR1"
# Encodings that a vocabulary is written in: PLAIN, dictionaries, RLE.  In others a page of a few
# bytes may hold texts that take gigabytes.
_PLAIN = {0, 2, 3, 8}
_TRUE, _FALSE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 7, 8, 9, 10, 11, 12
_DEEPEST = 20


@dataclass(frozen=True)
class Footer:
    """The number of rows, and the bytes of all pages unpacked."""

    n_rows: int
    n_bytes: int


def read_footer(content: bytes) -> Footer:
    """Read what a file says of itself.

    Raises
    ------
    ValueError
        Where it is no Parquet, or one with encodings that a vocabulary is not written in.

    Examples
    --------
    >>> import io, polars as pl
    >>> file = io.BytesIO()
    >>> pl.DataFrame({"job": ["cook", "nurse"]}).write_parquet(file)
    >>> read_footer(file.getvalue()).n_rows
    2
    """
    if len(content) < 12 or content[:4] != _MARK or content[-4:] != _MARK:
        raise ValueError("it is no Parquet")
    size = int.from_bytes(content[-8:-4], "little")
    if size > len(content) - 12:
        raise ValueError("its footer is longer than the file")
    try:
        told = _Thrift(content, len(content) - 8 - size).read_struct()
        groups = told[4]
        n_rows = sum(_count(group[3]) for group in groups)
        n_bytes = sum(_unpacked(content, c[3]) for group in groups for c in group[1])
    except (KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"its footer is damaged ({error!r})") from None
    if n_rows != _count(told[3]):
        raise ValueError("its parts have other rows than the whole")
    return Footer(n_rows, n_bytes)


def _unpacked(content: bytes, column: dict[int, Any]) -> int:
    """The bytes of a column's pages, unpacked."""
    at = min(_count(column[9]), _count(column.get(11, column[9])))
    stop, total = at + _count(column[7]), 0
    if stop > len(content):
        raise ValueError("a column is longer than the file")
    while at < stop:
        header = _Thrift(content, at)
        page = header.read_struct()
        for part, place in ((5, 2), (7, 2), (8, 4)):  # of data, of a dictionary, of data again
            if part in page and page[part][place] not in _PLAIN:
                raise ValueError(f"a page has the encoding {page[part][place]}")
        total += _count(page[2])
        at = header.at + _count(page[3])
    return total


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} stands for a size")
    return number


class _Thrift:
    """A reader of the compact protocol: structs are dicts by the numbers of their fields."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct that begins here."""
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._signed()
            found[field] = self._value(head & 15, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._skip(self._varint())
        if kind in (_LIST, _SET):
            return list(self._items(depth))
        if kind == _STRUCT:
            return self.read_struct(depth)
        raise ValueError(f"its footer holds a value of the type {kind}")

    def _items(self, depth: int) -> Iterator[Any]:
        head = self._byte()
        n, kind = head >> 4, head & 15
        n = self._varint() if n == 15 else n
        if n > len(self.content):  # each takes a byte
            raise ValueError("its footer holds too many values")
        for _ in range(n):
            yield self._byte() == 1 if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _skip(self, n: int) -> None:
        if n > len(self.content) - self.at:
            raise ValueError("its footer ends early")
        self.at += n

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError("its footer holds a number without an end")

    def _signed(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
