"""What training refuses of targets and weights, and what it makes of those that it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openfate.errors import InputError
from openfate.models import FATE, MLP
from openfate.table import MultiHot
from openfate.training.rows import check_rows

X = MultiHot.from_rows([[0], [1], [0, 1], []], n_features=2)
CLASSES, NUMBERS = np.array([0, 1, 2, 1]), np.array([0.5, -3.0, 2.0, 0.0])
LABELS = np.array([[0, 1], [1, 1], [0, 0], [1, 0]])


def check(loss, y, n_outputs=3, weight=None, name="training", dtype=torch.float32):
    return check_rows(FATE(2, MLP(4, n_outputs)).to(dtype), loss, name, X, y, weight)


FINITE = (
    "labels must be finite numbers within torch.float32; leave the row out, or scale the labels."
)
BAD_TARGETS = [
    (
        ("multilabel", CLASSES, 2),
        "training labels have the type int64 and the shape (4,): "
        "give a table (rows, labels) of 0 and 1.",
    ),
    (
        ("multilabel", LABELS, 3),
        "training labels have 2 columns, the model 3 outputs: give it one for each label.",
    ),
    (
        ("multilabel", LABELS * 2, 2),
        "training label 1 of row 0 is 2: every label must be 0 or 1.",
    ),
    (
        ("multilabel", np.where(LABELS, np.nan, 0.0), 2),
        "training label 1 of row 0 is nan: every label must be 0 or 1.",
    ),
    (
        ("squared_error", NUMBERS, 2),
        "loss='squared_error' needs a model of one output, not of 2.",
    ),
    (
        ("absolute_error", NUMBERS[:, None], 1),
        "training labels have the type float64 and the shape (4, 1): give one number for each row.",
    ),
    (
        ("squared_error", np.array(["a", "b", "c", "d"]), 1),
        "training labels have the type <U1 and the shape (4,): give one number for each row.",
    ),
    (("squared_error", [0, np.nan, 1, 2], 1), f"the training label of row 1 is nan: {FINITE}"),
    (("absolute_error", [0, 1, -np.inf, 2], 1), f"the training label of row 2 is -inf: {FINITE}"),
    (("absolute_error", [0, 1, 2, 1e39], 1), f"the training label of row 3 is 1e+39: {FINITE}"),
    (
        ("squared_error", NUMBERS[:3], 1),
        "training: 4 rows but 3 labels; give one label for each row.",
    ),
    (
        ("log_loss", [0, 1, 1, 1], 2, [0, 1, 2, 0.5]),
        "all training labels are 1: a classifier needs two classes or more.",
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD_TARGETS, ids=lambda v: str(v)[:50])
def test_targets_that_a_loss_cannot_use_are_named(given, message):
    with pytest.raises(InputError) as error:
        check(*given)
    assert str(error.value) == message


BAD_WEIGHTS = [
    (
        [1, 2],
        "sample_weight has the type int64 and the shape (2,): "
        "give one number for each of the 4 rows.",
    ),
    (
        [[1, 2, 3, 4]],
        "sample_weight has the type int64 and the shape (1, 4): "
        "give one number for each of the 4 rows.",
    ),
    (
        ["1", "2", "3", "4"],
        "sample_weight has the type <U1 and the shape (4,): "
        "give one number for each of the 4 rows.",
    ),
]
BAD_NUMBERS = [
    ([1, np.nan, 1, 1], "row 1 is nan: weights must be finite and not negative."),
    ([1, 1, np.inf, 1], "row 2 is inf: weights must be finite and not negative."),
    ([1, 1, 1, -0.5], "row 3 is -0.5: weights must be finite and not negative."),
]


@pytest.mark.parametrize("name", ["training", "validation"])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        *((weight, f"{{name}} {message}") for weight, message in BAD_WEIGHTS),
        *((weight, f"the {{name}} sample_weight of {m}") for weight, m in BAD_NUMBERS),
        (
            [0, 0, 0, 0],
            "every {name} sample_weight is zero: nothing is left to learn from; give one above 0.",
        ),
    ],
)
def test_weights_that_are_none_are_named(weight, message, name):
    with pytest.raises(InputError) as error:
        check("log_loss", CLASSES, weight=weight, name=name)
    assert str(error.value) == message.format(name=name)


def test_a_constant_number_is_a_fine_target_and_a_constant_label_too():
    assert check("squared_error", [2, 2, 2, 2], 1).y.tolist() == [2.0] * 4
    assert check("multilabel", np.ones((4, 2), bool), 2).y.tolist() == [[1.0, 1.0]] * 4


def test_validation_labels_may_be_of_one_class():
    assert check("log_loss", [1, 1, 1, 1], name="validation").y.tolist() == [1] * 4


def test_double_precision_takes_numbers_that_single_precision_cannot():
    assert check("squared_error", [0, 1, 2, 1e39], 1, dtype=torch.float64).y[3] == 1e39


@pytest.mark.parametrize("weight", [None, [1, 1, 1, 1], [0.25] * 4, [True] * 4])
def test_equal_weights_are_as_good_as_none(weight):
    assert check("log_loss", CLASSES, weight=weight).weight is None


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_weights_of_any_size_keep_their_ratios(scale):
    weight = check("log_loss", CLASSES, weight=np.array([4.0, 1.0, 2.0, 0.0]) * scale).weight
    assert weight == pytest.approx([1.0, 0.25, 0.5, 0.0])


def test_a_weight_that_single_precision_takes_for_zero_is_zero():
    """A batch of such rows alone would have a sum of zero to divide by."""
    assert check("log_loss", CLASSES, weight=[1, 1, 1, 1e-60]).weight.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("weight", [[1, 2, 3, 4], [1, 0, 1, 1]])
def test_what_is_given_is_not_changed(weight):
    given = np.array(weight, dtype=np.float64)
    rows = check("squared_error", NUMBERS, 1, weight=given)
    assert given.tolist() == weight and rows.y.tolist() == NUMBERS.tolist()
