"""What --target gives as classes."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pytest

from openfate.cli.target_flag import as_classes, as_numbers
from openfate.errors import InputError


@pytest.mark.parametrize("numbers", [[-1.0, 0.0, 2.0], [Decimal("-1.00"), Decimal(0), Decimal(2)]])
def test_integers_of_any_sign_are_classes(numbers):
    assert as_classes(pl.DataFrame({"y": numbers})).tolist() == [-1, 0, 2]


@pytest.mark.parametrize("odd", [0.5, -0.5, -1.5, 1e20, -1e20, Decimal("-1.5"), Decimal(10**20)])
def test_numbers_that_are_no_classes_are_refused_whatever_their_sign(odd):
    """A minus exempted a number from the check, and -0.5 and -1.5 became classes 0 and -1."""
    y = pl.Series("y", [type(odd)(-2), odd])
    with pytest.raises(InputError, match="--target y: it holds numbers such as"):
        as_classes(y.to_frame())


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_are_refused(odd):
    with pytest.raises(InputError, match=f"--target y: it holds {odd}; regression needs finite"):
        as_numbers(pl.DataFrame({"y": [1.0, odd]}))
