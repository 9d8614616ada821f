"""Expressions over one row at a time are taken, others refused."""

from __future__ import annotations

import re

import polars as pl
import pytest

from openfate.errors import InputError
from openfate.table.expressions import condition

ONE_ROW = ["age + age > 1", "age IN (27, 31)", "age BETWEEN 1 AND 40", "job LIKE 'co%'",
           "CASE WHEN age > 30 THEN TRUE ELSE FALSE END", "GREATEST(age, 2) > 3",
           "COALESCE(age, 0) > 1", "SPLIT_PART(job, 'o', 1) = 'c'", "job::varchar = 'cook'",
           'EXTRACT(year FROM "when") > 1', "age IS NOT NULL", "ROUND(SQRT(age)) = 5"]  # fmt: skip
MANY_ROWS = ["age > QUANTILE_CONT(age, 0.5)", "age > COUNT(*)", "age > (SELECT 1)",
             "SUM(age) OVER (PARTITION BY job) > 1", "age > LAG(age) OVER (ORDER BY age)",
             "DATE(job) > DATE '2020-01-01'"]  # fmt: skip


@pytest.mark.parametrize("where", ONE_ROW)
def test_conditions_on_one_row_are_taken(where):
    types = {"age": pl.Int64(), "job": pl.String(), "when": pl.Datetime("us")}
    assert condition(where, types).dtype == pl.Boolean


@pytest.mark.parametrize("where", MANY_ROWS)
def test_conditions_on_other_rows_are_refused_whatever_the_function(where, monkeypatch):
    """Polars knows them; the list of names in the source is for the message."""
    monkeypatch.setattr("openfate.table.expressions._OF_MANY_ROWS", re.compile("(?!)"))
    with pytest.raises(InputError, match=r"^where "):
        condition(where, {"age": pl.Int64(), "job": pl.String()})
