"""Labels of later rows, as arrays that a model takes; what is none is refused with a remedy."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from openfate.errors import InputError
from openfate.table import class_numbers, label_matrix, read_labels, target_numbers


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, pl.Series])
def test_labels_of_every_kind_are_read_alike(kind):
    assert read_labels(kind(["no", "yes"]), 2).tolist() == ["no", "yes"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y"),
        (pl.Series([1, None]), "row 1 has no target"),
        ([0.5, np.nan], "row 1 has no target"),
        (["a", None], "row 1 has no target"),
        ([0.5, np.inf], "infinity"),
        ([1, 2, 3], "X has 2 rows and y 3"),
        (7, "X has 2 rows and y one value"),
        ([1j, 2], "Complex"),
        (pl.Series([[["a"]], [["b"]]]), "y holds cells of type ndarray"),
        (pl.Series([1, 2], dtype=pl.Int128), "y holds cells of type Int128"),
        ([["a"], ["a", "b"]], r"y holds lists, such as \['a'\]: give a text"),
    ],
)
def test_what_is_no_label_of_each_row_is_refused(y, message):
    with pytest.raises(InputError, match=message):
        read_labels(y, 2)


def test_a_class_is_its_place_among_the_classes_whatever_its_type():
    assert class_numbers(np.array([[True], [False]]), [np.False_, np.True_]).tolist() == [1, 0]
    with pytest.raises(InputError, match=r"'maybe', which is none of the classes .*'no', 'yes'"):
        class_numbers(np.array(["no", "maybe"]), ["no", "yes"])


@pytest.mark.parametrize("y", [[0, 1], [[0, 1, 1]], [[0.5, 1.0]], [["0", "1"]]])
def test_a_label_is_0_or_1_in_as_many_columns_as_the_model_has(y):
    assert label_matrix(np.array([[1.0, 0.0]]), 2).tolist() == [[1, 0]]
    with pytest.raises(InputError, match="2 columns of 0 and 1"):
        label_matrix(np.array(y), 2)


@pytest.mark.parametrize(
    ("y", "message"), [(["a"], "use a classifier"), ([1e101], "below"), ([[1, 2]], "one column")]
)
def test_numbers_are_finite_and_in_one_column(y, message):
    assert target_numbers(np.array([[1], [2]])).tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=message):
        target_numbers(np.array(y))
