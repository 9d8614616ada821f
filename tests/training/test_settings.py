"""Settings: bad values are named, and the departures of paper and released code."""

from __future__ import annotations

import math

import pytest

from openfate.errors import InputError
from openfate.training import Settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"masking": "k_shot"},
            "masking='k_shot' needs n_kept, the number of features or fields to keep.",
        ),
        ({"epochs": 0}, "epochs=0: choose an integer from 1 up."),
        ({"batch_size": 0}, "batch_size=0: choose an integer from 1 up."),
        ({"lr": math.nan}, "lr=nan: choose a number from 0 to 1e+12."),
        ({"lr_extrapolator": -1.0}, "lr_extrapolator=-1.0: choose a number from 0 to 1e+12."),
        ({"patience": 0}, "patience=0: choose an integer from 1 up."),
        ({"epochs": None}, "epochs=None: choose an integer from 1 up."),
        ({"n_folds": True}, "n_folds=True: choose an integer from 2 up."),
        ({"lr": "fast"}, "lr='fast': choose a number from 0 to 1e+12."),
        ({"lr": None}, "lr=None: choose a number from 0 to 1e+12."),
        ({"async_updates": "no"}, "async_updates='no': choose True or False."),
        ({"mixed_precision": 1}, "mixed_precision=1: choose True or False."),
        ({"drop_edge": True}, "drop_edge=True: choose a number from 0 to 1."),
        (
            {"loss": "hinge"},
            "loss='hinge' is unknown: choose 'log_loss', 'multilabel', 'squared_error' or "
            "'absolute_error'.",
        ),
        (
            {"reading": "rows"},
            "reading='rows' is unknown: choose 'mask' or 'columns'.",
        ),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(InputError) as error:
        Settings(**values)
    assert str(error.value) == message


def test_compat_switches_on_the_departures():
    assert Settings().compat(None) == Settings()
    assert Settings().compat("paper") == Settings(reading="columns")
    assert Settings().compat("reference").reference_folds
    with pytest.raises(InputError) as error:
        Settings().compat("code")
    assert str(error.value) == "compat='code' is unknown: choose 'paper' or 'reference'."


def test_only_k_shot_takes_columns_out():
    assert not Settings(reading="columns").columns_only
    assert Settings(masking="k_shot", n_kept=2, reading="columns").columns_only
    assert not Settings(masking="k_shot", n_kept=2).columns_only
