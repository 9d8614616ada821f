"""Lines: numbers as knots on a line, and the steps between them, in which they are trained.

A field with ``numeric="linear"`` has a feature for each of K knots, and a row the two around its
number.  Trained one by one, the knots of a line would differ by what few rows tell of each, and the
line would be rough.  Adam therefore moves the steps v between knots, w_k = v_1 + ... + v_k: what
many rows tell moves many knots at once.  The weights stay the w; only gradients and moves change:

    gradient of v_k = sum_{i >= k} gradient of w_i,       move of w_k = sum_{i <= k} move of v_i

D features, L knots on all lines, U rows of a table that a mini-batch touches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openfate.table import MultiHot


@dataclass(frozen=True)
class Lines:
    """The knots of all lines, line by line, each in the order of its knots.

    Parameters
    ----------
    ids
        (L,) their features.
    line_of
        (D,) the line of each feature; -1 for none.
    place
        (lines, K) where each line's knots are among `ids`; -1 behind the last knot of one that is
        shorter than K.
    """

    ids: NDArray[np.int64]
    line_of: NDArray[np.int64]
    place: Tensor

    @classmethod
    def of(
        cls,
        X: MultiHot,
        field_of: NDArray[np.integer] | None,
        is_knot: NDArray[np.bool_] | None = None,
    ) -> Lines | None:
        """The lines of a table, one for each field with two knots or more; None for no line.

        Ids grow along a line, as an encoder gives them.  Where nobody tells which features are
        knots (D,), those are that share a cell: neighbours of a row and a field that sum to one.

        Examples
        --------
        >>> row, feature, part = [0, 0, 1, 1, 2], [0, 1, 1, 2, 3], [0.5, 0.5, 0.9, 0.1, 1]
        >>> rows = MultiHot.from_entries(row, feature, 3, 4, part)
        >>> Lines.of(rows, np.zeros(4, int)).ids.tolist()
        [0, 1, 2]
        """
        if field_of is None or (is_knot is None and X.values is None):
            return None
        knots = np.flatnonzero(_share_cells(X, field_of) if is_knot is None else is_knot)
        knots = knots[np.argsort(field_of[knots], kind="stable")]
        fields, start, length = np.unique(field_of[knots], return_index=True, return_counts=True)
        if not np.any(length > 1):
            return None
        line_of = np.full(X.n_features, -1, dtype=np.int64)
        line_of[knots] = np.searchsorted(fields, field_of[knots])
        step = np.arange(length.max())
        place = np.where(step < length[:, None], start[:, None] + step, -1)
        return cls(knots, line_of, torch.from_numpy(place))

    def to(self, device: torch.device) -> Lines:
        """The lines for gradients and moves that are on a device."""
        return replace(self, place=self.place.to(device))

    def within_cells(self, X: MultiHot) -> NDArray[np.bool_]:
        """(E,) whether each entry belongs to the same cell as the one before it."""
        line = self.line_of.take(X.ids)
        same = np.zeros(X.nnz, dtype=bool)
        same[1:] = (line[1:] >= 0) & (line[1:] == line[:-1])
        first = X.row_ptr[:-1]
        same[first[first < X.nnz]] = False
        return same

    def to_steps_(self, grad: Tensor) -> Tensor:
        """Turn gradients (U, C), the knots first, into those of steps; in place."""
        return self._multiply_(grad, "upper")

    def to_knots_(self, moves: Tensor) -> Tensor:
        """Turn moves (U, C) of steps, the knots first, into those of the knots; in place."""
        return self._multiply_(moves, "lower")

    def _multiply_(self, rows: Tensor, triangle: Literal["upper", "lower"]) -> Tensor:
        """Sums along each line, of all that come from a knot on or of all up to it."""
        # WHY: a product with a triangle of ones takes half as long as `cumsum`.
        n_lines, K = self.place.shape
        ones = self._lower.to(rows)
        ones = ones.T if triangle == "upper" else ones
        knots = rows[: len(self.ids)]
        if self._is_even:
            knots.copy_((ones @ knots.view(n_lines, K, -1)).flatten(0, 1))
            return rows
        on_lines = knots.new_zeros(n_lines * K, knots.size(1)).index_copy_(0, self._filled, knots)
        sums = (ones @ on_lines.view(n_lines, K, -1)).flatten(0, 1)
        knots.copy_(sums.index_select(0, self._filled))
        return rows

    @cached_property
    def _lower(self) -> Tensor:
        """(K, K) ones up to the diagonal."""
        return torch.ones(2 * [self.place.size(1)], device=self.place.device).tril_()

    @cached_property
    def _filled(self) -> Tensor:
        """(L,) the place of each knot."""
        return (self.place >= 0).flatten().nonzero()[:, 0]

    @cached_property
    def _is_even(self) -> bool:
        """Whether all lines have the same number of knots."""
        return len(self.ids) == self.place.numel()

    def start(self, W: Tensor) -> None:
        """Turn independent draws, in the rows of W that are knots, into lines that wander.

        The knots of a line then spread as far as the draws did, around zero in the middle.
        """
        knots = torch.from_numpy(self.ids)
        length = (self.place >= 0).sum(1)
        of_line = self.line_of[self.ids]
        steps = W[knots] * (3 / (length - 1).clamp(min=1).to(W.dtype)).sqrt()[of_line, None]
        first = self.place[:, 0]
        steps[first] = torch.where(length[:, None] > 1, 0, steps[first])
        walks = self.to_knots_(steps)
        # From the middle of its way, so that a line lies around zero.
        last = torch.from_numpy(np.cumsum(length.numpy()) - 1)
        middle = torch.where(length[:, None] > 1, walks[last] / 2, 0)
        W[knots] = walks - middle[of_line]


def _share_cells(X: MultiHot, field_of: NDArray[np.integer]) -> NDArray[np.bool_]:
    """(D,) whether a row has each feature as one of the two of a cell."""
    found = np.zeros(X.n_features, dtype=bool)
    if X.values is None or not X.nnz:
        return found
    field, row, values = field_of[X.ids], X.row_of, X.values
    is_pair = (row[1:] == row[:-1]) & (field[1:] == field[:-1]) & (values[1:] > 0)
    is_pair &= np.abs(values[1:] + values[:-1] - 1) < 1e-6
    found[X.ids[1:][is_pair]] = found[X.ids[:-1][is_pair]] = True
    return found
