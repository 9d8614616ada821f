"""Cells: the ids of a field's cells; the cells of all fields are the rows of X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openfate.table.multihot import MultiHot

__all__ = ["Cells", "rows_of"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Cells:
    """The ids of a field's cells, or of one part of its cells.

    Parameters
    ----------
    ids
        (cells,) -1 for none.
    row
        (cells,) the row of each, or None where there is one cell for each row, in order.
    values
        (cells,) what the edges carry; None for ones.
    """

    ids: NDArray[np.int32]
    row: NDArray[np.int64] | None = None
    values: Floats | None = None


def rows_of(cells: Sequence[Cells], n_rows: int, n_features: int, has_values: bool) -> MultiHot:
    """Put the cells of all fields together.

    Examples
    --------
    >>> one, other = Cells(np.array([0, 1, 0])), Cells(np.array([2, -1, 2]))
    >>> rows_of([one, other], n_rows=3, n_features=3, has_values=False).to_dense()
    array([[1, 0, 1],
           [0, 1, 0],
           [1, 0, 1]], dtype=int8)
    """
    if all(part.row is None for part in cells):
        return _from_columns(cells, n_rows, n_features, has_values)
    known = [part.ids >= 0 for part in cells]
    in_order = np.arange(n_rows)
    rows = [in_order if part.row is None else part.row for part in cells]
    values = [_values(part) for part in cells] if has_values else None
    return MultiHot.from_entries(
        np.concatenate([row[k] for row, k in zip(rows, known, strict=True)]),
        np.concatenate([part.ids[k] for part, k in zip(cells, known, strict=True)]),
        n_rows,
        n_features,
        None
        if values is None
        else np.concatenate([v[k] for v, k in zip(values, known, strict=True)]),
    )


def _from_columns(
    cells: Sequence[Cells], n_rows: int, n_features: int, has_values: bool
) -> MultiHot:
    """One id or none in each column: no entry has to be sorted."""
    table = np.empty((n_rows, len(cells)), dtype=np.int32)  # (N, d)
    for at, part in enumerate(cells):
        table[:, at] = part.ids
    present = table >= 0
    row_ptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    if not has_values:
        return MultiHot(row_ptr, table[present], n_features)
    values = np.empty(table.shape, dtype=np.float32)
    for at, part in enumerate(cells):
        values[:, at] = _values(part)
    return MultiHot(row_ptr, table[present], n_features, values[present])


def _values(part: Cells) -> Floats:
    return np.ones(len(part.ids), dtype=np.float32) if part.values is None else part.values
