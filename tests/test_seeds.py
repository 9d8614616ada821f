"""Seeds: what is taken, and that every stream of rows takes no other."""

import math

import numpy as np
import pytest

from openfate.errors import InputError
from openfate.seeds import checked_seed
from openfate_lab.data import SyntheticStream

BAD = [-1, 1.5, True, 2**63, "a", math.nan, np.float64(1)]


@pytest.mark.parametrize("seed", [0, 2**63 - 1, np.int64(3), np.uint8(3)])
def test_integers_are_taken_as_they_are(seed):
    assert checked_seed(seed) == int(seed) and type(checked_seed(seed)) is int


@pytest.mark.parametrize("seed", [*BAD, None])
def test_anything_else_is_refused(seed):
    with pytest.raises(InputError, match="seed must be an integer"):
        checked_seed(seed)


@pytest.mark.parametrize("seed", BAD)
def test_synthetic_streams_refuse_them_at_the_call(seed):
    stream = SyntheticStream(1000, [5, 300], n_features=900)
    for call in (
        lambda: stream.batches("train", 60, seed=seed),
        lambda: SyntheticStream(1000, [5, 300], n_features=900, seed=seed),
    ):
        with pytest.raises(InputError, match="seed must be an integer"):
            call()
